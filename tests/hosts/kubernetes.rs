//! The manifests of `containers/kubernetes`: against the schemas of Kubernetes, and as pods of `podman kube play`, with
//! dnsmasq in place of the cluster's DNS.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use wireup_test_support::podman::Podman;

use crate::common::{eventually, program, repository, skip};

/// An interpreter with the schemas; `None`, and the test is ignored, where it is not installed.
#[track_caller]
fn python() -> Option<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let default = || format!("/var/tmp/wireup-mpi-{user}").into();
    let dir: PathBuf = std::env::var_os("WIREUP_MPI_DIR").map_or_else(default, PathBuf::from);
    let python = dir.join("kubernetes/bin/python");
    if !python.is_file() {
        skip("no schemas of Kubernetes: run scripts/setup");
        return None;
    }
    Some(python)
}

fn manifest(path: &str) -> PathBuf {
    repository().join("containers/kubernetes").join(path)
}

fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{out}{err}")
}

/// Returns the output of a command, which must succeed.
#[track_caller]
fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    text(&output)
}

#[test]
fn manifests_match_published_schemas() {
    let Some(python) = python() else { return };
    let check = |paths: &[PathBuf]| {
        let script = repository().join("tests/kubernetes/validate.py");
        let mut command = Command::new(&python);
        command.arg(script).arg("1.37").args(paths);
        command.output().unwrap()
    };
    let names = [
        "indexed-job/indexed-job.yaml",
        "jobset/jobset.yaml",
        "daemonset/daemonset.yaml",
    ];
    let output = check(&names.map(manifest));
    assert!(output.status.success(), "{}", text(&output));
    for name in names {
        let (dir, file) = name.split_once('/').unwrap();
        let list = fs::read_to_string(manifest(dir).join("kustomization.yaml")).unwrap();
        for file in [file, "names.yaml"] {
            assert!(list.contains(&format!("  - {file}\n")), "{list}");
        }
    }
    // What is wrong is seen.
    let dir = tempfile::tempdir().unwrap();
    for (name, right, wrong) in [
        (names[0], "completions: 3", "completion: 3"),
        (names[0], "drop: [ALL]", "drop: []"),
        (names[0], "resources:", "resource:"),
        (names[2], "limits:", "requests:"),
        (names[2], "failureThreshold: 10", "failureThreshold: 9"),
        (names[1], "maxRestarts: 0", "maxRestarts: none"),
        (names[1], "operator: All", "operator: Some"),
        (names[1], "replicas: 1", "replica: 1"),
        (names[1], "enableDNSHostnames", "enableDnsHostnames"),
        (names[1], "completions: 3", "completion: 3"),
        (names[1], "drop: [ALL]", "drop: []"),
    ] {
        let text = fs::read_to_string(manifest(name)).unwrap();
        assert!(text.contains(right), "{name}: {right}");
        let file = dir.path().join("wrong.yaml");
        fs::write(&file, text.replace(right, wrong)).unwrap();
        assert!(!check(&[file]).status.success(), "{name}: {wrong}");
    }
}

/// Pods of a job, and what they need. Everything is removed when this is dropped.
struct Pods {
    dir: tempfile::TempDir,
    podman: Podman,
    python: PathBuf,
    /// The first three bytes of all addresses.
    net: String,
    /// The names of the pods that are played.
    names: Vec<String>,
    /// The controllers of the pods: their pods and their service, as `tests/kubernetes/pods.py` shows them.
    controllers: Vec<serde_json::Value>,
    server: Option<Child>,
    /// One network of containers at a time: they share the names of bridges.
    _one: MutexGuard<'static, ()>,
}

static ONE: Mutex<()> = Mutex::new(());

const INDEXED_JOB: &str = "indexed-job/indexed-job.yaml";

/// Image that `containers/Containerfile` makes of [`BASE`].
const IMAGE: &str = "localhost/wireup-test:1";

/// An image with an MPI program.
const BASE: &str = "localhost/program-test:1";

/// Programs of the image that busybox is.
const APPLETS: [&str; 13] = [
    "cat", "chmod", "cp", "grep", "hostname", "id", "mkdir", "mv", "ps", "rm", "sh", "sleep", "tr",
];

impl Pods {
    /// None yet; `None`, and the test is ignored, where there can be none.
    #[track_caller]
    fn new() -> Option<Self> {
        let python = python()?;
        let needed = [
            "/usr/bin/podman",
            "/usr/sbin/runc",
            "/usr/bin/catatonit",
            "/usr/sbin/dnsmasq",
            "/bin/busybox",
        ];
        if let Some(missing) = needed.iter().find(|path| !Path::new(path).exists()) {
            skip(&format!("no {missing}: run scripts/setup"));
            return None;
        }
        if let Err(why) = wireup_lab::available() {
            skip(&format!("runs containers: {why}"));
            return None;
        }
        let mut dir = tempfile::Builder::new();
        let dir = dir.prefix("wireup-pods-").tempdir().unwrap();
        let pods = Self {
            podman: Podman::new(dir.path()),
            dir,
            python,
            net: format!("10.98.{}", std::process::id() % 250),
            names: Vec::new(),
            controllers: Vec::new(),
            server: None,
            _one: ONE.lock().unwrap_or_else(PoisonError::into_inner),
        };
        pods.make_image(&program("pmi_wireup")?);
        pods.make_authority();
        let subnet = format!("{}.0/24", pods.net);
        let words = [
            "network",
            "create",
            "--disable-dns",
            "--subnet",
            &subnet,
            "pods",
        ];
        output_of(&mut pods.podman(&words));
        Some(pods)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn podman(&self, words: &[&str]) -> Command {
        self.podman.command(true, words)
    }

    /// An image with a program, a shell, and the libraries that this machine has of them; then the image that
    /// `containers/Containerfile` makes of that one.
    fn make_image(&self, app: &Path) {
        let root = self.path("image");
        for dir in [
            "bin", "usr/bin", "usr/lib", "etc", "tmp", "dev", "proc", "sys",
        ] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
        fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
        for name in APPLETS {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
        }
        let name = app.file_name().unwrap();
        fs::copy(app, root.join("usr/bin").join(name)).unwrap();
        let context = self.path("context");
        fs::create_dir(&context).unwrap();
        let wireup = Path::new(env!("CARGO_BIN_EXE_wireup"));
        let mut programs = vec![app.to_owned()];
        for name in [
            "wireup",
            "wireup-agent",
            "wireup-impi",
            "wireup-pmix-host",
            "libwireup-pmix-host.so",
        ] {
            let from = wireup.with_file_name(name);
            // Debugging information would be copied with each layer.
            let to = context.join(name);
            output_of(Command::new("strip").arg("-o").args([&to, &from]));
            programs.push(from);
        }
        let listed = output_of(Command::new("ldd").args(&programs));
        let words = listed
            .split_whitespace()
            .filter(|word| word.starts_with('/'));
        for library in words.filter(|word| !word.ends_with(':')) {
            let to = root.join(&library[1..]);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(library, to).unwrap();
        }
        fs::write(root.join("etc/passwd"), "root:x:0:0::/:/bin/sh\n").unwrap();
        fs::write(root.join("etc/group"), "root:x:0:\n").unwrap();
        let archive = self.path("image.tar");
        let tar = ["--create", "--file"];
        output_of(
            Command::new("tar")
                .args(tar)
                .arg(&archive)
                .arg("-C")
                .arg(&root)
                .arg("."),
        );
        let words = ["import", "--quiet", "--change", "ENV PATH=/usr/bin:/bin"];
        let words = [&words[..], &[archive.to_str().unwrap(), BASE]].concat();
        output_of(&mut self.podman(&words));
        let file = repository().join("containers/Containerfile");
        let base = format!("BASE={BASE}");
        let words = [
            "build",
            "--quiet",
            "--pull=never",
            "--network=none",
            "--build-arg",
            &base,
            "--tag",
            IMAGE,
            "--file",
            file.to_str().unwrap(),
            context.to_str().unwrap(),
        ];
        output_of(&mut self.podman(&words));
        fs::remove_dir_all(context).unwrap();
        fs::remove_dir_all(root).unwrap();
    }

    /// Creates the contents of the secret, readable as they are with `fsGroup`.
    fn make_authority(&self) {
        let dir = self.path("authority");
        let wireup = env!("CARGO_BIN_EXE_wireup");
        output_of(
            Command::new(wireup)
                .args(["pki", "init", "--dir"])
                .arg(&dir),
        );
        for (path, mode) in [(dir.clone(), 0o750), (dir.join("ca.key"), 0o440)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            std::os::unix::fs::chown(&path, None, Some(1000)).unwrap();
        }
    }

    /// The pods of a manifest with these variables, with the addresses 10, 11 and so on of the network.
    #[track_caller]
    fn play(&mut self, name: &str, variables: &[&str]) {
        self.play_as("", name, variables);
    }

    /// Starts the pods of the same manifest with a prefix before its names, in addition to the
    /// present ones.
    #[track_caller]
    fn play_as(&mut self, prefix: &str, name: &str, variables: &[&str]) {
        let gateway = format!("{}.1", self.net);
        // A launcher and three workers, or three pods.
        let count = if name.starts_with("jobset") { 4 } else { 3 };
        let first = self.names.len();
        let addresses: Vec<String> = (first..first + count)
            .map(|pod| self.address(pod))
            .collect();
        let mut command = Command::new(&self.python);
        command.arg(repository().join("tests/kubernetes/pods.py"));
        command.arg(manifest(name)).args([prefix, IMAGE]);
        command
            .arg(self.path("authority"))
            .args([&gateway, "pods.test", &addresses.join(",")]);
        let output = command.args(variables).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let controller: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
        let names = controller["pods"].as_array().unwrap().iter();
        self.names
            .extend(names.map(|pod| pod["name"].as_str().unwrap().to_owned()));
        self.controllers.push(controller);
        let file = self.path("pods.yaml");
        fs::write(&file, output.stdout).unwrap();
        let mut words = vec!["kube", "play", "--network", "pods"];
        words.extend(addresses.iter().flat_map(|address| ["--ip", address]));
        words.push(file.to_str().unwrap());
        output_of(&mut self.podman(&words));
    }

    fn address(&self, pod: usize) -> String {
        format!("{}.{}", self.net, 10 + pod)
    }

    /// Has DNS know the pods that each service selects, by the names that it gives them: a pod of this subdomain has its host
    /// name there.
    fn publish(&mut self, name_of: impl Fn(&Self, usize) -> String) {
        let mut command = Command::new("/usr/sbin/dnsmasq");
        command.args([
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--user=root",
        ]);
        command.args([
            "--no-resolv",
            "--no-hosts",
            "--local=/test/",
            "--bind-dynamic",
        ]);
        command.args(["--pid-file=", "--log-facility=-"]);
        command.arg(format!("--listen-address={}.1", self.net));
        let pods = self
            .controllers
            .iter()
            .flat_map(|controller| controller["pods"].as_array().unwrap());
        for (index, pod) in pods.enumerate() {
            for controller in &self.controllers {
                let mut selector = controller["selector"].as_object().unwrap().iter();
                if !selector.all(|(name, value)| pod["labels"][name] == *value) {
                    continue;
                }
                let service = controller["service"].as_str().unwrap();
                let host = match pod["subdomain"] == service {
                    true => name_of(self, index),
                    false => self.dashed(index),
                };
                let name = format!("{host}.{service}.pods.test");
                command.arg(format!("--host-record={name},{}", self.address(index)));
                let service = format!("_wireup._tcp.{service}.pods.test");
                command.arg(format!("--srv-host={service},{name},7437"));
            }
        }
        command.stderr(Stdio::null());
        self.server = Some(command.spawn().unwrap());
    }

    /// Publishes the host names of the pods of jobs.
    fn publish_hosts(&mut self) {
        self.publish(|pods, pod| pods.names[pod].clone());
    }

    /// Returns the name that CoreDNS gives to pods without a host name.
    fn dashed(&self, pod: usize) -> String {
        self.address(pod).replace('.', "-")
    }

    fn agent(&self, pod: usize) -> String {
        format!("{}-agent", self.names[pod])
    }

    fn log(&self, pod: usize) -> String {
        text(&self.podman(&["logs", &self.agent(pod)]).output().unwrap())
    }

    /// The exit code of a launcher's pod.
    fn code(&self, pod: usize) -> String {
        output_of(&mut self.podman(&["wait", &self.agent(pod)]))
            .trim()
            .to_owned()
    }

    fn clear(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = self.podman(&["pod", "rm", "-fa"]).output();
        let _ = self.podman(&["volume", "rm", "-fa"]).output();
        self.names.clear();
        self.controllers.clear();
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        self.clear();
        let _ = self.podman(&["network", "rm", "-f", "pods"]).output();
    }
}

#[test]
fn pods_run_launch_and_lost_pod_ends_it() {
    let Some(mut pods) = Pods::new() else { return };
    // Two jobs in one namespace.
    for prefix in ["", "second-"] {
        pods.play_as(prefix, INDEXED_JOB, &["SLOTS=2", "PROGRAM=pmi_wireup"]);
    }
    let help = ["exec", &pods.agent(1), "wireup-impi", "--help"];
    output_of(&mut pods.podman(&help));
    // As the probes of the pods.
    let probe = ["exec", &pods.agent(1), "wireup", "ps", "--nodes"];
    eventually("the agent is ready", || {
        let output = pods.podman(&probe).output().unwrap();
        (output.status.success() && text(&output).contains("ready")).then_some(())
    });
    let status = ["exec", &pods.agent(1), "cat", "/proc/1/status"];
    let status = output_of(&mut pods.podman(&status));
    for line in [
        "Uid:\t1000",
        "CapEff:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        assert!(status.contains(line), "{line}: {status}");
    }
    eventually("the launcher waits", || {
        pods.log(0)
            .contains("dns:mpi:2: 0 of 3 hosts; waiting")
            .then_some(())
    });
    pods.publish_hosts();
    for (first, launcher) in [(0, "mpi-0"), (3, "second-mpi-0")] {
        let code = pods.code(first);
        let log = pods.log(first);
        assert_eq!(code, "0", "{log}");
        assert_eq!(log.matches("size=6").count(), 6, "{log}");
        for node in [1, 2] {
            let log = pods.log(first + node);
            let brought = format!("begins as node {node} of 3, brought by {launcher}");
            assert!(log.contains(&brought), "{log}");
            assert_eq!(log.matches("begins as node").count(), 1, "{log}");
        }
    }
    pods.clear();

    pods.play(INDEXED_JOB, &["PROGRAM=--pmi none sleep 1000"]);
    pods.publish_hosts();
    let shown = ["exec", &pods.agent(2), "ps"];
    eventually("the last rank runs", || {
        let output = pods.podman(&shown).output().unwrap();
        text(&output).contains("sleep 1000").then_some(())
    });
    output_of(&mut pods.podman(&["kill", "--signal", "KILL", &pods.agent(2)]));
    let code = pods.code(0);
    let log = pods.log(0);
    assert_ne!(code, "0", "{log}");
    assert!(log.contains("\nwireup: host mpi-2: "), "{log}");
    eventually("the other pod has no rank left", || {
        let output = pods
            .podman(&["exec", &pods.agent(1), "ps"])
            .output()
            .unwrap();
        let processes = text(&output);
        (processes.contains("wireup agent") && !processes.contains("sleep")).then_some(())
    });
}

#[test]
fn jobset_pods_are_launcher_and_workers() {
    let Some(mut pods) = Pods::new() else { return };
    pods.play("jobset/jobset.yaml", &["SLOTS=2", "PROGRAM=pmi_wireup"]);
    pods.publish_hosts();
    let code = pods.code(0);
    let log = pods.log(0);
    assert_eq!(code, "0", "{log}");
    assert_eq!(log.matches("size=8").count(), 8, "{log}");
    for pod in 1..4 {
        let log = pods.log(pod);
        let brought = format!("begins as node {pod} of 4, brought by mpi-launcher-0-0");
        assert!(log.contains(&brought), "{log}");
    }
}

#[test]
fn daemonset_pods_serve_many_launches() {
    let Some(mut pods) = Pods::new() else { return };
    pods.play("daemonset/daemonset.yaml", &[]);
    pods.publish(Pods::dashed);
    let launch = |words: &[&str]| {
        let agent = pods.agent(0);
        let words = [&["exec", &agent, "wireup", "run", "--hosts"], words].concat();
        pods.podman(&words).output().unwrap()
    };
    eventually("all agents are there", || {
        let output = launch(&[
            "dns:wireup",
            "--nodes",
            "3",
            "--wait-hosts",
            "60",
            "--pmi",
            "none",
            "hostname",
        ]);
        let mut lines: Vec<String> = text(&output).lines().map(str::to_owned).collect();
        lines.sort();
        (output.status.success() && lines == pods.names).then_some(())
    });
    let output = launch(&["dns:wireup:2", "pmi_wireup"]);
    let log = text(&output);
    assert!(output.status.success(), "{log}");
    assert_eq!(log.matches("size=6").count(), 6, "{log}");
}

//! Metrics of agents, read by a real Prometheus with a certificate over TLS, and judged by the rules that are shipped.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::cluster::Cluster;
use crate::common::{eventually, program, skip};

/// The host where Prometheus runs.
const WATCHER: usize = 3;

const OPTIONS: [&str; 2] = ["--metrics", "[::]:9437"];

fn is_installed(name: &str) -> bool {
    Command::new(name).arg("--version").output().is_ok()
}

/// A Prometheus on a host of the lab; ended when dropped.
struct Prometheus {
    child: Child,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// On a host of its own; reads the agents of these.
    fn start(cluster: &Cluster, hosts: &[&str]) -> Self {
        cluster.excuse(WATCHER);
        let dir = cluster.dir().join("prometheus");
        std::fs::create_dir_all(&dir).unwrap();
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/metrics");
        let certificates = cluster.certificates(WATCHER);
        let targets: Vec<String> = hosts
            .iter()
            .map(|host| format!("\"{host}:9437\""))
            .collect();
        let config = std::fs::read_to_string(shipped.join("prometheus.yml")).unwrap();
        let config = config
            .replace("/etc/prometheus/wireup", certificates.to_str().unwrap())
            .replace(r#""n01:9437", "n02:9437""#, &targets.join(", "))
            .replace("alerts.yml", shipped.join("alerts.yml").to_str().unwrap())
            .replace("15s", "1s");
        std::fs::write(dir.join("prometheus.yml"), config).unwrap();
        let log = File::create(dir.join("log")).unwrap();
        let data = format!("--storage.tsdb.path={}", dir.join("data").display());
        let config = format!("--config.file={}", dir.join("prometheus.yml").display());
        let mut command = cluster.host(WATCHER).command("prometheus");
        let words = [&*config, &*data, "--web.listen-address=127.0.0.1:9090"];
        command.args(words).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        Self {
            child: command.spawn().unwrap(),
        }
    }
}

/// Returns the reply to a query of Prometheus: labels and value of each series.
fn query(cluster: &Cluster, query: &str) -> Vec<(Value, f64)> {
    let script = format!(
        "import urllib.request, urllib.parse, sys\n\
         query = urllib.parse.urlencode({{'query': {query:?}}})\n\
         sys.stdout.write(urllib.request.urlopen('http://127.0.0.1:9090/api/v1/query?' + query).read().decode())"
    );
    let mut python = cluster.host(WATCHER).command("python3");
    let output = python.args(["-c", &script]).output().unwrap();
    let Ok(answer) = serde_json::from_slice::<Value>(&output.stdout) else {
        return Vec::new();
    };
    let series = answer["data"]["result"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    series
        .into_iter()
        .map(|series| {
            let value = series["value"][1].as_str().unwrap().parse().unwrap();
            (series["metric"].clone(), value)
        })
        .collect()
}

/// The sum over all series of a query.
fn sum(cluster: &Cluster, text: &str) -> f64 {
    query(cluster, text).iter().map(|(_, value)| value).sum()
}

/// Returns the series of a query when there are this many: those of an agent are missing after a late reply.
fn series(cluster: &Cluster, text: &str, count: usize) -> Vec<(Value, f64)> {
    eventually(text, || {
        let series = query(cluster, text);
        (series.len() == count).then_some(series)
    })
}

#[test]
fn prometheus_scrapes_agents_over_tls() {
    let Some(program) = program("pmi_wireup") else {
        return;
    };
    if !is_installed("prometheus") {
        return skip("metrics of agents: needs prometheus");
    }
    let Some(cluster) = Cluster::builder(4).options(&OPTIONS).start() else {
        return;
    };
    let program = cluster.copy(&program);
    let _prometheus = Prometheus::start(&cluster, &["node01", "node02", "node03"]);
    eventually("agents that are read", || {
        (query(&cluster, "up == 1").len() == 3).then_some(())
    });
    let hosts = ["--hosts", "node01:2,node02:2,node03:2", "-n", "6"];
    let launch = |more: &[&str]| cluster.run(0, hosts).more(more);
    launch(&["--json", "status"])
        .more([&program])
        .run()
        .expect(0);
    launch(&["sh", "-c", "exit 3"]).run().expect(3);
    let killed = launch(&["sh", "-c", "echo ready; exec sleep 1000"]).start();
    killed.wait_for_many(crate::common::Output::Stdout, "ready", 6);
    killed.signal(rustix::process::Signal::KILL);
    killed.finish();
    eventually("all three launches in Prometheus", || {
        let result = |result: &str| {
            sum(
                &cluster,
                &format!("wireup_agent_launches_total{{result=\"{result}\"}}"),
            )
        };
        (["ok", "failed", "lost"].map(result) == [1.0; 3]).then_some(())
    });
    // Each launch is counted by the agent of its launcher alone, and each node's part by each agent.
    let ranks = series(&cluster, "wireup_agent_launch_ranks_total > 0", 1);
    assert_eq!(ranks[0].1, 12.0, "{ranks:?}");
    series(&cluster, "wireup_agent_launch_parts_total == 3", 3);
    series(&cluster, "sum(wireup_agent_fence_seconds_count) >= 1", 1);
    for direction in ["sent", "received"] {
        let bytes = format!("wireup_agent_peer_{direction}_bytes_total > 0");
        series(&cluster, &bytes, 3);
    }
    let left = "min(wireup_agent_certificate_expiry_timestamp_seconds) - time() > 3600";
    series(&cluster, left, 1);
    // The rules that are shipped: a killed launcher was lost, and an agent that is gone is down.
    eventually("the alert about the lost launch", || {
        let alerts = query(&cluster, "ALERTS{alertname=\"WireupLaunchesLost\"}");
        (!alerts.is_empty()).then_some(())
    });
    cluster.kill_agent(2);
    eventually("the alert about the agent that is gone", || {
        let alerts = query(&cluster, "ALERTS{alertname=\"WireupAgentDown\"}");
        let of = |(labels, _): &(Value, f64)| labels["instance"] == "node03:9437";
        alerts.iter().any(of).then_some(())
    });
}

#[test]
fn silent_connections_do_not_block_metrics_scrape() {
    let Some(cluster) = Cluster::builder(2).options(&OPTIONS).start() else {
        return;
    };
    // Some have begun to speak TLS.
    let script = format!(
        "import socket, ssl\n\
         c = ssl.create_default_context(cafile='{dir}/ca.pem')\n\
         c.load_cert_chain('{dir}/cert.pem', '{dir}/key.pem')\n\
         def connect():\n    return socket.create_connection(('node01', 9437), 20)\n\
         silent = [connect() for _ in range(100)]\n\
         for s in silent[::2]:\n    s.send(b'\\x16')\n\
         s = c.wrap_socket(connect(), server_hostname='node01')\n\
         s.sendall(b'GET /metrics HTTP/1.1\\r\\n\\r\\n')\n\
         print(s.recv(100))",
        dir = cluster.certificates(1).display()
    );
    let scrape = cluster.command(1, ["python3", "-c", &script]);
    let outcome = scrape.run().expect(0);
    assert!(outcome.out().contains("200 OK"), "{outcome:?}");
}

#[test]
fn metrics_require_client_certificate() {
    let Some(cluster) = Cluster::builder(2).options(&OPTIONS).start() else {
        return;
    };
    let ask = |script: &str| {
        let script = format!("import socket, ssl\n{script}");
        let mut python = cluster.host(1).command("python3");
        let output = python.args(["-c", &script]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let plain = "s = socket.create_connection(('node01', 9437), 5)\n\
        s.sendall(b'GET /metrics HTTP/1.1\\r\\n\\r\\n')\nprint(s.recv(100))";
    assert!(!ask(plain).contains("200 OK"));
    let certificates = cluster.certificates(1);
    let tls = |certificate: &str| {
        format!(
            "c = ssl.create_default_context(cafile='{dir}/ca.pem')\n{certificate}\n\
             s = c.wrap_socket(socket.create_connection(('node01', 9437), 5), server_hostname='node01')\n\
             s.sendall(b'GET /metrics HTTP/1.1\\r\\n\\r\\n')\n\
             print(s.recv(100))",
            dir = certificates.display()
        )
    };
    assert!(!ask(&tls("")).contains("200 OK"));
    let shown = format!(
        "c.load_cert_chain('{dir}/cert.pem', '{dir}/key.pem')",
        dir = certificates.display()
    );
    assert!(ask(&tls(&shown)).contains("200 OK"));
    eventually("the refusals in the log", || {
        cluster.log(0).contains("metrics for ").then_some(())
    });
}

/// The value of a sample of an agent that serves its host alone.
fn on_its_host(cluster: &Cluster, host: usize, sample: &str) -> f64 {
    let script = "import sys, urllib.request\n\
        sys.stdout.write(urllib.request.urlopen('http://127.0.0.1:9437/metrics').read().decode())";
    let mut python = cluster.host(host).command("python3");
    let output = python.args(["-c", script]).output().unwrap();
    let metrics = String::from_utf8(output.stdout).unwrap();
    let mut lines = metrics.lines();
    let found = lines.find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    let text = found.unwrap_or_else(|| panic!("no {sample} in\n{metrics}"));
    text.parse().unwrap()
}

#[test]
fn refused_launch_is_counted_in_metrics() {
    let options = &["--metrics", "127.0.0.1:9437"];
    let Some(cluster) = Cluster::builder(2).options(options).start() else {
        return;
    };
    let metric = |name: &str| on_its_host(&cluster, 0, &format!("wireup_agent_{name}"));
    let hosts = ["--hosts", "node01,node02", "-n", "2"];
    let program = ["sh", "-c", "echo ready; exec sleep 1000"];
    let running = cluster.run(0, hosts).more(program).start();
    running.wait_for_many(crate::common::Output::Stdout, "ready", 2);
    assert_eq!(metric("refusals_total"), 0.0);
    // An agent that is stopped waits for the end of its launches, and takes no others.
    cluster.serving(0).signal(rustix::process::Signal::TERM);
    eventually("an agent that takes no launch", || {
        (metric("draining") == 1.0).then_some(())
    });
    let refused = cluster.run(0, hosts).more(["true"]).run();
    assert_ne!(refused.code, 0, "{refused:?}");
    eventually("the refusal is counted", || {
        (metric("refusals_total") >= 1.0).then_some(())
    });
    running.signal(rustix::process::Signal::TERM);
    running.finish().expect(143);
}

#[test]
fn queue_metric_shows_bytes_held_for_slow_network() {
    let options = &["--metrics", "127.0.0.1:9437"];
    let Some(cluster) = Cluster::builder(2).options(options).start() else {
        return;
    };
    let queue = || on_its_host(&cluster, 0, "wireup_agent_queue_bytes");
    assert!(queue() < 1e5);
    let large = cluster.dir().join("large");
    std::fs::write(&large, vec![7; 24 << 20]).unwrap();
    let slow = std::time::Duration::from_millis(100);
    cluster.lab().slow_down(slow, 0).unwrap();
    let hosts = ["--hosts", "node02", "-n", "1", "--wdir", "/dev/shm"];
    let files = [format!("--stage={}", large.display())];
    let program = ["sh", "-c", "wc -c <large; exec sleep 1000"];
    let launch = cluster.run(0, hosts).more(files).more(program).start();
    eventually("messages that wait", || (queue() > 1e6).then_some(()));
    launch.wait_for(crate::common::Output::Stdout, "25165824");
    eventually("nothing waits", || (queue() < 1e5).then_some(()));
    launch.signal(rustix::process::Signal::TERM);
    launch.finish().expect(143);
}

/// The dashboard names only metrics that there are.
#[test]
fn dashboard_uses_documented_metrics() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let documented = read("docs/metrics.md");
    let dashboard: Value =
        serde_json::from_str(&read("packaging/metrics/grafana-dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap());
    let queries: Vec<String> = targets
        .map(|target| target["expr"].as_str().unwrap().to_owned())
        .chain([read("packaging/metrics/alerts.yml")])
        .collect();
    let mut names = 0;
    for query in &queries {
        let words = query.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
        for name in words.filter(|word| word.starts_with("wireup_")) {
            let family = name.trim_end_matches("_bucket");
            assert!(
                documented.contains(&format!("`{family}")),
                "{name} of {query}"
            );
            names += 1;
        }
    }
    assert!(names > 10);
    if is_installed("promtool") {
        let rules = root.join("packaging/metrics/alerts.yml");
        let checked = Command::new("promtool")
            .args(["check", "rules"])
            .arg(rules)
            .output()
            .unwrap();
        assert!(checked.status.success(), "{checked:?}");
    }
}

//! Steps of docs/agents.md for setting up agents, executed as written.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::{ALICE, Cluster};
use crate::common::eventually;

/// The first block of code behind these words of docs/agents.md.
fn recipe(words: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/agents.md");
    let page = fs::read_to_string(page).unwrap();
    let behind = page.split_once(words).expect("the page says so").1;
    let block = behind.split("```").nth(1).expect("a block of code");
    let (language, commands) = block.split_once('\n').unwrap();
    assert!(language.starts_with("sh"), "{language}");
    commands.to_owned()
}

fn end(mut agent: Child) {
    kill_process(Pid::from_child(&agent), Signal::TERM).unwrap();
    assert!(agent.wait().unwrap().success());
}

#[test]
fn users_set_up_own_agents_in_shared_home() {
    let Some(cluster) = Cluster::builder(2).agents_of(ALICE).start() else {
        return;
    };
    // The hosts, and none of what was made ready for them.
    for host in 0..2 {
        cluster.agent(host).signal(Signal::TERM);
        assert!(cluster.agent_ended(host).success());
    }
    let bin = cluster.wireup().parent().unwrap();
    let home = bin.with_file_name("home");
    fs::create_dir(&home).unwrap();
    chown(&home, Some(ALICE), Some(ALICE)).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let alices = |host: usize, script: &str| {
        let mut command = cluster.host(host).command("sh");
        command.args(["-ec", script]).user(ALICE, ALICE, &[]);
        command.env("HOME", &home).env("PATH", &path);
        command
    };
    let say = |host: usize, script: &str| {
        let output = alices(host, script).output().unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{script}: {out}{err}");
        (out, err)
    };
    let serve = |host: usize, words: &str, message: &str| {
        let log = home.join(format!("log{host}"));
        let file = File::create(&log).unwrap();
        let mut command = alices(host, &format!("exec {words}"));
        let agent = command.stderr(file).spawn().unwrap();
        let read = || fs::read_to_string(&log).unwrap();
        eventually(message, || read().contains(message).then_some(()));
        (agent, read())
    };
    let names = |text: String| {
        let text = text.replace("n[1-2]", "node[01-02]");
        text.replace("/n1", "/node01").replace("/n2", "/node02")
    };
    let (_, output) = say(0, &names(recipe("all nodes share one home directory")));
    assert!(
        output.contains("made ") && output.contains("next, "),
        "{output}"
    );

    let agents: Vec<Child> = (0..2)
        .map(|host| {
            let ready = format!(" serves node node0{}", host + 1);
            let (agent, log) = serve(host, "wireup agent", &ready);
            assert!(!log.contains("WARN"), "{log}");
            agent
        })
        .collect();
    say(0, "wireup ps --nodes --hosts node01,node02");
    let (out, _) = say(
        0,
        "cd / && wireup run --hosts node01,node02 --ppn 1 -n 2 uname -n",
    );
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["node01", "node02"]);
    agents.into_iter().for_each(end);

    // The certificate of another node, as a copy of one directory to all of them would be.
    let other = "wireup agent --tls ~/.config/wireup/tls/node02";
    let (agent, log) = serve(0, other, " serves node node02");
    let mismatch = "this host is called node01, but the certificate in ";
    let remedy = "(wireup pki issue --name node01), or confirm this name (--name node02)";
    assert!(log.contains(mismatch) && log.contains(remedy), "{log}");
    end(agent);
    let (agent, log) = serve(0, &format!("{other} --name node02"), " serves node node02");
    assert!(!log.contains("this host is called"), "{log}");
    end(agent);
}

#[test]
fn root_sets_up_fresh_hosts_by_ssh() {
    let Some(cluster) = Cluster::builder(4).without_agents().start() else {
        return;
    };
    let bin = cluster.wireup().parent().unwrap().to_owned();
    let ssh = cluster.dir().join("ssh");
    let lab = Path::new(env!("CARGO_BIN_EXE_wireup")).with_file_name("lab");
    // After -o BatchMode=yes it takes what `lab rsh` takes.
    let script = format!("#!/bin/sh\nshift 2\nexec {} rsh \"$@\"\n", lab.display());
    fs::create_dir(&ssh).unwrap();
    fs::write(ssh.join("ssh"), script).unwrap();
    fs::set_permissions(ssh.join("ssh"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!(
        "{}:{}:/usr/sbin:/usr/bin:/bin",
        bin.display(),
        ssh.display()
    );
    let command = |host: usize, script: &str| {
        let mut command = cluster.host(host).command("sh");
        command
            .args(["-ec", script])
            .env("HOME", "/root")
            .env("PATH", &path);
        command
    };
    let output = |host: usize, script: &str| {
        let output = command(host, script).output().unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (output.status, text(&output.stdout) + &text(&output.stderr))
    };
    for host in 0..4 {
        // Each host changes a directory /etc of its own.
        let own = cluster.dir().join(format!("etc{host}"));
        let own = own.display();
        let (status, text) = output(
            host,
            &format!(
                "mkdir -p {own}/up {own}/work; cp /etc/hosts {own}/up; rm -rf {own}/up/wireup
                mount -t overlay -o lowerdir=/etc,upperdir={own}/up,workdir={own}/work overlay /etc
                test ! -e /etc/wireup"
            ),
        );
        assert!(status.success(), "{text}");
    }
    let names = |text: String| {
        let text = text.replace("n[1-3],login", "node[01-04]");
        text.replace("n[1-3]", "node[01-03]")
            .replace("--name login", "--name node04")
    };
    let shell = || {
        for words in [
            "**Make certificates**",
            "directory to its `/etc/wireup/tls`",
        ] {
            let (status, text) = output(0, &names(recipe(words)));
            assert!(status.success(), "{text}");
        }
    };
    cluster.lab().with_remote_shell(shell).unwrap();
    let agents: Vec<Child> = (0..4)
        .map(|host| {
            let log = cluster.dir().join(format!("agent{host}"));
            let file = File::create(&log).unwrap();
            let agent = command(host, "exec wireup agent")
                .stderr(file)
                .spawn()
                .unwrap();
            let ready = format!(" serves node node0{}", host + 1);
            eventually("the agent serves", || {
                fs::read_to_string(&log)
                    .unwrap()
                    .contains(&ready)
                    .then_some(())
            });
            agent
        })
        .collect();
    let check = names(recipe("**Check**"));
    let (nodes, doctor) = check.trim().split_once('\n').unwrap();
    let (status, text) = output(0, nodes);
    assert!(status.success(), "{text}");
    // It finds what is wrong with this machine too.
    let (status, text) = output(0, doctor);
    assert!(matches!(status.code(), Some(0 | 1)), "{text}");
    assert!(text.contains("\n4 hosts, "), "{text}");
    agents.into_iter().for_each(end);
}

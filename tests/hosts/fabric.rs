//! Credentials of Slingshot: asked of a fabric manager, given to ranks on every host, and revoked whatever fails.
//!
//! The manager is a process of its own. The devices are files: no hardware is needed to hand
//! a credential over.

mod manager;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use self::manager::{Manager, make_authority, secure};
use crate::cluster::Cluster;
use crate::common::{Output, Run, Running, eventually};
use crate::images::{Images, runtimes};

/// Two ranks on each of two hosts.
const FOUR: [&str; 4] = ["--hosts", "node01:2,node02:2", "-n", "4"];

/// Script of a rank that prints its grant and waits.
const SHOW: &str =
    "env | grep -E '^(SLINGSHOT|FI_CXI|FI_PROVIDER)' | sort | sed \"s/^/$WIREUP_HOST /\"; echo up";

/// Adds device files to a host.
fn add_devices(cluster: &Cluster, host: usize, names: &[&str]) {
    cluster.change_dev(host, &format!("touch {}", names.join(" ")));
}

/// Hosts with devices, and a manager on the last of them.
fn site(hosts: usize) -> Option<(Cluster, Manager)> {
    let cluster = Cluster::new(hosts)?;
    let manager = equip(&cluster, hosts);
    Some((cluster, manager))
}

/// Adds devices to all hosts, two to the first, and a manager to the last.
fn equip(cluster: &Cluster, hosts: usize) -> Manager {
    for host in 0..hosts {
        add_devices(cluster, host, &["cxi0", "cxi1"][..2 - host.min(1)]);
    }
    Manager::start(cluster, hosts - 1, None)
}

fn records(cluster: &Cluster) -> PathBuf {
    cluster.dir().join("records")
}

fn run(cluster: &Cluster, manager: &Manager, words: &[&str]) -> Run {
    let run = cluster.run(0, [manager.option()]).more(words);
    run.env("WIREUP_FABRIC_RECORDS", records(cluster))
}

fn has_records(cluster: &Cluster) -> bool {
    fs::read_dir(records(cluster)).is_ok_and(|mut entries| entries.next().is_some())
}

/// Ranks that have a credential and wait.
fn waiting(cluster: &Cluster, manager: &Manager, words: &[&str]) -> Running {
    let running = run(cluster, manager, words);
    let running = running.more(["sh", "-c", &format!("{SHOW}; exec sleep 1000")]);
    let running = running.start();
    running.wait_for_many(Output::Stdout, "up", 4);
    assert_eq!(manager.services(), 1);
    running
}

#[test]
fn ranks_of_every_host_get_grant_that_is_revoked_at_end() {
    let Some((cluster, manager)) = site(2) else {
        return;
    };
    let json = cluster.dir().join("status.json");
    let json = json.to_str().unwrap();
    let options = [&FOUR[..], &["-vv", "--json", json]].concat();
    let outcome = run(&cluster, &manager, &options)
        .more(["sh", "-c", SHOW])
        .run();
    let outcome = outcome.expect(0);
    let key = manager.list("keys").remove(0);
    for host in ["node01", "node02"] {
        let devices = if host == "node01" {
            "cxi0,cxi1"
        } else {
            "cxi0"
        };
        let services = if host == "node01" { "5,5" } else { "5" };
        for line in [
            format!("SLINGSHOT_DEVICES={devices}"),
            format!("SLINGSHOT_SVC_IDS={services}"),
            "SLINGSHOT_VNIS=1001".to_owned(),
            "FI_CXI_DEFAULT_VNI=1001".to_owned(),
            "FI_PROVIDER=cxi".to_owned(),
            format!("FI_CXI_AUTH_KEY={key}"),
        ] {
            let line = format!("{host} {line}");
            let times = outcome
                .out()
                .lines()
                .filter(|printed| **printed == line)
                .count();
            assert_eq!(times, 2, "{line}: {outcome:?}");
        }
    }
    assert!(!outcome.err().contains(&key), "{outcome:?}");
    assert!(!fs::read_to_string(json).unwrap().contains(&key));
    for host in 0..2 {
        assert!(!cluster.log(host).contains(&key));
    }
    let nodes = &manager.state()["bodies"][0]["nodes"];
    assert_eq!(nodes.to_string(), r#"["node01","node02"]"#);
    let service = "/fabric/cxi/services/1";
    let expected = [
        "POST /fabric/cxi/services".to_owned(),
        format!("GET {service}/auth"),
        format!("DELETE {service}"),
        format!("GET {service}/auth"),
    ];
    assert_eq!(manager.list("log"), expected);
    assert_eq!((manager.services(), has_records(&cluster)), (0, false));
}

#[test]
fn fabric_key_is_in_no_arguments_but_reaches_spawned_children() {
    let Some((cluster, manager)) = site(2) else {
        return;
    };
    let running = waiting(&cluster, &manager, &FOUR);
    let key = manager.list("keys").remove(0);
    for host in cluster.lab().hosts() {
        for process in host.processes() {
            assert!(!process.words.contains(&key), "{process}");
        }
    }
    running.signal(Signal::TERM);
    manager.expect_hidden(&running.finish());
    manager.expect_revoked();
    // A rank that speaks PMI-1 itself.
    let child = cluster.dir().join("child");
    fs::write(
        &child,
        "#!/bin/sh\necho child of $WIREUP_HOST: $FI_CXI_AUTH_KEY\nexec sleep 1000\n",
    )
    .unwrap();
    fs::set_permissions(&child, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let script = "printf 'cmd=init pmi_version=1 pmi_subversion=1\\n' >&$PMI_FD; read line <&$PMI_FD
        printf \"mcmd=spawn\\nnprocs=4\\nexecname=$0\\ntotspawns=1\\nspawnssofar=1\\nargcnt=0\\npreput_num=0\\ninfo_num=0\\nendcmd\\n\" >&$PMI_FD
        read line <&$PMI_FD; exec sleep 1000";
    let parent = ["--hosts", "node01:4,node02:4", "-n", "1", "--pmi", "pmi1"];
    let running = run(&cluster, &manager, &parent).more(["sh", "-c", script]);
    let running = running.more([&child]).start();
    let out = running.wait_for_many(Output::Stdout, "child of ", 4);
    let key = manager.list("keys").remove(1);
    assert_eq!(out.matches(&format!(": {key}\n")).count(), 4, "{out}");
    running.signal(Signal::TERM);
    manager.expect_hidden(&running.finish());
    manager.expect_revoked();
}

/// Two hosts with the same device, and a manager.
fn equal_hosts() -> Option<(Cluster, Manager)> {
    let cluster = Cluster::new(2)?;
    for host in 0..2 {
        add_devices(&cluster, host, &["cxi0"]);
    }
    let manager = Manager::start(&cluster, 1, None);
    Some((cluster, manager))
}

/// A launch that keeps a grant for those inside it, one after the other, each with four ranks that run `show`.
fn allocation(cluster: &Cluster, manager: &Manager, show: &str) -> Run {
    let (ranks, script) = (cluster.dir().join("ranks.sh"), cluster.dir().join("job.sh"));
    fs::write(&ranks, show).unwrap();
    let (wireup, hosts) = (cluster.wireup().display(), FOUR.join(" "));
    let launch = format!("{wireup} run --fabric cxi {hosts} sh {}", ranks.display());
    fs::write(&script, format!("{launch} && {launch}\n")).unwrap();
    let outer = ["--hosts", "node01:1,node02:0", "-n", "1", "sh"];
    run(cluster, manager, &outer).more([script])
}

#[test]
fn launches_inside_launch_share_its_grant() {
    let Some((cluster, manager)) = equal_hosts() else {
        return;
    };
    let outcome = allocation(&cluster, &manager, SHOW).run().expect(0);
    let key = manager.list("keys").remove(0);
    for host in ["node01", "node02"] {
        let line = format!("{host} FI_CXI_AUTH_KEY={key}");
        let times = outcome
            .out()
            .lines()
            .filter(|printed| **printed == line)
            .count();
        assert_eq!(times, 4, "{outcome:?}");
    }
    let nodes = &manager.state()["bodies"][0]["nodes"];
    assert_eq!(nodes.to_string(), r#"["node01","node02"]"#);
    let log = manager.list("log");
    let created = log.iter().filter(|line| line.starts_with("POST")).count();
    assert_eq!(created, 1, "{log:?}");
    assert_eq!((manager.services(), has_records(&cluster)), (0, false));
    manager.expect_hidden(&outcome);
}

#[test]
fn shared_grant_is_revoked_when_agent_of_its_launch_is_killed() {
    let Some((cluster, manager)) = equal_hosts() else {
        return;
    };
    for host in 0..2 {
        let show = format!("{SHOW}; exec sleep 1000");
        let running = allocation(&cluster, &manager, &show).start();
        running.wait_for_many(Output::Stdout, "up", 4);
        assert_eq!(manager.services(), 1);
        cluster.kill_agent(host);
        manager.expect_revoked();
        manager.expect_hidden(&running.finish());
        cluster.start_agent(host);
    }
}

#[test]
fn manager_faults_leak_nothing() {
    let Some((cluster, manager)) = site(2) else {
        return;
    };
    let twice = |what| [[what, "500"], [what, "lose"]];
    for faults in [
        &[["POST", "lose"]][..],
        &[["POST", "drop"], ["POST", "500"], ["GET", "500"]],
        &[["POST", "slow 20"]],
        &twice("GET /auth"),
        &twice("DELETE"),
        &[["DELETE", "keep"], ["DELETE", "keep"]],
    ] {
        manager.fail(faults);
        let outcome = run(&cluster, &manager, &FOUR)
            .more(["true"])
            .run()
            .expect(0);
        assert_eq!(outcome.err(), "", "{faults:?}");
        assert_eq!(
            manager.services(),
            0,
            "{faults:?}: {:?}",
            manager.list("log")
        );
        assert!(!has_records(&cluster), "{faults:?}");
    }
    // For a manager that cannot list its services the request is repeated with the same key, and the doubt is
    // reported.
    fs::write(manager.dir.join("nolist"), "").unwrap();
    manager.fail(&[["POST", "lose"]]);
    let outcome = run(&cluster, &manager, &FOUR)
        .more(["true"])
        .run()
        .expect(0);
    let doubt = "a reply was lost: the fabric manager does not list services";
    assert!(outcome.err().contains(doubt), "{outcome:?}");
    assert_eq!(manager.services(), 0);
}

#[test]
fn fabric_token_is_never_printed_and_refusal_is_one_line() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for host in 0..2 {
        add_devices(&cluster, host, &["cxi0"]);
    }
    let manager = Manager::start(&cluster, 1, Some("geheim77"));
    let token = cluster.dir().join("token");
    fs::write(&token, "geheim77\n").unwrap();
    let settings = cluster.dir().join("fabric.toml");
    fs::write(&settings, format!("token-file = {token:?}\n")).unwrap();
    let outcome = run(&cluster, &manager, &FOUR)
        .env("WIREUP_FABRIC_SETTINGS", &settings)
        .more(["-vv", "true"])
        .run();
    assert!(!outcome.err().contains("geheim77"), "{outcome:?}");
    outcome.expect(0);
    let refused = run(&cluster, &manager, &FOUR)
        .more(["true"])
        .run()
        .expect(125);
    refused.expect_one_line(&["--fabric", "status 401: no valid token"]);
    manager.expect_revoked();
}

#[test]
fn fabric_manager_is_verified_by_its_tls_authority() {
    let Some((cluster, mut manager)) = site(3) else {
        return;
    };
    let dir = manager.dir.clone();
    make_authority(&dir, "ca");
    make_authority(&dir, "other");
    let own = cluster.host(2).ipv4().to_string();
    let ca_option = |name: &str| format!("--fabric-ca={}", dir.join(name).display());
    let ca = ca_option("ca.pem");
    let refuse = |manager: &Manager, options: &[&str], needed: &[&str]| {
        let run = run(&cluster, manager, &FOUR).more(options).more(["true"]);
        let refused = run.run().expect(125);
        refused.expect_one_line(needed);
        // It is not tried again for a minute.
        assert!(!refused.err().contains("timed out"), "{refused:?}");
        let left = (manager.list("log").len(), has_records(&cluster));
        assert_eq!(left, (0, false), "{options:?}");
    };
    manager.address = manager.address.replace("http:", "https:");
    refuse(&manager, &[&ca], &["--fabric", "it does not speak TLS"]);
    manager.address = secure(&manager, &own, 2);
    let unknown = "signed its certificate";
    refuse(
        &manager,
        &[],
        &["--fabric", unknown, "cacert = \"FILE\" in fabric.toml"],
    );
    let other = ca_option("other.pem");
    refuse(&manager, &[&other], &[unknown, "manager/other.pem"]);
    let gone = ca_option("gone.pem");
    refuse(
        &manager,
        &[&gone],
        &["cacert = ", "gone.pem", "No such file"],
    );
    manager.address = secure(&manager, "192.0.2.7", 2);
    let names = format!("its certificate is not for {own}, but for 192.0.2.7");
    refuse(&manager, &[&ca], &[&names]);
    manager.address = secure(&manager, &own, 0);
    // To the second, and the file is as old as it at most.
    eventually("it has expired", || {
        let created_at = fs::metadata(dir.join("cert.pem")).unwrap().modified();
        let age = created_at.unwrap().elapsed().unwrap_or_default();
        (age > Duration::from_secs(2)).then_some(())
    });
    refuse(&manager, &[&ca], &["its certificate expired"]);
    manager.address = secure(&manager, &own, 2);
    let show = [&*ca, "sh", "-c", SHOW];
    let outcome = run(&cluster, &manager, &FOUR).more(show).run().expect(0);
    let key = manager.list("keys").remove(0);
    let variable = format!("FI_CXI_AUTH_KEY={key}\n");
    assert_eq!(outcome.out().matches(&variable).count(), 4, "{outcome:?}");
    manager.expect_hidden(&outcome);
    assert_eq!((manager.services(), has_records(&cluster)), (0, false));
    // Another host revokes it over TLS too.
    let options = [&FOUR[..], &[&*ca]].concat();
    let running = waiting(&cluster, &manager, &options);
    cluster.lab().crash(cluster.host(0)).unwrap();
    manager.expect_revoked();
    running.finish();
}

#[test]
fn late_fabric_manager_is_awaited_and_called_once() {
    let Some((cluster, mut manager)) = site(2) else {
        return;
    };
    manager.child.kill().unwrap();
    manager.child.wait().unwrap();
    fs::remove_file(manager.dir.join("state.json")).unwrap();
    let running = run(&cluster, &manager, &FOUR).more(["true"]).start();
    eventually("it is asked for", || has_records(&cluster).then_some(()));
    let manager = manager.start_again(&cluster, 1);
    assert_eq!(running.finish().expect(0).err(), "");
    // No request was sent before, so nothing had to be looked for.
    let log = manager.list("log");
    assert_eq!(log.len(), 4, "{log:?}");
    assert!(!log.iter().any(|line| line.contains("name=")), "{log:?}");
}

#[test]
fn missing_fabric_device_names_host_and_revokes_service() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    add_devices(&cluster, 0, &["cxi0"]);
    let manager = Manager::start(&cluster, 2, None);
    let three = ["--hosts", "node01,node02,node03", "-n", "3", "true"];
    let refused = run(&cluster, &manager, &three).run().expect(125);
    let words = ["node[02-03]", "no Slingshot device (/dev/cxi*)"];
    refused.expect_one_line(&words);
    assert_eq!(manager.services(), 0);
    // On one machine nothing is asked for.
    let request_count = manager.list("log").len();
    let alone = cluster.run(1, [&*manager.option(), "-n", "2", "true"]);
    alone
        .run()
        .expect(125)
        .expect_one_line(&["no Slingshot device"]);
    assert_eq!(manager.list("log").len(), request_count);
}

#[test]
fn service_is_revoked_whichever_process_is_killed() {
    for victim in ["rank", "agent 1", "agent 2", "launcher", "keeper"] {
        let Some((cluster, manager)) = site(3) else {
            return;
        };
        let running = waiting(&cluster, &manager, &FOUR);
        let kill = |host: usize, name: &str| {
            let all = cluster.host(host).processes().into_iter();
            let mut named = all.filter(|process| process.words.contains(name));
            named.next().expect(name).signal(Signal::KILL);
        };
        match victim {
            "rank" => kill(1, "sleep 1000"),
            "agent 1" => cluster.kill_agent(0),
            "agent 2" => cluster.kill_agent(1),
            "launcher" => running.signal(Signal::KILL),
            _ => {
                kill(0, "fabric-keeper");
                running.signal(Signal::TERM);
            }
        }
        let outcome = running.finish();
        manager.expect_hidden(&outcome);
        if victim == "keeper" {
            assert!(outcome.err().contains("was lost"), "{outcome:?}");
            // The next launch does what it has left.
            assert!(has_records(&cluster));
            run(&cluster, &manager, &FOUR)
                .more(["true"])
                .run()
                .expect(0);
        }
        manager.expect_revoked();
        eventually("there is no record", || {
            (!has_records(&cluster)).then_some(())
        });
    }
}

#[test]
fn lost_host_leaves_no_fabric_service() {
    for (host, crash) in [(1, true), (1, false), (0, true)] {
        let Some((cluster, manager)) = site(3) else {
            return;
        };
        let running = waiting(&cluster, &manager, &FOUR);
        match crash {
            true => cluster.lab().crash(cluster.host(host)).unwrap(),
            false => cluster.lab().isolate(cluster.host(host)).unwrap(),
        }
        manager.expect_revoked();
        // The keeper of a host that is cut off tries until it is there again.
        cluster.lab().heal_all().unwrap();
        running.finish();
    }
}

#[test]
fn agent_revokes_grants_of_dead_launch() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for host in 0..2 {
        add_devices(&cluster, host, &["cxi0"]);
    }
    let manager = Manager::start(&cluster, 1, Some("geheim77"));
    let token = cluster.dir().join("token");
    fs::write(&token, "geheim77\n").unwrap();
    let token = format!("--fabric-token={}", token.display());
    // On one machine: no other host watches.
    let running = waiting(&cluster, &manager, &["-n", "4", "--oversubscribe", &token]);
    let all = cluster.host(0).processes().into_iter();
    let keeper = all.filter(|process| process.words.contains("fabric-keeper"));
    keeper.for_each(|process| process.signal(Signal::KILL));
    running.signal(Signal::KILL);
    running.finish();
    assert_eq!((manager.services(), has_records(&cluster)), (1, true));
    // Of a process that was killed before it asked for anything, and one that is no record.
    let records = records(&cluster);
    let unreadable = records.join("unreadable.json");
    fs::write(records.join("empty.json"), "").unwrap();
    fs::write(&unreadable, "{\"version\":2}").unwrap();
    cluster.kill_agent(0);
    let variable = ("WIREUP_FABRIC_RECORDS", records.to_str().unwrap());
    cluster.start_agent_with(0, &[], &[variable]);
    manager.expect_revoked();
    eventually("the unreadable record is left and reported", || {
        let left = fs::read_dir(&records).unwrap().count();
        let line = format!(
            "which may remain: {}: record of version 2",
            unreadable.display()
        );
        (left == 1 && cluster.log(0).contains(&line)).then_some(())
    });
    fs::remove_file(unreadable).unwrap();
}

#[test]
fn fabric_grant_comes_from_site_command_or_environment() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for host in 0..2 {
        add_devices(&cluster, host, &["cxi0", "cxi1"]);
    }
    let dir = cluster.dir().join("site");
    fs::create_dir(&dir).unwrap();
    let script = dir.join("credential");
    let text = format!(
        "#!/bin/sh\ncd {}\ncase $1 in\n\
         create) cat >asked; echo there >s-1; echo '{{\"id\": \"s-1\", \"vni\": 77}}';;\n\
         auth) [ -e $2 ] || exit 3; echo '{{\"auth_key\": \"c0ffee\", \"svc_ids\": [8, 9]}}';;\n\
         revoke) rm $2;;\n*) exit 4;;\nesac\n",
        dir.display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let option = format!("--fabric=cxi=exec:{}", script.display());
    let show = [
        "sh",
        "-c",
        "echo $SLINGSHOT_VNIS $SLINGSHOT_SVC_IDS $FI_CXI_AUTH_KEY",
    ];
    let own = cluster.run(0, [&*option]).more(FOUR).more(show);
    let outcome = own.env("WIREUP_FABRIC_RECORDS", records(&cluster)).run();
    let outcome = outcome.expect_quiet_success();
    assert_eq!(outcome.out(), "77 8,9 c0ffee\n".repeat(4));
    assert!(!dir.join("s-1").exists());
    assert!(
        fs::read_to_string(dir.join("asked"))
            .unwrap()
            .contains("node02")
    );
    let show = [
        "sh",
        "-c",
        "echo $SLINGSHOT_VNIS $SLINGSHOT_DEVICES $SLINGSHOT_SVC_IDS $FI_PROVIDER",
    ];
    let provider = ["--fabric=cxi", "-x", "FI_PROVIDER=tcp"];
    let run = cluster.run(0, provider).more(FOUR).more(show);
    let run = run
        .env("SLINGSHOT_VNIS", "12,13")
        .env("SLINGSHOT_SVC_IDS", "4");
    let outcome = run.run().expect_quiet_success();
    assert_eq!(outcome.out(), "12,13 cxi0,cxi1 4,4 tcp\n".repeat(4));
    let none = cluster.run(0, ["--fabric=cxi", "true"]).run().expect(125);
    none.expect_one_line(&["--fabric", "SLINGSHOT_VNIS is not set"]);
}

#[test]
fn ranks_in_image_get_grant_of_their_host() {
    let Some(images) = Images::new(&[]) else {
        return;
    };
    let manager = equip(&images.cluster, 2);
    let root = images.root.to_str().unwrap();
    for runtime in runtimes() {
        let image = format!("--image={}:{root}", runtime.as_str());
        let words = [&FOUR[..], &[&*image]].concat();
        let script = format!("{SHOW}; cat /etc/image; ls /dev/cxi0");
        let run = run(&images.cluster, &manager, &words).more(["sh", "-c", &script]);
        let outcome = run.run().expect(0);
        let key = manager.list("keys").pop().unwrap();
        for (line, times) in [
            (format!("node01 FI_CXI_AUTH_KEY={key}"), 2),
            (format!("node02 FI_CXI_AUTH_KEY={key}"), 2),
            ("node01 SLINGSHOT_DEVICES=cxi0,cxi1".to_owned(), 2),
            ("node02 SLINGSHOT_DEVICES=cxi0".to_owned(), 2),
            ("of the image".to_owned(), 4),
            ("/dev/cxi0".to_owned(), 4),
        ] {
            let out = outcome.out();
            let count = out.lines().filter(|printed| **printed == line).count();
            assert_eq!(count, times, "{runtime:?}: {line}: {outcome:?}");
        }
        manager.expect_hidden(&outcome);
        manager.expect_revoked();
    }
}

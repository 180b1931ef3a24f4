//! Report on the time of a launch on several hosts: during its start, and after its end.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::common::{Output, program};

#[test]
fn report_names_host_that_others_waited_for() {
    let (Some(cluster), Some(program)) = (Cluster::new(3), program("pmi_wireup")) else {
        return;
    };
    let program = cluster.copy(&program);
    // Ranks 4 and 5, of the third host, begin a second after the others have connected.
    let late = r#"sh -c 'if [ "$WIREUP_RANK" -ge 4 ]; then
        until [ "$(grep -c \"connected\" status)" = 4 ]; do sleep 0.05; done; sleep 1
        fi; exec "$@"' late"#;
    let options = ["--hosts", "node01:2,node02:2,node03:2", "-n", "6"];
    let report_options = ["--report", "-", "--json", "status", "--wrap", late];
    let run = cluster.run(0, [&options[..], &report_options].concat());
    let outcome = run.more([program]).run().expect(0);
    let err = outcome.err();
    assert!(err.contains(": 6 ranks on 3 hosts, "), "{err}");
    assert!(err.contains("hosts joined, node0"), "{err}");
    assert!(err.contains("for host node03"), "{err}");
    let stream = std::fs::read_to_string(outcome.dir().join("status")).unwrap();
    let events = stream
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let events: Vec<Value> = events.collect();
    let of_kind = |kind: &'static str| events.iter().filter(move |event| event["event"] == kind);
    assert_eq!(of_kind("node").count(), 3, "{stream}");
    let fence = of_kind("fence").next().unwrap();
    let [last, second, first] = [0, 1, 2].map(|index| &fence["last"][index]);
    assert_eq!(last["host"], "node03", "{fence}");
    let alone = last["behind_us"].as_u64().unwrap() - second["behind_us"].as_u64().unwrap();
    assert!(alone > 500_000, "{fence}");
    assert_eq!(first["behind_us"], 0, "{fence}");
}

#[test]
fn refused_launch_leaves_older_report() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let older = "<!DOCTYPE html>\n<title>wireup</title>\n";
    let words = ["--hosts", "node01,node02", "--report", "page.html"];
    let run = cluster
        .run(0, words)
        .more(["--report=-", "/nowhere/program"]);
    std::fs::write(run.dir().join("page.html"), older).unwrap();
    let outcome = run.run().expect(127);
    assert!(!outcome.err().contains("critical"), "{outcome:?}");
    let page = std::fs::read_to_string(outcome.dir().join("page.html")).unwrap();
    assert_eq!(page, older);
}

#[test]
fn terminal_shows_host_whose_agent_is_awaited() {
    let Some(cluster) = Cluster::new(4) else {
        return;
    };
    cluster.host(3).pause().unwrap();
    let hosts = ["--hosts", "node01,node02,node03,node04", "-n", "4"];
    let run = cluster
        .run(0, hosts)
        .more(["sh", "-c", "echo $WIREUP_RANK"]);
    let running = run.terminal().start();
    let line = "wireup: agents: 3 of 4 hosts have joined, waiting for node04";
    running.wait_for(Output::Stdout, line);
    cluster.host(3).resume().unwrap();
    let outcome = running.finish().expect(0);
    let out = outcome.out();
    let after = out.rsplit(line).next().unwrap();
    assert!(
        after.starts_with("\r\u{1b}[K"),
        "it is not taken away: {out:?}"
    );
    for rank in 0..4 {
        assert!(after.contains(&format!("{rank}\r\n")), "{out:?}");
    }
}

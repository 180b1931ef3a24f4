//! Output of `--log` and `WIREUP_LOG` for a launch.

use crate::common::{Outcome, Run, mpi, pmix};
use crate::virtual_nodes::node;

/// The lines of the log that have all these parts.
fn lines(outcome: &Outcome, parts: &[&str]) -> usize {
    let log = outcome.err();
    let has = |line: &&str| parts.iter().all(|part| line.contains(part));
    log.lines().filter(has).count()
}

#[track_caller]
fn has(outcome: &Outcome, parts: &[&str]) {
    assert!(lines(outcome, parts) > 0, "{parts:?}: {outcome:?}");
}

#[test]
fn ranks_fences_and_upcalls_of_each_node_have_their_spans() {
    let (Some(server), Some(mpi)) = (pmix("pmix5"), mpi("openmpi5")) else {
        return;
    };
    let options = [
        "--log",
        "debug",
        "--virtual-nodes",
        "2",
        "--libpmix",
        server.path(),
    ];
    let outcome = mpi.run(4, &options, "hello", &[]).run().expect(0);
    has(
        &outcome,
        &["INFO launch{id=", "}: wireup::control::run: new"],
    );
    has(&outcome, &["job{number=0 size=4}: ", ": close "]);
    has(
        &outcome,
        &["job{number=0 size=4}: ", " rank rank=3 state=Connected"],
    );
    for number in 0..2 {
        let node = format!(r#":node{{number={number} name="{}"}}"#, node(number));
        for rank in [2 * number, 2 * number + 1] {
            let rank = format!("{node}:rank{{job=0 rank={rank} pid=");
            has(&outcome, &["DEBUG launch{id=", &rank, ": new"]);
            has(
                &outcome,
                &[&rank, "the process has ended end=Some(Code(0))"],
            );
            has(&outcome, &[&rank, ": close time.busy="]);
        }
        let fence = format!("{node}:fence{{kind=Pmix generation=0 participants=");
        has(&outcome, &[&fence, ": released bytes="]);
        has(&outcome, &[&fence, ": close "]);
        let upcall = format!("{node}:upcall{{id=");
        has(&outcome, &[&upcall, " kind=Fence ", ": answered bytes="]);
    }
    // Only nodes below another one log this.
    assert_eq!(
        lines(
            &outcome,
            &["{kind=Pmix generation=0 ", " have arrived here", "to=0"]
        ),
        1
    );
    for number in 0..2 {
        let sidecar = format!("wireup: PMIx server of {}: ", node(number));
        has(
            &outcome,
            &[&sidecar, "request{id=", " kind=RegisterJob}: ", ": close "],
        );
    }
}

#[test]
fn log_filter_selects_modules_also_from_environment() {
    let Some(mpi) = mpi("mpich5") else { return };
    let options = ["--virtual-nodes", "2"];
    let only = |outcome: &Outcome| {
        has(
            outcome,
            &[
                "fence{kind=PmiBarrier { tag: 0 } generation=0 participants=",
                ": released",
            ],
        );
        let all = outcome.err();
        let others = all
            .lines()
            .filter(|line| !line.contains(" wireup_core::fence"));
        assert_eq!(others.collect::<Vec<_>>(), [""; 0], "{outcome:?}");
    };
    let filter = "wireup_core::fence=debug";
    let run = |options: &[&str]| mpi.run(2, options, "hello", &[]);
    only(
        &run(&[&options[..], &["--log", filter]].concat())
            .run()
            .expect(0),
    );
    only(&run(&options).env("WIREUP_LOG", filter).run().expect(0));
    // The command line decides.
    let off = run(&[&options[..], &["--log", "off"]].concat());
    let off = off.env("WIREUP_LOG", "trace").run().expect(0);
    assert_eq!(off.err(), "");
    // PMI requests are logged at this level.
    let all = run(&[&options[..], &["--log", "trace"]].concat())
        .run()
        .expect(0);
    has(
        &all,
        &[
            "TRACE launch{",
            "}:rank{job=0 rank=1 ",
            r"PMI said=cmd=init ",
        ],
    );
}

#[test]
fn details_are_logged_or_printed_once() {
    let outcome = Run::ranks(2, ["--log", "info", "true"]).run().expect(0);
    has(
        &outcome,
        &[" INFO launch{", "wireup::control::launch_context: 2 ranks"],
    );
    assert_eq!(lines(&outcome, &["wireup: "]), 0, "{outcome:?}");
    let shown = Run::ranks(2, ["-v", "true"]).run().expect(0);
    has(&shown, &["wireup: 2 ranks"]);
    assert_eq!(lines(&shown, &[" INFO "]), 0, "{shown:?}");
}

#[test]
fn invalid_log_filter_is_refused_and_default_is_silent() {
    let remedy = "use error, warn, info, debug, trace, or a list of MODULE=LEVEL";
    let refused = Run::new(["--log", "wireup=loud", "true"]).run().expect(125);
    refused.expect_one_line(&[
        "'--log <FILTER>'",
        "invalid log level \"wireup=loud\"",
        remedy,
    ]);
    let refused = Run::new(["true"])
        .env("WIREUP_LOG", "loud")
        .run()
        .expect(125);
    refused.expect_one_line(&["wireup: WIREUP_LOG: invalid log level \"loud\"", remedy]);
    for without in [Run::new(["true"]), Run::new(["true"]).env("WIREUP_LOG", "")] {
        without.run().expect_quiet_success();
    }
}

//! Credentials that ranks get and validate through PMIx: the launch's own, and munge's from a real
//! daemon; on one node and on two.

use crate::common::{Outcome, Pmix, Run, field, pmix, skip};
use crate::pmix::SERVERS;

/// One node, and two.
const NODES: [&[&str]; 2] = [&[], &["--virtual-nodes", "2"]];

/// Every libpmix that is here, as server and as client.
fn versions() -> impl Iterator<Item = Pmix> {
    SERVERS.iter().filter_map(|(name, _)| pmix(name))
}

/// Gives a command a `/run` of its own: there is no munge, or that of the test.
const RUN: &str = r#"mount -t tmpfs none /run && exec "$@""#;

/// Starts the munge daemon for a command and ends it afterwards.
const MUNGED: &str = r#"
set -e
mount -t tmpfs -o mode=755 none /run
mkdir -m 755 /run/munge
mkdir -m 700 /run/etc
head -c 1024 /dev/urandom > /run/etc/key
chmod 400 /run/etc/key
munged --foreground --key-file=/run/etc/key --log-file=/run/etc/log --seed-file=/run/etc/seed \
    --pid-file=/run/munge/pid 2>/run/etc/err &
munged=$!
i=0
until [ -S /run/munge/munge.socket.2 ]; do
    i=$((i + 1))
    if [ $i = 600 ]; then cat /run/etc/err /run/etc/log >&2; exit 99; fi
    sleep 0.05
done
set +e
"$@"
code=$?
kill $munged
wait $munged
exit $code"#;

fn below(run: Run, script: &str) -> Run {
    run.under([
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        script,
        "sh",
    ])
}

/// Whether something can be mounted; the test is ignored if not.
fn can_mount() -> bool {
    let root = rustix::process::getuid().is_root();
    if !root {
        skip("munge: a daemon of the test's own needs root");
    }
    root
}

/// Runs a mode of `pmix_credential` with each libpmix, on one node and on two.
fn everywhere(script: &str, mode: &str, check: impl Fn(&Outcome)) {
    for client in versions() {
        for nodes in NODES {
            let options = [&["--libpmix", client.path()], nodes].concat();
            let run = client.run(4, &options, "pmix_credential", &[mode]);
            check(&below(run, script).run().expect(0));
        }
    }
}

#[track_caller]
fn expect_kind(outcome: &Outcome, kind: &str) {
    for line in outcome.by_rank("pmix_credential", 4) {
        assert_eq!(field(&line, "kind"), Some(kind), "{line}");
    }
    assert_eq!(outcome.err(), "");
}

#[test]
fn credential_of_every_rank_is_valid_on_every_node() {
    for client in versions() {
        for nodes in NODES {
            let options = [&["--libpmix", client.path()], nodes].concat();
            let run = client.run(4, &options, "pmix_credential", &["own"]);
            expect_kind(&run.run().expect(0), "wireup");
        }
    }
}

#[test]
fn credential_of_other_launch_is_refused() {
    for client in versions() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        for mode in ["write", "read"] {
            let args = [mode, file.to_str().unwrap()];
            let options = ["--libpmix", client.path()];
            let run = client.run(1, &options, "pmix_credential", &args);
            run.run().expect(0).by_rank("pmix_credential", 1);
        }
    }
}

#[test]
fn credential_without_munge_is_of_launch_and_munge_is_refused() {
    if can_mount() {
        everywhere(RUN, "any", |outcome| expect_kind(outcome, "wireup"));
        everywhere(RUN, "none", |outcome| expect_kind(outcome, "none"));
    }
}

#[test]
fn munge_makes_and_checks_credentials_where_it_runs() {
    if can_mount() {
        for mode in ["any", "munge"] {
            everywhere(MUNGED, mode, |outcome| expect_kind(outcome, "munge"));
        }
    }
}

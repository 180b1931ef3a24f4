//! Spawns by clients that speak PMI themselves: what each side reads of the other's keys, also where
//! its node hosts no rank of it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::common::Run;
use crate::virtual_nodes::node;

/// PMI-1, line by line. `put`, `meet` and `get JOB KEY` as both scripts have them.
const V1: &str = r#"
ask() { printf '%s\n' "$1" >&3; IFS= read -r reply <&3; }
ask 'cmd=init pmi_version=1 pmi_subversion=1'
ask cmd=get_my_kvsname; me=${reply##*kvsname=}
put() { ask "cmd=put kvsname=$me key=$1 value=$2"; }
meet() { ask cmd=barrier_in; }
get() { ask "cmd=get kvsname=$1 key=$2"; case $reply in *rc=0*) found=${reply##*value=};; *) found=none;; esac; }
spawn() {
    ask "$(printf '%s\n' mcmd=spawn nprocs=1 execname=bash totspawns=1 spawnssofar=1 argcnt=2 \
        "arg1=$0" "arg2=$me" preput_num=1 preput_key_0=given preput_val_0=gift \
        info_num=1 info_key_0=host "info_val_0=$1" endcmd)"
}
finalize() { ask cmd=finalize; }
"#;

/// Script of a client that speaks PMI-2, in frames.
const V2: &str = r#"
ask() {
    printf '%6d%s' "${#1}" "$1" >&3
    read -r -N 6 length <&3; read -r -N $((length)) reply <&3
}
printf 'cmd=init pmi_version=2 pmi_subversion=0\n' >&3; IFS= read -r reply <&3
me=$PMI_JOBID
ask "cmd=fullinit;pmijobid=$me;pmirank=$PMI_RANK;threaded=FALSE;"
put() { ask "cmd=kvs-put;key=$1;value=$2;"; }
meet() { ask 'cmd=kvs-fence;'; }
get() {
    ask "cmd=kvs-get;jobid=$1;srcid=-1;key=$2;"
    case $reply in *found=TRUE*) found=${reply##*value=}; found=${found%%;*};; *) found=none;; esac
}
spawn() {
    ask "cmd=spawn;ncmds=1;preputcount=1;ppkey0=given;ppval0=gift;subcmd=bash;maxprocs=1;argc=2;\
argv0=$0;argv1=$me;infokeycount=1;infokey0=host;infoval0=$1;"
}
finalize() { ask 'cmd=finalize;'; }
"#;

/// Three parents, of which the first spawns a child on the node `HOST`; all read each other's keys.
const FAMILY: &str = r#"
if [ $# = 1 ]; then
    parents=$1
    put child "from $me"; meet
    get '' given 2>/dev/null; [ "$found" = gift ] || { get "$me" given; }
    echo "child given=$found"
    get "$parents" parent0; first=$found
    get "$parents" parent2; last=$found
    get "$parents" nothing
    echo "child first=$first last=$last nothing=$found"
    echo "$me" > name.new; mv name.new name
    for rank in 0 1 2; do while [ ! -e read.$rank ]; do sleep 0.01; done; done
else
    put "parent$PMI_RANK" "p$PMI_RANK"; meet
    [ "$PMI_RANK" != 0 ] || spawn "$HOST"
    while [ ! -e name ]; do sleep 0.01; done
    get "$(cat name)" child
    echo "parent=$PMI_RANK child=${found%% *}"
    get "$(cat name)" nothing
    [ "$found" = none ] || echo "parent=$PMI_RANK found=$found"
    get no-such-job child
    [ "$found" = none ] || echo "parent=$PMI_RANK found=$found"
    touch "read.$PMI_RANK"
fi
finalize
"#;

/// Runs the family on three nodes, the child on each of them in turn.
fn families(pmi: &str, version: &str) {
    for at in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("family");
        fs::write(&script, [version, FAMILY].concat()).unwrap();
        let outcome = family(pmi, dir.path(), &script, &node(at)).run();
        let outcome = outcome.expect(0);
        let expected = [
            "child first=p0 last=p2 nothing=none",
            "child given=gift",
            "parent=0 child=from",
            "parent=1 child=from",
            "parent=2 child=from",
        ];
        assert_eq!(
            outcome.sorted_lines(),
            expected,
            "{pmi}, child on node {at}"
        );
    }
}

fn family(pmi: &str, dir: &Path, script: &Path, host: &str) -> Run {
    let host = format!("HOST={host}");
    let (dir, script) = (dir.to_str().unwrap(), script.to_str().unwrap());
    let options = ["--oversubscribe", "--virtual-nodes", "3", "--pmi", pmi];
    let words = ["--wdir", dir, "-x", &host, "bash", script];
    Run::ranks(3, options.iter().chain(&words))
}

#[test]
fn parents_and_children_read_keys_on_every_node_over_pmi1() {
    families("pmi1", V1);
}

#[test]
fn parents_and_children_read_keys_on_every_node_over_pmi2() {
    families("pmi2", V2);
}

#[test]
fn spawn_of_two_billion_processes_is_refused_at_once() {
    let spawn = "ask \"$(printf '%s\\n' mcmd=spawn nprocs=2000000000 execname=true totspawns=1 spawnssofar=1 \
        argcnt=0 preput_num=0 info_num=0 endcmd)\"";
    let script = format!("{V1}\n{spawn}\necho \"$reply\"; finalize");
    let options = ["--oversubscribe", "--pmi", "pmi1", "bash", "-c"];
    let run = Run::ranks(1, options).more([&script]);
    let outcome = run.deadline(Duration::from_secs(20)).run().expect(0);
    assert!(outcome.out().contains("rc=-1"), "{outcome:?}");
    outcome.expect_one_line(&[
        "cannot spawn: a launch has at most 10000000 processes",
        "2000000001",
    ]);
}

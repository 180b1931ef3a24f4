//! Credentials of Slingshot that Slurm gives to the steps of a job.

use crate::cluster::change_dev;
use crate::slurm_cluster::{Slurm, With};

const SHOW: &str =
    "echo $WIREUP_HOST $SLINGSHOT_VNIS $SLINGSHOT_DEVICES $SLINGSHOT_SVC_IDS $SLINGSHOT_TCS";

#[test]
fn ranks_get_grant_of_step_on_their_host() {
    let Some(slurm) = Slurm::with(3, With::Slingshot) else {
        return;
    };
    for host in 0..3 {
        let script = "touch cxi0 cxi1; chmod 666 cxi0 cxi1";
        change_dev(slurm.host(host), slurm.dir(), script);
    }
    let expected = [
        "node01 1034,1035 cxi0,cxi1 21,22 0xa",
        "node01 1034,1035 cxi0,cxi1 21,22 0xa",
        "node02 1034,1035 cxi0 31 0xa",
        "node02 1034,1035 cxi0 31 0xa",
    ];
    let two = "-w node01,node02 -N 2 --ntasks-per-node=2";
    let show = ["--fabric=cxi", "sh", "-c", SHOW];
    let outcome = slurm.salloc(two).more(show).run().expect(0);
    assert_eq!(outcome.sorted_lines(), expected);
    // The script of a job.
    let run = format!(
        "{} run --fabric=cxi sh -c '{SHOW}'",
        slurm.wireup().display()
    );
    slurm.submit("batch", two, &run);
    slurm.expect_end("batch", 0);
    let printed = slurm.printed("batch");
    let grants = printed.lines().filter(|line| line.starts_with("node"));
    let mut lines: Vec<&str> = grants.collect();
    lines.sort_unstable();
    assert_eq!(lines, expected);
    // A host to which Slurm gives none.
    let all = slurm.salloc("-N 3 --ntasks-per-node=1");
    let outcome = all.more(["--fabric=cxi", "true"]).run();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    outcome.expect_one_line(&["node03", "--fabric cxi: SLINGSHOT_VNIS is not set"]);
    slurm.expect_clean();
}

//! PMI between Slurm and wireup: Slurm's own server is asked, and tasks that Slurm gives none are ranks of `wireup serve`.

use std::ffi::OsStr;
use std::fs;

use crate::common::mpi;
use crate::slurm_cluster::Slurm;

#[test]
fn pmi_client_queries_slurm_server() {
    let Some(slurm) = Slurm::new(2) else {
        return;
    };
    for (words, expected) in [
        (&["exchange"][..], "exchange rank=1 size=2 bytes=100 "),
        (&["barrier", "5"], "barrier rank=1 size=2 count=5 "),
        (&["put", "key-%r", "of-%r"], "put rank=1 key-0=of-0"),
        (
            &["get", "PMI_process_mapping"],
            "get rank=1 PMI_process_mapping=(vector,",
        ),
        (&["attr"], "rank=1 size=2 kvsname="),
    ] {
        let srun = slurm.command(["srun", "--mpi=pmi2", "-N", "2", "-n", "2"]);
        let run = srun.more([slurm.wireup().as_os_str(), OsStr::new("pmi")]);
        let lines = run.more(words).run().expect(0).sorted_lines();
        let replies = lines.iter().filter(|line| line.starts_with(expected));
        assert_eq!(replies.count(), 1, "{words:?}: {lines:?}");
    }
}

#[test]
fn pmi_proxy_records_program_and_slurm_server() {
    let (Some(slurm), Some(mpi)) = (Slurm::new(2), mpi("mpich5")) else {
        return;
    };
    let srun = slurm.command(["srun", "--mpi=pmi2", "-N", "2", "-n", "2"]);
    let transcript = slurm.dir().join("said.%r");
    let program = mpi.program("allreduce");
    let words = [OsStr::new("pmi"), OsStr::new("proxy"), OsStr::new("-o")];
    let mut run = srun.more([slurm.wireup().as_os_str()]).more(words);
    run = run.more([transcript.as_os_str(), program.as_os_str()]);
    for (name, value) in &mpi.env {
        run = run.env(name, value);
    }
    let lines = run.run().expect(0).sorted_lines();
    assert_eq!(lines[1], "allreduce rank=1 size=2 sum=3", "{lines:?}");
    for rank in 0..2 {
        let transcript = fs::read_to_string(slurm.dir().join(format!("said.{rank}"))).unwrap();
        for words in ["cmd=init pmi_version=1", "cmd=barrier_in", "cmd=finalize"] {
            assert!(transcript.contains(words), "{words}: {transcript}");
        }
    }
}

/// In an allocation: serves two ranks, each on its host, and lets Slurm start their processes.
const SERVED: &str = r#"
"$1" serve -n 2 --env-dir "$2/env" --ppn 1 --no-config & serving=$!
until [ -e "$2/env/rank-0.env" ] && [ -e "$2/env/rank-1.env" ]; do
  kill -0 $serving || exit 99
  sleep 0.1
done
srun --mpi=none --overlap -N 2 -n 2 sh -c 'exec env $(cat "$0/env/rank-$SLURM_PROCID.env") "$1"' "$2" "$3"
code=$?
wait $serving || code=100
exit $code
"#;

#[test]
fn tasks_of_srun_without_pmi_are_ranks_of_served_job() {
    for name in ["mpich5", "impi", "openmpi5"] {
        let (Some(slurm), Some(mpi)) = (Slurm::new(2), mpi(name)) else {
            return;
        };
        let script = slurm.dir().join("served");
        fs::write(&script, SERVED).unwrap();
        let program = mpi.program("allreduce");
        let salloc = slurm.command(["salloc", "--quiet", "-N", "2", "-n", "2", "sh"]);
        let words = [
            script.as_os_str(),
            slurm.wireup().as_os_str(),
            slurm.dir().as_os_str(),
            program.as_os_str(),
        ];
        let mut run = salloc.more(words);
        for (name, value) in &mpi.env {
            run = run.env(name, value);
        }
        let lines = run.run().expect(0).sorted_lines();
        let expected = [
            "allreduce rank=0 size=2 sum=3",
            "allreduce rank=1 size=2 sum=3",
        ];
        assert_eq!(lines, expected, "{name}");
    }
}

//! `wireup attach` and `wireup wait`: jobs that were started with `--detach`, and for debuggers the processes of any job.

use clap::Args;

use super::ps;
use crate::detached::attach_client;
use wireup_core::failure::CommandError;

const JOBS: &str = "\
Jobs:
  A job is named by what `wireup run --detach` printed, or by the beginning of its digits. The commands run on
  the machine of `wireup run`.";

const ATTACH: &str = "\
Examples:
  wireup attach 3f2a91               shows the output since the last time, and all that follows
  wireup attach --no-stdin 3f2a91    the same, and does not read standard input
  wireup attach 3f2a91 --proctable   host, pid and executable of each rank of any job, as `wireup ps --proctable`

How:
  The last 8 MiB of output that were not shown are kept; how much was lost is reported. Standard input goes to
  the job, its end too. INT (Ctrl-C), TERM, USR1 and USR2 go to the launcher. QUIT (Ctrl-\\), or the loss of the
  terminal, ends this command, and the job goes on. The last command that attaches takes the job over.

Exit status:
  code  of the job, as `wireup run` exits
  0     this command was ended, and the job goes on
  125   the job does not exist, or another command has taken it over";

const WAIT: &str = "\
Examples:
  job=$(wireup run --detach -n 4 ./app); wireup wait \"$job\"

How:
  The exit status of a job is kept for 24 hours after its end, or for 10 minutes after it was first requested,
  until `wireup attach` has shown it with the last output.

Exit status:
  code  of the job, as `wireup run` exits; of several, the first that is not 0
  125   the job does not exist";

/// Arguments of `wireup attach`.
#[derive(Debug, Args)]
#[command(after_help = format!("{ATTACH}\n\n{JOBS}"))]
pub(super) struct AttachArgs {
    /// The job [default: the only one that was started with --detach]
    #[arg(value_name = "JOB")]
    job: Option<String>,

    /// Do not read standard input
    #[arg(long)]
    no_stdin: bool,

    /// Show the processes of a job, detached or not, as `wireup ps --proctable` does, and leave
    #[arg(long, conflicts_with = "no_stdin")]
    proctable: bool,

    /// Print them as JSON
    #[arg(long, requires = "proctable")]
    json: bool,
}

/// Arguments of `wireup wait`.
#[derive(Debug, Args)]
#[command(after_help = format!("{WAIT}\n\n{JOBS}"))]
pub(super) struct WaitArgs {
    /// The jobs [default: the only one that was started with --detach]
    #[arg(value_name = "JOB")]
    jobs: Vec<String>,
}

/// Shows the job until it ends or is left, or its processes; the exit code.
pub(super) fn attach(args: &AttachArgs) -> Result<u8, CommandError> {
    if args.proctable {
        return ps::show_processes(args.job.as_slice(), args.json);
    }
    attach_client::attach(args.job.as_deref(), !args.no_stdin)
}

/// Waits for the jobs; the exit code.
pub(super) fn wait(args: &WaitArgs) -> Result<u8, CommandError> {
    attach_client::wait(&args.jobs)
}

//! `wireup resize`: hosts that join a running launch, and hosts that leave it.

use clap::Args;

use super::launcher_host::LauncherHost;
use super::options::HostsListArgs;
use super::ps::found;
use super::remote_launch::{option_words, switch_word};
use crate::jobs::query_launcher::resize_job;
use wireup_core::failure::CommandError;
use wireup_core::job::hosts::{HostList, HostsProblem};
use wireup_core::printable;
use wireup_core::record::ResizeCommand;

const AFTER_HELP: &str = "\
Examples:
  wireup resize 3f --add n5,n6:4        two more hosts, the second with four slots
  wireup resize 3f --remove n3          n3 leaves when its ranks have ended
  wireup resize 3f --remove n3 --end-ranks

How:
  Hosts that joined take spawned ranks. On a host that leaves nothing is started any more; when its last
  rank has ended, its part of the launch ends and wireup has nothing left on it. The command waits until hosts have joined and
  until hosts without ranks have left. The first host of the launch and that of the launcher cannot
  leave. JOB is the beginning of a job's name or the pid of its launcher, as `wireup ps` shows them.

Exit status:
  0    done, or the host leaves when its ranks have ended
  1    there is no such job or host, or a host did not join
  125  wireup itself failed or was called wrongly";

/// Arguments of `wireup resize`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct ResizeArgs {
    /// The job [default: the only one]
    #[arg(value_name = "JOB")]
    job: Option<String>,

    /// Hosts that join, as `wireup run --hosts` takes them
    #[arg(long, value_name = "LIST", value_parser = parse_list)]
    add: Option<String>,

    /// Hosts that leave
    #[arg(long, value_name = "LIST", value_parser = parse_list)]
    #[arg(required_unless_present = "add")]
    remove: Option<String>,

    /// Terminate the ranks on hosts that leave, instead of waiting until they have ended
    #[arg(long, requires = "remove")]
    end_ranks: bool,

    #[command(flatten)]
    hosts: HostsListArgs,
}

/// Checks a list of hosts, which the launcher reads.
fn parse_list(text: &str) -> Result<String, HostsProblem> {
    text.parse::<HostList>().map(|_| text.to_owned())
}

/// Changes the hosts of a job, and prints the changes.
///
/// # Errors
/// [`CommandError`] if the job does not exist, or its launcher refuses the change.
pub(super) fn execute(args: ResizeArgs) -> Result<u8, CommandError> {
    if let Some(host) = LauncherHost::find(args.hosts, args.job.as_deref())? {
        let mut options = Vec::new();
        options.extend(option_words("--add", args.add));
        options.extend(option_words("--remove", args.remove));
        options.extend(switch_word("--end-ranks", args.end_ranks));
        return Err(host.execute("resize", options, false));
    }
    let job = found(args.job.as_deref())?;
    let command = ResizeCommand {
        request: 0,
        add: args.add.unwrap_or_default(),
        remove: args.remove.unwrap_or_default(),
        ends_ranks: args.end_ranks,
    };
    let report = resize_job(&job, command).map_err(|error| CommandError::job(error.to_string()))?;
    super::show(&printable::lines(report.lines()));
    Ok(0)
}

//! Options for failures and the end of a job.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::choice;
use wireup_core::duration::{duration, positive_duration};
use wireup_core::failure::CommandError;
use wireup_core::job::exit_policy::ExitPolicy;
use wireup_core::job::spec::{ChildJobPolicy, FailurePolicy, FenceTimeoutSpec, TerminationSpec};

/// Options for failures and the end of a job.
#[derive(Debug, Args)]
#[command(next_help_heading = "End of the job")]
pub(crate) struct TerminationArgs {
    /// End the job after this time, in seconds or with a unit (90, 1.5, 500ms, 10m, 1h30m), with exit code 124
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    #[arg(allow_negative_numbers = true)]
    timeout: Option<Duration>,

    /// The job's exit code: that of the first rank that fails, the highest, 0 if any rank ends
    /// with 0, of the rank that ends last, of rank R. All but the first let a failing rank's job
    /// continue unless --kill-on-bad-exit is given
    #[arg(long, value_name = "first|max|any-zero|last|rank:R", default_value_t)]
    #[arg(hide_default_value = true)]
    exit_policy: ExitPolicy,

    /// What follows when a rank or host is lost: all end; the others go on, and what they do together
    /// completes without the dead; or all end with exit code 75, and Slurm runs its job again
    #[arg(long, value_name = "abort|continue|requeue", default_value = "abort")]
    #[arg(value_parser = choice(&FailurePolicy::NAMES))]
    #[arg(hide_default_value = true, hide_possible_values = true)]
    on_failure: FailurePolicy,

    /// A rank's process may end and another one contact PMI for it: restored from a checkpoint, or started
    /// again. What the rank had put is reset, and barriers wait for it; not with PMIx
    #[arg(long)]
    restartable: bool,

    /// End all ranks as soon as one fails [default with --exit-policy first]
    #[arg(long, overrides_with = "no_kill_on_bad_exit")]
    kill_on_bad_exit: bool,

    /// Let other ranks continue when a rank fails, unless they wait for it; MPI_Abort still ends
    /// all
    #[arg(long, overrides_with = "kill_on_bad_exit")]
    no_kill_on_bad_exit: bool,

    /// Time between SIGTERM and SIGKILL when ranks are ended; 0: SIGKILL at once
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "2")]
    #[arg(allow_negative_numbers = true)]
    grace: Duration,

    /// Fail, with exit code 123, if a program loads an MPI and ends without contacting PMI
    #[arg(long)]
    strict_pmi: bool,

    /// Fail if not all ranks have entered a PMI or PMIx fence within this time after the first;
    /// 0: never. [default: 60, but ranks that may be computing are waited for]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    #[arg(allow_negative_numbers = true)]
    fence_timeout: Option<Duration>,

    /// Fail a spawn that has not started all its processes within this time, or an MPI_Comm_spawn
    /// none of whose processes has contacted PMI or PMIx by then, and end those that it has started
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    #[arg(allow_negative_numbers = true)]
    spawn_timeout: Option<Duration>,

    /// Spawned processes when all processes of their parent's job have ended: they are ended after
    /// --grace, or continue. Programs may ask for either in their spawn request
    #[arg(
        long,
        value_name = "end-with-parent|independent",
        default_value = "end-with-parent"
    )]
    #[arg(value_parser = choice(&ChildJobPolicy::NAMES), hide_possible_values = true)]
    children: ChildJobPolicy,

    /// Start the job without this terminal, print its name when all ranks have started, and exit; see `wireup attach`
    /// and `wireup wait`. =on-loss: stay, and keep the job when this command is killed or its terminal is lost
    #[arg(long, value_enum, value_name = "on-loss", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "at-start", hide_possible_values = true)]
    detach: Option<DetachPolicy>,

    /// Old spelling of `--detach=on-loss`
    #[arg(long, alias = "on-launcher-loss", hide = true)]
    #[arg(value_enum, value_name = "end|keep", default_value_t = TerminalLossPolicy::End)]
    on_terminal_loss: TerminalLossPolicy,
}

/// Behaviour of a job that has lost its terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum DetachPolicy {
    AtStart,
    OnLoss,
}

/// See `--on-terminal-loss`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum TerminalLossPolicy {
    End,
    Keep,
}

impl TerminationArgs {
    /// Whether the job is kept without its terminal.
    pub(crate) fn detach_policy(&self) -> Option<DetachPolicy> {
        let must_detach = self.on_terminal_loss == TerminalLossPolicy::Keep;
        self.detach
            .or_else(|| must_detach.then_some(DetachPolicy::OnLoss))
    }

    /// Refuses what contradicts itself.
    ///
    /// # Errors
    /// The two options that cannot both hold.
    pub(crate) fn check(&self) -> Result<(), CommandError> {
        let (option, meant) = match self.on_failure {
            FailurePolicy::Continue if self.restartable => ("--restartable", "continue"),
            FailurePolicy::Continue if self.kill_on_bad_exit => ("--kill-on-bad-exit", "continue"),
            FailurePolicy::Requeue if self.no_kill_on_bad_exit => {
                ("--no-kill-on-bad-exit", "requeue")
            }
            _ => return Ok(()),
        };
        let text = format!("--on-failure {meant} and {option} contradict each other: give one");
        Err(CommandError::request(text))
    }
}

impl From<TerminationArgs> for TerminationSpec {
    fn from(args: TerminationArgs) -> Self {
        Self {
            timeout: args.timeout,
            exit: args.exit_policy,
            on_failure: args.on_failure,
            kill_on_bad_exit: match args.on_failure {
                FailurePolicy::Continue => false,
                FailurePolicy::Requeue => true,
                FailurePolicy::Abort => match (args.kill_on_bad_exit, args.no_kill_on_bad_exit) {
                    (true, _) => true,
                    (_, true) => false,
                    (false, false) => !args.exit_policy.needs_every_end(),
                },
            },
            grace: args.grace,
            strict_pmi: args.strict_pmi,
            fence: match args.fence_timeout {
                None => FenceTimeoutSpec::Sensible,
                Some(Duration::ZERO) => FenceTimeoutSpec::Unlimited,
                Some(time) => FenceTimeoutSpec::After(time),
            },
            spawn: args.spawn_timeout,
            children: args.children,
            restartable: args.restartable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_first_policy_needs_no_other_exit() {
        use clap::Parser;
        #[derive(Parser)]
        struct Whole {
            #[command(flatten)]
            ending: TerminationArgs,
        }
        let kills = |line: &str| {
            let words = std::iter::once("w").chain(line.split_ascii_whitespace());
            TerminationSpec::from(Whole::parse_from(words).ending).kill_on_bad_exit
        };
        assert!(kills(""));
        assert!(!kills("--no-kill-on-bad-exit"));
        assert!(kills("--no-kill-on-bad-exit --kill-on-bad-exit"));
        assert!(!kills("--exit-policy max"));
        assert!(kills("--exit-policy max --kill-on-bad-exit"));
        assert_eq!(
            TerminationSpec::default(),
            TerminationSpec::from(Whole::parse_from(["w"]).ending)
        );
    }

    #[test]
    fn job_is_detached_at_start_or_on_loss() {
        use clap::Parser;
        #[derive(Parser)]
        struct Whole {
            #[command(flatten)]
            ending: TerminationArgs,
        }
        for (line, expected) in [
            ("", None),
            ("--detach", Some(DetachPolicy::AtStart)),
            ("--detach=on-loss", Some(DetachPolicy::OnLoss)),
            ("--on-terminal-loss keep", Some(DetachPolicy::OnLoss)),
            ("--on-launcher-loss keep", Some(DetachPolicy::OnLoss)),
            ("--on-terminal-loss end", None),
            (
                "--detach --on-terminal-loss keep",
                Some(DetachPolicy::AtStart),
            ),
        ] {
            let words = std::iter::once("w").chain(line.split_ascii_whitespace());
            let ending = Whole::parse_from(words).ending;
            assert_eq!(ending.detach_policy(), expected, "{line}");
        }
    }
}

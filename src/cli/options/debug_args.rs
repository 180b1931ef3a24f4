//! What is done for debuggers.

use clap::{Args, ValueEnum};

use wireup_core::job::debug::ToolLossPolicy;
use wireup_core::job::rank_set::{RankChoice, RankSetError};
use wireup_core::job::spec::DebugSpec;

/// What is done for debuggers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Debuggers")]
pub(crate) struct DebugArgs {
    /// Stop ranks before `main`, all or those listed (=0,3-5), until a debugger lets them go on or
    /// `wireup kill -s CONT` does
    #[arg(long, value_name = "RANKS", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "all", value_parser = parse_choice)]
    stop_on_exec: Option<RankChoice>,

    /// Show where all ranks are (as `wireup stacks` does) when a fence is late, and at the end of
    /// --timeout before the ranks are ended
    #[arg(long)]
    stacks: bool,

    /// Let ranks wait in PMIx_Init (MPI_Init of Open MPI), all or those listed (=0,3-5), until a PMIx
    /// tool releases them
    #[arg(long, value_name = "RANKS", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "all", value_parser = parse_choice)]
    stop_in_init: Option<RankChoice>,

    /// When the last PMIx tool is gone and ranks still wait for a debugger: they wait for another, go
    /// on, or the job ends
    #[arg(long, value_enum, value_name = "wait|release|end", default_value_t = Loss::Wait)]
    #[arg(hide_possible_values = true)]
    on_tool_loss: Loss,
}

/// See [`ToolLossPolicy`].
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Loss {
    Wait,
    Release,
    End,
}

impl From<DebugArgs> for DebugSpec {
    fn from(args: DebugArgs) -> Self {
        Self {
            stop_on_exec: args.stop_on_exec,
            is_debugger_led: false,
            stacks: args.stacks,
            stop_in_init: args.stop_in_init,
            director: None,
            on_tool_loss: match args.on_tool_loss {
                Loss::Wait => ToolLossPolicy::Wait,
                Loss::Release => ToolLossPolicy::Release,
                Loss::End => ToolLossPolicy::End,
            },
            rendezvous: None,
        }
    }
}

fn parse_choice(text: &str) -> Result<RankChoice, RankSetError> {
    match text {
        "all" => Ok(RankChoice::All),
        ranks => ranks.parse().map(RankChoice::Only),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Whole {
        #[command(flatten)]
        debug: DebugArgs,
        #[arg(trailing_var_arg = true)]
        program: Vec<String>,
    }

    #[test]
    fn ranks_follow_equal_sign_or_are_omitted() {
        let parsed = |line: &[&str]| {
            let words = std::iter::once(&"w").chain(line);
            let whole = Whole::try_parse_from(words).ok()?;
            Some((
                DebugSpec::from(whole.debug).stop_on_exec,
                whole.program.len(),
            ))
        };
        let some = "0,3-5".parse().map(RankChoice::Only).ok();
        assert_eq!(parsed(&["a"]), Some((None, 1)));
        assert_eq!(
            parsed(&["--stop-on-exec", "7"]),
            Some((Some(RankChoice::All), 1))
        );
        assert_eq!(parsed(&["--stop-on-exec=0,3-5", "a", "b"]), Some((some, 2)));
        assert_eq!(parsed(&["--stop-on-exec=x", "a"]), None);
    }
}

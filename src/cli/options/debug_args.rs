//! Options for debuggers and PMIx tools.

use clap::Args;

use super::choice;
use crate::cli::value_error::ValueError;
use wireup_core::job::debug::ToolLossPolicy;
use wireup_core::job::rank_set::{RankChoice, RankSetError};
use wireup_core::job::spec::DebugSpec;

/// Options for debuggers and PMIx tools.
#[derive(Debug, Args)]
#[command(next_help_heading = "Debuggers")]
pub(crate) struct DebugArgs {
    /// Stop ranks, all or those listed (exec:0,3-5): exec, before `main`, until a debugger or `wireup kill -s CONT`
    /// continues them; init, in PMIx_Init (MPI_Init of Open MPI), until a PMIx tool releases them
    #[arg(long = "stop-at", value_name = "exec|init[:RANKS]", value_parser = parse_stop)]
    stops: Vec<(DebugStop, RankChoice)>,

    /// Old spelling of `--stop-at exec`
    #[arg(long, hide = true, value_name = "RANKS", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "all", value_parser = parse_choice)]
    stop_on_exec: Option<RankChoice>,

    /// Old spelling of `--stop-at init`
    #[arg(long, hide = true, value_name = "RANKS", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "all", value_parser = parse_choice)]
    stop_in_init: Option<RankChoice>,

    /// Show where all ranks are (as `wireup stacks` does) when a fence is late, and at the end of
    /// --timeout before the ranks are ended
    #[arg(long)]
    stacks: bool,

    /// When the last PMIx tool is gone and ranks still wait for a debugger: they wait for another, go
    /// on, or the job ends
    #[arg(long, value_name = "wait|release|end", default_value = "wait")]
    #[arg(value_parser = choice(&ToolLossPolicy::NAMES), hide_possible_values = true)]
    on_tool_loss: ToolLossPolicy,
}

/// Stop points of ranks for a debugger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DebugStop {
    Exec,
    Init,
}

impl From<DebugArgs> for DebugSpec {
    fn from(args: DebugArgs) -> Self {
        let stopped_at = |point| {
            let mut latest_first = args.stops.iter().rev();
            let (_, ranks) = latest_first.find(|(at, _)| *at == point)?;
            Some(ranks.clone())
        };
        Self {
            stop_on_exec: stopped_at(DebugStop::Exec).or(args.stop_on_exec),
            stacks: args.stacks,
            stop_in_init: stopped_at(DebugStop::Init).or(args.stop_in_init),
            on_tool_loss: args.on_tool_loss,
            ..Self::default()
        }
    }
}

fn parse_choice(text: &str) -> Result<RankChoice, RankSetError> {
    match text {
        "all" => Ok(RankChoice::All),
        ranks => ranks.parse().map(RankChoice::Only),
    }
}

fn parse_stop(text: &str) -> Result<(DebugStop, RankChoice), ValueError> {
    let (point, ranks) = text.split_once(':').unwrap_or((text, "all"));
    let point = match point {
        "exec" => DebugStop::Exec,
        "init" => DebugStop::Init,
        _ => return Err(ValueError::DebugStop),
    };
    Ok((point, parse_choice(ranks)?))
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
    fn stop_points_have_ranks_of_their_own() {
        let parsed = |line: &[&str]| {
            let words = std::iter::once(&"w").chain(line);
            let whole = Whole::try_parse_from(words).ok()?;
            let spec = DebugSpec::from(whole.debug);
            Some((spec.stop_on_exec, spec.stop_in_init, whole.program.len()))
        };
        let (all, some) = (
            Some(RankChoice::All),
            "0,3-5".parse().map(RankChoice::Only).ok(),
        );
        assert_eq!(parsed(&["a"]), Some((None, None, 1)));
        let exec = Some((all.clone(), None, 1));
        for line in [&["--stop-at", "exec", "7"][..], &["--stop-on-exec", "7"]] {
            assert_eq!(parsed(line), exec);
        }
        let both = Some((some.clone(), all, 2));
        let line = ["--stop-at=exec:0,3-5", "--stop-at=init", "a", "b"];
        assert_eq!(parsed(&line), both);
        assert_eq!(
            parsed(&["--stop-in-init=0,3-5", "a"]),
            Some((None, some, 1))
        );
        for wrong in ["--stop-at=exec:x", "--stop-at=main", "--stop-on-exec=x"] {
            assert_eq!(parsed(&[wrong, "a"]), None);
        }
    }
}

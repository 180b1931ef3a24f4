//! When and how the job ends.

use std::time::Duration;

use clap::Args;

use crate::job::spec::EndingSpec;

/// When and how the job ends.
#[derive(Debug, Args)]
#[command(next_help_heading = "End of the job")]
pub(in crate::cli) struct EndingArgs {
    /// End the job after this many seconds (fractions allowed), with exit code 124
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    #[arg(allow_negative_numbers = true)]
    timeout: Option<Duration>,
}

impl From<EndingArgs> for EndingSpec {
    fn from(args: EndingArgs) -> Self {
        Self {
            timeout: args.timeout,
        }
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "give a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err("give a number of seconds greater than 0".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_positive_number() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "x", "inf", "NaN"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }
}

//! What the ranks of a program find around them.

use std::ffi::OsString;

use clap::Args;

use crate::job::limit::Limit;

/// What the ranks of a program find around them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Surroundings of the ranks (for each program)")]
pub(in crate::cli) struct SurroundingsArgs {
    /// Set a variable for the ranks, or pass on one (or 'PREFIX*') of an outer launcher
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]")]
    pub(in crate::cli) env: Vec<OsString>,

    /// File mode creation mask of the ranks, in octal [default: wireup's own]
    #[arg(long, value_name = "OCTAL", value_parser = parse_umask)]
    pub(in crate::cli) umask: Option<u32>,

    /// Resource limit of the ranks (nofile, stack, core, …): numbers, with K, M or G, or unlimited
    #[arg(long = "rlimit", value_name = "NAME=SOFT[:HARD]")]
    pub(in crate::cli) limits: Vec<Limit>,
}

fn parse_umask(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mask) if mask <= 0o777 && !text.starts_with('+') => Ok(mask),
        _ => Err("give an octal number from 0 to 777".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_octal() {
        assert_eq!(parse_umask("027"), Ok(0o27));
        for bad in ["", "8", "1000", "+22", "-1", "0o22", "u=rwx"] {
            assert!(parse_umask(bad).is_err(), "{bad}");
        }
    }
}

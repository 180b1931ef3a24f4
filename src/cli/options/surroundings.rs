//! What the ranks of a program find around them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser as _};

use crate::job::limit::Limit;
use crate::job::rank_set::RankSet;
use crate::job::spec::Inherited;

/// What the ranks of a program find around them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Surroundings of the ranks (for each program)")]
pub(in crate::cli) struct SurroundingsArgs {
    /// Set a variable for the ranks, or pass on one (or 'PREFIX*') of an outer launcher
    #[arg(short = 'x', value_name = "NAME[=VALUE]")]
    pub(in crate::cli) env: Vec<OsString>,

    /// Which of wireup's own variables the ranks get: none, all but an outer launcher's, or those
    /// in a list with commas (also 'PREFIX*'); one NAME or NAME=VALUE means -x [default: all]
    #[arg(long = "env", value_name = "none|all|LIST")]
    #[arg(value_parser = OsStringValueParser::new().try_map(parse_inherited))]
    pub(in crate::cli) inherited: Option<Inherited>,

    /// Read variables for the ranks from a file with lines NAME=VALUE or NAME; -x counts more
    #[arg(long = "env-file", value_name = "FILE")]
    pub(in crate::cli) env_files: Vec<PathBuf>,

    /// Run each rank under this command, split as a shell does; in its arguments %r is the rank, %h
    /// the host, %j the job, %n the node
    #[arg(long, value_name = "COMMAND")]
    pub(in crate::cli) wrap: Option<OsString>,

    /// Only these ranks of the job, as 0,4-7, run under the command [default: all]
    #[arg(long, value_name = "RANKS", requires = "wrap")]
    pub(in crate::cli) wrap_ranks: Option<RankSet>,

    /// File mode creation mask of the ranks, in octal [default: wireup's own]
    #[arg(long, value_name = "OCTAL", value_parser = parse_umask)]
    pub(in crate::cli) umask: Option<u32>,

    /// Resource limit of the ranks (nofile, stack, core, …): numbers, with K, M or G, or unlimited
    #[arg(long = "rlimit", value_name = "NAME=SOFT[:HARD]")]
    pub(in crate::cli) limits: Vec<Limit>,
}

/// What `--env` means when it selects variables; one that sets or passes on a single variable never
/// comes here (see [`means_x`]).
fn parse_inherited(text: OsString) -> Result<Inherited, String> {
    match text.as_bytes() {
        b"none" => Ok(Inherited::None),
        b"all" => Ok(Inherited::All),
        list => {
            let names = list.split(|byte| *byte == b',');
            let names: Vec<OsString> = names
                .filter(|name| !name.is_empty())
                .map(|name| OsStr::from_bytes(name).to_owned())
                .collect();
            match names.is_empty() {
                true => Err("give none, all, or names with commas between them".into()),
                false => Ok(Inherited::Only(names)),
            }
        }
    }
}

/// Whether this value of `--env` sets or passes on a variable, as `-x` does.
pub(in crate::cli) fn means_x(value: &[u8]) -> bool {
    let selects = matches!(value, b"none" | b"all" | b"") || value.contains(&b',');
    value.contains(&b'=') || !selects
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
    fn a_list_of_variables_has_a_comma_and_anything_else_is_one_variable() {
        for value in ["A", "A=1", "A=1,2", "P*", "none=1", "alle"] {
            assert!(means_x(value.as_bytes()), "{value}");
        }
        let read = |value: &str| {
            assert!(!means_x(value.as_bytes()), "{value}");
            parse_inherited(value.into())
        };
        assert_eq!(read("none"), Ok(Inherited::None));
        assert_eq!(read("all"), Ok(Inherited::All));
        let list = |names: &[&str]| Ok(Inherited::Only(names.iter().map(Into::into).collect()));
        assert_eq!(read("A,LC_*"), list(&["A", "LC_*"]));
        assert_eq!(read("A,"), list(&["A"]));
        assert!(read("").is_err() && read(",").is_err());
    }

    #[test]
    fn a_mask_is_octal() {
        assert_eq!(parse_umask("027"), Ok(0o27));
        for bad in ["", "8", "1000", "+22", "-1", "0o22", "u=rwx"] {
            assert!(parse_umask(bad).is_err(), "{bad}");
        }
    }
}

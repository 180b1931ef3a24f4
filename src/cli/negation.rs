//! `--no-NAME` for every option: unsets the value that a defaults file, or an earlier option, has
//! set, so that the built-in default holds again. Derived, so no option can be without; added to
//! the parser only for lines that use it (see `OptionTable::into_parser`), to save the others its time.

use clap::{Arg, ArgAction, Command};

/// The prefix of a negated option.
pub(super) const PREFIX: &str = "no-";

/// Adds a hidden `--no-NAME` for every option that does not define one.
pub(super) fn with_negations(mut command: Command) -> Command {
    let names: Vec<(clap::Id, String)> = command
        .get_arguments()
        .filter(|arg| !is_answer(arg))
        .filter_map(|arg| Some((arg.get_id().clone(), arg.get_long()?.to_owned())))
        .collect();
    for (id, name) in &names {
        let negation = opposite(name);
        if names.iter().any(|(_, other)| *other == negation) {
            continue;
        }
        // The parser needs names that live as long as itself: once in a process, a few bytes.
        let negation: &'static str = negation.leak();
        let arg = Arg::new(negation)
            .long(negation)
            .hide(true)
            .action(ArgAction::SetTrue)
            .overrides_with(id);
        command = command
            .mut_arg(id, |arg| arg.overrides_with(negation))
            .arg(arg);
    }
    command
}

/// `no-label` for `label`, and the other way round.
pub(super) fn opposite(name: &str) -> String {
    match name.strip_prefix(PREFIX) {
        Some(positive) => positive.to_owned(),
        None => format!("{PREFIX}{name}"),
    }
}

/// Help and version end the command at once: nothing could be taken back.
fn is_answer(arg: &Arg) -> bool {
    !matches!(
        arg.get_action(),
        ArgAction::Set
            | ArgAction::Append
            | ArgAction::SetTrue
            | ArgAction::SetFalse
            | ArgAction::Count
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> clap::ArgMatches {
        let arg = |name: &'static str| Arg::new(name).long(name);
        let command = Command::new("x")
            .args_override_self(true)
            .arg(arg("label").action(ArgAction::SetTrue))
            .arg(arg("pmi").default_value("auto"))
            .arg(arg("env").action(ArgAction::Append))
            .arg(arg("verbose").short('v').action(ArgAction::Count))
            .arg(arg("no-kill").action(ArgAction::SetTrue));
        let words = std::iter::once("x").chain(words.iter().copied());
        with_negations(command).try_get_matches_from(words).unwrap()
    }

    #[test]
    fn last_of_option_and_its_negation_counts() {
        assert!(!parse(&["--label", "--no-label"]).get_flag("label"));
        assert!(parse(&["--no-label", "--label"]).get_flag("label"));
        assert!(!parse(&["--no-kill", "--kill"]).get_flag("no-kill"));
        assert_eq!(
            parse(&["-vv", "--no-verbose", "-v"]).get_count("verbose"),
            1
        );
    }

    #[test]
    fn negation_restores_default_and_empties_lists() {
        let pmi = |words: &[&str]| parse(words).get_one::<String>("pmi").cloned();
        assert_eq!(pmi(&["--pmi", "pmix", "--no-pmi"]).unwrap(), "auto");
        assert_eq!(pmi(&["--no-pmi", "--pmi", "all"]).unwrap(), "all");
        let env = parse(&["--env", "A=1", "--no-env", "--env", "B=2"]);
        let env: Vec<_> = env.get_many::<String>("env").unwrap().collect();
        assert_eq!(env, ["B=2"]);
    }
}

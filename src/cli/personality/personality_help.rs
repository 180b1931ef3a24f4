//! Texts about wireup in the place of a launcher: help, usage and version, made of the tables of its options.

use std::ffi::OsStr;
use std::fmt::Write as _;

use super::Personality;
use crate::cli::foreign_options::option_table::{
    ForeignOption, OptionTranslation, Page, RedirectedStream, with_dashes,
};
use crate::cli::help_text;
use wireup_core::shell_words::quoted;

impl Personality {
    /// The text that an option asks for; the help has lines of at most this many columns.
    pub(super) fn page(self, page: Page, width: usize) -> String {
        let version = self.version();
        let usage = format!(
            "Usage: {} [OPTIONS] PROGRAM [ARG]... [: [OPTIONS] PROGRAM [ARG]...]...\n",
            self.name()
        );
        match page {
            Page::Version => version,
            Page::Usage => usage,
            Page::Help => {
                let source = format!("{version}\n{usage}{}", self.options());
                help_text::fill(&source, width) + "\n"
            }
        }
    }

    /// The line of its version.
    pub(super) fn version(self) -> String {
        let (name, title) = (self.name(), self.title());
        format!(
            "wireup {} as {name}: takes the command line of {title}\n",
            env!("CARGO_PKG_VERSION")
        )
    }

    /// Lists the options by their treatment.
    fn options(self) -> String {
        let (mut taken, mut idle, mut refused) = (String::new(), String::new(), String::new());
        let mut listed_names: Vec<&str> = Vec::new();
        let tables = self.dialect().options.iter();
        for habit in tables.flat_map(|table| table.iter()) {
            let names = habit
                .names
                .iter()
                .filter(|name| !listed_names.contains(*name));
            let names: Vec<&str> = names.copied().collect();
            listed_names.extend_from_slice(&names);
            if names.is_empty() {
                continue;
            }
            let (text, what) = match habit.meaning {
                OptionTranslation::Nothing(reason) => (&mut idle, reason.to_owned()),
                OptionTranslation::Instead(advice) => (&mut refused, with_values(advice, habit)),
                _ => (&mut taken, translation(habit)),
            };
            add(text, &names, habit.values, &what);
        }
        format!(
            "\nOptions that are taken, and their form for `wireup run`:\n{taken}\
             \nOptions without effect, which -v names:\n{idle}\
             \nOptions that are refused:\n{refused}\
             \nOptions of `wireup run` are taken too: wireup run --help\n"
        )
    }
}

/// Adds an option: its names with their values, and what it becomes, in a line of its own behind long names.
fn add(text: &mut String, names: &[&str], values: usize, what: &str) {
    const NAMES: usize = 30;
    let names: Vec<String> = names.iter().map(|name| with_dashes(name)).collect();
    let value = ["", " VALUE", " NAME VALUE"][values.min(2)];
    let mut names = names.join(", ") + value;
    if names.len() > NAMES {
        let _ = writeln!(text, "  {names}");
        names.clear();
    }
    let _ = writeln!(text, "  {names:NAMES$}  {what}");
}

/// A text with words for the values of an option.
fn with_values(text: &str, habit: &ForeignOption) -> String {
    let first = if habit.values > 1 { "NAME" } else { "VALUE" };
    text.replace("{1}", first).replace("{2}", "VALUE")
}

fn translation(habit: &ForeignOption) -> String {
    let line = |words: &[&str]| {
        let words = words
            .iter()
            .map(|word| quoted(OsStr::new(&with_values(word, habit))));
        words.collect::<Vec<_>>().join(" ")
    };
    match habit.meaning {
        OptionTranslation::Option(option) => format!("{option} VALUE"),
        OptionTranslation::Words(words) => line(words),
        OptionTranslation::Everywhere(words) => format!("{} for every program", line(words)),
        OptionTranslation::Label(tag) => {
            format!("{} in front of each line of output", tag.pattern())
        }
        OptionTranslation::Computed(_, _, text) | OptionTranslation::Parts(_, _, text) => {
            with_values(text, habit)
        }
        OptionTranslation::Variable => "-x NAME=VALUE".to_owned(),
        OptionTranslation::VariableEverywhere => "-x NAME=VALUE for every program".to_owned(),
        OptionTranslation::Parameter(_) => {
            "an option for a parameter of the launcher, else a variable of the ranks".to_owned()
        }
        OptionTranslation::Redirect(RedirectedStream::Merged) => {
            "standard error goes where standard output goes".to_owned()
        }
        OptionTranslation::Redirect(_) => "a file for each rank or for all".to_owned(),
        OptionTranslation::Only(value, _) => value.to_owned(),
        OptionTranslation::Show(Page::Help) => "prints this text".to_owned(),
        OptionTranslation::Show(Page::Usage) => "prints the line of usage".to_owned(),
        OptionTranslation::Show(Page::Version) => "prints the version".to_owned(),
        OptionTranslation::Nothing(text) | OptionTranslation::Instead(text) => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::NAMES;
    use super::*;

    /// The help of each launcher for a terminal of 80 columns.
    fn pages() -> impl Iterator<Item = (&'static str, String)> {
        let launchers = NAMES.into_iter();
        let launchers = launchers.filter(|(_, personality, _)| *personality != Personality::Prte);
        launchers.map(|(name, personality, _)| (name, personality.page(Page::Help, 80)))
    }

    /// The lines below a heading.
    fn list(page: &str, heading: &str) -> String {
        let (_, rest) = page.split_once(heading).unwrap();
        rest.split("\n\n").next().unwrap().to_owned()
    }

    #[test]
    fn launcher_help_fills_terminal() {
        for (name, page) in pages() {
            for line in page.lines() {
                assert!(line.chars().count() <= 80, "{name}: {line}");
            }
        }
        let wide = Personality::Hydra.page(Page::Help, 100);
        let is_filled = wide.lines().any(|line| line.chars().count() > 80);
        assert!(is_filled, "{wide}");
    }

    #[test]
    fn taken_options_have_translation_not_advice() {
        for (name, page) in pages() {
            let taken = list(&page, "Options that are taken");
            assert!(taken.lines().count() > 20, "{name}: {page}");
            for line in taken.lines() {
                let text = line.trim_start();
                let text = text.split_once("  ").map_or(text, |(_, text)| text);
                let is_advice = text.trim_start().starts_with("write ");
                assert!(!is_advice, "{name}: {line}");
            }
        }
    }

    #[test]
    fn options_are_shown_as_written() {
        let page = |personality: Personality| personality.page(Page::Help, 80);
        let of_srun = page(Personality::Srun);
        for line in [
            "  -K0                             --no-kill-on-bad-exit",
            "  -N, --nodes VALUE               --nodes VALUE; of a range the smaller number",
            "  -l, --label                     '--label=%R: '",
        ] {
            assert!(
                of_srun.lines().any(|found| found == line),
                "{line}\n{of_srun}"
            );
        }
        assert!(!of_srun.contains("--info"), "{of_srun}");
        let of_mpirun = page(Personality::Mpirun);
        for line in [
            "  --info                          prints the version",
            "  --pmixmca, --gpmixmca NAME VALUE",
            "                                  -x PMIX_MCA_NAME=VALUE for every program",
            "  -f, --machine VALUE             --hostfile VALUE",
        ] {
            assert!(
                of_mpirun.lines().any(|found| found == line),
                "{line}\n{of_mpirun}"
            );
        }
    }
}

//! Texts about wireup in the place of a launcher: help, usage and version, made of the tables of its options.

use std::fmt::Write as _;

use super::Personality;
use crate::cli::foreign_options::table::{Habit, Meaning, Page, Stream};

impl Personality {
    /// The text that an option asks for.
    pub(super) fn page(self, page: Page) -> String {
        let (name, title) = (self.name(), self.title());
        let version = format!(
            "wireup {} as {name}: takes the command line of {title}\n",
            env!("CARGO_PKG_VERSION")
        );
        let usage =
            format!("Usage: {name} [OPTIONS] PROGRAM [ARG]... [: [OPTIONS] PROGRAM [ARG]...]...\n");
        match page {
            Page::Version => version,
            Page::Usage => usage,
            Page::Help => format!("{version}\n{usage}{}", self.options()),
        }
    }

    /// Its options by what becomes of them.
    fn options(self) -> String {
        let (mut taken, mut idle, mut refused) = (String::new(), String::new(), String::new());
        let mut seen = Vec::new();
        let tables = self.dialect().options.iter();
        for habit in tables.flat_map(|table| table.iter()) {
            let is_new = !habit.names.iter().any(|name| seen.contains(name));
            seen.extend(habit.names);
            if !is_new {
                continue;
            }
            let (text, what) = match habit.meaning {
                Meaning::Nothing(reason) => (&mut idle, reason.to_owned()),
                Meaning::Instead(advice) => (&mut refused, values(advice)),
                meaning => (&mut taken, translation(meaning)),
            };
            add(text, habit, &what);
        }
        format!(
            "\nOptions that are taken, and what they are to `wireup run`:\n{taken}\
             \nOptions without effect, which -v names:\n{idle}\
             \nOptions that are refused:\n{refused}\
             \nOptions of `wireup run` are taken too: wireup run --help\n"
        )
    }
}

/// Adds an option: its names in as many lines as they need, the last one with its translation.
fn add(text: &mut String, habit: &Habit, what: &str) {
    const NAMES: usize = 30;
    let value = ["", " VALUE", " NAME VALUE"][habit.values.min(2)];
    let mut names = String::new();
    for name in habit.names {
        let dashes = if name.len() == 1 { "-" } else { "--" };
        let spelled = format!("{dashes}{}{value}", name.trim_start_matches('-'));
        if !names.is_empty() && names.len() + spelled.len() > NAMES {
            let _ = writeln!(text, "  {names},");
            names.clear();
        }
        let between = if names.is_empty() { "" } else { ", " };
        names.push_str(between);
        names.push_str(&spelled);
    }
    let _ = writeln!(text, "  {names:<NAMES$}  {what}");
}

fn values(text: &str) -> String {
    text.replace("{1}", "VALUE").replace("{2}", "VALUE")
}

fn translation(meaning: Meaning) -> String {
    match meaning {
        Meaning::Option(option) => format!("{option} VALUE"),
        Meaning::Words(words) => values(&words.join(" ")),
        Meaning::Everywhere(words) => format!("{} for every program", values(&words.join(" "))),
        Meaning::Label(tag) => format!("{} in front of each line of output", tag.pattern()),
        Meaning::Computed(_, advice) | Meaning::Parts(_, advice) => advice.to_owned(),
        Meaning::Variable => "-x NAME=VALUE".to_owned(),
        Meaning::VariableEverywhere => "-x NAME=VALUE for every program".to_owned(),
        Meaning::Parameter(_) => {
            "an option for a parameter of the launcher, else a variable of the ranks".to_owned()
        }
        Meaning::Redirect(Stream::Merged) => {
            "standard error goes where standard output goes".to_owned()
        }
        Meaning::Redirect(_) => "a file for each rank or for all".to_owned(),
        Meaning::Only(value, _) => value.to_owned(),
        Meaning::Show(_) => "prints a text".to_owned(),
        Meaning::Nothing(text) | Meaning::Instead(text) => text.to_owned(),
    }
}

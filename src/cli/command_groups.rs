//! The commands in the help of `wireup`, in groups.

use clap::Command;

use super::help_text;

/// Headings, and the commands below each.
pub(super) const GROUPS: &[(&str, &[&str])] = &[
    (
        "Run",
        &["run", "attach", "wait", "kill", "resize", "config"],
    ),
    (
        "Look",
        &[
            "ps", "top", "stacks", "core", "debug", "report", "names", "topo", "mpis", "doctor",
        ],
    ),
    ("Hosts and agents", &["agent", "pki", "exec", "rsh"]),
    (
        "Other launchers",
        &["serve", "env", "install-links", "pmi", "oci-hook", "impi"],
    ),
    ("Help", &["man", "completions"]),
];

/// The columns of a command's name.
const NAME_WIDTH: usize = 13;

/// The template of the help of `wireup`, for a terminal of this many columns.
pub(super) fn template(tree: &Command, width: usize) -> String {
    let mut text = "{about}\n\n{usage-heading} {usage}\n".to_owned();
    for (heading, names) in GROUPS {
        text += &format!("\n{heading}:\n");
        for name in *names {
            let about = tree.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            text += &format!("  {name:NAME_WIDTH$}  {about}\n");
        }
    }
    text += "\nOptions:\n{options}{after-help}";
    help_text::fill(&text, width)
}

#[cfg(test)]
mod tests {
    use super::super::tree;
    use super::*;

    #[test]
    fn each_command_is_in_one_group_and_fits_terminal_line() {
        let tree = tree();
        let mut grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        let mut known: Vec<&str> = tree
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(Command::get_name)
            .collect();
        grouped.sort_unstable();
        known.sort_unstable();
        assert_eq!(grouped, known);
        for line in template(&tree, 100).lines() {
            assert!(line.len() <= 80, "{line}");
        }
    }

    #[test]
    fn command_groups_fit_narrow_terminal() {
        let text = template(&tree(), 60);
        for line in text.lines() {
            assert!(line.len() <= 60, "{line}");
        }
        let further = format!("\n{:1$}", "", NAME_WIDTH + 4);
        assert!(text.contains(&further), "{text}");
        assert!(
            text.ends_with("\nOptions:\n{options}{after-help}"),
            "{text}"
        );
    }
}

//! `wireup man`: manual pages, made from the parser's description, on a terminal or as files.
//!
//! Sections come from the text below the options in the help: a line that ends in a colon and is
//! not indented starts one. `Examples:` stay as they are; in the others, blanks separate a term
//! from what it means.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::{fs, io};

use clap::{Args, Command, ValueHint};
use clap_mangen::Man;
use roff::{Roff, bold, roman};

use super::command_groups::GROUPS;
use super::help_text::reflowed;
use super::{print, tree};
use wireup_core::failure::CommandError;
use wireup_sys::signals::ignore_file_size_signal;

const EXAMPLES: &str = "\
Examples:
  wireup man                        the page of wireup, on a terminal
  wireup man run                    the page of wireup run
  wireup man run >wireup-run.1      its source
  wireup man --dir share/man/man1   all pages, one file each";

/// Arguments of `wireup man`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ManArgs {
    /// Command to show the page of, as man shows it on a terminal, otherwise its source [default: wireup itself]
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    command: Vec<String>,

    /// Write all pages to this directory, which is created if missing
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

/// Prints the page asked for, or writes them all.
pub(super) fn execute(args: &ManArgs) -> Result<u8, CommandError> {
    ignore_file_size_signal();
    let mut top = tree().disable_help_subcommand(true);
    top.build();
    if let Some(dir) = &args.dir {
        let own = |error| CommandError::system(format!("cannot write to {}", dir.display()), error);
        fs::create_dir_all(dir).map_err(own)?;
        return write_all(&top, dir).map(|()| 0).map_err(own);
    }
    let mut command = &top;
    for (index, name) in args.command.iter().enumerate() {
        // `wireup man wireup` is as good as `wireup man`.
        if index == 0 && name == top.get_name() {
            continue;
        }
        command = command.find_subcommand(name).ok_or_else(|| {
            let known: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            CommandError::request(format!(
                "no page of '{}'; there are: {}",
                args.command.join(" "),
                known.join(", ")
            ))
        })?;
    }
    let source = page(command, &top);
    if io::stdout().is_terminal() {
        return show(&source, command);
    }
    print(&source)
}

/// Shows a page on a terminal: by man, or where that fails the help by a pager.
fn show(source: &[u8], command: &Command) -> Result<u8, CommandError> {
    if is_shown_by(&["man", "-l", "-"], source) {
        return Ok(0);
    }
    let help = reflowed(command.clone()).render_long_help().to_string();
    let pager = std::env::var("PAGER")
        .ok()
        .filter(|pager| !pager.is_empty());
    let pager = pager.unwrap_or_else(|| "less".to_owned());
    match is_shown_by(&["sh", "-c", &pager], help.as_bytes()) {
        true => Ok(0),
        false => print(help.as_bytes()),
    }
}

/// Hands a text to a program, and waits for its end; whether that was a success.
fn is_shown_by(words: &[&str], text: &[u8]) -> bool {
    let mut program = process::Command::new(words[0]);
    let program = program.args(&words[1..]).stdin(Stdio::piped());
    let Ok(mut child) = program.stderr(Stdio::null()).spawn() else {
        return false;
    };
    if let Some(mut stdin) = child.stdin.take() {
        // A reader that stops early is not a failure.
        let _ = stdin.write_all(text);
    }
    child.wait().is_ok_and(|status| status.success())
}

fn write_all(command: &Command, dir: &Path) -> io::Result<()> {
    fn descend(command: &Command, top: &Command, dir: &Path) -> io::Result<()> {
        let file = dir.join(format!("{}.1", name_of(command)));
        fs::write(file, page(command, top))?;
        visible(command).try_for_each(|sub| descend(sub, top, dir))
    }
    descend(command, command, dir)
}

/// `wireup-run` for `wireup run`.
fn name_of(command: &Command) -> &str {
    command
        .get_display_name()
        .unwrap_or_else(|| command.get_name())
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set())
}

/// One page, in the language of `man`.
fn page(command: &Command, top: &Command) -> Vec<u8> {
    // An option that the short help leaves out would have no text here.
    let man = Man::new(command.clone().mut_args(|arg| arg.hide_short_help(false)));
    let mut text = Vec::new();
    let written = man
        .render_name_section(&mut text)
        .and_then(|()| man.render_synopsis_section(&mut text))
        .and_then(|()| man.render_description_section(&mut text));
    written.expect("a vector takes everything");
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        let options = man.render_options_section(&mut text);
        options.expect("a vector takes everything");
    }
    let mut roff = Roff::new();
    if name_of(command) == name_of(top) {
        roff.control("SH", ["COMMANDS"]);
        for (heading, names) in GROUPS {
            roff.control("SS", [*heading]);
            let found = names.iter().filter_map(|name| top.find_subcommand(name));
            entries(&mut roff, found);
        }
    } else if visible(command).next().is_some() {
        roff.control("SH", ["COMMANDS"]);
        entries(&mut roff, visible(command));
    }
    let below = command
        .get_after_long_help()
        .or_else(|| command.get_after_help());
    if let Some(below) = below {
        sections(&mut roff, &below.to_string());
    }
    see_also(&mut roff, command, top);
    let rest = roff.to_writer(&mut text);
    rest.expect("a vector takes everything");
    whole(&name_of(command).to_uppercase(), &text)
}

/// A page from its sections: each was rendered with a preamble, and only the first is kept.
fn whole(title: &str, sections: &[u8]) -> Vec<u8> {
    let preamble = Roff::new().render();
    let version = env!("CARGO_PKG_VERSION");
    let mut page = format!("{preamble}.TH {title} 1 \"\" \"wireup {version}\" \"User Commands\"\n");
    let sections = String::from_utf8_lossy(sections);
    page.extend(
        sections
            .split_inclusive('\n')
            .filter(|line| !preamble.split_inclusive('\n').any(|own| own == *line)),
    );
    page.into_bytes()
}

fn entries<'c>(roff: &mut Roff, commands: impl Iterator<Item = &'c Command>) {
    for sub in commands {
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        roff.control("TP", []);
        roff.text([bold(name_of(sub)), roman("(1)")]);
        roff.text([roman(about)]);
    }
}

fn sections(roff: &mut Roff, below: &str) {
    let mut verbatim = false;
    // Roff needs blank lines as macros, and none in front of a heading.
    for line in below.lines().filter(|line| !line.trim().is_empty()) {
        let heading = line.strip_suffix(':').filter(|_| !line.starts_with(' '));
        if let Some(heading) = heading {
            end_verbatim(roff, &mut verbatim);
            let heading = heading.to_uppercase();
            roff.control("SH", [heading.as_str()]);
            if heading == "EXAMPLES" {
                roff.control("EX", []);
                verbatim = true;
            }
        } else if verbatim {
            roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
        } else {
            match line.trim_start().split_once("  ") {
                Some((term, meaning)) => {
                    roff.control("TP", []);
                    roff.text([bold(term)]);
                    roff.text([roman(meaning.trim_start())]);
                }
                None => drop(roff.text([roman(line.trim())])),
            }
        }
    }
    end_verbatim(roff, &mut verbatim);
}

fn end_verbatim(roff: &mut Roff, verbatim: &mut bool) {
    if std::mem::take(verbatim) {
        roff.control("EE", []);
    }
}

/// The pages of the other commands.
fn see_also(roff: &mut Roff, command: &Command, top: &Command) {
    let own = name_of(command);
    let mut names: Vec<&str> = std::iter::once(top)
        .chain(visible(top))
        .map(name_of)
        .filter(|name| *name != own)
        .collect();
    names.sort_unstable();
    let mut line = Vec::new();
    for (index, name) in names.iter().enumerate() {
        line.push(roman(if index == 0 { "" } else { ", " }));
        line.extend([bold(*name), roman("(1)")]);
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(name: &str) -> String {
        let mut top = tree().disable_help_subcommand(true);
        top.build();
        let command = top.find_subcommand(name).unwrap();
        String::from_utf8(page(command, &top)).unwrap()
    }

    #[test]
    fn man_page_of_run_has_every_option_and_section() {
        let page = page_of("run");
        for section in [
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "OPTIONS",
            "EXAMPLES",
            "ENVIRONMENT",
            "FILES",
        ] {
            assert!(
                page.contains(&format!(".SH {section}\n")),
                "{section}: {page}"
            );
        }
        assert!(page.contains(".SH \"EXIT STATUS\"\n"), "{page}");
        let command = super::super::run_args::RunArgs::command();
        let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
        for name in shown.filter_map(|arg| arg.get_long()) {
            let name = name.replace('-', "\\-");
            assert!(page.contains(&format!("\\-\\-{name}")), "{name}: {page}");
        }
        let (entry, text) = (
            r"\-\-tree\-width",
            "Let each host contact at most this many",
        );
        let after = page.split_once(entry).unwrap().1;
        let next = after.split(".TP").next().unwrap();
        assert!(next.contains(text), "{next}");
    }

    use clap::CommandFactory;

    #[test]
    fn examples_are_verbatim_and_terms_are_highlighted() {
        let mut roff = Roff::new();
        sections(&mut roff, "Examples:\n  a  b\n\nFiles:\n  x y  what it is");
        let text = roff.to_roff();
        assert!(
            text.contains(".EX\na  b\n.EE\n.SH FILES\n.TP\n\\fBx y\\fR\nwhat it is"),
            "{text}"
        );
    }
}

//! Options of other launchers (`mpiexec`, `mpirun`, `srun`): options with the same meaning are accepted, all others are
//! refused with their replacement. An option that would have had an effect is never silently ignored.

pub(super) mod option_table;

use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::iter;
use std::os::unix::ffi::OsStrExt;

use option_table::{
    Dialect, ForeignOption, HABITS, LauncherSetting, OptionTranslation, Page, RedirectedStream, Tag,
};

use crate::cli::option_scan::{ArgumentKind, OptionTable};
use wireup_agent_args::usage_errors::is_near;

/// A program's part of the line in wireup's spelling.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TranslatedLine {
    /// Options, program and arguments.
    pub(super) words: Vec<OsString>,
    /// Options that hold for every program of the job.
    pub(super) everywhere: Vec<OsString>,
    /// Options that were accepted without effect, each with the reason.
    pub(super) notes: Vec<String>,
    pub(super) pieces: Vec<TranslatedOption>,
    /// Files for the ranks' streams; no name for a stream that follows another.
    pub(super) redirects: Vec<(RedirectedStream, OsString)>,
    /// Parts of the label of output lines.
    pub(super) tags: Vec<Tag>,
    /// A text that is asked for; the rest of the line does not matter then.
    pub(super) page: Option<Page>,
    /// Word that looks like an option and is not one.
    pub(super) unknown: Option<OsString>,
}

/// A translated option.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TranslatedOption {
    /// Option without the values that follow it.
    pub(super) option: OsString,
    /// The option with its values.
    pub(super) written: OsString,
    /// The words for it; none for a redirection.
    pub(super) words: Vec<OsString>,
}

/// Error: an option of another launcher cannot be translated.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ForeignError {
    #[error("{} needs {}", option.display(), count(*number))]
    Values { option: OsString, number: usize },
    /// The option has another meaning or none in wireup, or its value is invalid; the advice names the replacement.
    #[error("{}: {advice}", option.display())]
    Instead { option: OsString, advice: String },
    #[error("unknown option {}{near}; {launcher} --help lists the options", option.display())]
    Unknown {
        option: OsString,
        launcher: &'static str,
        near: String,
    },
}

impl ForeignError {
    /// Adds the value to the error, if the value is the cause.
    fn with_value(self, meaning: OptionTranslation, written: &OsStr) -> Self {
        use OptionTranslation::{Computed, Only, Parameter, Parts};
        match (self, meaning) {
            (Self::Instead { advice, .. }, Computed(..) | Only(..) | Parts(..) | Parameter(_)) => {
                Self::Instead {
                    option: written.to_owned(),
                    advice,
                }
            }
            (error, _) => error,
        }
    }
}

/// Translates the options in front of a program to wireup's spelling; the tables of `dialect` take precedence over the
/// common table. Words after the program, and after an unknown word, are unchanged.
///
/// # Errors
/// [`ForeignError`] with the replacement of an option of another launcher.
pub(super) fn translate(
    table: &OptionTable,
    dialect: &Dialect,
    words: Vec<OsString>,
) -> Result<TranslatedLine, ForeignError> {
    let mut result = TranslatedLine::default();
    let mut words: VecDeque<OsString> = words.into();
    while let Some(word) = words.pop_front() {
        let meaning = table.read(&word);
        let foreign = match meaning {
            ArgumentKind::Program => None,
            _ if let Some(found) = dialect.find(&word, words.front()) => Some(found),
            _ if let Some(letters) = dialect.letters(table, &word) => {
                letters
                    .into_iter()
                    .rev()
                    .for_each(|word| words.push_front(word));
                continue;
            }
            // Wireup's spelling takes precedence, except that `-np` is not `-n p`.
            ArgumentKind::Option { .. } if is_plain(&word) => {
                whole(&word).map(|habit| (habit, None))
            }
            _ => among(HABITS, &word).or_else(|| letter(HABITS, &word)),
        };
        if let Some((habit, joined)) = foreign {
            let joined_values = usize::from(joined.is_some());
            let values = take_values(habit, &word, joined, &mut words)?;
            let following = values.iter().skip(joined_values);
            let written: Vec<_> = iter::once(&word).chain(following).cloned().collect();
            let written = written.join(OsStr::new(" "));
            let before = result.pieces.len();
            apply(dialect, habit.meaning, &word, &values, &mut result)
                .map_err(|error| error.with_value(habit.meaning, &written))?;
            for piece in &mut result.pieces[before..] {
                piece.written.clone_from(&written);
            }
            if result.page.is_some() {
                break;
            }
            continue;
        }
        let takes_next = match meaning {
            ArgumentKind::Option { takes_next } => {
                if let Some(each) = variables(table, &word, takes_next, &mut words) {
                    result.words.extend(each);
                    continue;
                }
                if takes_next && word == "--json" && words.front().is_some_and(is_option) {
                    result.words.push("--json=-".into());
                    continue;
                }
                result.words.push(word);
                takes_next
            }
            ArgumentKind::SingleDash {
                respelled,
                takes_next,
            } => {
                result.words.push(respelled);
                takes_next
            }
            ArgumentKind::Unknown if let Some(words) = numbered(table, &word) => {
                result.words.extend(words);
                false
            }
            ArgumentKind::Unknown => {
                result.unknown = Some(word.clone());
                result.words.push(word);
                break;
            }
            ArgumentKind::Program => {
                result.words.push(word);
                break;
            }
        };
        if takes_next {
            result.words.extend(words.pop_front());
        }
    }
    result.words.extend(words);
    Ok(result)
}

/// Returns the options from variables of the environment, each of which must be valid by itself.
pub(super) fn translate_environment<'v>(
    dialect: &Dialect,
    variable: impl Fn(&str) -> Option<OsString>,
    names: impl IntoIterator<Item = &'v str>,
    is_valid: impl Fn(&[OsString]) -> bool,
) -> TranslatedLine {
    let mut result = TranslatedLine::default();
    for name in names {
        let (Some(setting), Some(value)) = (dialect.setting(name), variable(name)) else {
            continue;
        };
        let mut shown = OsString::from(name);
        shown.push("=");
        shown.push(&value);
        // A variable may be for another launcher, so an invalid one does not fail the launch.
        let mut one = TranslatedLine::default();
        match apply_setting(dialect, setting, &shown, value, &mut one) {
            Err(ForeignError::Instead { advice, .. }) => result.ignore(&shown, &advice),
            Err(error) => result.notes.push(error.to_string()),
            Ok(()) if !is_valid(&[&one.words[..], &one.everywhere].concat()) => {
                result.ignore(&shown, "wireup has no such value");
            }
            Ok(()) => result.append(&mut one),
        }
    }
    result
}

impl TranslatedOption {
    /// An option that no value follows.
    fn new(option: &OsStr, words: Vec<OsString>) -> Self {
        Self {
            option: option.to_owned(),
            written: option.to_owned(),
            words,
        }
    }
}

impl TranslatedLine {
    /// Takes over all but the words.
    pub(super) fn append(&mut self, other: &mut Self) {
        self.everywhere.append(&mut other.everywhere);
        self.notes.append(&mut other.notes);
        self.pieces.append(&mut other.pieces);
        self.redirects.append(&mut other.redirects);
        self.tags.append(&mut other.tags);
    }

    /// Adds the words for an option.
    fn add(&mut self, option: &OsStr, words: Vec<OsString>) {
        self.words.extend_from_slice(&words);
        if !words.is_empty() {
            self.pieces.push(TranslatedOption::new(option, words));
        }
    }

    /// Adds the words for an option that holds for every program of the job.
    fn add_everywhere(&mut self, option: &OsStr, words: Vec<OsString>) {
        self.everywhere.extend_from_slice(&words);
        self.pieces.push(TranslatedOption::new(option, words));
    }

    fn ignore(&mut self, option: &OsStr, reason: &str) {
        let note = format!("{} has no effect: {reason}", option.display());
        self.notes.push(note);
    }
}

/// Prefixes of the variables of parameters.
const PARAMETERS: [&str; 2] = ["OMPI_MCA_", "PRTE_MCA_"];

impl Dialect {
    /// Finds the entry of a word, with the value that is joined to it. The word that follows decides where an option has
    /// no value to one launcher and one to another: Open MPI's `-s` and Hydra's `-s all`.
    fn find(
        &self,
        word: &OsStr,
        next: Option<&OsString>,
    ) -> Option<(&'static ForeignOption, Option<OsString>)> {
        let tables = self.options.iter();
        let mut found =
            tables.filter_map(|table| among(table, word).or_else(|| letter(table, word)));
        let first = found.next()?;
        let is_number =
            |word: &OsString| !word.is_empty() && word.as_bytes().iter().all(u8::is_ascii_digit);
        let reads_stdin = |word: &OsString| word == "all" || word == "none" || is_number(word);
        if first.0.values > 0 || !next.is_some_and(reads_stdin) {
            return Some(first);
        }
        let stdin =
            found.find(|(habit, _)| matches!(habit.meaning, OptionTranslation::Option("--stdin")));
        Some(stdin.unwrap_or(first))
    }

    /// Finds the entry of an option without its dashes.
    fn named(&self, option: &str) -> Option<&'static ForeignOption> {
        let habits = self.options.iter().flat_map(|table| table.iter());
        let mut habits = habits.chain(HABITS);
        habits.find(|habit| habit.names.contains(&option))
    }

    /// Splits joined letters into words, the last one with its value.
    fn letters(&self, own: &OptionTable, word: &OsStr) -> Option<Vec<OsString>> {
        let letters = word.to_str()?.strip_prefix('-')?;
        if !self.has_clusters || letters.starts_with('-') || letters.chars().count() < 2 {
            return None;
        }
        let mut words = Vec::new();
        let mut rest = letters.chars();
        while let Some(letter) = rest.next() {
            let word = OsString::from(format!("-{letter}"));
            let takes_value = match (self.find(&word, None), own.read(&word)) {
                (Some((habit, _)), _) => habit.values > 0,
                (None, ArgumentKind::Option { takes_next }) => takes_next,
                _ => return None,
            };
            words.push(word);
            if takes_value && !rest.as_str().is_empty() {
                let value = rest.as_str();
                words.push(value.strip_prefix('=').unwrap_or(value).into());
                break;
            }
        }
        Some(words)
    }

    /// The setting of a variable or a parameter.
    fn setting(&self, name: &str) -> Option<&'static LauncherSetting> {
        let stripped = PARAMETERS
            .iter()
            .find_map(|prefix| name.strip_prefix(prefix));
        let name = stripped.unwrap_or(name);
        let mut settings = self.settings.iter().copied().flatten();
        settings.find(|setting| setting.name == name)
    }

    /// Whether the launcher reads a parameter.
    pub(super) fn is_for_launcher(&self, parameter: &str) -> bool {
        self.setting(parameter).is_some() || is_launcher_parameter(parameter)
    }

    /// The variables of all settings.
    pub(super) fn variables(&self) -> BTreeSet<String> {
        let settings = self.settings.iter().copied().flatten();
        let names = settings.map(|setting| setting.name);
        names
            .flat_map(|name| match name.starts_with(char::is_lowercase) {
                true => PARAMETERS.map(|prefix| format!("{prefix}{name}")).to_vec(),
                false => vec![name.to_owned()],
            })
            .collect()
    }

    /// Returns a line for each variable of a launcher that is not one of the settings.
    pub(super) fn idle_variables(&self, names: impl IntoIterator<Item = OsString>) -> Vec<String> {
        let is_idle = |name: &str| {
            let mut idle = self.idle.iter().copied().flatten();
            let is_known =
                idle.any(|idle| *idle == name || idle.ends_with('_') && name.starts_with(idle));
            // The library reads most parameters of Open MPI.
            let parameter = name.strip_prefix(PARAMETERS[0]);
            is_known && self.setting(name).is_none() && parameter.is_none_or(is_launcher_parameter)
        };
        let names = names.into_iter().filter_map(|name| name.into_string().ok());
        let names = names.filter(|name| is_idle(name));
        names
            .map(|name| format!("{name} has no effect: {PARAMETER}"))
            .collect()
    }

    /// Returns the option of the launcher that a word resembles.
    pub(super) fn near(&self, word: &OsStr) -> Option<&'static str> {
        let word = word.to_string_lossy();
        let (word, _) = word.split_once('=').unwrap_or((&word, ""));
        let word = word.trim_start_matches('-');
        let habits = self.options.iter().flat_map(|table| table.iter());
        let names = habits.flat_map(|habit| habit.names).copied();
        let names = names.filter(|name| name.len() > 2 && is_near(word, name));
        names.min_by_key(|name| strsim::osa_distance(word, name))
    }
}

/// Whether a word cannot be the value of the option before it: an option, or the `--` in front of the program.
fn is_option(word: &OsString) -> bool {
    word.as_bytes().starts_with(b"-") && word != "-"
}

/// Whether a word has two dashes or one letter, so that it cannot be a long name after one dash.
fn is_plain(word: &OsStr) -> bool {
    let bytes = word.as_bytes();
    bytes.starts_with(b"--") || bytes.len() <= 2
}

/// `-x A,B` as `-x A -x B`: other launchers add all that such a list names. `None` for any other option.
fn variables(
    table: &OptionTable,
    word: &OsStr,
    takes_next: bool,
    words: &mut VecDeque<OsString>,
) -> Option<Vec<OsString>> {
    let (_, joined) = table
        .letter_with_value(word)
        .filter(|(letter, _)| *letter == 'x')?;
    let list = match takes_next {
        true => words.front()?.clone(),
        false => joined.into(),
    };
    if !list.as_bytes().contains(&b',') || list.as_bytes().contains(&b'=') {
        return None;
    }
    if takes_next {
        words.pop_front();
    }
    let mut each = Vec::new();
    // Switches in front of the letter.
    let switches = &word.as_bytes()[..word.len() - joined.len() - 1];
    if switches != b"-" {
        each.push(OsStr::from_bytes(switches).to_owned());
    }
    for name in list.as_bytes().split(|byte| *byte == b',') {
        if !name.is_empty() {
            each.extend(["-x".into(), OsStr::from_bytes(name).to_owned()]);
        }
    }
    Some(each)
}

/// The entry of a word that is one of wireup's options except for its value.
fn whole(word: &OsStr) -> Option<&'static ForeignOption> {
    let name = name(word.as_bytes());
    let known = |known: &str| known.as_bytes() == name && known.contains('=');
    let named = |habit: &&ForeignOption| habit.names.iter().any(|name| known(name));
    HABITS.iter().find(named)
}

/// A word without the dash or the two dashes in front.
fn name(word: &[u8]) -> &[u8] {
    let name = word.strip_prefix(b"-").unwrap_or(word);
    name.strip_prefix(b"-").unwrap_or(name)
}

/// The entry of a name behind one dash with its number, as in `-N2` and `-np2`.
fn letter<'h>(
    habits: &'h [ForeignOption],
    word: &OsStr,
) -> Option<(&'h ForeignOption, Option<OsString>)> {
    let (name, value) = split_number(word)?;
    let (habit, _) = among(habits, name)?;
    // Numbers behind a letter may be optional; a longer name that takes no value has none.
    let takes_number = habit.values > 0 || name.len() == 2;
    takes_number.then(|| (habit, Some(value.to_owned())))
}

/// The words of an option of ours behind one dash with its number, as in `-ppn2`.
fn numbered(own: &OptionTable, word: &OsStr) -> Option<[OsString; 2]> {
    let (name, value) = split_number(word)?;
    match own.read(name) {
        ArgumentKind::SingleDash {
            respelled,
            takes_next: true,
        } => Some([respelled, value.to_owned()]),
        _ => None,
    }
}

/// A name behind one dash, and the number that follows it in the same word.
fn split_number(word: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let bytes = word.as_bytes();
    let digits = bytes.iter().rev().take_while(|byte| byte.is_ascii_digit());
    let (name, value) = bytes.split_at(bytes.len() - digits.count());
    let is_joined = !value.is_empty() && !name.starts_with(b"--");
    is_joined.then(|| (OsStr::from_bytes(name), OsStr::from_bytes(value)))
}

/// Finds the entry of a word in a table, and the value that is joined to it with `=`.
fn among<'h>(
    habits: &'h [ForeignOption],
    word: &OsStr,
) -> Option<(&'h ForeignOption, Option<OsString>)> {
    let bytes = word.as_bytes();
    let (option, joined) = match bytes.iter().position(|byte| *byte == b'=') {
        // Behind one dash too, for names that are no letters.
        Some(at) if at > 2 => (
            &bytes[..at],
            Some(OsStr::from_bytes(&bytes[at + 1..]).into()),
        ),
        _ => (bytes, None),
    };
    let name = name(option);
    let known = |known: &str| [option, name].contains(&known.as_bytes());
    let named = |habit: &&ForeignOption| habit.names.iter().any(|name| known(name));
    Some((habits.iter().find(named)?, joined))
}

fn take_values(
    habit: &ForeignOption,
    word: &OsStr,
    joined: Option<OsString>,
    words: &mut VecDeque<OsString>,
) -> Result<Vec<OsString>, ForeignError> {
    let missing = habit.values - usize::from(joined.is_some()).min(habit.values);
    let mut values: Vec<OsString> = joined.into_iter().collect();
    let is_variable = matches!(
        habit.meaning,
        OptionTranslation::Variable | OptionTranslation::VariableEverywhere
    );
    for _ in 0..missing {
        // Hydra takes `-genv A=B` as `-genv A B`.
        let assigned = |value: &OsString| value.as_bytes().contains(&b'=');
        if is_variable && values.first().is_some_and(assigned) {
            return Ok(values);
        }
        values.extend(words.pop_front());
    }
    // The refusal of an option includes its values.
    if values.len() < habit.values && !matches!(habit.meaning, OptionTranslation::Instead(_)) {
        return Err(ForeignError::Values {
            option: word.to_owned(),
            number: habit.values,
        });
    }
    Ok(values)
}

fn count(values: usize) -> String {
    match values {
        1 => "a value".into(),
        number => format!("{number} values"),
    }
}

fn apply(
    dialect: &Dialect,
    meaning: OptionTranslation,
    word: &OsStr,
    values: &[OsString],
    result: &mut TranslatedLine,
) -> Result<(), ForeignError> {
    match meaning {
        OptionTranslation::Nothing(reason) => result.ignore(word, reason),
        OptionTranslation::Only(only, instead) => {
            if values.iter().any(|value| value != only) {
                return Err(refusal(instead, word, values));
            }
        }
        OptionTranslation::Option(option) => {
            let option = iter::once(option.into());
            result.add(word, option.chain(values.iter().cloned()).collect());
        }
        OptionTranslation::Words(words) => result.add(word, all_filled(words, values)),
        OptionTranslation::Everywhere(words) => {
            result.add_everywhere(word, all_filled(words, values));
        }
        OptionTranslation::Label(tag) => result.tags.push(tag),
        OptionTranslation::Parts(read, instead, _) => {
            let output = values.first().and_then(|value| read(value));
            let output = output.ok_or_else(|| refusal(instead, word, values))?;
            result.tags.extend(output.tags);
            let notes = output.notes.iter();
            let notes = notes.map(|note| format!("{}: {note}", word.display()));
            result.notes.extend(notes);
            if output.is_merged {
                let merged = (RedirectedStream::Merged, OsString::new());
                result.redirects.push(merged);
            }
            result.add(word, output.words);
        }
        OptionTranslation::Computed(compute, instead, _) => {
            let value = values.first().map_or(Some(""), |value| value.to_str());
            let words = value.and_then(compute);
            result.add(word, words.ok_or_else(|| refusal(instead, word, values))?);
        }
        OptionTranslation::Variable => result.add(word, vec!["-x".into(), assignment(values)]),
        OptionTranslation::VariableEverywhere => {
            result.add_everywhere(word, vec!["-x".into(), assignment(values)]);
        }
        OptionTranslation::Parameter(prefix) => {
            let name = values[0].to_string_lossy();
            let mut shown = word.to_owned();
            shown.push(" ");
            shown.push(&*name);
            if let Some(setting) = dialect.setting(&name) {
                return apply_setting(dialect, setting, &shown, values[1].clone(), result);
            }
            if prefix.is_empty() || is_launcher_parameter(&name) {
                result.ignore(&shown, PARAMETER);
            }
            if !prefix.is_empty() {
                let mut variable = OsString::from(prefix);
                variable.push(assignment(values));
                result.add_everywhere(word, vec!["-x".into(), variable]);
            }
        }
        OptionTranslation::Redirect(stream) => {
            let file = values.first().cloned().unwrap_or_default();
            result.redirects.push((stream, file));
            result.pieces.push(TranslatedOption::new(word, Vec::new()));
        }
        OptionTranslation::Show(page) => result.page = Some(page),
        OptionTranslation::Instead(instead) => return Err(refusal(instead, word, values)),
    }
    Ok(())
}

const PARAMETER: &str = "it is a parameter of a launcher that does not run here";

/// Whether Open MPI's or PRRTE's launcher reads a parameter: those of its frameworks, which begin with their names.
pub(super) fn is_launcher_parameter(parameter: &str) -> bool {
    const FRAMEWORKS: [&str; 20] = [
        "dfs", "errmgr", "ess", "filem", "grpcomm", "iof", "odls", "oob", "orte", "plm", "prte",
        "ras", "regx", "rmaps", "rml", "routed", "rtc", "schizo", "snapc", "state",
    ];
    let framework = parameter.split('_').next().unwrap_or_default();
    FRAMEWORKS.contains(&framework)
}

/// Applies a setting as the option that it stands for. An option without a value is given if the setting is not false,
/// which an empty one is not to srun.
fn apply_setting(
    dialect: &Dialect,
    setting: &LauncherSetting,
    shown: &OsStr,
    value: OsString,
    result: &mut TranslatedLine,
) -> Result<(), ForeignError> {
    const FALSE: [&str; 8] = ["", "0", "false", "no", "off", "n", "f", "disable"];
    let Some(habit) = dialect.named(setting.option) else {
        return Ok(());
    };
    let is_set_without_value = setting.name.starts_with("SLURM_") && value.is_empty();
    let values = match habit.values {
        0 if is_set_without_value => Vec::new(),
        0 if FALSE.iter().any(|word| value.eq_ignore_ascii_case(word)) => return Ok(()),
        0 => Vec::new(),
        _ => vec![value],
    };
    apply(dialect, habit.meaning, shown, &values, result)
}

fn assignment(values: &[OsString]) -> OsString {
    values.join(OsStr::new("="))
}

/// Fills in the option as written, and its values: `{0}`, `{1}`, `{2}`. Other braces stay as they are.
fn filled(text: &str, word: Option<&OsStr>, values: &[OsString]) -> OsString {
    let missing = OsStr::new("...");
    let value = |at: usize| values.get(at).map_or(missing, OsString::as_os_str);
    let mut parts = text.split('{');
    let mut filled = OsString::from(parts.next().unwrap_or_default());
    for part in parts {
        let (value, rest) = match part.split_once('}') {
            Some(("0", rest)) => (word.unwrap_or_default(), rest),
            Some(("1", rest)) => (value(0), rest),
            Some(("2", rest)) => (value(1), rest),
            _ => (OsStr::new("{"), part),
        };
        filled.push(value);
        filled.push(rest);
    }
    filled
}

fn all_filled(words: &[&str], values: &[OsString]) -> Vec<OsString> {
    let filled = words.iter().map(|word| filled(word, None, values));
    filled.collect()
}

fn refusal(instead: &str, word: &OsStr, values: &[OsString]) -> ForeignError {
    ForeignError::Instead {
        option: word.to_owned(),
        advice: filled(instead, Some(word), values)
            .to_string_lossy()
            .into_owned(),
    }
}

#[cfg(test)]
mod tests;

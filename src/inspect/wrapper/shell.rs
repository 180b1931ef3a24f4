//! The programs that `sh -c` starts. Every command of the text is looked at, whether or not it will
//! be reached; what sets a variable or changes the directory is followed when it is simple.
//!
//! Not followed, and so opaque: scripts in files, login shells, functions, `case`, `[[`,
//! here-documents, `eval`, and commands whose name only the running shell will know.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use super::lexer::{Part, Token, Unfollowed, Word, is_name_byte, tokens};
use super::options::Wrong;
use super::table::Table;
use super::{Behind, Command, Place};

mod builtin;

/// Bytes of a text that is followed.
const TEXT_MAX: usize = 64 * 1024;

/// `sh [OPTIONS] -c TEXT [NAME [ARG]...]`.
pub(super) fn behind(_: &'static Table, args: &[OsString], of: &Command) -> Result<Behind, Wrong> {
    let mut text_follows = false;
    let mut rest = args;
    while let Some((word, more)) = rest.split_first() {
        let bytes = word.as_bytes();
        match bytes {
            b"--" | b"-" => {
                rest = more;
                break;
            }
            b"--help" | b"--version" => return Err(Wrong::NoCommand),
            b"--norc" | b"--noprofile" | b"--posix" | b"--verbose" | b"--restricted" => {}
            // The profile that a login shell reads may set anything; so may an unknown option.
            [b'-', b'-', ..] => return Err(Wrong::Unknown(word.clone())),
            [b'-' | b'+', letters @ ..] if !letters.is_empty() => {
                if !letters.iter().all(|l| b"abcefhkmnoptuvxBCEHPT".contains(l)) {
                    return Err(Wrong::Unknown(word.clone()));
                }
                text_follows |= bytes[0] == b'-' && letters.contains(&b'c');
                if letters.contains(&b'o') {
                    rest = more.get(1..).ok_or(Wrong::Missing)?;
                    continue;
                }
            }
            _ => break,
        }
        rest = more;
    }
    if !text_follows {
        return Err(Wrong::Script);
    }
    match rest {
        [] if of.cut => Err(Wrong::Missing),
        [] => Err(Wrong::Script),
        // Of its arguments too some are not known.
        [text] if of.cut => follow(text, &[], of.place.clone()),
        _ if of.cut => Err(Wrong::Shell("arguments that are not known")),
        [text] => follow(text, &["sh".into()], of.place.clone()),
        [text, args @ ..] => follow(text, args, of.place.clone()),
    }
}

/// Follows a text of commands; `args` are `$0` and its further arguments.
pub(super) fn follow(text: &OsStr, args: &[OsString], place: Place) -> Result<Behind, Wrong> {
    let mut shell = Shell {
        place,
        variables: BTreeMap::new(),
        args: args.to_vec(),
        depth: 0,
        found: Vec::new(),
    };
    if text.len() > TEXT_MAX {
        return Err(Wrong::Shell("a very long text"));
    }
    tokens(text.as_bytes())
        .and_then(|tokens| shell.read(&tokens))
        .map_err(Wrong::Shell)?;
    Ok(match shell.found.is_empty() {
        true => Behind::Nothing,
        false => Behind::Commands(shell.found),
    })
}

/// A shell while its text is followed.
struct Shell {
    place: Place,
    /// Variables that are not exported, and those of unknown value (`None`).
    variables: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// `$0` and the arguments; none at all if they are not known.
    args: Vec<OsString>,
    /// Compound commands that are open: what they contain may happen or not.
    depth: u32,
    found: Vec<Command>,
}

/// What a variable holds.
enum Value {
    Known(Vec<u8>),
    /// A number that is known later.
    Number,
    Unknown,
}

impl Shell {
    fn read(&mut self, tokens: &[Token]) -> Result<(), Unfollowed> {
        let mut words: Vec<&Word> = Vec::new();
        let mut to_file = false;
        for (index, token) in tokens.iter().enumerate() {
            match token {
                Token::Word(_) if to_file => to_file = false,
                Token::Word(word) => words.push(word),
                Token::Redirection => to_file = true,
                Token::Open
                    if !words.is_empty() && tokens.get(index + 1) == Some(&Token::Close) =>
                {
                    return Err("a function");
                }
                Token::End | Token::Open | Token::Close => {
                    self.simple(&words)?;
                    words.clear();
                    match token {
                        Token::Open => self.depth += 1,
                        Token::Close => self.depth = self.depth.saturating_sub(1),
                        _ => {}
                    }
                }
            }
        }
        self.simple(&words)
    }

    /// One simple command, with the reserved words around it.
    fn simple(&mut self, words: &[&Word]) -> Result<(), Unfollowed> {
        let mut words = words;
        while let Some((first, rest)) = words.split_first() {
            match reserved(first) {
                Some(b"if" | b"while" | b"until" | b"{") => self.depth += 1,
                Some(b"fi" | b"done" | b"}") => self.depth = self.depth.saturating_sub(1),
                Some(b"then" | b"else" | b"elif" | b"do" | b"!") => {}
                Some(b"time") => {
                    let option = |word: &&&Word| literal(word).is_some_and(|text| text == b"-p");
                    let skipped = usize::from(rest.first().filter(option).is_some());
                    words = &rest[skipped..];
                    continue;
                }
                Some(b"for" | b"select") => {
                    self.depth += 1;
                    let name = rest.first().and_then(|word| literal(word));
                    self.forget(&name.ok_or("a loop")?);
                    return Ok(());
                }
                Some(b"case" | b"esac") => return Err("case"),
                Some(b"[[") => return Err("[["),
                Some(b"function") => return Err("a function"),
                Some(b"coproc") => return Err("a coprocess"),
                _ => break,
            }
            words = rest;
        }
        self.command(words)
    }

    fn command(&mut self, words: &[&Word]) -> Result<(), Unfollowed> {
        let assignments = words.iter().map_while(|word| assignment(word));
        let assignments: Vec<_> = assignments.collect();
        let words = &words[assignments.len()..];
        if words.is_empty() {
            for (name, value) in assignments {
                let value = self.joined(&value);
                self.assign(name, value)?;
            }
            return Ok(());
        }
        let mut argv = Vec::new();
        let mut cut = false;
        for word in words {
            match self.fields(word) {
                Some(fields) => argv.extend(fields),
                None => {
                    cut = true;
                    break;
                }
            }
        }
        let Some(name) = argv.first() else {
            return match cut {
                true => Err("a command whose name is not known"),
                false => Ok(()),
            };
        };
        if let Some(builtin) = builtin::find(name) {
            return self.builtin(builtin, &argv, cut);
        }
        let mut place = self.place.clone();
        for (name, value) in assignments {
            let value = self.joined(&value);
            if value.is_none() && builtin::is_search_path(&name) {
                return Err("a search path that is computed");
            }
            place.set(OsString::from_vec(name), value.map(OsString::from_vec));
        }
        self.found.push(Command { argv, cut, place });
        Ok(())
    }

    /// A variable of the shell has a new value, or one that is not known.
    fn assign(&mut self, name: Vec<u8>, value: Option<Vec<u8>>) -> Result<(), Unfollowed> {
        let value = value.filter(|_| self.depth == 0);
        let exported = OsString::from_vec(name.clone());
        if self.place.env.iter().any(|(known, _)| *known == exported) {
            if value.is_none() && builtin::is_search_path(&name) {
                return Err("a search path that is computed");
            }
            self.place
                .set(exported, value.clone().map(OsString::from_vec));
            if value.is_some() {
                self.variables.remove(&name);
                return Ok(());
            }
        }
        self.variables.insert(name, value);
        Ok(())
    }

    fn forget(&mut self, name: &[u8]) {
        self.variables.insert(name.to_vec(), None);
    }

    fn value(&self, name: &[u8]) -> Value {
        if let [digit @ b'0'..=b'9'] = name {
            if self.args.is_empty() {
                return Value::Unknown;
            }
            let arg = self.args.get(usize::from(digit - b'0'));
            return Value::Known(arg.map_or_else(Vec::new, |arg| arg.as_bytes().to_vec()));
        }
        if let Some(value) = self.variables.get(name) {
            return value.clone().map_or(Value::Unknown, Value::Known);
        }
        let found = self
            .place
            .env
            .iter()
            .find(|(known, _)| known.as_bytes() == name);
        match found {
            Some((_, value)) => Value::Known(value.as_bytes().to_vec()),
            None => builtin::special(name),
        }
    }

    /// The words that a word becomes; `None` if that is not known.
    fn fields(&self, word: &Word) -> Option<Vec<OsString>> {
        let mut done: Vec<Vec<u8>> = Vec::new();
        let mut open: Option<Vec<u8>> = None;
        for (index, part) in word.iter().enumerate() {
            match part {
                Part::Text(text, true) => open.get_or_insert_default().extend_from_slice(text),
                Part::Text(text, false) => {
                    let home = index == 0 && text.starts_with(b"~");
                    if text.iter().any(|byte| b"*?[".contains(byte)) || is_brace_list(text) {
                        // `[` alone is a command.
                        if text != b"[" || word.len() > 1 {
                            return None;
                        }
                    }
                    let start = match (home, text.get(1)) {
                        (false, _) => &[][..],
                        (true, None | Some(b'/')) => self.place.variable("HOME")?.as_bytes(),
                        (true, _) => return None,
                    };
                    let open = open.get_or_insert_default();
                    open.extend_from_slice(start);
                    open.extend_from_slice(&text[usize::from(home)..]);
                }
                Part::Number => open.get_or_insert_default().push(b'0'),
                Part::Unknown(_) => return None,
                Part::Variable(name, default, quoted) => {
                    let value = match (self.value(name), default) {
                        (Value::Unknown, _) => return None,
                        (Value::Number, _) => b"0".to_vec(),
                        (Value::Known(value), Some(default)) if value.is_empty() => default.clone(),
                        (Value::Known(value), _) => value,
                    };
                    if *quoted {
                        open.get_or_insert_default().extend_from_slice(&value);
                        continue;
                    }
                    if value.iter().any(|byte| b"*?[".contains(byte)) {
                        return None;
                    }
                    let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n');
                    for (index, piece) in value.split(blank).enumerate() {
                        if index > 0 {
                            done.extend(open.take());
                        }
                        if !piece.is_empty() {
                            open.get_or_insert_default().extend_from_slice(piece);
                        }
                    }
                }
                Part::Arguments(quoted) => {
                    let plain = |arg: &OsString| {
                        let bytes = arg.as_bytes();
                        !bytes.is_empty() && !bytes.iter().any(|byte| b" \t\n*?[".contains(byte))
                    };
                    // Where some arguments are not known there is not even a name.
                    let args = self.args.get(1..)?;
                    if !quoted && !args.iter().all(plain) {
                        return None;
                    }
                    for (index, arg) in args.iter().enumerate() {
                        if index > 0 {
                            done.extend(open.take());
                        }
                        open.get_or_insert_default()
                            .extend_from_slice(arg.as_bytes());
                    }
                }
            }
        }
        done.extend(open);
        Some(done.into_iter().map(OsString::from_vec).collect())
    }

    /// The text that a word becomes where it is not split, as in an assignment.
    fn joined(&self, word: &Word) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        for part in word {
            let part = match part {
                // No file names are filled in here.
                Part::Text(text, false) if !text.starts_with(b"~") => {
                    Part::Text(text.clone(), true)
                }
                Part::Variable(name, default, _) => {
                    Part::Variable(name.clone(), default.clone(), true)
                }
                other => other.clone(),
            };
            let fields = self.fields(&vec![part])?;
            match &fields[..] {
                [] => {}
                [one] => text.extend_from_slice(one.as_bytes()),
                _ => return None,
            }
        }
        Some(text)
    }
}

/// The text of a word without anything special, quotes included.
fn literal(word: &Word) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    for part in word {
        match part {
            Part::Text(bytes, _) => text.extend_from_slice(bytes),
            _ => return None,
        }
    }
    Some(text)
}

/// The text of a word that may be a reserved one: nothing in it is quoted.
fn reserved(word: &Word) -> Option<&[u8]> {
    match &word[..] {
        [Part::Text(text, false)] => Some(text),
        _ => None,
    }
}

/// `NAME=VALUE` at the start of a command.
fn assignment(word: &Word) -> Option<(Vec<u8>, Word)> {
    let Some((Part::Text(text, false), rest)) = word.split_first() else {
        return None;
    };
    let at = text.iter().position(|byte| *byte == b'=')?;
    let name = &text[..at];
    if name.is_empty() || name[0].is_ascii_digit() || !name.iter().all(|byte| is_name_byte(*byte)) {
        return None;
    }
    let mut value = vec![Part::Text(text[at + 1..].to_vec(), false)];
    value.extend_from_slice(rest);
    Some((name.to_vec(), value))
}

/// Whether bash would make several words of it.
fn is_brace_list(text: &[u8]) -> bool {
    let inside = text
        .iter()
        .position(|byte| *byte == b'{')
        .map_or(&[][..], |at| &text[at..]);
    inside.contains(&b'}') && (inside.contains(&b',') || inside.windows(2).any(|two| two == b".."))
}

//! The words and operators of a shell command. Does not expand anything.
//!
//! Rule: POSIX.1-2017 Shell Command Language 2.2 and 2.3, with bash's `&>`, `|&`, `<<<` and `$'…'`.

/// A part of a word.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// These bytes; in quotes nothing in them is special.
    Text(Vec<u8>, Quoted),
    /// `$NAME`, `${NAME}`, a digit, or with a default `${NAME:-TEXT}`.
    Variable(Vec<u8>, Option<Vec<u8>>, Quoted),
    /// `$@`.
    Arguments(Quoted),
    /// What can only be a number: `$((…))`, `$#`, `$?`, `$$`.
    Number,
    /// Anything else that the shell replaces.
    Unknown(Quoted),
}

/// Whether in double or single quotes.
pub(super) type Quoted = bool;

/// One word: its parts, without blanks between them.
pub(super) type Word = Vec<Part>;

/// A piece of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Token {
    Word(Word),
    /// Ends a simple command: `;`, `&`, `|`, `&&`, `||` or a newline.
    End,
    /// The next word is a file's name.
    Redirection,
    Open,
    Close,
}

/// What is not followed.
pub(super) type Unfollowed = &'static str;

/// Splits a text into tokens.
pub(super) fn tokens(text: &[u8]) -> Result<Vec<Token>, Unfollowed> {
    let mut lexer = Lexer { text, at: 0 };
    let mut tokens = Vec::new();
    while let Some(token) = lexer.token()? {
        tokens.push(token);
    }
    Ok(tokens)
}

struct Lexer<'a> {
    text: &'a [u8],
    at: usize,
}

impl Lexer<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn eat(&mut self, wanted: &str) -> bool {
        let found = self.text[self.at..].starts_with(wanted.as_bytes());
        self.at += if found { wanted.len() } else { 0 };
        found
    }

    /// The bytes up to one of these, which is left.
    fn until(&mut self, ends: impl Fn(u8) -> bool) -> &[u8] {
        let start = self.at;
        while self.peek().is_some_and(|byte| !ends(byte)) {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    fn token(&mut self) -> Result<Option<Token>, Unfollowed> {
        loop {
            match self.peek() {
                Some(b' ' | b'\t' | b'\r') => self.at += 1,
                Some(b'\\') if self.eat("\\\n") => {}
                Some(b'#') => drop(self.until(|byte| byte == b'\n')),
                _ => break,
            }
        }
        let Some(byte) = self.peek() else {
            return Ok(None);
        };
        let token = match byte {
            b'<' | b'>' => self.redirection()?,
            b'&' if self.eat("&>>") || self.eat("&>") => Token::Redirection,
            b';' | b'&' | b'|' | b'\n' => {
                self.at += 1;
                Token::End
            }
            b'(' | b')' => {
                self.at += 1;
                if byte == b'(' {
                    Token::Open
                } else {
                    Token::Close
                }
            }
            _ => {
                let start = self.at;
                let word = self.word()?;
                let text = &self.text[start..self.at];
                let number = text.iter().all(u8::is_ascii_digit);
                if number && matches!(self.peek(), Some(b'<' | b'>')) {
                    self.redirection()?
                } else {
                    Token::Word(word)
                }
            }
        };
        Ok(Some(token))
    }

    fn redirection(&mut self) -> Result<Token, Unfollowed> {
        if self.eat("<<<") {
            return Ok(Token::Redirection);
        }
        if self.eat("<<") {
            return Err("a here-document");
        }
        if self.eat("<(") || self.eat(">(") {
            return Err("a process substitution");
        }
        let _ = [">>", ">&", ">|", "<&", "<>", ">", "<"]
            .iter()
            .any(|operator| self.eat(operator));
        Ok(Token::Redirection)
    }

    fn word(&mut self) -> Result<Word, Unfollowed> {
        let mut word = Word::new();
        loop {
            match self.peek() {
                None | Some(b' ' | b'\t' | b'\r' | b'\n' | b';' | b'&' | b'|') => break,
                Some(b'<' | b'>' | b'(' | b')') => break,
                Some(b'\'') => {
                    self.at += 1;
                    let text = self.until(|byte| byte == b'\'').to_vec();
                    self.next().ok_or("a quote that is not closed")?;
                    word.push(Part::Text(text, true));
                }
                Some(b'"') => {
                    self.at += 1;
                    self.double_quoted(&mut word)?;
                }
                Some(b'\\') => {
                    self.at += 1;
                    match self.next() {
                        Some(b'\n') => {}
                        Some(byte) => word.push(Part::Text(vec![byte], true)),
                        None => word.push(Part::Text(b"\\".to_vec(), true)),
                    }
                }
                Some(b'$' | b'`') => word.push(self.expansion(false)?),
                Some(_) => {
                    let special = |byte: u8| b" \t\r\n;&|<>()'\"\\$`".contains(&byte);
                    let text = self.until(special).to_vec();
                    word.push(Part::Text(text, false));
                }
            }
        }
        Ok(word)
    }

    fn double_quoted(&mut self, word: &mut Word) -> Result<(), Unfollowed> {
        // Also an empty pair of quotes is a word.
        let mut text = Vec::new();
        let before = word.len();
        loop {
            match self.peek().ok_or("a quote that is not closed")? {
                b'"' => {
                    self.at += 1;
                    if !text.is_empty() || word.len() == before {
                        word.push(Part::Text(text, true));
                    }
                    return Ok(());
                }
                b'\\' => {
                    self.at += 1;
                    match self.next().ok_or("a quote that is not closed")? {
                        b'\n' => {}
                        byte @ (b'$' | b'`' | b'"' | b'\\') => text.push(byte),
                        byte => text.extend([b'\\', byte]),
                    }
                }
                b'$' | b'`' => {
                    if !text.is_empty() {
                        word.push(Part::Text(std::mem::take(&mut text), true));
                    }
                    word.push(self.expansion(true)?);
                }
                byte => {
                    self.at += 1;
                    text.push(byte);
                }
            }
        }
    }

    fn expansion(&mut self, quoted: Quoted) -> Result<Part, Unfollowed> {
        if self.eat("`") {
            while let Some(byte) = self.next() {
                match byte {
                    b'`' => return Ok(Part::Unknown(quoted)),
                    b'\\' => self.at += 1,
                    _ => {}
                }
            }
            return Err("a quote that is not closed");
        }
        self.at += 1;
        if self.eat("((") {
            self.skip_to(b'(', b')', 2)?;
            return Ok(Part::Number);
        }
        if self.eat("(") {
            self.skip_to(b'(', b')', 1)?;
            return Ok(Part::Unknown(quoted));
        }
        if self.eat("{") {
            let start = self.at;
            self.skip_to(b'{', b'}', 1)?;
            return Ok(braced(&self.text[start..self.at - 1], quoted));
        }
        match self.peek() {
            Some(b'@') if self.eat("@") => Ok(Part::Arguments(quoted)),
            Some(b'#' | b'?' | b'$' | b'!') => {
                self.at += 1;
                Ok(Part::Number)
            }
            Some(b'*' | b'-' | b'\'') if !quoted || self.peek() != Some(b'\'') => {
                if self.eat("'") {
                    // Its escapes are not read, only its end is found.
                    while let Some(byte) = self.next() {
                        match byte {
                            b'\'' => return Ok(Part::Unknown(true)),
                            b'\\' => self.at += 1,
                            _ => {}
                        }
                    }
                    return Err("a quote that is not closed");
                }
                self.at += 1;
                Ok(Part::Unknown(quoted))
            }
            Some(byte) if byte.is_ascii_digit() => {
                self.at += 1;
                Ok(Part::Variable(vec![byte], None, quoted))
            }
            _ => {
                let name = self.until(|byte| !is_name_byte(byte)).to_vec();
                Ok(match name.is_empty() {
                    true => Part::Text(b"$".to_vec(), true),
                    false => Part::Variable(name, None, quoted),
                })
            }
        }
    }

    /// Goes behind the closing bytes that belong to `open` ones already read.
    fn skip_to(&mut self, open: u8, close: u8, mut depth: u32) -> Result<(), Unfollowed> {
        while depth > 0 {
            match self.next().ok_or("a bracket that is not closed")? {
                b'\\' => self.at += 1,
                quote @ (b'\'' | b'"') => {
                    while self.next().ok_or("a quote that is not closed")? != quote {}
                }
                byte if byte == open => depth += 1,
                byte if byte == close => depth -= 1,
                _ => {}
            }
        }
        Ok(())
    }
}

/// What is between the braces of `${…}`.
fn braced(text: &[u8], quoted: Quoted) -> Part {
    let end = text.iter().position(|byte| !is_name_byte(*byte));
    let (name, rest) = text.split_at(end.unwrap_or(text.len()));
    let plain = |text: &[u8]| !text.iter().any(|byte| b"$`\\'\"*?[{~".contains(byte));
    let default = rest.strip_prefix(b":-");
    match (name, rest, default) {
        ([], b"@", _) => Part::Arguments(quoted),
        ([], [b'#', ..], _) => Part::Number,
        ([], ..) => Part::Unknown(quoted),
        (_, [], _) => Part::Variable(name.to_vec(), None, quoted),
        (_, _, Some(default)) if plain(default) => {
            Part::Variable(name.to_vec(), Some(default.to_vec()), quoted)
        }
        _ => Part::Unknown(quoted),
    }
}

pub(super) fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

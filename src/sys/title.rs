//! What a process shows as its command line: a copy of a process can be told from the original.

#![allow(unsafe_code)]

use std::fs;
use std::ptr;

/// The end of this process's command line, as `ps` shows it.
#[derive(Clone, Copy, Debug)]
pub struct LastWord {
    /// Where its last letter is, in the memory that the kernel shows.
    letter: usize,
}

impl LastWord {
    /// The last word, if it is this one and the system tells where it is.
    /// Source: `arg_end` in proc_pid_stat(5), field 49.
    pub fn find(word: &str) -> Option<Self> {
        let line = fs::read("/proc/self/cmdline").ok()?;
        let end = [b"\0", word.as_bytes(), b"\0"].concat();
        let stat = fs::read("/proc/self/stat").ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // Behind the command's name comes field 3.
        let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
        let arg_end: usize = fields.nth(49 - 3)?.parse().ok()?;
        let known = line.ends_with(&end) && !word.is_empty() && arg_end != 0;
        known.then(|| Self {
            letter: arg_end - 2,
        })
    }

    /// Shows it without its last letter.
    pub fn shorten(self) {
        // SAFETY: the kernel puts the words at the end of the first thread's stack, which is there and
        // writable as long as the process is; the byte was seen to be the last letter of a word, and
        // nothing in this program refers to it: what it knows of its arguments are copies.
        unsafe { ptr::without_provenance_mut::<u8>(self.letter).write_volatile(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_word_is_found() {
        let words: Vec<String> = std::env::args().collect();
        let last = words.last().unwrap();
        assert_eq!(LastWord::find(last).is_some(), words.len() > 1);
        assert!(LastWord::find("not a word of it").is_none());
        assert!(LastWord::find("").is_none());
    }
}

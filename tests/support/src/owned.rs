//! Process of a test that prints its address on standard output.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::Child;

/// A child that is killed and collected when the test is over.
#[derive(Debug)]
pub struct Owned(pub Child);

impl Owned {
    /// The first line that it prints, and with it all that is read up to there.
    pub fn first_line(&mut self) -> String {
        let mut line = String::new();
        let stdout = self.0.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The lines `NAME=VALUE` that it prints before an empty one.
    pub fn variables(&mut self) -> BTreeMap<String, String> {
        let lines = BufReader::new(self.0.stdout.as_mut().unwrap()).lines();
        let lines = lines.map(Result::unwrap);
        let variable = |line: String| {
            let (name, value) = line.split_once('=').expect("NAME=VALUE");
            (name.to_owned(), value.to_owned())
        };
        let lines = lines.take_while(|line| !line.is_empty());
        lines.map(variable).collect()
    }

    /// Waits for its end; its exit code.
    pub fn end(mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

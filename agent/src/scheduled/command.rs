//! A request as a command line and environment of `wireup run`; no I/O.
//!
//! No value of a variable appears in the command line, which every user of the machine can read:
//! those of the whole job are in the launcher's environment, those of one program in a file of
//! variables that has no name.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use data_encoding::HEXLOWER;

use super::request::{Node, Program, Request, RequestError};

/// How a launcher is started.
pub struct Command {
    /// Words behind `wireup`, in order.
    pub words: Vec<Word>,
    /// Variables for the launcher, beyond the plain environment of its user.
    pub env: Vec<(OsString, OsString)>,
}

/// A word of a command line.
#[derive(Debug, PartialEq, Eq)]
pub enum Word {
    /// As it is.
    Text(OsString),
    /// The path of a file with these bytes.
    File(Vec<u8>),
}

impl<T: Into<OsString>> From<T> for Word {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
}

impl Request {
    /// The launcher for a request; `home` is its user's, where the ranks start unless
    /// something else is asked for, and `agent` the socket of this agent.
    ///
    /// # Errors
    /// [`RequestError::LineBreak`].
    pub fn command(&self, home: &OsStr, agent: &Path) -> Result<Command, RequestError> {
        let mut env = self.env.0.clone();
        env.extend(self.own_variables());
        let mut words: Vec<Word> = [
            "run",
            "--no-config",
            "--json=-",
            "--control=fd:3",
            "--oversubscribe",
        ]
        .map(Word::from)
        .into();
        let mut option = |name: &str, value: &OsStr| {
            let mut word = OsString::from(name);
            word.push("=");
            word.push(value);
            words.push(word.into());
        };
        if self.place.nodes.len() > 1 {
            option("--agent", agent.as_os_str());
            option("--hosts", self.hosts().as_ref());
            option("--layout", self.layout().as_ref());
        }
        option("--pmi", self.pmi.as_ref());
        option("--stdin", self.stdin.as_deref().unwrap_or("none").as_ref());
        option("--exit-policy", self.exit_policy.to_string().as_ref());
        if let Some(timeout) = self.timeout {
            option("--timeout", seconds(timeout).as_ref());
        }
        if let Some(grace) = self.grace {
            option("--grace", seconds(grace).as_ref());
        }
        match self.kill_on_bad_exit {
            Some(true) => words.push("--kill-on-bad-exit".into()),
            Some(false) => words.push("--no-kill-on-bad-exit".into()),
            None => {}
        }
        if self.strict_pmi {
            words.push("--strict-pmi".into());
        }
        for (index, program) in self.programs.iter().enumerate() {
            if index > 0 {
                words.push(":".into());
            }
            self.program_words(program, home, &env, &mut words)?;
        }
        Ok(Command { words, env })
    }

    fn program_words(
        &self,
        program: &Program,
        home: &OsStr,
        env: &[(OsString, OsString)],
        words: &mut Vec<Word>,
    ) -> Result<(), RequestError> {
        words.push(format!("-n{}", program.ranks).into());
        let cwd = program.cwd.as_ref().or(self.cwd.as_ref());
        let mut word = OsString::from("--wdir=");
        word.push(cwd.map_or(home, |cwd| cwd.as_os_str()));
        words.push(word.into());
        words.push(format!("--umask={:o}", self.umask.unwrap_or(0o022)).into());
        // Named one by one, since a launcher leaves out what looks like another launcher's.
        for (name, _) in env.iter().filter(|(name, _)| is_plain(name)) {
            if program.env.0.iter().all(|(own, _)| own != name) {
                let mut word = OsString::from("-x");
                word.push(name);
                words.push(word.into());
            }
        }
        if !program.env.0.is_empty() {
            words.push("--env-file".into());
            words.push(Word::File(file(program)?));
        }
        words.push("--".into());
        words.push(program.program.clone().into());
        words.extend(program.args.iter().cloned().map(Word::from));
        Ok(())
    }

    /// The nodes, as `--hosts` has them.
    fn hosts(&self) -> String {
        let host = |node: &Node| format!("{}:{}@{}", node.name, node.ranks, node.address);
        let hosts: Vec<String> = self.place.nodes.iter().map(host).collect();
        hosts.join(",")
    }

    /// Their ranks, as `--layout` has them.
    fn layout(&self) -> String {
        let run = |(node, ranks): &(u32, u32)| format!("{node}*{ranks}");
        let runs: Vec<String> = self.place.blocks.iter().map(run).collect();
        runs.join(",")
    }

    /// Variables that come from other fields; they count more than what the request calls variables.
    fn own_variables(&self) -> Vec<(OsString, OsString)> {
        let mut found = vec![("WIREUP_LAUNCH_ID", self.id.clone())];
        if !self.allocation.is_empty() {
            found.push(("WIREUP_ALLOC_ID", self.allocation.clone()));
        }
        if let Some(cxi) = &self.cxi {
            found.push(("FI_CXI_DEFAULT_VNI", cxi.vni.to_string()));
            found.push(("SLINGSHOT_VNIS", cxi.vni.to_string()));
            if !cxi.key.is_empty() {
                found.push(("FI_CXI_AUTH_KEY", HEXLOWER.encode(&cxi.key)));
            }
            if cxi.service != 0 {
                found.push(("SLINGSHOT_SVC_IDS", cxi.service.to_string()));
            }
        }
        found
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }
}

/// Whether a name can stand behind `-x` and means itself there. Others (functions of a shell) look
/// like no launcher's, so they are passed on anyway.
fn is_plain(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    bytes.iter().all(inner)
        && !bytes[0].is_ascii_digit()
        && !["all", "none"].iter().any(|word| name == *word)
}

/// A program's own variables as a file. Source: docs/environment.md#files.
fn file(program: &Program) -> Result<Vec<u8>, RequestError> {
    let mut text = Vec::new();
    for (name, value) in &program.env.0 {
        let breaks = |text: &OsStr| text.as_bytes().iter().any(|byte| b"\r\n".contains(byte));
        if breaks(value) || !is_plain(name) && !readable(name) {
            return Err(RequestError::LineBreak(name.clone()));
        }
        text.extend_from_slice(name.as_bytes());
        text.push(b'=');
        text.extend_from_slice(value.as_bytes());
        text.push(b'\n');
    }
    Ok(text)
}

/// Whether a name would be read back from a line.
fn readable(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    !bytes.iter().any(u8::is_ascii_whitespace) && bytes[0] != b'#'
}

fn seconds(time: Duration) -> String {
    format!("{}.{:03}", time.as_secs(), time.subsec_millis())
}

/// The arguments, for logs and tests: files are shown by their purpose.
impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = self.words.iter().map(|word| match word {
            Word::Text(text) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
            Word::File(_) => "FILE".to_owned(),
        });
        f.debug_list().entries(words).finish()
    }
}

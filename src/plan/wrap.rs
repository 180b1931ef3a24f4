//! A command under which ranks run their program (`--wrap`): a debugger, a profiler, a script.

use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use crate::inspect::program::{Program, ProgramError};
use crate::plan::pattern::{PatternError, PatternFields};
use wireup_core::job::ids::Rank;
use wireup_core::job::outcome::EXIT_WIREUP;
use wireup_core::job::rank_set::RankSet;
use wireup_core::job::spec::WrapSpec;

/// A command that was found, and the ranks it is for.
#[derive(Clone, Debug)]
pub struct Wrapper {
    /// The command that is executed in place of the program.
    pub program: Program,
    /// Its arguments in front of the program, as patterns.
    words: Vec<OsString>,
    ranks: Option<RankSet>,
}

impl fmt::Display for Wrapper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "runs under {}", self.program.path().display())?;
        match &self.ranks {
            Some(ranks) => write!(f, " on ranks {ranks}"),
            None => Ok(()),
        }
    }
}

/// A command under which nothing can be run.
#[derive(Debug, thiserror::Error)]
pub enum WrapError {
    /// No words.
    #[error("--wrap is empty; give the command to run the ranks under")]
    Empty,
    /// A quote or an escape that does not end.
    #[error("--wrap {0:?}: a quote is not closed, or a backslash is the last character")]
    Quote(OsString),
    /// A `%` that means nothing.
    #[error("--wrap {0:?}: {1}")]
    Pattern(OsString, PatternError),
    /// Its first word is not a program.
    #[error("--wrap: {0}")]
    Program(#[from] ProgramError),
    /// A rank that runs something else, or none at all.
    #[error(
        "--wrap-ranks {set}: rank {rank} does not run this program, whose {}", write_ranks(*first_rank, *last_rank)
    )]
    Rank {
        /// The ranks asked for.
        set: RankSet,
        rank: Rank,
        first_rank: u32,
        last_rank: u32,
    },
}

fn write_ranks(first: u32, last: u32) -> String {
    match first == last {
        true => format!("only rank is {first}"),
        false => format!("ranks are {first} to {last}"),
    }
}

impl WrapError {
    /// The exit code: that of a program that cannot be run, or wireup's own.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Program(error) => error.exit_code(),
            _ => EXIT_WIREUP,
        }
    }
}

impl Wrapper {
    /// Splits a command into words as a shell does, without any other of a shell's services, and
    /// has its program found by name. `ranks` are those of the program to be run under it.
    ///
    /// # Errors
    /// [`WrapError`] when it cannot be split or found, has a wrong pattern, or is for ranks that the
    /// program does not have.
    pub fn find(
        spec: &WrapSpec,
        ranks: &Range<u32>,
        find: impl FnOnce(&OsStr) -> Result<Program, ProgramError>,
    ) -> Result<Self, WrapError> {
        let mut split = shlex::bytes::Shlex::new(spec.command.as_bytes());
        let mut words: Vec<OsString> = split.by_ref().map(OsString::from_vec).collect();
        if split.had_error {
            return Err(WrapError::Quote(spec.command.clone()));
        }
        if words.is_empty() {
            return Err(WrapError::Empty);
        }
        let name = words.remove(0);
        let any = PatternFields {
            rank: Rank(0),
            host: "",
            job: "",
            node: 0,
            local: 0,
            stream: None,
        };
        for word in &words {
            any.fill(word)
                .map_err(|error| WrapError::Pattern(spec.command.clone(), error))?;
        }
        if let Some(set) = &spec.ranks
            && let Some(rank) = set.beyond(ranks)
        {
            return Err(WrapError::Rank {
                set: set.clone(),
                rank,
                first_rank: ranks.start,
                last_rank: ranks.end - 1,
            });
        }
        Ok(Self {
            program: find(&name)?,
            words,
            ranks: spec.ranks.clone(),
        })
    }

    /// Whether a rank of the program runs under it.
    pub fn wraps(&self, rank: Rank) -> bool {
        self.ranks.as_ref().is_none_or(|set| set.contains(rank))
    }

    /// The argument vector for one rank. `None` if an argument contains a NUL byte.
    pub fn argv(
        &self,
        fields: &PatternFields<'_>,
        program: &Program,
        args: &[OsString],
    ) -> Option<Vec<CString>> {
        let own = self.words.iter().map(|word| fields.fill(word));
        let own: Vec<OsString> = own.collect::<Result<_, _>>().ok()?;
        let words = own.into_iter().chain(program.words());
        self.program.argv(words.chain(args.iter().cloned()))
    }
}

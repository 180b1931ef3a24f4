//! Finds the command under which ranks run their program (`--wrap`): a debugger, a profiler, a script.

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

/// Command under which ranks run their program.
#[derive(Clone, Debug)]
pub struct Wrapper {
    /// Program that is executed in place of the ranks' own.
    pub program: Program,
    /// Arguments that precede the ranks' program, as patterns.
    words: Vec<OsString>,
    /// Ranks that run under the wrapper; all if absent.
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

/// Command that cannot be used as a wrapper.
#[derive(Debug, thiserror::Error)]
pub enum WrapError {
    #[error("--wrap is empty; give the command to run the ranks under")]
    Empty,
    /// The command has a quote or an escape that does not end.
    #[error("--wrap {0:?}: a quote is not closed, or a backslash is the last character")]
    Quote(OsString),
    /// A word of the command is an invalid pattern.
    #[error("--wrap {0:?}: {1}")]
    Pattern(OsString, PatternError),
    /// The first word of the command is not a program.
    #[error("--wrap: {0}")]
    Program(#[from] ProgramError),
    /// A selected rank does not exist, or runs another program.
    #[error(
        "--wrap-ranks {set}: rank {rank} does not run this program, whose {}", write_ranks(*first_rank, *last_rank)
    )]
    Rank {
        /// Ranks that the user selected.
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
    /// Exit code for the error: that of a program that cannot be executed, else wireup's own.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Program(error) => error.exit_code(),
            _ => EXIT_WIREUP,
        }
    }
}

impl Wrapper {
    /// Splits a command into words as a shell does, without expansions, and
    /// finds its program by name with `find`. `ranks` are those of the program that runs under the wrapper.
    ///
    /// # Errors
    /// [`WrapError`] if the command cannot be split or found, has an invalid pattern, or is for ranks that the
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
        for word in &words {
            PatternFields::ANY
                .fill(word)
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

    /// Whether a rank of the program runs under the wrapper.
    pub fn wraps(&self, rank: Rank) -> bool {
        self.ranks.as_ref().is_none_or(|set| set.contains(rank))
    }

    /// Argument vector for one rank. `None` if an argument contains a NUL byte.
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

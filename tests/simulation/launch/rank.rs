//! A rank: a client of PMI-1 that puts, meets the others, gets, prints and ends. It checks each answer.

use std::collections::VecDeque;

use wireup_core::job::ids::GlobalRank;

pub(super) const JOB: &str = "sim.0";

/// What a rank does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act {
    Init,
    Put,
    Barrier,
    /// Reads what a rank has put before the last barrier.
    Get(GlobalRank),
    Print(u32),
    Abort,
    Finalize,
    Exit(u8),
}

/// Bytes that a pipe takes before the rank that prints must wait.
const PIPE: u32 = 96;

#[derive(Debug)]
pub(super) struct Rank {
    pub(super) rank: GlobalRank,
    pub(super) acts: VecDeque<Act>,
    /// The request that is not answered.
    pub(super) asked: Option<Act>,
    pub(super) runs: bool,
    /// Barriers that it has entered, and left.
    pub(super) entered: u32,
    pub(super) left: u32,
    /// Bytes in its pipe.
    pub(super) in_pipe: u32,
    pub(super) session: bool,
    pub(super) finalized: bool,
}

/// What a rank does to the world.
pub(super) enum Does {
    Says(String),
    Prints(u32),
    Exits(u8),
}

impl Rank {
    pub(super) fn new(rank: GlobalRank, acts: VecDeque<Act>) -> Self {
        Self {
            rank,
            acts,
            asked: None,
            runs: false,
            entered: 0,
            left: 0,
            in_pipe: 0,
            session: false,
            finalized: false,
        }
    }

    pub(super) fn can_act(&self) -> bool {
        let full =
            matches!(self.acts.front(), Some(Act::Print(more)) if self.in_pipe + more > PIPE);
        self.runs && self.asked.is_none() && !full
    }

    pub(super) fn act(&mut self) -> Does {
        let act = self.acts.pop_front().unwrap_or(Act::Exit(0));
        let rank = self.rank;
        let text = match act {
            Act::Init => {
                self.session = true;
                "cmd=init pmi_version=1 pmi_subversion=1\n".to_owned()
            }
            Act::Put => {
                let round = self.entered;
                format!("cmd=put kvsname={JOB} key=k-{rank}-{round} value=v-{rank}-{round}\n")
            }
            Act::Barrier => {
                self.entered += 1;
                "cmd=barrier_in\n".to_owned()
            }
            Act::Get(of) => format!("cmd=get kvsname={JOB} key=k-{of}-{}\n", self.left - 1),
            Act::Finalize => "cmd=finalize\n".to_owned(),
            Act::Abort => "cmd=abort exitcode=6\n".to_owned(),
            Act::Print(bytes) => {
                self.in_pipe += bytes;
                return Does::Prints(bytes);
            }
            Act::Exit(code) => return Does::Exits(code),
        };
        self.asked = Some(act);
        Does::Says(text)
    }

    /// Takes an answer. `entered` is the fewest barriers that any rank has entered; `broken` whether something
    /// has gone wrong, so that barriers may fail.
    pub(super) fn hear(&mut self, text: &str, entered: u32, broken: bool) -> Result<(), String> {
        let rank = self.rank;
        let Some(act) = self.asked.take() else {
            return Err(format!(
                "rank {rank} has asked nothing and is answered: {text}"
            ));
        };
        let wanted = match act {
            Act::Init => "cmd=response_to_init rc=0".to_owned(),
            Act::Put => "cmd=put_result rc=0".to_owned(),
            Act::Get(of) => {
                let round = self.left - 1;
                format!("cmd=get_result rc=0 msg=success value=v-{of}-{round}")
            }
            Act::Finalize => {
                self.session = false;
                self.finalized = true;
                "cmd=finalize_ack".to_owned()
            }
            Act::Barrier if broken && text.contains("rc=-1") => {
                // What it wanted to know next is not there.
                self.acts.retain(|act| !matches!(act, Act::Get(_)));
                self.left += 1;
                return Ok(());
            }
            Act::Barrier => {
                self.left += 1;
                if entered < self.left && !broken {
                    return Err(format!("rank {rank} is released early"));
                }
                "cmd=barrier_out".to_owned()
            }
            Act::Print(_) | Act::Abort | Act::Exit(_) => {
                return Err(format!("rank {rank} is answered after {act:?}: {text}"));
            }
        };
        match text.starts_with(&wanted) || broken && matches!(act, Act::Get(_)) {
            true => Ok(()),
            false => Err(format!("rank {rank} wanted {wanted:?} and got {text:?}")),
        }
    }
}

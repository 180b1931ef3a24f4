//! A rank: a client of PMI-1 or PMIx that puts, meets the others, gets, publishes, spawns, makes groups, prints and
//! ends. It checks each answer.

use std::collections::{BTreeSet, VecDeque};

use super::sidecar::{self, Ask, Reply, Wish};
use wireup_core::job::ids::{GlobalRank, Nspace};
use wireup_core::pmix::upcall::GroupOp;
use wireup_core::pmix::value::Status;

pub(super) const JOB: &str = "sim.0";

/// Next act of a rank. Other ranks are those of its job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Act {
    Init,
    Put,
    Barrier,
    /// Reads what a rank has put before the last barrier.
    Get(u32),
    Publish,
    /// Waits for what a rank publishes.
    LookUp(u32),
    Enter(Group),
    Leave(Group),
    Spawn(u32),
    Print(u32),
    Abort,
    Finalize,
    Exit(u8),
}

/// Every n-th rank of a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Group {
    pub(super) number: u32,
    pub(super) step: u32,
}

impl Group {
    pub(super) fn has(self, number: u32) -> bool {
        number.is_multiple_of(self.step)
    }
}

/// Bytes that a pipe takes before the rank that prints must wait.
const PIPE: u32 = 96;

#[derive(Debug)]
pub(super) struct Rank {
    pub(super) rank: GlobalRank,
    pub(super) nspace: Nspace,
    /// In its job, and the size of that.
    pub(super) number: u32,
    size: u32,
    pmix: bool,
    pub(super) acts: VecDeque<Act>,
    /// The request that is not answered.
    pub(super) pending_request: Option<Act>,
    pub(super) runs: bool,
    pub(super) started: bool,
    /// Barriers that it has entered, and left.
    pub(super) entered: u32,
    pub(super) left: u32,
    /// Group operations that it has called.
    pub(super) called: BTreeSet<Act>,
    /// Bytes in its pipe.
    pub(super) in_pipe: u32,
    pub(super) session: bool,
    pub(super) finalized: bool,
}

/// Effect of a rank on the simulation.
pub(super) enum Does {
    Says(String),
    Asks(Ask),
    Prints(u32),
    Exits(u8),
}

impl Rank {
    pub(super) fn new(
        rank: GlobalRank,
        (nspace, number, size): (Nspace, u32, u32),
        pmix: bool,
        acts: VecDeque<Act>,
    ) -> Self {
        Self {
            rank,
            nspace,
            number,
            size,
            pmix,
            acts,
            pending_request: None,
            runs: false,
            started: false,
            entered: 0,
            left: 0,
            called: BTreeSet::new(),
            in_pipe: 0,
            session: false,
            finalized: false,
        }
    }

    pub(super) fn can_act(&self) -> bool {
        let full =
            matches!(self.acts.front(), Some(Act::Print(more)) if self.in_pipe + more > PIPE);
        self.runs && self.pending_request.is_none() && !full
    }

    pub(super) fn act(&mut self) -> Does {
        let act = self.acts.pop_front().unwrap_or(Act::Exit(0));
        match act {
            Act::Init => self.session = true,
            Act::Barrier => self.entered += 1,
            Act::Enter(_) | Act::Leave(_) => {
                self.called.insert(act);
            }
            Act::Print(bytes) => {
                self.in_pipe += bytes;
                return Does::Prints(bytes);
            }
            Act::Exit(code) => return Does::Exits(code),
            _ => {}
        }
        self.pending_request = Some(act);
        match self.pmix {
            true => Does::Asks(Ask {
                by: sidecar::proc(&self.nspace, self.number),
                what: self.wish(act),
            }),
            false => Does::Says(self.says(act)),
        }
    }

    /// Returns the value that a rank puts before its barrier of this number.
    fn value(number: u32, round: u32) -> String {
        format!("v-{number}-{round};")
    }

    fn says(&self, act: Act) -> String {
        let (number, kvs) = (self.number, &self.nspace);
        match act {
            Act::Init => "cmd=init pmi_version=1 pmi_subversion=1\n".to_owned(),
            Act::Put => {
                let round = self.entered;
                let value = Self::value(number, round);
                format!("cmd=put kvsname={kvs} key=k-{number}-{round} value={value}\n")
            }
            Act::Barrier => "cmd=barrier_in\n".to_owned(),
            Act::Get(of) => format!("cmd=get kvsname={kvs} key=k-{of}-{}\n", self.left - 1),
            Act::Spawn(count) => format!(
                "mcmd=spawn\nnprocs={count}\nexecname=child\ntotspawns=1\nspawnssofar=1\nendcmd\n"
            ),
            Act::Finalize => "cmd=finalize\n".to_owned(),
            Act::Abort => "cmd=abort exitcode=6\n".to_owned(),
            // These are for PMIx, or ask nothing.
            Act::Enter(_)
            | Act::Leave(_)
            | Act::Publish
            | Act::LookUp(_)
            | Act::Print(_)
            | Act::Exit(_) => String::new(),
        }
    }

    fn wish(&self, act: Act) -> Wish {
        let number = self.number;
        let group = |op, group: Group| Wish::Group {
            op,
            name: format!("group {}", group.number),
            members: (0..self.size).filter(|other| group.has(*other)).collect(),
        };
        match act {
            Act::Init => Wish::Connect,
            Act::Put => Wish::Commit(Self::value(number, self.entered).into_bytes()),
            Act::Barrier => Wish::Fence {
                collect: self.collects(),
            },
            Act::Get(of) => Wish::Modex(of),
            Act::Publish => Wish::Publish(format!("n-{number}"), format!("p-{number}")),
            Act::LookUp(of) => Wish::LookUp(format!("n-{of}")),
            Act::Enter(of) => group(GroupOp::Construct, of),
            Act::Leave(of) => group(GroupOp::Destruct, of),
            Act::Spawn(count) => Wish::Spawn(count),
            Act::Abort => Wish::Abort,
            Act::Finalize | Act::Print(_) | Act::Exit(_) => Wish::Finalize,
        }
    }

    /// Whether the fence that it has entered collects the data of all.
    fn collects(&self) -> bool {
        self.entered.is_multiple_of(2)
    }

    /// Whether the answer fits: `all` is whether all have done what it has to wait for, `broken` whether something has
    /// gone wrong, so that what several do may fail.
    fn takes(&mut self, all: bool, broken: bool) -> Result<Act, String> {
        let rank = self.rank;
        let act = self.pending_request.take();
        let act = act.ok_or_else(|| format!("rank {rank} is answered without a request"))?;
        if act == Act::Finalize {
            self.session = false;
            self.finalized = true;
        }
        self.left += u32::from(act == Act::Barrier);
        if !all && !broken {
            return Err(format!("rank {rank} is released early of {act:?}"));
        }
        Ok(act)
    }

    /// Takes a line of its PMI socket.
    pub(super) fn on_pmi_line(
        &mut self,
        text: &str,
        all: bool,
        broken: bool,
    ) -> Result<(), String> {
        let failed = text.contains("rc=-1") || text.contains("rc=1");
        let act = self.takes(all || failed, broken)?;
        let expected = match act {
            Act::Init => "cmd=response_to_init rc=0".to_owned(),
            Act::Put => "cmd=put_result rc=0".to_owned(),
            Act::Get(of) => {
                let value = Self::value(of, self.left - 1);
                format!("cmd=get_result rc=0 msg=success value={value}")
            }
            Act::Finalize => "cmd=finalize_ack".to_owned(),
            Act::Barrier if broken && failed => {
                // The key that it reads next is missing.
                self.acts.retain(|act| !matches!(act, Act::Get(_)));
                return Ok(());
            }
            Act::Barrier => "cmd=barrier_out".to_owned(),
            Act::Spawn(_) => "cmd=spawn_result rc=0".to_owned(),
            _ => {
                let rank = self.rank;
                return Err(format!("rank {rank} is answered after {act:?}: {text}"));
            }
        };
        let may_fail = matches!(act, Act::Get(_) | Act::Spawn(_));
        let rank = self.rank;
        match text.starts_with(&expected) || broken && may_fail {
            true => Ok(()),
            false => Err(format!(
                "rank {rank} expected {expected:?} and got {text:?}"
            )),
        }
    }

    /// Takes an answer of its PMIx server.
    pub(super) fn served(&mut self, reply: &Reply, all: bool, broken: bool) -> Result<(), String> {
        let well = reply.status == Status::SUCCESS;
        let act = self.takes(all || !well, broken)?;
        let text = String::from_utf8_lossy(&reply.data);
        let fits = match act {
            // It may have put more by now.
            Act::Get(of) => (self.left - 1..=self.left).any(|round| text == Self::value(of, round)),
            Act::Barrier if !self.entered.is_multiple_of(2) => text.is_empty(),
            Act::Barrier => {
                let mut numbers = 0..self.size;
                let all = numbers.all(|of| text.contains(&Self::value(of, self.left - 1)));
                all && text.matches(';').count() == self.size as usize
            }
            Act::LookUp(of) => text == format!("p-{of}"),
            Act::Spawn(_) => text.starts_with("sim."),
            Act::Enter(_) => reply.context.is_some(),
            _ => text.is_empty(),
        };
        // Those that were not together in a fence may read what is older.
        let fits = fits || broken && matches!(act, Act::Get(_));
        let alone = matches!(act, Act::Init | Act::Put | Act::Finalize);
        let rank = self.rank;
        match well && fits || broken && !well && !alone {
            true => Ok(()),
            false => Err(format!("rank {rank} got {reply:?} for {act:?}: {text}")),
        }
    }
}

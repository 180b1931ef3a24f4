//! Reasons why a program that loads an MPI ran as a singleton, rank 0 of 1, although it was launched as one of
//! many. No I/O. The inspection of its processes is in
//! [`running_ranks`](crate::report::running_ranks).
//!
//! Rule: an MPI that does not find its launcher's interface runs as a singleton, and
//! succeeds. Source: docs/diagnosing.md#ranks-that-run-as-singletons.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::inspect::DetectedInterface;
use crate::plan::reasons::{InterfaceOffer, OfferReason};
use wireup_core::wording::counted;

/// Result of the inspection of a process that loads an MPI. `None` for unknown facts.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MpiProcess {
    /// Path of its program.
    pub program: Option<String>,
    /// Whether it has loaded Open MPI.
    pub openmpi: bool,
    /// Whether it has loaded Open MPI 4 or older.
    pub openmpi4: bool,
    /// Whether it has loaded MPICH or a relative.
    pub mpich: bool,
    /// Whether it has loaded OpenPMIx.
    pub pmix: bool,
    /// Whether it has loaded a client of PMI.
    pub pmi: bool,
    /// Whether its environment has the job's name.
    pub env_job: Option<bool>,
    /// Whether its environment has the PMI server's address.
    pub env_pmi: Option<bool>,
    /// Whether its environment has the PMIx server's address.
    pub env_pmix: Option<bool>,
    /// Whether its environment has the variable that makes Open MPI 4 use PMIx.
    pub env_marker: Option<bool>,
    /// Whether the descriptor of its PMI socket is open, and a socket.
    pub pmi_socket: Option<bool>,
    /// Whether it is in the launcher's network namespace.
    pub same_network: Option<bool>,
    /// Whether it sees the PMIx server's directory, and the name of the directory.
    pub server_directory: Option<(bool, String)>,
}

/// Reason why a process ran as a singleton.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SingletonCause {
    /// Text with cause and remedy.
    pub text: String,
    /// Whether the process certainly had to run as a singleton. If not, it may never have tried to connect: a program may
    /// load an MPI and not call MPI_Init.
    pub certain: bool,
}

impl MpiProcess {
    /// Whether any MPI or PMI library was seen.
    pub fn any(&self) -> bool {
        self.openmpi || self.mpich || self.pmix || self.pmi
    }

    /// Returns the facts from the inspection of a program's files, if no process of it was inspected while it ran.
    pub fn by_inspection(wants: DetectedInterface) -> Self {
        Self {
            openmpi: wants == DetectedInterface::Pmix,
            mpich: wants == DetectedInterface::Pmi,
            ..Self::default()
        }
    }

    /// Returns the most likely reason for a singleton, given the offered interfaces.
    pub fn explain(&self, offer: &InterfaceOffer) -> SingletonCause {
        let SingletonCause { text, certain } = self.reason(offer);
        SingletonCause {
            text: format!("{text}; offered: {}", offer.names()),
            certain,
        }
    }

    fn reason(&self, offer: &InterfaceOffer) -> SingletonCause {
        let certain = |text: String| SingletonCause {
            text,
            certain: true,
        };
        if self.openmpi && self.mpich {
            return certain(
                "it has loaded both Open MPI and MPICH (or a relative); leave one of them in \
                 LD_LIBRARY_PATH and modules, and build everything with it"
                    .into(),
            );
        }
        let pmix = self.openmpi || (self.pmix && !self.mpich);
        let (needs, offered, choice) = match pmix {
            true => ("PMIx", offer.pmix, "pmix"),
            false => ("PMI", offer.pmi, "pmi1"),
        };
        if !offered {
            let is_user_choice = matches!(offer.why, OfferReason::UserChoice(_));
            return certain(match (&offer.without_pmix, is_user_choice) {
                (Some(error), _) if pmix => format!("it needs PMIx, which is not offered: {error}"),
                (_, true) => format!(
                    "it needs {needs}, which --pmi did not allow; leave --pmi out or give --pmi {choice}"
                ),
                (_, false) => format!(
                    "it needs {needs}, which is not offered as it was not recognised; give --pmi {choice}"
                ),
            });
        }
        let mut lost = None;
        if self.env_job == Some(false) {
            lost = Some(
                "a wrapper around it has cleared the environment; have the wrapper pass it on \
                 (sudo -E, no env -i, no --cleanenv)"
                    .to_owned(),
            );
        } else if pmix {
            lost = self.lost_pmix();
        } else if self.env_pmi == Some(false) {
            lost = Some("a wrapper around it has unset PMI_FD; have it pass PMI_* on".into());
        } else if self.pmi_socket == Some(false) {
            lost = Some(
                "a wrapper around it has closed the descriptor in PMI_FD; have it keep that open \
                 (sudo -C 4, podman run --preserve-fds 1)"
                    .into(),
            );
        }
        match lost {
            Some(text) => certain(text),
            None => SingletonCause {
                text:
                    "either MPI_Init was not called, or each ran alone, as rank 0 of 1; wireup run \
                        -v shows what was offered and why"
                        .into(),
                certain: false,
            },
        }
    }

    /// Returns the obstacle between a process and its PMIx server, if one was found.
    fn lost_pmix(&self) -> Option<String> {
        if self.env_pmix == Some(false) {
            return Some("a wrapper around it has unset PMIX_*; have it pass them on".into());
        }
        if self.openmpi4 && self.env_marker == Some(false) {
            return Some(
                "a wrapper around it has unset JSM_JSRUN_PORT, without which Open MPI 4 does not \
                 look for PMIx; have it pass that on"
                    .into(),
            );
        }
        if self.same_network == Some(false) {
            return Some(
                "it runs in a network of its own and cannot reach the PMIx server on 127.0.0.1; \
                 start its container with the host's network"
                    .into(),
            );
        }
        match &self.server_directory {
            Some((false, name)) => Some(format!(
                "it does not see {name}, where the PMIx server meets its clients; mount that into \
                 its container"
            )),
            _ => None,
        }
    }
}

/// Returns the singleton's program, if it differs from the one that was started, which may be a shell or an
/// interpreter and does not help to find the cause.
pub fn descendant_program(started: &Path, real: &Path, process: &MpiProcess) -> Option<String> {
    let program = Path::new(process.program.as_ref()?);
    let started_name = started.file_name()?;
    if program == real || program.file_name() == Some(started_name) {
        return None;
    }
    let shown = started_name.to_string_lossy();
    Some(format!("{} below {shown}", program.display()))
}

/// State of a program whose ranks never connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgramState {
    Running,
    Succeeded,
    /// At least one rank failed, or the job was terminated.
    Failed,
}

/// Returns the line about the ranks of a program that ran as singletons.
pub fn warning(program: &str, ranks: u32, why: &SingletonCause, stage: ProgramState) -> String {
    let contacted = match stage {
        ProgramState::Running if ranks == 1 => "has not contacted PMI",
        ProgramState::Running => "have not contacted PMI",
        ProgramState::Succeeded | ProgramState::Failed => "never contacted PMI",
    };
    let alone = match (why.certain, stage) {
        // Being a singleton may be the cause of the failure.
        (_, ProgramState::Failed) => ":",
        (true, ProgramState::Running) => "; each runs alone, as rank 0 of 1:",
        (true, ProgramState::Succeeded) => "; each ran alone, as rank 0 of 1:",
        (false, _) => ", although it loads an MPI:",
    };
    let ranks = counted(ranks, "rank");
    format!("{ranks} of {program} {contacted}{alone} {}", why.text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireup_core::job::spec::InterfaceChoice;

    const ALL: InterfaceOffer = InterfaceOffer {
        pmi: true,
        pmix: true,
        why: OfferReason::Unknown(0),
        without_pmix: None,
    };

    fn requested_offer(choice: InterfaceChoice) -> InterfaceOffer {
        InterfaceOffer {
            pmi: choice == InterfaceChoice::Pmi1,
            pmix: choice == InterfaceChoice::Pmix,
            why: OfferReason::UserChoice(choice),
            without_pmix: None,
        }
    }

    fn openmpi() -> MpiProcess {
        MpiProcess {
            openmpi: true,
            pmix: true,
            env_job: Some(true),
            env_pmix: Some(true),
            env_marker: Some(true),
            same_network: Some(true),
            server_directory: Some((true, "/tmp/d".into())),
            ..MpiProcess::default()
        }
    }

    fn mpich() -> MpiProcess {
        MpiProcess {
            mpich: true,
            env_job: Some(true),
            env_pmi: Some(true),
            pmi_socket: Some(true),
            ..MpiProcess::default()
        }
    }

    #[test]
    fn nothing_is_certain_without_evidence() {
        for process in [
            openmpi(),
            mpich(),
            MpiProcess::by_inspection(DetectedInterface::Pmi),
        ] {
            assert!(!process.explain(&ALL).certain, "{process:?}");
        }
    }

    #[test]
    fn each_evidence_has_own_remedy() {
        let pmi_only = &requested_offer(InterfaceChoice::Pmi1);
        let pmix_only = &requested_offer(InterfaceChoice::Pmix);
        let not_recognised = &InterfaceOffer {
            pmix: false,
            why: OfferReason::Plain,
            ..ALL
        };
        let not_served = &InterfaceOffer {
            pmix: false,
            without_pmix: Some("no libpmix".into()),
            ..ALL
        };
        let all = &ALL;
        let with = |mut process: MpiProcess, change: fn(&mut MpiProcess)| {
            change(&mut process);
            process
        };
        for (process, offer, word) in [
            (openmpi(), pmi_only, "give --pmi pmix"),
            (openmpi(), not_recognised, "not recognised"),
            (openmpi(), not_served, "not offered: no libpmix"),
            (mpich(), pmix_only, "give --pmi pmi1"),
            (
                MpiProcess::by_inspection(DetectedInterface::Pmix),
                pmi_only,
                "--pmi pmix",
            ),
            (
                with(mpich(), |s| s.openmpi = true),
                all,
                "both Open MPI and",
            ),
            (
                with(mpich(), |s| s.env_job = Some(false)),
                all,
                "cleared the",
            ),
            (
                with(openmpi(), |s| s.env_job = Some(false)),
                all,
                "cleared the",
            ),
            (
                with(mpich(), |s| s.env_pmi = Some(false)),
                all,
                "unset PMI_FD",
            ),
            (
                with(mpich(), |s| s.pmi_socket = Some(false)),
                all,
                "closed the",
            ),
            (
                with(openmpi(), |s| s.env_pmix = Some(false)),
                all,
                "unset PMIX_*",
            ),
            (
                with(openmpi(), |s| {
                    s.openmpi4 = true;
                    s.env_marker = Some(false);
                }),
                all,
                "JSM_JSRUN_PORT",
            ),
            (
                with(openmpi(), |s| s.same_network = Some(false)),
                all,
                "host's network",
            ),
            (
                with(openmpi(), |s| {
                    s.server_directory = Some((false, "/tmp/d".into()))
                }),
                all,
                "/tmp/d",
            ),
        ] {
            let why = process.explain(offer);
            assert!(why.certain && why.text.contains(word), "{word}: {why:?}");
        }
    }

    #[test]
    fn warning_is_as_certain_as_its_evidence() {
        let mut why = openmpi().explain(&requested_offer(InterfaceChoice::Pmi1));
        let text = warning("p", 4, &why, ProgramState::Succeeded);
        let start = "4 ranks of p never contacted PMI; each ran alone, as rank 0 of 1: it needs";
        assert!(text.starts_with(start), "{text}");
        assert!(!warning("p", 4, &why, ProgramState::Failed).contains("alone"));
        assert!(text.ends_with("; offered: PMI"), "{text}");
        why = openmpi().explain(&ALL);
        let text = warning("p", 1, &why, ProgramState::Succeeded);
        assert!(
            text.starts_with("1 rank of p never contacted PMI, although"),
            "{text}"
        );
    }

    #[test]
    fn descendant_program_is_named_with_started_program() {
        let name = |started: &str, real: &str, program: &str| {
            let process = MpiProcess {
                program: Some(program.into()),
                ..mpich()
            };
            descendant_program(Path::new(started), Path::new(real), &process)
        };
        let named = name("/bin/sh", "/usr/bin/dash", "/opt/app");
        assert_eq!(named.as_deref(), Some("/opt/app below sh"));
        assert_eq!(name("/bin/sh", "/usr/bin/dash", "/usr/bin/dash"), None);
        assert_eq!(name("app", "app", "/opt/app"), None, "found elsewhere");
        assert_eq!(
            descendant_program(Path::new("/a"), Path::new("/a"), &mpich()),
            None
        );
    }

    #[test]
    fn irrelevant_fact_is_not_reason() {
        // Open MPI 5 needs no marker, MPICH no network, and MPICH may bring a libpmix.
        let mut five = openmpi();
        five.env_marker = Some(false);
        let mut mpich = mpich();
        mpich.same_network = Some(false);
        mpich.pmix = true;
        for process in [five, mpich] {
            assert!(!process.explain(&ALL).certain, "{process:?}");
        }
    }
}

//! Commands to a launch, which it reads from `--control`.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Serialize};

use crate::job::ids::{JobIndex, Rank};
use crate::job::spawn::{SpawnApp, SpawnInfo, SpawnRequest};

/// One line of `--control`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ControlCommand {
    Signal(SignalCommand),
    Spawn(JobCommand),
    Resize(ResizeCommand),
}

/// Hosts that are to join a launch, and hosts that are to leave it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeCommand {
    /// Number that the reply in the status stream repeats.
    #[serde(default)]
    pub request: u64,
    /// Hosts that join, in the form of `--hosts`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub add: String,
    /// Hosts that leave, in the same form.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remove: String,
    /// Whether the ranks on hosts that leave are terminated; otherwise these hosts leave when their ranks have ended.
    #[serde(default, rename = "end_ranks")]
    pub ends_ranks: bool,
}

impl ResizeCommand {
    /// Appends the command as one line.
    pub fn write(&self, out: &mut Vec<u8>) {
        let line = BTreeMap::from([("resize", self)]);
        serde_json::to_writer(&mut *out, &line).expect("texts can be written into memory");
        out.push(b'\n');
    }
}

/// A signal for ranks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SignalCommand {
    pub signal: i32,
    /// For these ranks of the job. If absent for the whole job, or for the whole launch if the job is the initial one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<Vec<Rank>>,
    /// The job; the initial one if absent.
    #[serde(skip_serializing_if = "JobIndex::is_initial")]
    pub spawned_job: JobIndex,
}

impl SignalCommand {
    /// A signal for ranks of the initial job, or for the launch.
    pub fn new(signal: i32, ranks: Option<Vec<Rank>>) -> Self {
        Self {
            signal,
            ranks,
            spawned_job: JobIndex::INITIAL,
        }
    }

    /// Appends the command as one line.
    pub fn write(&self, out: &mut Vec<u8>) {
        serde_json::to_writer(&mut *out, self).expect("numbers can be written into memory");
        out.push(b'\n');
    }
}

/// A job to be added to the launch.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobCommand {
    /// Number that the reply repeats.
    pub request: u64,
    apps: Vec<JobCommandApp>,
    /// Attributes of the job; unknown ones are refused.
    #[serde(default)]
    infos: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JobCommandApp {
    /// The program with its arguments.
    command: Vec<String>,
    n: u32,
    /// Variables for its ranks.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Attributes of the program.
    #[serde(default)]
    infos: BTreeMap<String, String>,
}

impl JobCommand {
    /// The number of the request, and the request as those of ranks are.
    pub fn into_request(self) -> (u64, SpawnRequest) {
        let apps = self.apps.into_iter().map(|app| {
            let mut words = app.command.into_iter().map(Into::into);
            let variable = |(name, value)| format!("{name}={value}").into();
            SpawnApp {
                program: words.next().unwrap_or_default(),
                args: words.collect(),
                env: app.env.into_iter().map(variable).collect(),
                cwd: None,
                count: app.n,
                infos: required(app.infos),
            }
        });
        let request = SpawnRequest {
            apps: apps.collect(),
            infos: required(self.infos),
            preputs: Vec::new(),
        };
        (self.request, request)
    }
}

fn required(infos: BTreeMap<String, String>) -> Vec<SpawnInfo> {
    let infos = infos.into_iter().map(|(key, value)| SpawnInfo {
        key,
        value,
        required: true,
    });
    infos.collect()
}

/// The fields of all commands.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ControlLine {
    signal: Option<i32>,
    ranks: Option<Vec<Rank>>,
    spawned_job: Option<JobIndex>,
    spawn: Option<JobCommand>,
    resize: Option<ResizeCommand>,
}

impl ControlCommand {
    /// Parses a line of `--control`.
    ///
    /// # Errors
    /// For a line that is no command, with the reason.
    pub fn parse(line: &[u8]) -> serde_json::Result<Self> {
        let line: ControlLine = serde_json::from_slice(line)?;
        let names_ranks = line.ranks.is_some() || line.spawned_job.is_some();
        match (line.signal, line.spawn, line.resize) {
            (Some(signal), None, None) => Ok(Self::Signal(SignalCommand {
                signal,
                ranks: line.ranks,
                spawned_job: line.spawned_job.unwrap_or(JobIndex::INITIAL),
            })),
            (None, Some(spawn), None) if !names_ranks => Ok(Self::Spawn(spawn)),
            (None, None, Some(resize)) if !names_ranks => Ok(Self::Resize(resize)),
            _ => Err(serde_json::Error::custom(
                "a line has either a signal, a spawn or a resize",
            )),
        }
    }
}

//! Log texts of ranks (`PMIx_Log`).
//!
//! Rule: each part of the data is one channel with its text. With `PMIX_LOG_ONCE` only the first one
//! that is known here is used. `PMIX_LOG_JOB_RECORD` is a flag: the texts go to the record as well.
//! `PMIX_LOG_SYSLOG` is the global log, here that of the launcher's host. Source: `pmix_common.h`.

use std::time::Duration;

use crate::job::log_text::{LogChannel, LogText, PRIORITY_DEFAULT, SyslogTarget, SyslogText};
use crate::job::wall_clock::WallClock;
use crate::node::context::NodeContext;
use crate::node::event::{NodeAction, NodeReport};
use crate::pmix::keys;
use crate::pmix::sidecar_link::UpcallId;
use crate::pmix::value::{Info, PmixProc, Status, Text, Value, find};

/// Directives for log texts.
#[derive(Default)]
struct LogDirectives {
    /// With the first channel alone.
    first_only: bool,
    /// Only if the same text was not logged before.
    once: bool,
    /// Priority in a system's log.
    priority: u8,
    /// Time of the texts, in seconds since 1970-01-01T00:00:00Z.
    at: Option<i64>,
    /// Prefix of a shown text: the time, the channel's name.
    dated: bool,
    tagged: bool,
}

impl LogDirectives {
    fn from_infos(directives: &[Info]) -> Result<Self, Status> {
        let mut manner = Self {
            priority: PRIORITY_DEFAULT,
            ..Self::default()
        };
        for info in directives {
            let set = info.value.is_set();
            match (&info.key, &info.value) {
                (key, _) if *key == keys::LOG_ONCE => manner.first_only = set,
                (key, _) if *key == keys::LOG_AGG => manner.once |= set,
                (key, Value::Int(priority) | Value::Int32(priority))
                    if *key == keys::LOG_SYSLOG_PRI =>
                {
                    let priority = SyslogText::priority(*priority);
                    manner.priority = priority.ok_or(Status::ERR_BAD_PARAM)?;
                }
                (key, Value::Time(at)) if *key == keys::LOG_TIMESTAMP => manner.at = Some(*at),
                (key, _) if *key == keys::LOG_TIMESTAMP_OUTPUT => manner.dated = set,
                (key, _) if *key == keys::LOG_TAG_OUTPUT => manner.tagged = set,
                (key, _) if *key == keys::LOG_XML_OUTPUT && set && info.required => {
                    return Err(Status::ERR_NOT_SUPPORTED);
                }
                _ => {}
            }
        }
        manner.once |= manner.first_only;
        Ok(manner)
    }

    /// Formats a text for a channel of that name.
    fn shown(&self, channel: &str, text: &[u8]) -> Vec<u8> {
        let mut shown = Vec::with_capacity(text.len());
        if self.dated
            && let Some(at) = self.at.and_then(|at| u64::try_from(at).ok())
        {
            let at = WallClock::utc(Duration::from_secs(at)).at(Duration::ZERO);
            shown.extend_from_slice(format!("{at} ").as_bytes());
        }
        if self.tagged {
            shown.extend_from_slice(format!("[{channel}] ").as_bytes());
        }
        shown.extend_from_slice(text);
        shown
    }
}

/// Reports the texts to the launcher, and answers.
pub(in crate::node) fn log(
    id: UpcallId,
    proc: &PmixProc,
    data: Vec<Info>,
    directives: &[Info],
    cx: &mut NodeContext,
) {
    let manner = match LogDirectives::from_infos(directives) {
        Ok(manner) => manner,
        Err(status) => return cx.answer_status(id, status),
    };
    let flagged = |info: &Info| info.key == keys::LOG_JOB_RECORD && info.value.is_set();
    let recorded = directives.iter().chain(&data).any(flagged);
    // A rank may log a text of another rank.
    let source = match find(directives, keys::LOG_SOURCE) {
        Some(Value::Proc(source)) => source,
        _ => proc,
    };
    let rank = cx.find_process(source);
    let log = |channel, text| {
        NodeReport::Log(LogText {
            rank,
            channel,
            once: manner.once,
            text,
        })
    };
    let (mut reports, mut lost) = (Vec::new(), false);
    for info in data {
        let text = match info.value {
            Value::String(text) => text.into_bytes(),
            Value::Bytes(text) => text,
            _ => {
                lost |= !flagged(&info);
                continue;
            }
        };
        let shown = channel(&info.key);
        let system = syslog(&info.key);
        lost |= shown.is_none() && system.is_none() && !recorded;
        if let Some((channel, name)) = shown {
            reports.push(log(channel, manner.shown(name, &text)));
        }
        if let Some(place) = system {
            reports.push(NodeReport::Syslog(SyslogText {
                place,
                priority: manner.priority,
                at: manner.at,
                source: format!("rank {} of {}", source.rank.0, source.nspace),
                once: manner.once,
                text: text.clone(),
            }));
        }
        if recorded {
            reports.push(log(LogChannel::Record, text));
        }
    }
    if manner.first_only && !reports.is_empty() {
        reports.truncate(1);
        lost = false;
    }
    let status = match (reports.is_empty(), lost) {
        (true, true) => Status::ERR_NOT_SUPPORTED,
        (false, true) => Status::ERR_PARTIAL_SUCCESS,
        (_, false) => Status::SUCCESS,
    };
    cx.actions
        .extend(reports.into_iter().map(NodeAction::ReportToLauncher));
    cx.answer_status(id, status);
}

/// Returns the channel of a log key and its name; `None` for keys that the launcher does not show.
fn channel(key: &Text) -> Option<(LogChannel, &'static str)> {
    match key {
        key if *key == keys::LOG_STDOUT => Some((LogChannel::Stdout, "stdout")),
        key if *key == keys::LOG_STDERR || *key == keys::LOG_MSG => {
            Some((LogChannel::Stderr, "stderr"))
        }
        _ => None,
    }
}

fn syslog(key: &Text) -> Option<SyslogTarget> {
    match key {
        key if *key == keys::LOG_LOCAL_SYSLOG => Some(SyslogTarget::Node),
        key if *key == keys::LOG_SYSLOG || *key == keys::LOG_GLOBAL_SYSLOG => {
            Some(SyslogTarget::Launcher)
        }
        _ => None,
    }
}

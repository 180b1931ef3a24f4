//! What ranks want logged (`PMIx_Log`).
//!
//! Rule: each part of the data is one channel with its text. With `PMIX_LOG_ONCE` only the first one
//! that is known here is used. `PMIX_LOG_JOB_RECORD` is a flag: the texts go to the record as well.

use super::NodeCore;
use crate::agent::event::{Action, Report};
use crate::job::log::{Channel, LogText};
use crate::pmix::host::UpcallId;
use crate::pmix::keys;
use crate::pmix::upcall::Answer;
use crate::pmix::value::{Info, Proc, Status, Text, Value, find};

impl NodeCore {
    pub(super) fn log(
        &mut self,
        id: UpcallId,
        proc: &Proc,
        data: Vec<Info>,
        directives: &[Info],
        actions: &mut Vec<Action>,
    ) {
        let is_set = |key| {
            let value = find(directives, key);
            matches!(value, Some(Value::Bool(true) | Value::Undef))
        };
        let (first_only, once) = (
            is_set(keys::LOG_ONCE),
            is_set(keys::LOG_ONCE) || is_set(keys::LOG_AGG),
        );
        let recorded = is_set(keys::LOG_JOB_RECORD)
            || find(&data, keys::LOG_JOB_RECORD) == Some(&Value::Bool(true));
        let rank = self.named(proc);
        let (mut texts, mut lost) = (Vec::new(), false);
        for info in data {
            let text = match info.value {
                Value::String(text) => text.into_bytes(),
                Value::Bytes(text) => text,
                _ => continue,
            };
            let shown = channel(&info.key);
            let record = recorded.then_some(Channel::Record);
            lost |= shown.is_none() && !recorded;
            texts.extend(shown.into_iter().chain(record).map(|channel| LogText {
                rank,
                channel,
                once,
                text: text.clone(),
            }));
        }
        if first_only && !texts.is_empty() {
            texts.truncate(1);
            lost = false;
        }
        let status = match (texts.is_empty(), lost) {
            (true, true) => Status::ERR_NOT_SUPPORTED,
            (false, true) => Status::ERR_PARTIAL_SUCCESS,
            (_, false) => Status::SUCCESS,
        };
        actions.extend(texts.into_iter().map(Report::Log).map(Action::Report));
        self.answer(id, &Answer::Status(status), actions);
    }
}

fn channel(key: &Text) -> Option<Channel> {
    match key {
        key if *key == keys::LOG_STDOUT => Some(Channel::Stdout),
        key if *key == keys::LOG_STDERR || *key == keys::LOG_MSG => Some(Channel::Stderr),
        _ => None,
    }
}

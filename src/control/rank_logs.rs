//! Texts that ranks log with `PMIx_Log`.

use super::launch_context::LaunchContext;
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::log_text::{LogChannel, LogText, SyslogText};
use wireup_core::log_once::LoggedOnce;
use wireup_core::record::{RankId, StatusRecord, Stream};
use wireup_sys::syslog::Syslog;

/// Logs texts of ranks.
#[derive(Default)]
pub(super) struct RankLogs {
    /// Texts logged with `PMIX_LOG_ONCE`.
    logged_once: LoggedOnce<LogChannel>,
    /// The syslog of this host.
    syslog: Syslog,
}

impl RankLogs {
    /// Prints or records a text of a rank; a text with `PMIX_LOG_ONCE` only the first time.
    pub(super) fn log(&mut self, cx: &mut LaunchContext, log: LogText<KnownRank>) {
        let LogText {
            rank,
            channel,
            once,
            text,
        } = log;
        if once && !self.logged_once.is_new(channel, &text) {
            return;
        }
        let stream = match channel {
            LogChannel::Stdout => Stream::Stdout,
            LogChannel::Stderr => Stream::Stderr,
            LogChannel::Record => {
                return cx.record(&StatusRecord::log(rank.map(RankId::from), &text));
            }
        };
        let now = cx.now();
        cx.streams.pass_on(stream, text, now);
    }

    /// Sends a text to the syslog of this host.
    pub(super) fn log_to_system(&mut self, cx: &mut LaunchContext, text: &SyslogText) {
        if let Some(problem) = self.syslog.log(text) {
            cx.warn(&problem);
        }
    }
}

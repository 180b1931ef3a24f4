//! Texts that ranks log once (`PMIX_LOG_ONCE`); no I/O.

use std::collections::BTreeSet;

/// Maximum number of remembered bytes. Later texts are logged each time.
const BYTES_MAX: usize = 1 << 20;

/// Texts that were logged with `PMIX_LOG_ONCE`, by channel.
#[derive(Debug)]
pub struct LoggedOnce<C> {
    texts: BTreeSet<(C, Vec<u8>)>,
    bytes: usize,
}

impl<C> Default for LoggedOnce<C> {
    fn default() -> Self {
        Self {
            texts: BTreeSet::new(),
            bytes: 0,
        }
    }
}

impl<C: Ord> LoggedOnce<C> {
    /// Whether a text is new in that channel.
    pub fn is_new(&mut self, channel: C, text: &[u8]) -> bool {
        let key = (channel, text.to_vec());
        if self.texts.contains(&key) {
            return false;
        }
        if self.bytes + text.len() <= BYTES_MAX {
            self.bytes += text.len();
            self.texts.insert(key);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::log_text::LogChannel;

    #[test]
    fn log_once_text_is_new_once_and_memory_is_bounded() {
        let mut logged = LoggedOnce::default();
        let mut is_new = |text: &[u8]| logged.is_new(LogChannel::Stderr, text);
        assert!(is_new(b"a") && !is_new(b"a") && is_new(b"b"));
        let long = vec![0; BYTES_MAX];
        assert!(is_new(&long) && is_new(&long) && !is_new(b"b"));
        assert!(logged.is_new(LogChannel::Record, b"b"));
        assert_eq!(logged.bytes, 3);
    }
}

//! Finds bytes in messages.
//!
//! Messages are short, and a launch may have few of them: to ask the processor for its widest
//! instructions, as `memchr` itself does at its first call, costs a virtual machine more time than
//! these save.

use memchr::arch::all::memchr::{One, Two};
use memchr::arch::all::rabinkarp;

/// Where the first `wanted` is.
pub(super) fn byte(wanted: u8, text: &[u8]) -> Option<usize> {
    One::new(wanted).find(text)
}

/// Where the first of either is.
pub(super) fn either(one: u8, other: u8, text: &[u8]) -> Option<usize> {
    Two::new(one, other).find(text)
}

/// Where `wanted` begins for the first time.
pub(super) fn word(wanted: &[u8], text: &[u8]) -> Option<usize> {
    rabinkarp::Finder::new(wanted).find(text, wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_place_counts() {
        let text = b"cmd=put kvsname=kvs_0 key=a value=b=c";
        assert_eq!(byte(b'=', text), Some(3));
        assert_eq!(byte(b'\n', text), None);
        assert_eq!(either(b'k', b' ', text), Some(7));
        assert_eq!(word(b" value=", text), Some(27));
        assert_eq!(word(b"=c", text), Some(text.len() - 2));
        assert_eq!(word(b"=d", text), None);
        assert_eq!(byte(0, b""), None);
        assert_eq!(word(b"longer", b"long"), None);
    }
}

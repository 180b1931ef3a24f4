//! Finds bytes in messages.
//!
//! Messages are short, and a launch may have few of them: to ask the processor for its widest
//! instructions, as `memchr` itself does at its first call, costs a virtual machine more time than
//! these save. Those that every processor of an architecture has need no question.

#[cfg(target_arch = "aarch64")]
use memchr::arch::aarch64::neon as always;
use memchr::arch::all;
#[cfg(target_arch = "x86_64")]
use memchr::arch::x86_64::sse2 as always;

/// Where the first `wanted` is.
pub(super) fn byte(wanted: u8, text: &[u8]) -> Option<usize> {
    #[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
    if let Some(one) = always::memchr::One::new(wanted) {
        return one.find(text);
    }
    all::memchr::One::new(wanted).find(text)
}

/// Where the first of either is.
pub(super) fn either(one: u8, other: u8, text: &[u8]) -> Option<usize> {
    #[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
    if let Some(two) = always::memchr::Two::new(one, other) {
        return two.find(text);
    }
    all::memchr::Two::new(one, other).find(text)
}

/// Where `wanted` begins for the first time.
pub(super) fn word(wanted: &[u8], text: &[u8]) -> Option<usize> {
    all::rabinkarp::Finder::new(wanted).find(text, wanted)
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

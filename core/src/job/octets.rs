//! Byte strings in messages, for serde's `with`: written as a whole instead of byte by byte, and with every byte that
//! the system allows in a path or argument.
//!
//! Rule: JSON has no byte strings. Paths and arguments are texts there if they are UTF-8, and arrays of numbers
//! otherwise, as all other bytes are; both are read.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::marker::PhantomData;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Types that are byte strings or contain them.
pub trait Octets: Sized {
    /// Writes the value to a serializer.
    ///
    /// # Errors
    /// Those of the writer.
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error>;

    /// Reads the value from a deserializer.
    ///
    /// # Errors
    /// When the input has no such value.
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error>;
}

/// Serializes for `#[serde(with = "octets")]`.
///
/// # Errors
/// Those of the writer.
pub fn serialize<T: Octets, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    value.write(to)
}

/// Deserializes for `#[serde(with = "octets")]`.
///
/// # Errors
/// When the input has no such value.
pub fn deserialize<'de, T: Octets, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    T::read(from)
}

/// Writes a path or argument.
fn write_word<S: Serializer>(word: &OsStr, to: S) -> Result<S::Ok, S::Error> {
    match word.to_str() {
        Some(text) if to.is_human_readable() => to.serialize_str(text),
        _ => to.serialize_bytes(word.as_bytes()),
    }
}

macro_rules! octets {
    ($($type:ty: |$value:ident, $to:ident| $write:expr, |$bytes:ident| $from_bytes:expr;)+) => {
        $(
            impl Octets for $type {
                fn write<S: Serializer>(&self, $to: S) -> Result<S::Ok, S::Error> {
                    let $value = self;
                    $write
                }

                fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                    read(from, |$bytes| Ok::<_, Infallible>($from_bytes))
                }
            }
        )+
    };
}

octets! {
    Vec<u8>: |value, to| to.serialize_bytes(value), |bytes| bytes.to_vec();
    Arc<[u8]>: |value, to| to.serialize_bytes(value), |bytes| Arc::from(bytes);
    OsString: |value, to| write_word(value, to), |bytes| OsStr::from_bytes(bytes).to_owned();
    PathBuf: |value, to| write_word(value.as_os_str(), to), |bytes| OsString::from_vec(bytes.to_vec()).into();
}

/// Reads bytes and makes something of them where they are.
///
/// # Errors
/// When there are none, or nothing can be made of them.
pub fn read<'de, T, E: fmt::Display, D: Deserializer<'de>>(
    from: D,
    make: impl FnOnce(&[u8]) -> Result<T, E>,
) -> Result<T, D::Error> {
    from.deserialize_byte_buf(Take(make))
}

struct Take<F>(F);

impl<'de, T, R: fmt::Display, F: FnOnce(&[u8]) -> Result<T, R>> Visitor<'de> for Take<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<T, E> {
        (self.0)(bytes).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<T, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = list.next_element()? {
            bytes.push(byte);
        }
        self.visit_bytes(&bytes)
    }
}

/// A borrowed one, as an element of something larger.
struct Ref<'a, T>(&'a T);

impl<T: Octets> Serialize for Ref<'_, T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.write(to)
    }
}

/// An owned one, as an element of something larger.
struct Owned<T>(T);

impl<'de, T: Octets> Deserialize<'de> for Owned<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        T::read(from).map(Self)
    }
}

impl<T: Octets> Octets for Option<T> {
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.as_ref().map(Ref).serialize(to)
    }

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Option::<Owned<T>>::deserialize(from)?.map(|owned| owned.0))
    }
}

impl<T: Octets> Octets for Vec<T> {
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter().map(Ref))
    }

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(List(PhantomData))
    }
}

impl<T: Octets> Octets for Arc<[T]> {
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter().map(Ref))
    }

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Vec::read(from).map(Self::from)
    }
}

impl<T: Octets, U: Octets> Octets for (T, U) {
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        (Ref(&self.0), Ref(&self.1)).serialize(to)
    }

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (first, second) = <(Owned<T>, Owned<U>)>::deserialize(from)?;
        Ok((first.0, second.0))
    }
}

/// Bytes, or why there are none.
impl<T: Octets, E> Octets for Result<T, E>
where
    E: Serialize + for<'de> Deserialize<'de>,
{
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.as_ref().map(Ref).serialize(to)
    }

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Result::<Owned<T>, E>::deserialize(from)?.map(|owned| owned.0))
    }
}

/// Takes the elements of a list.
struct List<T>(PhantomData<T>);

impl<'de, T: Octets> Visitor<'de> for List<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        // A claimed length is not trusted with memory.
        let mut taken = Vec::with_capacity(list.size_hint().unwrap_or_default().min(256));
        while let Some(Owned(item)) = list.next_element()? {
            taken.push(item);
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{decode, encode};

    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    struct All {
        #[serde(with = "super")]
        path: Option<PathBuf>,
        #[serde(with = "super")]
        words: Vec<OsString>,
        #[serde(with = "super")]
        pairs: Vec<(OsString, OsString)>,
        #[serde(with = "super")]
        bytes: Vec<u8>,
        #[serde(with = "super")]
        result: Result<Arc<[u8]>, String>,
    }

    #[test]
    fn octets_survive_every_format() {
        for word in [&b"/etc/a \"b\"\n\xc3\xa9"[..], b"/tmp/\xff\x00", b""] {
            let word = OsStr::from_bytes(word).to_owned();
            for (path, result) in [
                (None, Err("none".to_owned())),
                (Some(word.clone().into()), Ok(Arc::from(word.as_bytes()))),
            ] {
                let all = All {
                    path,
                    words: vec![word.clone(), OsString::new()],
                    pairs: vec![(word.clone(), word.clone())],
                    bytes: word.as_bytes().to_vec(),
                    result,
                };
                assert_eq!(decode::<All>(&encode(&all)).unwrap(), all);
                let text = serde_json::to_string(&all).unwrap();
                assert_eq!(serde_json::from_str::<All>(&text).unwrap(), all, "{text}");
            }
        }
    }

    #[test]
    fn octets_refuse_lists_of_other_than_bytes() {
        for text in ["[256]", "[-1]", "[\"a\"]", "7", "null"] {
            let read = serde_json::from_str::<Owned<PathBuf>>(text);
            assert!(read.is_err(), "{text}");
        }
    }
}

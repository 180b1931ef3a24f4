//! Byte strings in messages, for serde's `with`: written as a whole instead of byte by byte, and
//! with every byte that the system allows in a path or word.

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
    /// Writes it.
    ///
    /// # Errors
    /// Those of the writer.
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error>;

    /// Reads it.
    ///
    /// # Errors
    /// When there is none.
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error>;
}

/// For `#[serde(with = "octets")]`.
///
/// # Errors
/// Those of the writer.
pub fn serialize<T: Octets, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    value.write(to)
}

/// For `#[serde(with = "octets")]`.
///
/// # Errors
/// When there is none.
pub fn deserialize<'de, T: Octets, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    T::read(from)
}

macro_rules! octets {
    ($($type:ty: |$value:ident| $as_bytes:expr, |$bytes:ident| $from_bytes:expr;)+) => {
        $(
            impl Octets for $type {
                fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                    let $value = self;
                    to.serialize_bytes($as_bytes)
                }

                fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                    read(from, |$bytes| Ok::<_, Infallible>($from_bytes))
                }
            }
        )+
    };
}

octets! {
    Vec<u8>: |value| value, |bytes| bytes.to_vec();
    Arc<[u8]>: |value| value, |bytes| Arc::from(bytes);
    OsString: |value| value.as_bytes(), |bytes| OsStr::from_bytes(bytes).to_owned();
    PathBuf: |value| value.as_os_str().as_bytes(), |bytes| OsString::from_vec(bytes.to_vec()).into();
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

impl<T, R: fmt::Display, F: FnOnce(&[u8]) -> Result<T, R>> Visitor<'_> for Take<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<T, E> {
        (self.0)(bytes).map_err(E::custom)
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

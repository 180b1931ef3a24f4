//! Bytes as base64 in JSON, for serde's `with`.

use std::borrow::Cow;

use data_encoding::BASE64;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&BASE64.encode_display(bytes))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Cow<'static, [u8]>, D::Error> {
    let digits = String::deserialize(from)?;
    let bytes = BASE64.decode(digits.as_bytes()).map_err(D::Error::custom)?;
    Ok(bytes.into())
}

//! Durations as people write them: `90`, `1.5` and `1e3` are seconds, `500ms`, `10m` and `1h30m` have units.

use std::time::Duration;

use serde::Deserialize;

/// Units, and seconds in each.
const UNITS: [(&str, f64); 6] = [
    ("ms", 0.001),
    ("s", 1.0),
    ("min", 60.0),
    ("m", 60.0),
    ("h", 3600.0),
    ("d", 86_400.0),
];

/// A text that is no duration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DurationError {
    #[error("give a number of seconds, or a duration such as 500ms, 90s, 10m, 1h30m or 2d")]
    Invalid,
    #[error("give a duration greater than 0, such as 90s or 10m; a number alone is in seconds")]
    Zero,
}

/// Parses a duration, which may be 0.
///
/// # Errors
/// [`DurationError::Invalid`]
pub fn duration(text: &str) -> Result<Duration, DurationError> {
    let seconds = match amount(text) {
        Some((seconds, "")) => Some(seconds),
        // With an exponent, as other programs print numbers.
        Some(_) => text.parse().ok().or_else(|| sum(text)),
        None => None,
    };
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or(DurationError::Invalid)
}

/// Parses a duration that is greater than 0.
///
/// # Errors
/// [`DurationError`]
pub fn positive_duration(text: &str) -> Result<Duration, DurationError> {
    match duration(text)? {
        Duration::ZERO => Err(DurationError::Zero),
        duration => Ok(duration),
    }
}

/// A duration in a file: a number of seconds, or a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "DurationWire")]
pub struct ConfiguredDuration(pub Duration);

/// Forms of a duration in a file.
#[derive(Deserialize)]
#[serde(untagged)]
enum DurationWire {
    Number(f64),
    Text(String),
}

impl TryFrom<DurationWire> for ConfiguredDuration {
    type Error = DurationError;

    fn try_from(wire: DurationWire) -> Result<Self, DurationError> {
        let found = match wire {
            DurationWire::Number(seconds) => duration(&seconds.to_string()),
            DurationWire::Text(text) => duration(&text),
        };
        found.map(Self)
    }
}

/// Splits a text into the number at its start and the rest.
fn amount(text: &str) -> Option<(f64, &str)> {
    let is_number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    let end = text.bytes().take_while(|byte| is_number(*byte)).count();
    let (number, rest) = text.split_at(end);
    Some((number.parse().ok()?, rest))
}

/// Seconds of a text in which each number has a unit.
fn sum(mut text: &str) -> Option<f64> {
    let mut sum = 0.0;
    while !text.is_empty() {
        let (number, rest) = amount(text)?;
        let mut units = UNITS.iter();
        // `m` begins `ms` and `min`, which stand before it.
        let (name, seconds) = units.find(|(name, _)| rest.starts_with(name))?;
        sum += number * seconds;
        text = &rest[name.len()..];
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_number_is_seconds_and_units_add_up() {
        for (text, milliseconds) in [
            ("0", 0),
            ("90", 90_000),
            ("0.5", 500),
            ("1e3", 1_000_000),
            ("5E-1", 500),
            ("500ms", 500),
            ("1.5s", 1500),
            ("10m", 600_000),
            ("10min", 600_000),
            ("1h30m", 5_400_000),
            ("2d", 172_800_000),
            ("1m500ms", 60_500),
        ] {
            assert_eq!(
                duration(text),
                Ok(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
    }

    #[test]
    fn configured_duration_is_number_of_seconds_or_text() {
        let read = |json: &str| serde_json::from_str::<ConfiguredDuration>(json);
        for (json, milliseconds) in [("30", 30_000), ("0.5", 500), ("\"5m\"", 300_000)] {
            let expected = ConfiguredDuration(Duration::from_millis(milliseconds));
            assert_eq!(read(json).unwrap(), expected, "{json}");
        }
        for json in ["-1", "\"5x\"", "true"] {
            assert!(read(json).is_err(), "{json}");
        }
    }

    #[test]
    fn other_texts_are_no_durations() {
        for text in [
            "",
            "x",
            "m",
            "10x",
            "1h30",
            "-1",
            "+1",
            "1e",
            "1e3s",
            "1e400",
            "inf",
            "NaN",
            "1..5",
            "10 m",
            "s5",
            "999999999999999999999d",
        ] {
            assert_eq!(duration(text), Err(DurationError::Invalid), "{text}");
        }
        assert_eq!(positive_duration("0ms"), Err(DurationError::Zero));
        assert_eq!(positive_duration("1ms"), Ok(Duration::from_millis(1)));
    }
}

//! OpenTelemetry spans about a launch. They are sent at its end to the collector that the standard variables name.
//!
//! `wireup-agent` sends them, since it has an async runtime.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};
use wireup_core::executables::{AGENT, EXPORT_SPANS};

use rustix::rand::{GetRandomFlags, getrandom};

use crate::inspect::agent_file;
use wireup_core::job::trace_context::{TRACEPARENT, TraceContext, TraceParent};
use wireup_core::timeline::{ExportedSpans, Timeline, spans};
use wireup_sys::pidfd::wait_for;

/// Variables that name the collector. Source: "OpenTelemetry Protocol Exporter".
const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];

/// Time that sending may take beyond the time in the variables, whose default is 10 s.
const PATIENCE: Duration = Duration::from_secs(15);

/// Returns the trace of a launch with these variables, if they name a collector and permit spans.
pub(crate) fn context(variables: &[(OsString, OsString)]) -> Option<TraceContext> {
    let value = |name: &str| {
        let found = variables
            .iter()
            .find(|(known, _)| known == OsStr::new(name));
        found.and_then(|(_, value)| value.to_str()).unwrap_or("")
    };
    let exporters = value("OTEL_TRACES_EXPORTER");
    let is_enabled = ENDPOINTS.iter().any(|name| !value(name).is_empty())
        && !value("OTEL_SDK_DISABLED").eq_ignore_ascii_case("true")
        && (exporters.is_empty() || exporters.split(',').any(|name| name.trim() == "otlp"));
    let parent = TraceParent::parse(value(TRACEPARENT));
    if !is_enabled || parent.is_some_and(|parent| !parent.sampled) {
        return None;
    }
    let mut random = [0; 24];
    let got = getrandom(&mut random, GetRandomFlags::empty()).ok()?;
    (got == random.len()).then(|| TraceContext::new(parent, random))
}

/// Sends the spans of a launch that started at this time.
///
/// # Errors
/// The reason, on one line.
pub(crate) fn send(
    timeline: &Timeline,
    context: &TraceContext,
    began: SystemTime,
) -> Result<(), String> {
    let since = began.duration_since(SystemTime::UNIX_EPOCH);
    let exported = ExportedSpans {
        trace: context.trace,
        parent: context.parent,
        began_us: since.map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(0)),
        spans: spans(timeline, context),
    };
    let text = serde_json::to_vec(&exported).map_err(|error| error.to_string())?;
    let program = agent_file::find(AGENT).map_err(|error| error.to_string())?;
    let broken = |error: std::io::Error| error.to_string();
    let mut child = Command::new(program)
        .arg(EXPORT_SPANS)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(broken)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(&text).map_err(broken)?;
    }
    // The line about an error fits into a pipe.
    if !wait_for(&child, PATIENCE) {
        let _ = child.kill();
    }
    let output = child.wait_with_output().map_err(broken)?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let line = stderr.lines().find(|line| !line.trim().is_empty());
    let line = line.map(|line| line.trim_start_matches("wireup: ").to_owned());
    Err(line.unwrap_or_else(|| format!("not within {} s", PATIENCE.as_secs())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Option<TraceContext> {
        let variables = variables.iter();
        let variables: Vec<_> = variables
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect();
        context(&variables)
    }

    #[test]
    fn spans_are_sent_to_endpoint_of_standard_variables() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318");
        assert!(of(&[endpoint]).is_some());
        assert!(of(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://x")]).is_some());
        assert!(of(&[endpoint, ("OTEL_TRACES_EXPORTER", "console, otlp")]).is_some());
        for none in [
            &[][..],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")],
            &[endpoint, ("OTEL_SDK_DISABLED", "TRUE")],
            &[endpoint, ("OTEL_TRACES_EXPORTER", "none")],
        ] {
            assert_eq!(of(none), None, "{none:?}");
        }
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-";
        let sampled = of(&[endpoint, (TRACEPARENT, &format!("{parent}01"))]).unwrap();
        assert_eq!(sampled.parent.unwrap().0[1], 0xf0);
        assert_eq!(of(&[endpoint, (TRACEPARENT, &format!("{parent}00"))]), None);
    }
}

//! Sends the spans of a launch to a collector of OpenTelemetry, for a launcher, which has no runtime for that.

use std::borrow::Cow;
use std::io::Read as _;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use wireup::failure::{AnyError, RunFailure};
use wireup::report::status::spans::Exported;
use wireup_core::job::trace_context::SpanId;
use wireup_core::timeline::{Attribute, Span};

use crate::peer::client::PROGRAM_VERSION;

/// Variables that name the protocol, the first one that is set; without them it is the default of OpenTelemetry.
const PROTOCOL: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
];

/// A protocol that is not spoken.
#[derive(Debug, thiserror::Error)]
#[error("{0} is none of the protocols that wireup speaks: http/protobuf, grpc")]
struct UnknownProtocol(String);

/// Reads spans from standard input and sends them where the standard variables say.
///
/// # Errors
/// [`RunFailure`] with the reason.
pub fn main() -> Result<u8, RunFailure> {
    let failed = |error: AnyError| RunFailure::system("spans cannot be sent", error);
    let mut text = Vec::new();
    std::io::stdin()
        .read_to_end(&mut text)
        .map_err(|error| failed(error.into()))?;
    let exported: Exported = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failed(error.into()))?;
    runtime.block_on(send(exported)).map_err(failed)?;
    Ok(0)
}

async fn send(exported: Exported) -> Result<(), AnyError> {
    let mut exporter = exporter()?;
    exporter.set_resource(&resource());
    let spans = exported.spans.iter().map(|span| data(&exported, span));
    exporter.export(spans.collect()).await?;
    exporter.shutdown()?;
    Ok(())
}

/// What sends the spans: what the standard variables say, and `wireup` where they do not name the service.
fn resource() -> Resource {
    let named = |name: &str| std::env::var(name).unwrap_or_default();
    let given = !named("OTEL_SERVICE_NAME").is_empty()
        || named("OTEL_RESOURCE_ATTRIBUTES").contains("service.name=");
    match given {
        true => Resource::builder().build(),
        false => Resource::builder().with_service_name("wireup").build(),
    }
}

/// By the standard variables: protocol, endpoint, headers, time, certificates.
fn exporter() -> Result<SpanExporter, AnyError> {
    let named = PROTOCOL.iter().find_map(|name| std::env::var(name).ok());
    let named = named.filter(|name| !name.is_empty());
    Ok(match named.as_deref() {
        None | Some("http/protobuf") => SpanExporter::builder().with_http().build()?,
        Some("grpc") => SpanExporter::builder().with_tonic().build()?,
        Some(other) => return Err(UnknownProtocol(other.to_owned()).into()),
    })
}

fn data(exported: &Exported, span: &Span) -> SpanData {
    let time = |us: u64| SystemTime::UNIX_EPOCH + Duration::from_micros(exported.began_us + us);
    let id = |id: SpanId| opentelemetry::trace::SpanId::from_bytes(id.0);
    let attributes = span.attributes.iter().map(|(name, value)| {
        let name = name.clone();
        match value {
            Attribute::Number(number) => KeyValue::new(name, *number),
            Attribute::Text(text) => KeyValue::new(name, text.clone()),
        }
    });
    SpanData {
        span_context: SpanContext::new(
            TraceId::from_bytes(exported.trace),
            id(span.id),
            TraceFlags::SAMPLED,
            false,
            TraceState::NONE,
        ),
        parent_span_id: span
            .parent
            .map_or(opentelemetry::trace::SpanId::INVALID, id),
        parent_span_is_remote: span.parent == exported.parent && span.parent.is_some(),
        span_kind: SpanKind::Internal,
        name: Cow::Owned(span.name.clone()),
        start_time: time(span.from),
        end_time: time(span.to),
        attributes: attributes.collect(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: match &span.error {
            Some(error) => Status::error(error.clone()),
            None => Status::Unset,
        },
        instrumentation_scope: InstrumentationScope::builder("wireup")
            .with_version(PROGRAM_VERSION)
            .build(),
    }
}

//! Sends the spans of a launch to a collector of OpenTelemetry, for a launcher, which has no runtime for that.

use std::borrow::Cow;
use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig, Identity};
use opentelemetry_otlp::{SpanExporter, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use wireup_core::failure::{AnyError, CommandError};
use wireup_core::job::trace_context::SpanId;
use wireup_core::timeline::{ExportedSpans, Span, SpanAttribute};

use crate::PROGRAM_VERSION;

/// Files with the authorities that the system trusts.
const SYSTEM: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];

/// Variables that ask for an export that is not supported.
#[derive(Debug, thiserror::Error)]
enum ExporterError {
    #[error("unsupported OTLP protocol {0}; use http/protobuf or grpc")]
    UnknownProtocol(String),
    #[error(
        "unsupported OTLP endpoint {0}: wireup supports TLS with gRPC only; set OTEL_EXPORTER_OTLP_PROTOCOL=grpc and \
         name the collector's port for that (4317), or name a collector on this machine with http://"
    )]
    HttpOverTls(String),
    #[error("cannot read {path}: {error}")]
    File { path: String, error: std::io::Error },
    #[error(
        "this system has no list of certificate authorities; name one with OTEL_EXPORTER_OTLP_CERTIFICATE"
    )]
    NoAuthorities,
}

/// Returns the value of `OTEL_EXPORTER_OTLP_TRACES_{name}`, or else of `OTEL_EXPORTER_OTLP_{name}`.
fn setting(name: &str) -> Option<String> {
    let prefixes = ["OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"];
    let values = prefixes.map(|prefix| std::env::var(format!("{prefix}{name}")));
    let mut values = values.into_iter().flatten();
    values.find(|value| !value.is_empty())
}

/// Reads spans from standard input and sends them to the collector of the standard variables.
///
/// # Errors
/// [`CommandError`] with the reason.
pub fn main() -> Result<u8, CommandError> {
    let failed = |error: AnyError| CommandError::system("cannot send spans", error);
    let mut text = Vec::new();
    std::io::stdin()
        .read_to_end(&mut text)
        .map_err(|error| failed(error.into()))?;
    let exported: ExportedSpans =
        serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
    let runtime = crate::worker_threads::single_task().map_err(|error| failed(error.into()))?;
    runtime.block_on(send(exported)).map_err(failed)?;
    Ok(0)
}

async fn send(exported: ExportedSpans) -> Result<(), AnyError> {
    let mut exporter = exporter()?;
    exporter.set_resource(&resource());
    let spans = exported.spans.iter().map(|span| data(&exported, span));
    exporter.export(spans.collect()).await?;
    exporter.shutdown()?;
    Ok(())
}

/// Returns the resource of the spans, from the standard variables; its service is `wireup` unless they name one.
fn resource() -> Resource {
    let named = |name: &str| std::env::var(name).unwrap_or_default();
    let has_service_name = !named("OTEL_SERVICE_NAME").is_empty()
        || named("OTEL_RESOURCE_ATTRIBUTES").contains("service.name=");
    match has_service_name {
        true => Resource::builder().build(),
        false => Resource::builder().with_service_name("wireup").build(),
    }
}

/// Makes the exporter by the standard variables: protocol, endpoint, headers, time, certificates.
fn exporter() -> Result<SpanExporter, AnyError> {
    let endpoint = setting("ENDPOINT").filter(|endpoint| endpoint.starts_with("https://"));
    Ok(match setting("PROTOCOL").as_deref() {
        None | Some("http/protobuf") => match endpoint {
            None => SpanExporter::builder().with_http().build()?,
            Some(endpoint) => return Err(ExporterError::HttpOverTls(endpoint).into()),
        },
        Some("grpc") => {
            let builder = SpanExporter::builder().with_tonic();
            match endpoint {
                None => builder.build()?,
                Some(_) => builder.with_tls_config(tls()?).build()?,
            }
        }
        Some(other) => return Err(ExporterError::UnknownProtocol(other.to_owned()).into()),
    })
}

/// Reads the TLS settings from the standard variables; `opentelemetry-otlp` reads none of them.
fn tls() -> Result<ClientTlsConfig, ExporterError> {
    let read = |path: String| match std::fs::read(&path) {
        Ok(pem) => Ok(pem),
        Err(error) => Err(ExporterError::File { path, error }),
    };
    let system = || SYSTEM.iter().find(|path| Path::new(path).exists());
    let authorities = setting("CERTIFICATE").or_else(|| system().map(|path| (*path).to_owned()));
    let authorities = read(authorities.ok_or(ExporterError::NoAuthorities)?)?;
    let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authorities));
    Ok(
        match (setting("CLIENT_CERTIFICATE"), setting("CLIENT_KEY")) {
            (Some(certificate), Some(key)) => {
                config.identity(Identity::from_pem(read(certificate)?, read(key)?))
            }
            _ => config,
        },
    )
}

fn data(exported: &ExportedSpans, span: &Span) -> SpanData {
    let time = |us: u64| SystemTime::UNIX_EPOCH + Duration::from_micros(exported.began_us + us);
    let id = |id: SpanId| opentelemetry::trace::SpanId::from_bytes(id.0);
    let attributes = span.attributes.iter().map(|(name, value)| {
        let name = name.clone();
        match value {
            SpanAttribute::Number(number) => KeyValue::new(name, *number),
            SpanAttribute::Text(text) => KeyValue::new(name, text.clone()),
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

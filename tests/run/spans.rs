//! Spans of OpenTelemetry: a collector gets those of a launch, and ranks are part of its trace. The messages are decoded by
//! the published schema.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use data_encoding::HEXLOWER;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

use crate::common::{Outcome, Output, Run, Running, program, skip};
use crate::virtual_nodes::node;

/// A request that a collector got: its path and its body.
type Request = (String, Vec<u8>);

/// A collector that takes one request over HTTP.
struct Collector {
    port: u16,
    requests: Receiver<Request>,
    _thread: JoinHandle<()>,
}

impl Collector {
    fn start(status: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, requests) = channel();
        let _thread = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let mut first = String::new();
            reader.read_line(&mut first).unwrap();
            let mut length = 0;
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                let line = line.trim_end().to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let answer =
                format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
            let path = first.split(' ').nth(1).unwrap().to_owned();
            let _ = sender.send((path, body));
        });
        Self {
            port,
            requests,
            _thread,
        }
    }

    fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

/// The spans of a request, by their names.
fn spans(body: &[u8]) -> BTreeMap<String, Span> {
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    let [resource] = &request.resource_spans[..] else {
        panic!("{request:?}");
    };
    let service = resource.resource.as_ref().unwrap().attributes.iter();
    let service = service.filter(|it| it.key == "service.name");
    let service: Vec<_> = service.map(|it| it.value.clone().unwrap().value).collect();
    assert_eq!(service, [Some(Value::StringValue("wireup".into()))]);
    let all = resource.scope_spans.iter().flat_map(|scope| &scope.spans);
    all.map(|span| (span.name.clone(), span.clone())).collect()
}

/// Two nodes whose ranks meet, and print the trace that they are part of. Rank 3 is late.
fn launch() -> Option<Run> {
    let program = program("pmi_wireup")?;
    let script = format!(
        "echo \"trace $WIREUP_RANK $TRACEPARENT\"; [ $WIREUP_RANK != 3 ] || sleep 0.5; exec {}",
        program.display()
    );
    Some(Run::ranks(4, ["--virtual-nodes", "2", "sh", "-c", &script]))
}

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Checks the spans of a launch that was started with [`PARENT`].
#[track_caller]
fn check(spans: &BTreeMap<String, Span>, outcome: &Outcome) {
    let span = |name: &str| {
        spans
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {spans:?}"))
    };
    let launch = span("wireup run");
    assert_eq!(HEXLOWER.encode(&launch.parent_span_id), "00f067aa0ba902b7");
    for rank in 0..4 {
        let of_rank = span(&format!("rank {rank}"));
        assert_eq!(of_rank.parent_span_id, launch.span_id);
        let trace = format!(
            "trace {rank} 00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01",
            HEXLOWER.encode(&of_rank.span_id)
        );
        assert!(outcome.out().contains(&trace), "{trace}: {outcome:?}");
        let host = of_rank.attributes.iter().find(|it| it.key == "host.name");
        let host = host.unwrap().value.clone().unwrap().value;
        assert_eq!(host, Some(Value::StringValue(node(rank / 2))));
        assert!(of_rank.end_time_unix_nano > of_rank.start_time_unix_nano);
    }
    let fence = span("fence pmi_barrier");
    assert_eq!(fence.trace_id, launch.trace_id);
    let last = fence
        .attributes
        .iter()
        .find(|it| it.key == "wireup.fence.last_host");
    assert!(last.is_some(), "{fence:?}");
    for phase in ["plan", "start", "init"] {
        let phase = span(phase);
        assert!(
            phase.start_time_unix_nano >= launch.start_time_unix_nano,
            "{phase:?}"
        );
        assert!(
            phase.end_time_unix_nano <= launch.end_time_unix_nano,
            "{phase:?}"
        );
    }
}

#[test]
fn collector_gets_spans_of_launch_over_http() {
    let Some(run) = launch() else { return };
    let collector = Collector::start("200 OK");
    let run = run.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint());
    let outcome = run.env("TRACEPARENT", PARENT).run().expect(0);
    assert!(!outcome.err().contains("spans"), "{outcome:?}");
    let (path, body) = collector.requests.recv().unwrap();
    assert_eq!(path, "/v1/traces");
    check(&spans(&body), &outcome);
}

/// Takes one call of the collector's service and writes its message into a file.
const COLLECTOR: &str = r#"
import concurrent.futures, grpc, sys, threading
taken = threading.Event()
def export(message, context):
    open(sys.argv[1], "wb").write(message)
    taken.set()
    return b""
server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
service = "opentelemetry.proto.collector.trace.v1.TraceService"
handler = grpc.unary_unary_rpc_method_handler(export)
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": handler}),))
if len(sys.argv) > 2:
    pem = [open(name, "rb").read() for name in sys.argv[2:]]
    shown = grpc.ssl_server_credentials([(pem[0], pem[1])], pem[1], True)
    port = server.add_secure_port("localhost:0", shown)
else:
    port = server.add_insecure_port("127.0.0.1:0")
print("port", port, flush=True)
server.start()
taken.wait()
server.stop(5).wait()
"#;

/// A Python that has grpc.
fn python() -> Option<String> {
    let default = || format!("/var/tmp/wireup-mpi-{}", rustix::process::getuid().as_raw()).into();
    let directory = std::env::var_os("WIREUP_MPI_DIR").map_or_else(default, PathBuf::from);
    let python = directory.join("grpc/bin/python");
    if !python.exists() {
        skip("spans over gRPC: scripts/setup");
        return None;
    }
    Some(python.to_str().unwrap().to_owned())
}

/// A collector over gRPC, with these files of a key and a certificate, and its port.
fn over_grpc(python: &str, pem: &[&str]) -> (Running, PathBuf, String) {
    let collector = Run::command([&[python, "-c", COLLECTOR, "message"], pem].concat());
    let message = collector.dir().join("message");
    let collector = collector.start();
    let printed = collector.wait_for(Output::Stdout, "\n");
    let port = printed.trim().trim_start_matches("port ").to_owned();
    (collector, message, port)
}

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";

#[test]
fn collector_gets_spans_of_launch_over_grpc() {
    let (Some(run), Some(python)) = (launch(), python()) else {
        return;
    };
    let (collector, message, port) = over_grpc(&python, &[]);
    let run = run.env(ENDPOINT, format!("http://127.0.0.1:{port}"));
    let run = run.env(PROTOCOL, "grpc");
    expect_sent(run, collector, &message);
}

/// The launch sends its spans to this collector, without a word about them.
#[track_caller]
fn expect_sent(run: Run, collector: Running, message: &Path) {
    let outcome = run.env("TRACEPARENT", PARENT).run().expect(0);
    assert!(!outcome.err().contains("spans"), "{outcome:?}");
    let body = read(message);
    collector.finish().expect(0);
    check(&spans(&body), &outcome);
}

#[test]
fn grpc_uses_tls_with_certificates_of_both_sides() {
    let (Some(run), Some(python)) = (launch(), python()) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [key, certificate] =
        ["key.pem", "cert.pem"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    let output = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-nodes",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ])
        .args([
            "-subj",
            "/CN=localhost",
            "-days",
            "2",
            "-keyout",
            &key,
            "-out",
            &certificate,
        ])
        .args(["-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let (collector, message, port) = over_grpc(&python, &[&key, &certificate]);
    let endpoint = format!("https://localhost:{port}");
    // The system trusts no such certificate.
    let stranger = launch()
        .unwrap()
        .env(ENDPOINT, &endpoint)
        .env(PROTOCOL, "grpc");
    let warning = "wireup: warning: spans of the launch were not sent: ";
    let stranger = stranger.run().expect(0);
    assert!(stranger.err().contains(warning), "{stranger:?}");
    assert!(!message.exists());
    let run = run.env(ENDPOINT, endpoint).env(PROTOCOL, "grpc");
    let run = run
        .env("OTEL_EXPORTER_OTLP_CERTIFICATE", &certificate)
        .env("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &certificate)
        .env("OTEL_EXPORTER_OTLP_CLIENT_KEY", &key);
    expect_sent(run, collector, &message);
}

#[test]
fn tls_over_http_is_refused_with_remedy() {
    let Some(run) = launch() else { return };
    let outcome = run.env(ENDPOINT, "https://localhost:4318").run().expect(0);
    let err = outcome.err();
    let words = "https://localhost:4318: wireup supports TLS with gRPC only; set OTEL_EXPORTER_OTLP_PROTOCOL=grpc";
    assert!(err.contains(words), "{err}");
}

/// Checks the error in the launch's span.
#[track_caller]
fn expect_error_of_the_launch(collector: &Collector, words: &str) {
    let (_, body) = collector.requests.recv().unwrap();
    let spans = spans(&body);
    let status = spans["wireup run"].status.clone().unwrap();
    assert!(status.message.contains(words), "{status:?}");
}

#[test]
fn failed_or_ended_launch_sends_its_spans() {
    let collector = Collector::start("200 OK");
    let run = |script: &str| {
        let run = Run::ranks(2, ["sh", "-c", script]);
        run.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint())
    };
    run("[ $WIREUP_RANK = 0 ] || exit 3; exec sleep 1000")
        .run()
        .expect(3);
    expect_error_of_the_launch(&collector, "rank 1");
    let collector = Collector::start("200 OK");
    let run = Run::ranks(2, ["sh", "-c", "echo ready; exec sleep 1000"]);
    let running = run
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint())
        .start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    running.signal(rustix::process::Signal::TERM);
    running.finish().expect(143);
    expect_error_of_the_launch(&collector, "SIGTERM");
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn missing_collector_is_only_warning() {
    let Some(run) = launch() else { return };
    let outcome = run.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9");
    let outcome = outcome.run().expect(0);
    let warning = "wireup: warning: spans of the launch were not sent: ";
    assert!(outcome.err().contains(warning), "{outcome:?}");
}

#[test]
fn ranks_inherit_trace_unchanged_without_collector() {
    let Some(run) = launch() else { return };
    let outcome = run.env("TRACEPARENT", PARENT).run().expect(0);
    assert!(
        outcome.out().contains(&format!("trace 0 {PARENT}")),
        "{outcome:?}"
    );
    let Some(run) = launch() else { return };
    let unsampled = PARENT.replace("-01", "-00");
    let run = run.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9");
    let outcome = run.env("TRACEPARENT", &unsampled).run().expect(0);
    assert!(
        outcome.out().contains(&format!("trace 0 {unsampled}")),
        "{outcome:?}"
    );
    assert!(!outcome.err().contains("spans"), "{outcome:?}");
}

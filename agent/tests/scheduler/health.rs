//! Health and reflection services as gRPC's own tools see them, with Python's clients.

use std::process::Command;

use wireup_agent::proto::v1;

use crate::agents::{Agents, script};
use crate::examples::{python, stubs};

/// Own memory of an idle agent of a debug build is about 2.5 MiB, of a release build 1.0 (docs/agent-service.md).
const IDLE_KIB: u64 = 4_096;

const CLIENT: &str = r#"
import sys, grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
channel = grpc.insecure_channel(sys.argv[1], [("grpc.default_authority", "localhost")])
health = health_pb2_grpc.HealthStub(channel)
for name in ("", "wireup.v1.NodeAgent"):
    status = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=30).status
    print(repr(name), health_pb2.HealthCheckResponse.ServingStatus.Name(status))
if len(sys.argv) > 2:
    from google.protobuf.descriptor_pool import DescriptorPool
    from grpc_reflection.v1alpha import reflection_pb2
    path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    call = channel.stream_stream(path,
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString)
    ask = reflection_pb2.ServerReflectionRequest
    questions = [ask(list_services=""), ask(file_containing_symbol="wireup.v1.NodeAgent")]
    services, described = call(iter(questions), timeout=30)
    print(sorted(s.name for s in services.list_services_response.service))
    from google.protobuf import descriptor_pb2
    files = [descriptor_pb2.FileDescriptorProto.FromString(f)
        for f in described.file_descriptor_response.file_descriptor_proto]
    print(sorted(m.name for f in files for s in f.service for m in s.method))
channel.close()
"#;

#[test]
async fn agent_describes_itself_and_is_healthy_until_drained() {
    let Some(python) = python() else {
        return;
    };
    let agents = Agents::start(1);
    let stubs = stubs(&python, agents.directory.path());
    let run = |more: &[&str]| {
        let socket = format!("unix:{}", agents.agents[0].socket.display());
        let output = Command::new(&python)
            .args(["-c", CLIENT, &socket])
            .args(more)
            .env("PYTHONPATH", &stubs)
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{error}");
        String::from_utf8(output.stdout).unwrap()
    };
    let printed = run(&["reflect"]);
    let expected = "'' SERVING\n'wireup.v1.NodeAgent' SERVING\n\
        ['grpc.health.v1.Health', 'grpc.reflection.v1.ServerReflection', 'wireup.v1.NodeAgent', \
        'wireup.v1.Peer']\n['AbortProcesses', 'Capabilities', 'Drain', 'LaunchProcesses', 'PmiFence', \
        'PmiFenceComplete', 'Query', 'Resize', 'Signal', 'Stdio', 'Watch']\n";
    assert_eq!(printed, expected);

    let mut client = agents.local().await;
    client
        .launch_processes(script("last", 1, "sleep 1000"))
        .await
        .unwrap();
    client.drain(v1::DrainRequest {}).await.unwrap();
    assert_eq!(
        run(&[]),
        "'' NOT_SERVING\n'wireup.v1.NodeAgent' NOT_SERVING\n"
    );
}

#[test]
fn idle_agent_has_little_private_memory() {
    let agents = Agents::start(1);
    let own = agents.agents[0].memory("RssAnon:");
    assert!(own < IDLE_KIB, "{own} kB");
}

//! Makes Rust of `proto/`, without protoc.

use std::path::PathBuf;

use protox::prost::Message;

const FILES: [&str; 3] = [
    "wireup/v1/node_agent.proto",
    "wireup/v1/peer.proto",
    "wireup/v1/types.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../proto");
    println!("cargo:rerun-if-changed={}", proto.display());
    let files = protox::compile(FILES, [&proto])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), files.encode_to_vec())?;
    tonic_prost_build::configure()
        .btree_map(".")
        .bytes(".")
        .skip_debug(SECRET)
        .emit_rerun_if_changed(false)
        .compile_fds(files)?;
    tonic_prost_build::configure()
        .build_server(false)
        .skip_debug([".etcdserverpb.AuthenticateRequest"])
        .emit_rerun_if_changed(false)
        .compile_fds(protox::compile(["etcd/rpc.proto"], [&proto])?)?;
    Ok(())
}

/// Messages with something in them that no log may show.
const SECRET: [&str; 6] = [
    ".wireup.v1.CxiCredentials",
    ".wireup.v1.EnvVar",
    ".wireup.v1.Hello",
    ".wireup.v1.Opening",
    ".wireup.v1.LaunchProcessesRequest",
    ".wireup.v1.PmiFenceRequest",
];

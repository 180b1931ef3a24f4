//! Makes Rust of the proto files. No protoc is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=../../proto");
    let files = protox::compile(["wireup/v1/node_agent.proto"], ["../../proto"])?;
    tonic_prost_build::configure()
        .build_server(false)
        .emit_rerun_if_changed(false)
        .compile_fds(files)?;
    Ok(())
}

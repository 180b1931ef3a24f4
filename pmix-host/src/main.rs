//! The sidecar.
fn main() {}

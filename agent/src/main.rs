//! The `wireup-agent` command.

fn main() {}

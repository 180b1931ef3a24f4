//! The `wireup` command.

fn main() {}

//! Standard streams of the ranks.

pub mod label;
pub mod merger;
pub mod pty;
pub mod rank_files;
pub mod stdin;
pub mod streams;
pub mod writer;

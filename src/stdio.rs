//! Standard streams of the ranks.

pub mod merger;
pub mod output_label;
pub mod pty;
pub mod rank_files;
pub mod stdin;
pub mod streams;
pub(crate) mod terminal_line;
pub mod writer;

//! Vocabulary of a job; no I/O.

pub mod ids;
pub mod rank_map;

//! One run of a job: what it needs, its standard streams, its life and its end.

mod describe;
pub mod directory;
mod drive;
pub mod elf;
pub mod environment;
mod finish;
pub mod guard;
pub mod inspect;
pub mod ldso;
pub mod libpmix;
pub mod output;
pub mod outputs;
pub mod parts;
pub mod pattern;
pub mod plan;
pub mod program;
pub mod rank_env;
pub mod relocated;
pub mod report;
pub mod run;
pub mod signals;
pub mod slots;
pub mod stdin;
pub mod stdio;
pub mod streams;
pub mod supervisor;

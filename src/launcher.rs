//! One run of a job: what it needs, its standard streams, its life and its end.

pub mod elf;
pub mod environment;
pub mod inspect;
pub mod ldso;
pub mod libpmix;
pub mod program;
pub mod relocated;
pub mod slots;

//! Values that a process requests from another node or from the name server: modex data, PMI keys, published names.

pub(in crate::node) mod modex;
pub(in crate::node) mod names;
pub(in crate::node) mod remote_keys;

//! Values that a process asks for and that another node or the name server has: modex data, keys of PMI, published names.

pub(in crate::node) mod modex;
pub(in crate::node) mod names;
pub(in crate::node) mod remote_keys;

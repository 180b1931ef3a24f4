//! Constants of the shim protocol.

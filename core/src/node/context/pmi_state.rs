//! States of the ranks of a node in their process-management interfaces.

/// State of a rank in PMIx. It is frozen when the rank's process exits, for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::node) enum PmixState {
    #[default]
    Absent,
    /// Between init and finalize.
    Connected,
    /// Disconnected in order, with `PMIx_Finalize`.
    Finalized,
    /// Process exited between init and finalize.
    Died,
    /// Process exited and had never connected.
    Stayed,
}

//! What the ranks of a node have done with their process-management interfaces.

/// What a rank did with PMIx. Kept as it was when the rank ended, for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::node) enum PmixState {
    /// Never connected.
    #[default]
    Absent,
    /// Between init and finalize.
    Connected,
    /// Left in order.
    Finalized,
    /// Its process ended between init and finalize.
    Died,
    /// Its process ended and had never connected.
    Stayed,
}

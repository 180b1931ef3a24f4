//! Declarations only.

//! Parts of the agent that a build can leave out: features of the package, all on by default.

/// A part that this build lacks.
#[derive(Debug, thiserror::Error)]
#[error(
    "this wireup-agent was built without {0:?}: install a package of wireup, which has all parts, or build with `--features {0}`"
)]
pub struct MissingFeature(pub &'static str);

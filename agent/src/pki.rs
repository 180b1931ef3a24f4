//! `wireup pki`: the certificate authority of a cluster.

use wireup::cli::handed::pki::PkiArgs;
use wireup::launcher::run::RunFailure;

/// Carries out the command.
///
/// # Errors
/// One line: what is wrong, and the remedy.
pub fn main(args: PkiArgs) -> Result<u8, RunFailure> {
    let PkiArgs { dir: _, what: _ } = args;
    Err(RunFailure::refused(
        "no certificates can be made yet".into(),
    ))
}

//! `wireup impi play`.

use wireup_impi_cli::play::PlayArgs;

use crate::kit::program::play;
use crate::peer::Peer;

/// Plays.
pub(super) fn execute(args: &PlayArgs) -> anyhow::Result<u8> {
    play(Peer::open()?, !args.no_ssend)?;
    Ok(0)
}

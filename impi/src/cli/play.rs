//! `wireup impi play`.

use wireup_impi_cli::play_options::PlayArgs;

use crate::kit::check_program::play;
use crate::peer::Peer;

/// Plays.
pub(super) fn execute(args: &PlayArgs) -> anyhow::Result<u8> {
    play(Peer::open()?, !args.no_ssend)?;
    Ok(0)
}

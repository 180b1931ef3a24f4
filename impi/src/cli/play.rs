//! `wireup impi play`.

use wireup_impi_cli::play_options::PlayArgs;

use crate::kit::check_program::{ProgramScope, play};
use crate::peer::Peer;

/// Plays.
pub(super) fn execute(args: &PlayArgs) -> anyhow::Result<u8> {
    let scope = ProgramScope {
        ssend: !args.no_ssend,
        probe: !args.no_probe,
        gather: !args.no_gather,
    };
    play(Peer::open()?, scope, |_| {})?;
    Ok(0)
}

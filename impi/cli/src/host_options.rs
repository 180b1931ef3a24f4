//! `wireup impi host`.

use std::time::Duration;

use clap::Args;
use wireup_core::duration::positive_duration;

const NOTES: &str = "\
The hosts of a launch are ranks of a launch of their own; the number of each comes from WIREUP_RANK. A host prints \"host NUMBER
IP:PORT DOOR\": where other hosts and where its processes connect. It reads the invitation, a line that `wireup impi agent
--host` prints, and says \"ready NUMBER\" when it is connected with all other hosts. At last it reads \"over\", or
\"failed\" when the launch has. What goes wrong it prints as \"broken NUMBER WHY\".

Examples:
  wireup run -n 2 --ppn 1 --hosts a,b --stdin all wireup impi host --server 10.0.0.1:5678";

/// Arguments of `wireup impi host`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct HostArgs {
    /// Where the server listens: the host's address is the one that leads there
    #[arg(long, value_name = "HOST:PORT")]
    pub server: String,
    /// Time that other clients may take to end after this one
    #[arg(long, value_name = "DURATION", default_value = "60", value_parser = positive_duration)]
    pub patience: Duration,
}

//! Command line of `wireup pki`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

const EXAMPLES: &str = "\
Examples:
  wireup pki init
  wireup pki issue --name 'n[01-16]'
  wireup pki issue --name n2 --address n2.example.org --address 10.0.0.2
  wireup pki issue --name slurm --role scheduler
  wireup pki push --hosts 'n[01-16]'
  wireup pki show
  wireup pki renew
  wireup pki revoke --name n1";

const FILES: &str = "\
Files:
  DIR/ca.pem, DIR/ca.key    the certificate authority; its key stays on this machine
  DIR/crl.pem               the certificates that were revoked, once there are any
  DIR/issued.tsv            the number, name and end of each certificate that was made
  DIR/NAME/                 ca.pem, crl.pem, cert.pem and key.pem of NAME, which `push` copies to NAME:/etc/wireup/tls";

/// Arguments of `wireup pki`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{FILES}"))]
#[command(arg_required_else_help = true)]
pub struct PkiArgs {
    /// Directory of the certificate authority [default: /etc/wireup/pki, or ~/.config/wireup/pki]
    #[arg(long, global = true, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,

    /// What to do.
    #[command(subcommand)]
    pub command: PkiSubcommand,
}

/// The commands below `wireup pki`.
#[derive(Debug, Subcommand)]
pub enum PkiSubcommand {
    /// Make a certificate authority
    #[command(after_help = "Examples:\n  wireup pki init --name 'cluster a'")]
    Init {
        /// Its name, for display
        #[arg(long, default_value = "wireup")]
        name: String,

        /// How long it is valid, in days; no certificate it issues is valid longer
        #[arg(long, default_value_t = 3650, value_parser = days())]
        days: u32,
    },
    /// Make a certificate and its key for a node, a scheduler or an observer
    #[command(after_help = "\
Examples:
  wireup pki issue --name n1 --name 'n[05-08]'
  wireup pki issue --name n3 --address 10.0.0.3
  wireup pki issue --name slurm --role scheduler")]
    Issue {
        /// The node's name as in `wireup run --hosts`, or a list of names; may be
        /// given more than once
        #[arg(long, required = true)]
        name: Vec<String>,

        /// Another name or an address at which schedulers call it; may be given more than once
        #[arg(long, value_name = "NAME|IP")]
        address: Vec<String>,

        /// Role of the holder
        #[arg(long, value_enum, default_value = "node")]
        role: Role,

        /// How long it is valid, in days
        #[arg(long, default_value_t = 365, value_parser = days())]
        days: u32,
    },
    /// Copy certificates and keys to their nodes, by ssh or to directories
    #[command(after_help = "\
Where to:
  /etc/wireup/tls on each node, by root; ~/.config/wireup/tls/NAME there, by other users

Examples:
  wireup pki push --hosts 'n[01-16]'
  wireup pki push --by 'kubectl exec -i {host} --'
  wireup pki push --to ~/.config/wireup/tls        for nodes that share this home directory
  wireup pki push --to '/images/{host}/etc/wireup/tls'

Exit status:
  0    all were copied
  1    some were not; a line says why
  125  none was copied: wireup was called wrongly")]
    Push {
        /// Copy those of these nodes, as in `wireup run --hosts`; may be given more than once [default: all nodes that
        /// have a certificate]
        #[arg(long, value_name = "LIST")]
        hosts: Vec<String>,

        /// Command that executes a shell on a node, to which `sh` is added; {host} stands for the name of the node
        #[arg(
            long = "by",
            value_name = "COMMAND",
            default_value = "ssh -o BatchMode=yes {host}"
        )]
        remote_shell: String,

        /// Copy to this directory of this machine; {host} stands for the name of the node, and is added if it is not
        /// there
        #[arg(long, value_name = "DIR", conflicts_with = "remote_shell", value_hint = ValueHint::DirPath)]
        to: Option<String>,
    },
    /// Make new certificates and keys for those that expire soon
    #[command(after_help = "\
Examples:
  wireup pki renew               all that expire within 30 days
  wireup pki renew --name n1     this one, whenever it expires")]
    Renew {
        /// Renew this one, or these as in --hosts; may be given more than once
        #[arg(long, conflicts_with = "within")]
        name: Vec<String>,

        /// Renew all that expire within this number of days
        #[arg(long, value_name = "DAYS", default_value_t = 30)]
        within: u32,

        /// How long the new ones are valid, in days
        #[arg(long, default_value_t = 365, value_parser = days())]
        days: u32,
    },
    /// Revoke certificates: agents with the new list (crl.pem) refuse them
    #[command(after_help = "\
Examples:
  wireup pki revoke --name n1                  all that n1 was ever given
  wireup pki revoke --serial 5d4c…             one; `wireup pki show --json` and issued.tsv have the numbers")]
    Revoke {
        /// Revoke every certificate of this one, or of these as in --hosts; may be given more than once
        #[arg(long, required_unless_present = "serial")]
        name: Vec<String>,

        /// Revoke the certificate of this serial number, in hexadecimal; may be given more than once
        #[arg(long, value_name = "NUMBER")]
        serial: Vec<String>,
    },
    /// Show names, roles and expiry of all certificates, or of those in files
    #[command(after_help = "\
Examples:
  wireup pki show
  wireup pki show /etc/wireup/tls/cert.pem")]
    Show {
        /// Certificates to show, in PEM files
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,

        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
}

/// Role of the holder of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Role {
    /// Run an agent: accept calls of other agents, and start processes of any user on their nodes
    Node,
    /// Start launches as any user but root (`run_as`) through an agent; it cannot impersonate a
    /// node
    Scheduler,
    /// Read only: state of agents and launches
    Observer,
}

/// A hundred years are enough; what lies further ahead has no date in a certificate.
fn days() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=36_500)
}

//! Command line of `wireup agent`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};

use wireup_core::duration::{duration, positive_duration};
use wireup_core::job::hosts::HostList;
use wireup_core::job::hosts::registered::EtcdHostSpec;

const AFTER_HELP: &str = "\
Examples:
  wireup agent
  wireup agent --tls ~/cluster/n1 --listen 10.0.0.1:7437
  wireup agent --log wireup_agent=debug --log-format json
  wireup agent --on-stop leave
  wireup agent --register etcd:gpu,rack=1
  wireup agent --metrics 127.0.0.1:9437

Signals:
  TERM, INT    take no new launch and end with the last one; the second ends the agent, and with it
               all launches, at once. With --on-stop leave: end, and leave the launches to a process
               that ends with the last one; another agent may start at once
  HUP          read a renewed certificate or list of revoked ones now, and not at the next connection

Files:
  /etc/wireup/tls           of root's agent: ca.pem, crl.pem, cert.pem, key.pem, as `wireup pki` makes them;
                            or /etc/wireup/tls/HOSTNAME, where several hosts have one file system
  /etc/wireup/agent.toml    of root's agent: name = value for each of these options, without the dashes
  /etc/wireup/etcd.toml     how etcd is reached, if not by ETCDCTL_ENDPOINTS and the like
  /run/wireup/agent.sock    of root's agent: serves every user of the node
  ~/.config/wireup          in place of /etc/wireup for another user's agent, or $XDG_CONFIG_HOME/wireup
  $XDG_RUNTIME_DIR/wireup/agent.sock
                            of another user's agent, or /tmp/wireup-UID/agent.sock: serves that user";

/// Arguments of `wireup agent`.
#[derive(Debug, Default, Args)]
#[command(after_help = AFTER_HELP)]
pub struct AgentArgs {
    /// Where to listen for other agents and schedulers [default: [::]:7437, which is IPv4 as well]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,

    /// Where others reach this agent [default: the address at which they call it]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,

    /// Name of this node, the one in its certificate [default: the one in its certificate]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Unix socket for launchers of this node [default: see below]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub socket: Option<PathBuf>,

    /// Directory of this node's certificate [default: /etc/wireup/tls, or ~/.config/wireup/tls; in it that
    /// with this host's name, if there is one]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub tls: Option<PathBuf>,

    /// File of defaults [default: /etc/wireup/agent.toml or ~/.config/wireup/agent.toml, if there]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,

    /// Time after which a silent agent counts as lost [default: 5]
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    #[arg(allow_negative_numbers = true)]
    pub heartbeat: Option<Duration>,

    /// Longest time limit of fences in launches that schedulers start: a request may have a shorter one; 0: no limit.
    /// For `wireup run`, set fence-timeout in /etc/wireup.toml [default: 0]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    #[arg(allow_negative_numbers = true)]
    pub fence_timeout: Option<Duration>,

    /// User as which root's agent runs: it gives up root's rights permanently, and a small helper
    /// keeps them [default: root]
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,

    /// With --user: also accept root's launches from other nodes; without it only those of root on
    /// this machine
    #[arg(long)]
    pub root_launches: bool,

    /// Agents that are the name server for launches of different machines (MPI_Publish_name,
    /// MPI_Comm_connect), as in --hosts: NAME or NAME@ADDRESS[:PORT]; the first that can be reached
    /// is used. The same list on every node [default: each machine's agent, for launches started
    /// there]
    #[arg(long, value_name = "LIST")]
    pub names: Option<HostList>,

    /// Register this node in etcd, where --hosts etcd:LABELS finds it: etcd:LABELS[:SLOTS], with labels KEY or
    /// KEY=VALUE separated by commas [default slots: the usable cores]
    #[arg(long, value_name = "REGISTRY")]
    pub register: Option<EtcdHostSpec>,

    /// What becomes of the launches of an agent that is stopped: it waits for their end, or leaves them to a process
    /// that ends with the last one, and makes room for the next agent [default: wait]
    #[arg(long, value_name = "WHAT")]
    pub on_stop: Option<AgentStopPolicy>,

    /// Serve metrics for Prometheus: on a loopback address over HTTP, on another one over TLS to callers with a certificate
    /// of this cluster [default: none are served]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,

    /// What to log: error, warn, info, debug or trace, or a list of MODULE=LEVEL [default: info]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,

    /// Format of log lines; json is one object per line [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

/// Treatment of the launches of an agent that is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum AgentStopPolicy {
    /// Waits for the end of the last one.
    Wait,
    /// Leaves them to a process that ends with the last one.
    Leave,
}

/// Format of an agent's log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LogFormat {
    /// For people, and the journal.
    Text,
    /// One JSON object a line.
    Json,
}

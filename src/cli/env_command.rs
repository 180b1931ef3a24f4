//! `wireup env`: the variables with which the launchers of MPIs reach hosts through [`wireup rsh`](super::remote_command)
//! and know which hosts these are.
//!
//! Rule: Hydra and Intel's take one word for the agent, and call it with options of ssh in front of the host; a line of
//! wireup that begins so is one of `wireup rsh`. Source: mpiexec's argv, MPICH 4.0 and 5.0, Intel MPI 2021.19.
//! Rule: Hydra has a variable for a file of hosts, not for a list; it reads `LSB_MCPU_HOSTS` when its resource manager is
//! LSF. Seen with the same.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::IntoRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use sha2::Digest as _;

use super::remote_launch::{ADDRESSES, AGENTS};
use super::{run, run_args};
use crate::backend::cleanup_record;
use wireup_core::failure::CommandError;
use wireup_core::job::hosts::HostSpec;
use wireup_core::job::spec::LayoutSpec;
use wireup_core::shell_words::quoted;

/// PRRTE's file of hosts. It has a variable for a list too, and does not read it. Source: PRRTE 3.0.
const HOSTFILE: &str = "PRTE_MCA_prte_default_hostfile";

const EXAMPLES: &str = "\
Examples:
  eval \"$(wireup env --hosts n1:4,n2:4)\"         then: mpirun -np 8 ./app
  wireup env --hosts n1:4,n2:4 ./job.sh          the same for one command
  salloc -N 2 wireup env ./job.sh                the hosts are those of the allocation";

/// Arguments of `wireup env`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct EnvArgs {
    /// Options of `wireup run` for hosts (--hosts, --hostfile, --launch-agents), and a command that is executed with the
    /// variables; without one they are printed for a shell
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(value_name = "WORD")]
    words: Vec<OsString>,
}

/// Prints the variables, or executes a command with them.
pub(super) fn execute(args: EnvArgs) -> Result<u8, CommandError> {
    let has_command = run_args::names_program(&args.words);
    let mut words = args.words;
    if !has_command {
        words.push("true".into());
    }
    let spec = run::spec_of(words)?;
    let mut variables = variables(&spec.layout)?;
    let hosts = hostfile(&spec.layout);
    let failed = |error: io::Error| CommandError::system("cannot write the list of hosts", error);
    if !has_command {
        if !hosts.is_empty() {
            let path = store_text(&hosts).map_err(failed)?;
            variables.push((HOSTFILE, path.display().to_string()));
        }
        let line = |(name, value): &(&str, String)| {
            format!("export {name}={}\n", quoted(OsStr::new(value)))
        };
        let text: String = variables.iter().map(line).collect();
        return super::print(text.as_bytes());
    }
    if !hosts.is_empty() {
        variables.push((HOSTFILE, inherited(&hosts).map_err(failed)?));
    }
    let argv = &spec.apps[0].argv;
    let mut command = Command::new(&argv[0]);
    // Variables that the user has set keep their values.
    variables.retain(|(name, _)| env::var_os(name).is_none());
    let error = command.args(&argv[1..]).envs(variables).exec();
    Err(CommandError::system(
        format!("cannot execute {}", argv[0].display()),
        error,
    ))
}

/// The hosts as lines of a file.
fn hostfile(layout: &LayoutSpec) -> String {
    let line = |host: &HostSpec| format!("{} slots={}\n", host.name, host.slots.unwrap_or(1));
    layout.hosts.iter().map(line).collect()
}

/// The name of a file of this text that the next program has, and no directory.
fn inherited(text: &str) -> io::Result<String> {
    let memory = rustix::fs::memfd_create("hosts", rustix::fs::MemfdFlags::empty())?;
    let mut file = File::from(memory);
    file.write_all(text.as_bytes())?;
    Ok(format!("/proc/self/fd/{}", file.into_raw_fd()))
}

/// Writes a text to a file that remains after this process, and returns its path. Equal texts share a file.
fn store_text(text: &str) -> io::Result<PathBuf> {
    let directories = ["XDG_RUNTIME_DIR", "TMPDIR"].into_iter();
    let directories = directories.filter_map(env::var_os).map(PathBuf::from);
    let dir = directories.chain(["/tmp".into()]).find(|dir| dir.is_dir());
    let digest = sha2::Sha256::digest(text.as_bytes());
    let name = data_encoding::HEXLOWER.encode(&digest[..8]);
    let user = rustix::process::geteuid().as_raw();
    let path = dir.unwrap_or_else(|| "/tmp".into());
    let path = path.join(format!("wireup-hosts-{user}-{name}"));
    let number = cleanup_record::number()?;
    let new = path.with_extension(format!("{number:016x}"));
    let mut file = File::create_new(&new)?;
    file.write_all(text.as_bytes())?;
    let is_free = match path.symlink_metadata() {
        Ok(found) => found.is_file() && found.uid() == user,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    // Another user may have taken the name, and in a directory of all users it cannot be replaced then.
    match is_free && std::fs::rename(&new, &path).is_ok() {
        true => Ok(path),
        false => Ok(new),
    }
}

/// The variables for the hosts of a layout.
fn variables(layout: &LayoutSpec) -> Result<Vec<(&'static str, String)>, CommandError> {
    let own = env::current_exe().unwrap_or_else(|_| "wireup".into());
    let own = own.display().to_string();
    if own.contains(char::is_whitespace) {
        return Err(CommandError::request(format!(
            "wireup env: {own} has a blank in it, where launchers end the name; use a link without one"
        )));
    }
    let mut set = vec![
        ("HYDRA_LAUNCHER", "ssh".to_owned()),
        ("HYDRA_LAUNCHER_EXEC", own.clone()),
        ("I_MPI_HYDRA_BOOTSTRAP", "ssh".to_owned()),
        ("I_MPI_HYDRA_BOOTSTRAP_EXEC", own.clone()),
        ("OMPI_MCA_plm", "rsh".to_owned()),
        ("OMPI_MCA_plm_rsh_agent", format!("{own} rsh")),
        ("PRTE_MCA_plm", "ssh".to_owned()),
        ("PRTE_MCA_plm_ssh_agent", format!("{own} rsh")),
    ];
    if !layout.hosts.is_empty() {
        let list = |between: &str, after: &str| {
            let one =
                |host: &HostSpec| format!("{}{between}{}", host.name, host.slots.unwrap_or(1));
            layout.hosts.iter().map(one).collect::<Vec<_>>().join(after)
        };
        set.extend([
            ("HYDRA_RMK", "lsf".to_owned()),
            ("I_MPI_HYDRA_RMK", "lsf".to_owned()),
            ("LSB_MCPU_HOSTS", list(" ", " ")),
            ("OMPI_MCA_orte_default_dash_host", list(":", ",")),
        ]);
    }
    let elsewhere = layout.hosts.iter().filter(|host| host.has_own_address());
    let elsewhere: Vec<String> = elsewhere
        .map(|host| format!("{}@{}", host.name, host.address))
        .collect();
    if !elsewhere.is_empty() {
        set.push((ADDRESSES, elsewhere.join(",")));
    }
    if let Some(starter) = &layout.spread.starter {
        set.push((AGENTS, starter.command.join(" ")));
    }
    Ok(set)
}

//! The commands of `wireup pki`, and their output.

use std::path::Path;
use std::time::{Duration, SystemTime};

use super::authority::Validity;
use super::push::{Destination, PushError, push};
use super::{
    CA, CERTIFICATE, PkiError, REVOKED, certificate_table, dates, default_directory, init, issue,
    issued, load, read, renew, revocation,
};
use wireup_agent_args::pki_args::{PkiArgs, PkiSubcommand, Role};
use wireup_core::failure::CommandError;
use wireup_core::job::{hosts, shortage};
use wireup_core::wording::{counted, without_error_codes};
use wireup_sys::eprintln;
use wireup_sys::signals::ignore_file_size_signal;

/// Carries out the command.
///
/// # Errors
/// One line: the problem and the remedy.
pub fn main(args: PkiArgs) -> Result<u8, CommandError> {
    ignore_file_size_signal();
    let own = args.dir;
    let dir = match &own {
        Some(dir) => dir.clone(),
        None => default_directory("pki", "--dir").map_err(refused)?,
    };
    let now = SystemTime::now();
    match args.command {
        PkiSubcommand::Init { name, days } => {
            init(&dir, &name, Validity::days(now, days)).map_err(refused)?;
            print_certificate(&dir.join(CA), "made", &dir)?;
            Ok(0)
        }
        PkiSubcommand::Issue {
            name: names,
            address,
            role,
            days,
        } => {
            let names = expand(&names).map_err(refused)?;
            let directories = issue(&dir, &names, &address, role, Validity::days(now, days));
            for path in directories.map_err(refused)? {
                print_certificate(&path.join(CERTIFICATE), "made", &path)?;
            }
            if role == Role::Node {
                let root = rustix::process::geteuid().is_root();
                eprintln!("wireup: {}", next_step(own.as_deref(), &names, root));
            }
            Ok(0)
        }
        PkiSubcommand::Push {
            hosts,
            remote_shell,
            to,
        } => {
            let destination = match &to {
                Some(directory) => Destination::Directory(directory),
                None => Destination::Nodes(&remote_shell),
            };
            push_some(&dir, &hosts, destination)
        }
        PkiSubcommand::Renew { name, within, days } => {
            let names = expand(&name).map_err(refused)?;
            renew_some(&dir, names, within, now, days)
        }
        PkiSubcommand::Revoke { name, serial } => {
            let names = expand(&name).map_err(refused)?;
            let count = revocation::revoke(&dir, &names, &serial, now).map_err(refused)?;
            eprintln!(
                "wireup: revoked {}; copy {} to every node, into the directory of ca.pem (wireup pki{} push --hosts \
                 LIST): its agent then refuses them at the next connection, and closes their open connections then, or \
                 at once on SIGHUP",
                counted(count, "certificate"),
                dir.join(REVOKED).display(),
                dir_option(own.as_deref())
            );
            for name in names {
                eprintln!(
                    "wireup: for a new certificate of {name} run: wireup pki renew --name {name}"
                );
            }
            Ok(0)
        }
        PkiSubcommand::Show { files, json } => {
            certificate_table::main(&dir, &files, json, now).map_err(refused)
        }
    }
}

/// Copies the certificates of these nodes, or else of all.
fn push_some(
    dir: &Path,
    lists: &[String],
    destination: Destination<'_>,
) -> Result<u8, CommandError> {
    let names = match lists {
        [] => nodes(dir).map_err(refused)?,
        lists => expand(lists).map_err(refused)?,
    };
    if names.is_empty() {
        return Err(refused(PkiError::NoNodes(dir.to_owned())));
    }
    let root = rustix::process::geteuid().is_root();
    let mut failed = 0;
    let report = |name: &str, copied: Result<String, PushError>| match copied {
        Ok(place) => eprintln!("wireup: copied the certificate of {name} to {place}"),
        Err(error) => {
            let error = error.to_string();
            let error = without_error_codes(&error);
            eprintln!("wireup: cannot copy the certificate of {name}: {error}");
            failed += 1;
        }
    };
    push(dir, &names, destination, root, report).map_err(refused)?;
    Ok(u8::from(failed > 0))
}

/// Returns the nodes that have certificates.
fn nodes(dir: &Path) -> Result<Vec<String>, PkiError> {
    let mut nodes = Vec::new();
    for name in issued(dir)? {
        let found = read(&dir.join(&name).join(CERTIFICATE))?;
        if found
            .identity
            .is_some_and(|identity| identity.role == Role::Node)
        {
            nodes.push(name);
        }
    }
    Ok(nodes)
}

/// Renews those that are named, or else those that expire soon.
fn renew_some(
    dir: &Path,
    names: Vec<String>,
    within: u32,
    now: SystemTime,
    days: u32,
) -> Result<u8, CommandError> {
    let authority = load(dir).map_err(refused)?;
    let limit = now + Duration::from_secs(u64::from(within) * 24 * 60 * 60);
    let all = names.is_empty();
    let names = match all {
        true => issued(dir).map_err(refused)?,
        false => names,
    };
    let (mut done, mut failed) = (0, 0);
    for name in names {
        let due = || read(&dir.join(&name).join(CERTIFICATE)).map(|found| found.not_after <= limit);
        let result = match all.then(due) {
            Some(Ok(false)) => continue,
            Some(Err(error)) => Err(error),
            Some(Ok(true)) | None => renew(dir, &authority, &name, Validity::days(now, days)),
        };
        match result {
            Ok(path) => {
                print_certificate(&path.join(CERTIFICATE), "renewed", &path)?;
                done += 1;
            }
            Err(error) => {
                eprintln!("wireup: {error}");
                failed += 1;
            }
        }
    }
    if failed > 0 {
        return Err(CommandError::request(NotAllRenewed { failed, done }));
    }
    if done == 0 {
        eprintln!("wireup: no certificate expires within {within} days");
    }
    Ok(0)
}

/// Certificates that could not be renewed; the reasons are printed.
#[derive(Debug, thiserror::Error)]
#[error("renewed {done} certificates, {failed} failed (see above)")]
struct NotAllRenewed {
    failed: usize,
    done: usize,
}

fn refused(error: PkiError) -> CommandError {
    let remedy = shortage::remedy(&error.to_string());
    CommandError::request(format!("{error}{remedy}"))
}

/// Prints the new certificate and its validity.
fn print_certificate(certificate: &Path, what: &str, path: &Path) -> Result<(), CommandError> {
    let found = read(certificate).map_err(refused)?;
    let until = dates::date(found.not_after);
    let whose = match found.identity {
        Some(identity) => identity.to_string(),
        None => format!("authority {}", found.subject),
    };
    eprintln!(
        "wireup: {what} {} ({whose}), valid until {until}",
        path.display()
    );
    Ok(())
}

/// Expands lists of names in the form of `--hosts`.
pub(super) fn expand(lists: &[String]) -> Result<Vec<String>, PkiError> {
    let mut names = Vec::new();
    for list in lists {
        names.extend(hosts::expand(list).map_err(PkiError::Names)?);
    }
    Ok(names)
}

/// Returns the option for the directory of the authority, if the user names it.
fn dir_option(own: Option<&Path>) -> String {
    own.map_or_else(String::new, |dir| format!(" --dir {}", dir.display()))
}

/// Returns the next steps for the certificates of these nodes. `own` is the directory of the authority, if the user names it.
pub(super) fn next_step(own: Option<&Path>, names: &[String], root: bool) -> String {
    let push = format!(
        "next, run wireup pki{} push --hosts '{}'",
        dir_option(own),
        hosts::compress(names)
    );
    match root {
        true => format!("{push}, and on these hosts systemctl enable --now wireup-agent"),
        false => format!(
            "{push} (with --to ~/.config/wireup/tls if all hosts share this home directory), and on these hosts wireup agent"
        ),
    }
}

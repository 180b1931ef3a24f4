//! Files by which PMIx tools find the server of this host (`PMIx_tool_init`).
//!
//! libpmix's tools search the whole directory for temporary files for names that begin with `pmix.HOST.tool`; for a
//! certain server the name has the suffix `.PID` or `.NSPACE`. libpmix's server would write such files too, but has only
//! its own pid and name: users know those of the launcher and of the job. If several virtual nodes share a host, the
//! files name the first one's server: each of them answers for the whole launch.
//!
//! Rule: five lines: URI, version, pid, `uid:gid`, time. Source: `write_rndz_file` in
//! `ptl_base_listener.c` of 4.2.2 and 5.0.11.
//! Rule: only the job's user may enter the directory and read the files. They are removed with the directory, also by
//! the guard.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::SystemTime;

use super::raw;
use super::step_context::StepContext;
use crate::plan::launch_names::own_host;
use crate::plan::{HostPlan, LauncherProcess};
use wireup_core::job::ids::Nspace;
use wireup_core::pmix::sidecar_protocol::ForkEnv;
use wireup_core::pmix::value::Text;

/// Prefix of the variables by which libpmix's clients find the server, one for each protocol, all with the same value.
const URI: &[u8] = b"PMIX_SERVER_URI";

/// Writes the files when the first local server is ready: tools can find it from now on.
pub(super) fn show_to_tools(cx: &mut StepContext, env: &ForkEnv) {
    let node = &cx.nodes[0];
    let Some(uri) = uri(env) else {
        return;
    };
    let (Some(sidecar), Some(hello)) = (&node.sidecar, &node.hello) else {
        return;
    };
    let Some(directories) = cx.jobs.first().directories.first() else {
        return;
    };
    let server = raw(sidecar.child.pid);
    let libpmix = hello.libpmix.to_string();
    let text = text(&uri.to_string(), version(&libpmix), server);
    let names = names(&cx.plan, Some(server));
    if let Err(error) = write(&directories.server, &names, &text) {
        let place = directories.server.display();
        let text = format!(
            "warning: PMIx tools cannot find this job: cannot write a file in {place}: {error}"
        );
        cx.report_text(text);
    }
}

/// Returns the URI of the server from the variables of its clients.
fn uri(env: &ForkEnv) -> Option<&Text> {
    let own = env.clients.iter().flat_map(|(_, variables)| variables);
    let mut all = env.common.iter().chain(own);
    all.find_map(|(name, value)| name.as_bytes().starts_with(URI).then_some(value))
}

/// Returns the version number in libpmix's version text: `5.0.11` in `OpenPMIx 5.0.11 (…)`.
fn version(libpmix: &str) -> &str {
    let mut words = libpmix.split([' ', ',']);
    let version = words.find(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    version.unwrap_or_default()
}

/// Returns the text of the files. `process` is the pid of the server, or of the process that starts it for a tool.
pub(super) fn text(uri: &str, version: &str, process: i32) -> String {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let (user, group) = (user.as_raw(), group.as_raw());
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let since = since.unwrap_or_default().as_secs();
    format!("{uri}\n{version}\n{process}\n{user}:{group}\n{since}\n")
}

/// Returns the names of the files. libpmix 4.2 searches for the first label of the host name only.
pub(super) fn names(plan: &HostPlan, server: Option<i32>) -> Vec<String> {
    names_of(&plan.launcher, server, &own_host(), &plan.job.nspace)
}

/// Returns the names of the files on a host of this name, each once. In the pid namespace of a container, the launcher and
/// the server may have the same pid.
fn names_of(
    launcher: &LauncherProcess,
    server: Option<i32>,
    host_name: &str,
    nspace: &Nspace,
) -> Vec<String> {
    let LauncherProcess { host, pid } = launcher;
    let short = host_name.split('.').next().unwrap_or(host_name);
    let mut hosts = vec![host_name];
    if short != host_name {
        hosts.push(short);
    }
    let mut names = Vec::new();
    for name in hosts {
        let any = format!("pmix.{name}.tool");
        if *host == host_name {
            names.push(format!("{any}.{pid}"));
        }
        names.extend(server.map(|server| format!("{any}.{server}")));
        names.push(format!("{any}.{nspace}"));
        names.push(any);
    }
    names.dedup();
    names
}

/// Writes a file of each name. libpmix retries if it opens a file before the text is written.
pub(super) fn write(directory: &Path, names: &[String], text: &str) -> io::Result<()> {
    for name in names {
        let mut file = OpenOptions::new();
        let file = file.write(true).create_new(true).mode(0o600);
        file.open(directory.join(name))?
            .write_all(text.as_bytes())?;
    }
    Ok(())
}

/// Removes the files with these names.
pub(super) fn remove(directory: &Path, names: &[String]) {
    for name in names {
        let _ = std::fs::remove_file(directory.join(name));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "for tests")]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn version_is_first_number_in_libpmix_version_text() {
        assert_eq!(version("OpenPMIx 4.2.2, repo rev: v4.2.2"), "4.2.2");
        assert_eq!(
            version("OpenPMIx 7.0.0rc1 (PMIx Standard: 4.2)"),
            "7.0.0rc1"
        );
        assert_eq!(version("PMIx"), "");
    }

    #[test]
    fn launcher_and_server_with_one_pid_have_one_file() {
        let launcher = LauncherProcess {
            host: "a".to_owned(),
            pid: 7,
        };
        let nspace = Nspace::new("job").unwrap();
        let names = |server| names_of(&launcher, Some(server), "a", &nspace);
        let other = [
            "pmix.a.tool.7",
            "pmix.a.tool.8",
            "pmix.a.tool.job",
            "pmix.a.tool",
        ];
        assert_eq!(names(8), other);
        assert_eq!(
            names(7),
            ["pmix.a.tool.7", "pmix.a.tool.job", "pmix.a.tool"]
        );
    }

    #[test]
    fn every_name_is_private_file() {
        let place = tempfile::tempdir().unwrap();
        let names = ["pmix.a.tool.7".to_owned(), "pmix.a.tool".to_owned()];
        write(place.path(), &names, "uri\n").unwrap();
        for name in names {
            let path = place.path().join(name);
            assert_eq!(fs::read_to_string(&path).unwrap(), "uri\n");
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
        write(place.path(), &["pmix.a.tool".to_owned()], "").unwrap_err();
        remove(place.path(), &["pmix.a.tool".to_owned()]);
        write(place.path(), &["pmix.a.tool".to_owned()], "").unwrap();
    }
}

//! Starts attach servers and their launchers: without a terminal, and with the descriptors of their standard streams only.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use wireup_sys::spawn::{Child, ChildCommand, ProcessSpawner};

/// Signals that a shell or `nohup` may ignore for the processes of its terminal, to which these do not belong, and SIGPIPE,
/// which Rust's runtime ignores.
const RESET: [i32; 4] = [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGPIPE];

/// Starts `wireup WORD ARGS` as the leader of a session. The variable has the name of the job. The process gets SIGTERM when
/// this thread ends.
///
/// # Errors
/// If the process cannot be created.
pub(crate) fn start(
    word: &str,
    args: &[OsString],
    (variable, job): (&str, &str),
    streams: [BorrowedFd<'_>; 3],
) -> io::Result<Child> {
    let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(io::Error::other);
    let program = text(std::env::current_exe()?.as_os_str())?;
    let own = ["wireup", word].map(OsStr::new);
    let words = own.into_iter().chain(args.iter().map(OsString::as_os_str));
    let argv = words.map(text).collect::<io::Result<Vec<_>>>()?;
    let inherited = std::env::vars_os().filter(|(name, _)| name != variable);
    let pairs = inherited.chain([(variable.into(), job.into())]);
    let entries = pairs.map(|(name, value)| {
        let entry = [&name.into_vec()[..], b"=", &value.into_vec()].concat();
        CString::new(entry).map_err(io::Error::other)
    });
    let env = entries.collect::<io::Result<Vec<_>>>()?;
    let [stdin, stdout, stderr] = streams;
    let command = ChildCommand {
        env: &[&env],
        descriptors: &[(stdin, 0), (stdout, 1), (stderr, 2)],
        reset_signals: &RESET,
        ..ChildCommand::new(&program, &argv)
    };
    ProcessSpawner::default()
        .spawn(&command)
        .map_err(io::Error::other)
}

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use wireup_sys::spawn::{ExitStatus, wait};

use super::step_spawner::{SpawnedProcess, StepSpawner, await_answer};
use super::*;
use wireup_test_support::skip;

/// No account is needed to have a number.
fn nobody_in_particular() -> User {
    User {
        uid: 54_321,
        gid: 54_322,
        groups: vec![54_322, 54_323],
        name: Some("somebody".into()),
        home: Some("/nowhere".into()),
    }
}

fn me() -> User {
    let own = rustix::process::geteuid().as_raw();
    super::super::ServedUsers::Only(own).find(own).unwrap()
}

/// Whether the tests run as root; the test is ignored otherwise.
#[track_caller]
fn root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("processes of another user need root");
    }
    root
}

/// A shell script, started as the user.
fn shell(user: &User, script: &str, link: UnixStream) -> Child {
    let null = || {
        OwnedFd::from(
            File::options()
                .read(true)
                .write(true)
                .open("/dev/null")
                .unwrap(),
        )
    };
    let program = HelperProgram {
        path: Path::new("/bin/sh"),
        arguments: ["-c", script].map(OsString::from).into(),
        variables: vec![("LOGNAME".into(), "other".into())],
        standard: [null(), null(), null()],
        link: link.into(),
    };
    spawn(user, program).unwrap()
}

/// What a shell script prints on the link, started as the user, and how it ended.
fn tells(user: &User, script: &str) -> (String, ExitStatus) {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let child = shell(user, script, theirs);
    let mut text = String::new();
    ours.read_to_string(&mut text).unwrap();
    (text, wait(&child.pidfd).unwrap())
}

#[test]
fn all_rights_of_root_are_given_up() {
    if !root() {
        return;
    }
    let user = nobody_in_particular();
    let script =
        "grep -E '^(Uid|Gid|Groups|CapPrm|CapEff|CapAmb|NoNewPrivs):' /proc/self/status >&3";
    let (text, status) = tells(&user, script);
    assert_eq!(status, ExitStatus::Code(0));
    let words: Vec<String> = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let none = "0000000000000000";
    let expected = [
        "Uid: 54321 54321 54321 54321".to_owned(),
        "Gid: 54322 54322 54322 54322".to_owned(),
        "Groups: 54322 54323".to_owned(),
        format!("CapPrm: {none}"),
        format!("CapEff: {none}"),
        format!("CapAmb: {none}"),
        "NoNewPrivs: 0".to_owned(),
    ];
    for line in expected {
        assert!(words.contains(&line), "{line}: {words:?}");
    }
}

#[test]
fn process_has_its_link_and_nothing_else_of_agent() {
    // Something to inherit, if anything were inherited.
    let (_held, other) = UnixStream::pair().unwrap();
    rustix::io::fcntl_setfd(&other, rustix::io::FdFlags::empty()).unwrap();
    // The fourth is that of the directory that is listed.
    let (text, _) = tells(
        &me(),
        "readlink /proc/$$/fd/0 >&3; exec ls /proc/self/fd >&3",
    );
    assert_eq!(text, "/dev/null\n0\n1\n2\n3\n4\n");
}

#[test]
fn process_starts_with_clean_state_in_own_session() {
    let script = "grep -E '^Sig(Blk|Ign):' /proc/self/status >&3; umask >&3; pwd >&3; \
                  set -- $(cat /proc/$$/stat); [ \"$6\" = $$ ] && echo leader >&3; env >&3";
    let (text, _) = tells(&nobody_if_root(), script);
    for line in text.lines().filter(|line| line.starts_with("Sig")) {
        let mask = line.split_whitespace().nth(1).unwrap();
        assert_eq!(mask, "0000000000000000", "{text}");
    }
    assert!(text.contains("\n0022\n/\nleader\n"), "{text}");
    for name in [
        "HOME=",
        "LOGNAME=other",
        "PATH=/usr/local/bin:/usr/bin:/bin",
    ] {
        assert!(text.contains(name), "{text}");
    }
    assert!(!text.contains("CARGO"), "{text}");
}

fn nobody_if_root() -> User {
    match rustix::process::geteuid().is_root() {
        true => nobody_in_particular(),
        false => me(),
    }
}

#[test]
fn output_of_step_is_received() {
    // `step` is its only argument. There is no helper of this program.
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("wireup");
    std::fs::write(
        &program,
        "#!/bin/sh\n[ $1 = step ] || exit\necho $1; echo err >&2; readlink /proc/$$/fd/2\n",
    )
    .unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let steps = Arc::new(StepSpawner::new(program));
    let (SpawnedProcess { child, .. }, log) = steps.start(&me(), theirs.into(), None).unwrap();
    let mut output = String::new();
    File::from(log).read_to_string(&mut output).unwrap();
    assert!(output.starts_with("step\nerr\npipe:["), "{output}");
    assert_eq!(wait(&child.pidfd).unwrap(), ExitStatus::Code(0));
}

#[test]
fn process_that_cannot_start_is_reported_with_reason() {
    let missing = |user: &User, program: &Path| {
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let says = File::options().write(true).open("/dev/null").unwrap();
        let program = wireup(program, "step", theirs.into(), says.into()).unwrap();
        spawn(user, program).unwrap_err().to_string()
    };
    let error = missing(&me(), Path::new("/no/such/wireup"));
    assert!(
        error.starts_with("cannot start /no/such/wireup as user id "),
        "{error}"
    );
    assert!(error.contains("exec: No such file"), "{error}");
    if !root() {
        return;
    }
    // The program is where only root gets to.
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let program = dir.path().join("wireup");
    std::fs::copy("/bin/true", &program).unwrap();
    let error = missing(&nobody_in_particular(), &program);
    assert!(
        error.contains("as user id 54321: exec: Permission denied"),
        "{error}"
    );
    // A number no user may have.
    let impossible = User {
        uid: u32::MAX,
        ..nobody_in_particular()
    };
    let error = missing(&impossible, Path::new("/bin/true"));
    assert!(error.contains("it would keep privileges"), "{error}");
}

/// A step that is stopped before it executes anything holds no thread.
#[tokio::test]
async fn exec_of_program_is_awaited_without_thread() {
    let start = |program: &str| {
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let says = File::options().write(true).open("/dev/null").unwrap();
        let program = wireup(Path::new(program), "step", theirs.into(), says.into()).unwrap();
        begin(&me(), program).unwrap()
    };
    let (child, exec_report) = start("/bin/true");
    assert!(exec_report.receive().await.unwrap().is_none());
    wait(&child.pidfd).unwrap();
    let (child, exec_report) = start("/no/such/program");
    let (what, error) = exec_report.receive().await.unwrap().unwrap();
    assert_eq!((what, error.kind()), ("exec", io::ErrorKind::NotFound));
    end(&child);
}

/// On a machine that stands still for a while, the helper may have made a process before it can answer.
#[test]
fn slow_helper_is_awaited_and_stopped_one_is_not() {
    let interval = Duration::from_millis(20);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (_link, link) = UnixStream::pair().unwrap();
    let helper = shell(&me(), "sleep 60", link);
    let (_never, late) = std::sync::mpsc::channel::<()>();
    let answer = std::thread::spawn(move || {
        let _ = late.recv_timeout(10 * interval);
        (&theirs).write_all(b"made").unwrap();
        theirs
    });
    await_answer(&ours, &helper, interval).unwrap();
    let _theirs = answer.join().unwrap();
    (&ours).read_exact(&mut [0; 4]).unwrap();

    rustix::process::pidfd_send_signal(&helper.pidfd, Signal::STOP).unwrap();
    let error = await_answer(&ours, &helper, interval).unwrap_err();
    assert!(error.to_string().contains("is stopped"), "{error}");
    end(&helper);
}

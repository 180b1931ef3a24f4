//! Root ends a job of a user who has prepared for that: nothing of others is touched.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::wireup;
use crate::common::skip;

/// Numbers that no process has.
const ATTACKER: u32 = 54322;
const VICTIM: u32 = 54323;

#[test]
fn root_removes_no_foreign_files_despite_swapped_directories() {
    if !rustix::process::getuid().is_root() {
        return skip("root's kill of another user's job: needs root");
    }
    let top = tempfile::Builder::new().prefix("wireup-kill-").tempdir();
    let top = top.unwrap();
    let path = |name: &str| top.path().join(name);
    fs::set_permissions(top.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let job = format!("wireup-{:016x}", std::process::id());
    // The victim has a directory that is called like the job; the attacker's leads there by turns.
    for (name, owner) in [("own", ATTACKER), ("home", VICTIM), ("attacker", ATTACKER)] {
        fs::create_dir(path(name)).unwrap();
        chown(path(name), Some(owner), Some(owner)).unwrap();
    }
    let foreign_file = path("home").join(&job).join("kept");
    fs::create_dir(path("home").join(&job)).unwrap();
    fs::write(&foreign_file, b"x").unwrap();
    for path in [path("home").join(&job), foreign_file.clone()] {
        chown(path, Some(VICTIM), Some(VICTIM)).unwrap();
    }
    let tmp = path("attacker").join("tmp");
    let next = path("attacker").join("next");
    let over = AtomicBool::new(false);
    let exchange = || {
        for turn in 0.. {
            if over.load(Ordering::Relaxed) {
                return;
            }
            let _ = fs::create_dir(path("own").join(&job));
            let _ = chown(path("own").join(&job), Some(ATTACKER), Some(ATTACKER));
            let to = if turn % 2 == 0 { "own" } else { "home" };
            symlink(path(to), &next).unwrap();
            fs::rename(&next, &tmp).unwrap();
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(exchange);
        let deadline = Instant::now() + Duration::from_secs(4);
        while Instant::now() < deadline && foreign_file.exists() {
            let mut rank = Command::new("setpriv");
            let id = ATTACKER.to_string();
            rank.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
            rank.args(["setsid", "sleep", "1000"]);
            rank.env("WIREUP_JOB_ID", &job).env("WIREUP_RANK", "0");
            let mut rank = rank
                .env("TMPDIR", &tmp)
                .stdin(Stdio::null())
                .spawn()
                .unwrap();
            let answer = loop {
                let answer = wireup(["kill", "-s", "KILL", &job]);
                if answer.status.code() == Some(0) || rank.try_wait().unwrap().is_some() {
                    break answer;
                }
            };
            assert_eq!(answer.status.code(), Some(0), "{answer:?}");
            rank.wait().unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(foreign_file.exists(), "removed what is the victim's");
}

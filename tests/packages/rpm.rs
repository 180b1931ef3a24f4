//! Packages of RPM, installed into a root of their own.

use std::process::Command;

use super::system::{System, USER_RUNS};
use super::{Packages, VERSION, expect};

/// Returns what a package requires, without libraries of the system, RPM's own features, and the shell of its scripts.
fn requirements(packages: &Packages, name: &str) -> Vec<String> {
    let end = format!("/{name}-{VERSION}-1.");
    let files = packages.files(".rpm");
    let mut files = files.iter();
    let file = files.find(|path| path.to_string_lossy().contains(&end));
    let mut rpm = Command::new("rpm");
    rpm.args(["--query", "--requires", "--package"]);
    let output = expect(rpm.arg(file.unwrap()));
    let ignored = [
        "rpmlib(",
        "config(",
        "lib",
        "ld-linux",
        "rtld(",
        "/bin/sh",
        "/usr/bin/pkg",
    ];
    let is_own = |line: &&str| !ignored.iter().any(|start| line.starts_with(start));
    let mut lines: Vec<String> = output.lines().filter(is_own).map(str::to_owned).collect();
    lines.sort();
    lines.dedup();
    lines
}

#[test]
fn packages_require_same_release() {
    let packages = Packages::make("rpm");
    let [wireup, impi] = ["wireup", "wireup-impi"].map(|name| format!("{name} = {VERSION}-1"));
    let tools = ["/usr/bin/getent", "/usr/sbin/groupadd", "/usr/sbin/useradd"];
    assert!(requirements(&packages, "wireup").is_empty());
    let mut expected: Vec<&str> = tools.to_vec();
    expected.push(&wireup);
    assert_eq!(requirements(&packages, "wireup-agent"), expected);
    assert_eq!(requirements(&packages, "wireup-impi"), [wireup.as_str()]);
    assert_eq!(requirements(&packages, "wireup-devel"), [impi.as_str()]);
}

#[test]
fn erasure_leaves_settings() {
    // Its libraries are no packages of RPM.
    let Some(system) = System::new("debian12") else {
        return;
    };
    let packages = Packages::make("rpm");
    let rpm = |words: &[&str]| {
        let mut rpm = Command::new("rpm");
        rpm.arg("--root")
            .arg(system.root())
            .args(words)
            .arg("--nodeps");
        rpm
    };
    expect(rpm(&["--install"]).args(packages.files(".rpm")));
    assert_eq!(system.run(USER_RUNS), "hello\nhello\n");
    assert_eq!(system.run("stat -c %a /etc/wireup/tls"), "700\n");
    assert!(system.run("getent passwd wireup").contains("nologin"));
    system.run("echo '# Of the site.' >/etc/wireup/agent.toml");
    // In place of itself: the scripts of the old package run with those of the new one, as in any upgrade.
    expect(rpm(&["--upgrade", "--replacepkgs"]).args(packages.files(".rpm")));
    assert_eq!(system.run("cat /etc/wireup/agent.toml"), "# Of the site.\n");
    assert_eq!(system.run(USER_RUNS), "hello\nhello\n");
    let names = ["wireup-agent", "wireup-devel", "wireup-impi", "wireup"];
    expect(rpm(&["--erase"]).args(names));
    assert_eq!(
        system.run("find /etc/wireup -type f"),
        "/etc/wireup/agent.toml.rpmsave\n"
    );
    // RPM leaves accounts; userdel removes the group too.
    system.run("rm -r /etc/wireup && userdel wireup");
    system.expect_nothing_left();
}

//! Packages of RPM, installed into a root of their own.

use std::process::Command;

use super::system::{System, USER_RUNS};
use super::{Packages, expect};

#[test]
fn packages_are_installed_used_and_erased() {
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
    let names = ["wireup-agent", "wireup-devel", "wireup-impi", "wireup"];
    expect(rpm(&["--erase"]).args(names));
    // RPM leaves accounts.
    system.run("userdel wireup");
    system.expect_nothing_left();
}

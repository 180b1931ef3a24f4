//! Debian's packages, in clean systems.

use std::process::Command;

use super::system::{System, USER_RUNS};
use super::{Packages, expect};

fn are_installed_used_and_purged(system: &str) {
    let Some(system) = System::new(system) else {
        return;
    };
    system.bring(&Packages::make("deb").files(".deb"));
    system.run("dpkg --install /tmp/*.deb");
    assert_eq!(system.run(USER_RUNS), "hello\nhello\n");
    // A key will be there, and the service waits for it.
    assert_eq!(system.run("stat -c %a /etc/wireup/tls"), "700\n");
    assert!(system.run("getent passwd wireup").contains("nologin"));
    let enabled = system.run("find /etc/systemd -name 'wireup-agent.service'");
    assert_eq!(enabled, "", "the service is enabled");
    // Removed, the settings of the site stay; installed again, they are as they were.
    let settings = "log = \"debug\"";
    system.run(&format!("echo '{settings}' >/etc/wireup/agent.toml"));
    system.run("dpkg --remove wireup-agent && dpkg --install /tmp/wireup-agent_*.deb");
    assert_eq!(
        system.run("cat /etc/wireup/agent.toml"),
        format!("{settings}\n")
    );
    system.run("echo key >/etc/wireup/tls/key.pem");
    system.run("dpkg --purge wireup-agent wireup-dev wireup-impi wireup");
    system.expect_nothing_left();
}

#[test]
fn packages_are_installed_used_and_purged_in_debian_12() {
    are_installed_used_and_purged("debian12");
}

#[test]
fn packages_are_installed_used_and_purged_in_debian_13() {
    are_installed_used_and_purged("debian13");
}

#[test]
fn lintian_has_no_error() {
    let packages = Packages::make("deb");
    let mut lintian = Command::new("lintian");
    // The authors have no address; which release closes which bug is for Debian's own packages.
    lintian.args([
        "--allow-root",
        "--fail-on=error,warning",
        "--suppress-tags=bogus-mail-host,bogus-mail-host-in-debian-changelog,initial-upload-closes-no-bugs",
    ]);
    expect(lintian.args(packages.files(".deb")));
}

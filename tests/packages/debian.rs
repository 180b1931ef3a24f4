//! Debian's packages, in clean systems.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::debian_image::check_images;
use super::system::{System, USER_RUNS};
use super::upgrade::check_upgrade;
use super::{Packages, VERSION, expect};

/// Installs the packages in a system, uses them, and purges them.
fn check_purge(system: &System, packages: &Packages) {
    system.bring(&packages.debian_without_slurm());
    system.run("dpkg --install /tmp/*.deb");
    assert_eq!(system.run(USER_RUNS), "hello\nhello\n");
    system.run("test -f /usr/lib/*/pkgconfig/wireup-impi.pc");
    system.run("test -f /usr/share/wireup/python/wireup_impi.py");
    // A key will be there, and the service waits for it.
    assert_eq!(system.run("stat -c %a /etc/wireup/tls"), "700\n");
    system.run("chmod 0750 /etc/wireup/tls && dpkg --install /tmp/wireup-agent_*.deb");
    assert_eq!(system.run("stat -c %a /etc/wireup/tls"), "750\n");
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

/// Makes the package of a later revision, with a line more in the settings of the agent.
pub(super) fn later_revision(package: &Path) -> PathBuf {
    let name = package.file_name().unwrap().to_str().unwrap();
    let later = package.with_file_name(name.replace("-1_", "-2_"));
    let unpacked = package.with_extension("unpacked");
    let mut extract = Command::new("dpkg-deb");
    expect(extract.arg("--raw-extract").arg(package).arg(&unpacked));
    let (old, new) = (format!("{VERSION}-1"), format!("{VERSION}-2"));
    replace(&unpacked.join("DEBIAN/control"), |text| {
        text.replace(&old, &new)
    });
    let settings = unpacked.join("etc/wireup/agent.toml");
    if settings.exists() {
        replace(&settings, |text| text + "# Later.\n");
    }
    let mut build = Command::new("dpkg-deb");
    expect(build.args(["--build", "-Znone"]).arg(&unpacked).arg(&later));
    later
}

/// Writes a file again, changed.
fn replace(path: &Path, change: impl FnOnce(String) -> String) {
    let text = fs::read_to_string(path).unwrap();
    fs::write(path, change(text)).unwrap();
}

/// Checks the package of Slurm's plugin, which has it where the Slurm of this machine looks for it.
fn check_slurm_plugin(packages: &Packages) {
    if !Path::new("/usr/include/slurm/spank.h").exists() {
        return;
    }
    let [package] = &packages
        .files(".deb")
        .into_iter()
        .filter(|path| path.to_string_lossy().contains("wireup-slurm_"))
        .collect::<Vec<_>>()[..]
    else {
        panic!("no package of the plugin in {}", packages.path().display());
    };
    let unpacked = tempfile::tempdir().unwrap();
    let mut extract = Command::new("dpkg-deb");
    expect(extract.arg("--extract").arg(package).arg(unpacked.path()));
    let settings = "etc/slurm/plugstack.conf.d/wireup.conf";
    let settings = fs::read_to_string(unpacked.path().join(settings)).unwrap();
    let line = "required wireup.so wireup=/usr/bin/wireup default=off";
    assert!(settings.lines().any(|found| found == line), "{settings}");
    // Slurm's own plugins are in the same directory.
    let own = expect(Command::new("dpkg").args(["--listfiles", "slurm-wlm-basic-plugins"]));
    let own = own
        .lines()
        .find(|path| path.ends_with("/slurm-wlm/mpi_none.so"));
    let own = own.or_else(|| panic!("no mpi_none.so in slurm-wlm-basic-plugins"));
    let directory = Path::new(own.unwrap()).parent().unwrap();
    let plugin = unpacked.path().join(directory.strip_prefix("/").unwrap());
    let symbols = expect(
        Command::new("nm")
            .arg("--dynamic")
            .arg(plugin.join("wireup.so")),
    );
    assert!(symbols.contains(" R plugin_version"), "{symbols}");
    let depends = expect(
        Command::new("dpkg-deb")
            .arg("--field")
            .arg(package)
            .arg("Depends"),
    );
    let installed = expect(Command::new("dpkg-query").args([
        "-W",
        "-f",
        "${Version}",
        "slurm-wlm-basic-plugins",
    ]));
    for relation in ["ge", "lt"] {
        let mark = if relation == "ge" { "(>= " } else { "(<< " };
        let rest = depends.split("slurm-wlm-basic-plugins ");
        let bound = rest
            .filter_map(|part| part.strip_prefix(mark))
            .next()
            .unwrap();
        let bound = bound.split(')').next().unwrap();
        expect(Command::new("dpkg").args(["--compare-versions", &installed, relation, bound]));
    }
}

fn check_by_lintian(packages: &Packages) {
    let mut lintian = Command::new("lintian");
    // The authors have no address; which release closes which bug is for Debian's own packages.
    lintian.args([
        "--allow-root",
        "--fail-on=error,warning",
        "--suppress-tags=bogus-mail-host,bogus-mail-host-in-debian-changelog,initial-upload-closes-no-bugs",
    ]);
    expect(lintian.args(packages.files(".deb")));
}

/// One test, since most of its time makes the packages.
#[test]
fn packages_pass_lintian_install_upgrade_purge_and_make_images() {
    let packages = Packages::make("deb");
    check_by_lintian(&packages);
    check_slurm_plugin(&packages);
    for name in ["debian12", "debian13"] {
        if let Some(system) = System::new(name) {
            check_purge(&system, &packages);
        }
    }
    check_upgrade(&packages);
    check_images(&packages);
}

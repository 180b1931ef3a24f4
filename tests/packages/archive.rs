//! The archive, which runs wherever it is unpacked.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

use wireup_test_support::{not_checked, skip};

use super::{Packages, USER, VERSION, as_user, expect, readable_directory};

/// Packages of EasyBuild, whose versions belong together, and of its check of style.
const EASYBUILD: [&str; 3] = [
    "easybuild-framework==5.4.1",
    "easybuild-easyblocks==5.4.1",
    "pycodestyle==2.15.0",
];

/// Commands of a user: checks the style of an easyconfig ($2), installs it with the EasyBuild of a virtual environment ($1), and
/// runs wireup by its module.
const INSTALL: &str = r#"
set -e
. /usr/share/modules/init/bash
export EASYBUILD_MODULES_TOOL=EnvironmentModules EASYBUILD_MODULE_SYNTAX=Tcl EASYBUILD_PREFIX=$HOME
# It finds its own parts beside `eb`.
export PATH=${1%/*}:$PATH
cd "$HOME"
"$1" -m easybuild.main --check-style "$2"
"$1" -m easybuild.main "$2"
module use "$HOME/modules/all"
module load wireup
command -v wireup
wireup run -n 1 /bin/echo hello
"#;

/// Commands of a user who loads the module of an archive that is unpacked in a directory ($1).
const LOAD: &str = r#"
. /usr/share/modules/init/bash
set -e
module use "$1/share/modulefiles"
module load wireup
command -v wireup
wireup run -n 1 /bin/echo hello
"#;

#[test]
fn archive_runs_where_unpacked() {
    let packages = Packages::make("archive");
    let place = packages.dir.path().join("a place");
    fs::create_dir(&place).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&packages.files(".tar.gz")[0]);
    expect(tar.arg("-C").arg(&place).arg("--strip-components=1"));
    let wireup = place.join("bin/wireup");
    let out = expect(as_user(&wireup).args(["run", "-n", "1", "/bin/echo", "hello"]));
    assert_eq!(out, "hello\n");
    expect(Command::new(&wireup).args(["agent", "--help"]));
    let module = place.join("share/modulefiles/wireup").join(VERSION);
    assert!(module.exists());
    if Path::new("/usr/share/modules/init/bash").exists() {
        let out = expect(as_user("bash").args(["-c", LOAD, "bash"]).arg(&place));
        assert_eq!(out, format!("{}\nhello\n", wireup.display()));
    } else {
        not_checked("the module of the archive: needs environment-modules: run scripts/setup");
    }
    assert!(place.join("include/wireup-impi.h").exists());
    let description = fs::read_to_string(place.join("lib/pkgconfig/wireup-impi.pc")).unwrap();
    assert!(!description.contains('@'), "{description}");
}

#[test]
fn easybuild_installs_archive_with_module() {
    let packages = Packages::make("archive");
    let environment = readable_directory();
    let mut python = Command::new("/usr/bin/python3");
    expect(python.args(["-m", "venv"]).arg(environment.path()));
    let mut pip = Command::new(environment.path().join("bin/pip"));
    pip.args(["--quiet", "--disable-pip-version-check", "install"]);
    if !pip.args(EASYBUILD).status().unwrap().success() {
        return skip(&format!("pip cannot install {}", EASYBUILD.join(" ")));
    }
    // EasyBuild splits some of its commands at blanks.
    let home = tempfile::tempdir().unwrap();
    if rustix::process::geteuid().is_root() {
        let user = USER.parse().ok();
        chown(home.path(), user, user).unwrap();
    }
    let easyconfig = home.path().join("wireup.eb");
    fs::copy(&packages.files(".eb")[0], &easyconfig).unwrap();
    let archive = &packages.files(".tar.gz")[0];
    fs::copy(archive, home.path().join(archive.file_name().unwrap())).unwrap();
    let mut install = as_user("bash");
    install.args(["-c", INSTALL, "bash"]);
    install
        .arg(environment.path().join("bin/python"))
        .arg(easyconfig);
    let out = expect(install.env("HOME", home.path()));
    let wireup = format!(
        "{}/software/wireup/{VERSION}/bin/wireup\nhello\n",
        home.path().display()
    );
    assert!(out.ends_with(&wireup), "{out}");
}

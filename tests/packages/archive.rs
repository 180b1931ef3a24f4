//! The archive, which runs wherever it is unpacked.

use std::fs;
use std::process::Command;

use super::{Packages, VERSION, as_user, expect};

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
    assert!(
        place
            .join("share/modulefiles/wireup")
            .join(VERSION)
            .exists()
    );
    assert!(place.join("include/wireup-impi.h").exists());
    let description = fs::read_to_string(place.join("lib/pkgconfig/wireup-impi.pc")).unwrap();
    assert!(!description.contains('@'), "{description}");
}

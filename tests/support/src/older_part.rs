//! Parts of wireup as an older release would have installed them.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

/// Version of every [older part](copy_older_part).
pub const OLDER_VERSION: &str = "0.0.0";

/// Copies a program or library of wireup so that it gives [`OLDER_VERSION`] as its version. The copy has the same link version and
/// is the same in all else.
#[track_caller]
pub fn copy_older_part(part: &Path, copy: &Path) {
    let version = env!("CARGO_PKG_VERSION");
    // Texts of a program cannot change their length.
    assert_eq!(version.len(), OLDER_VERSION.len());
    let change = format!("s/{}/{OLDER_VERSION}/g", version.replace('.', "\\."));
    let mut sed = Command::new("sed");
    sed.env("LC_ALL", "C").arg(change).arg(part);
    let status = sed.stdout(File::create(copy).unwrap()).status().unwrap();
    assert!(status.success(), "{sed:?}: {status}");
    fs::set_permissions(copy, fs::metadata(part).unwrap().permissions()).unwrap();
}

//! The file that `packaging/wheel.py` writes, of a tree with a few small files. It needs neither a build nor pip.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use wireup_test_support::repository;

use super::expect;

const TAG: &str = "py3-none-manylinux_2_28_x86_64";

/// Files of the tree and of the Python package, with their modes; the name is the content too.
const FILES: [(&str, u32); 9] = [
    ("package/wireup/__init__.py", 0o644),
    ("package/wireup/py.typed", 0o644),
    ("package/wireup/__pycache__/__init__.cpython-311.pyc", 0o644),
    ("tree/bin/wireup", 0o755),
    ("tree/lib/wireup/wireup-agent", 0o755),
    ("tree/share/man/man1/wireup.1.gz", 0o644),
    ("tree/share/doc/wireup/LICENSE-APACHE", 0o644),
    ("tree/share/doc/wireup/LICENSE-MIT", 0o644),
    ("tree/share/modulefiles/wireup/1.2.3", 0o644),
];

/// Prints the files of a wheel that its RECORD lacks, or has with another hash or size.
const PRINT_DIFFERENCES: &str = r#"
import base64, csv, hashlib, io, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    files = {name: wheel.read(name) for name in wheel.namelist()}
record = next(name for name in files if name.endswith("/RECORD"))
for name, digest, size in csv.reader(io.StringIO(files[record].decode())):
    content = files.pop(name)
    sha256 = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    if name != record and (digest, size) != ("sha256=" + sha256, str(len(content))):
        print(name)
print(*files)
"#;

/// Prints one file of a wheel.
const PRINT_FILE: &str = r#"
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    print(wheel.read(sys.argv[2]).decode(), end="")
"#;

/// Prints names and modes of the files of a wheel, in its order.
const PRINT_MODES: &str = r#"
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    for entry in wheel.infolist():
        print(f"{entry.external_attr >> 16 & 0o777:o}", entry.filename)
"#;

/// A wheel of version 1.2.3, in a directory of its own.
struct WheelFile {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl WheelFile {
    /// Has `packaging/wheel.py` write it.
    fn write() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        for (name, mode) in FILES {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, name).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let readme = dir.path().join("README.md");
        fs::write(&readme, "# wireup: a description\n").unwrap();
        let platform = TAG.rsplit('-').next().unwrap();
        let mut python = Command::new("python3");
        python.arg(repository().join("packaging/wheel.py"));
        python.args(["--version", "1.2.3", "--platform", platform]);
        python.arg("--tree").arg(&tree).arg("--readme").arg(&readme);
        let package = dir.path().join("package/wireup");
        python.arg("--package").arg(package);
        python.arg("--output").arg(dir.path());
        expect(python.env("SOURCE_DATE_EPOCH", "1700000000"));
        let path = dir.path().join(format!("wireup-1.2.3-{TAG}.whl"));
        Self { path, _dir: dir }
    }

    /// Runs a script of Python on it; returns the output.
    #[track_caller]
    fn query(&self, script: &str, words: &[&str]) -> String {
        let mut python = Command::new("python3");
        expect(python.args(["-c", script]).arg(&self.path).args(words))
    }
}

#[test]
fn record_has_hash_of_every_file() {
    assert_eq!(WheelFile::write().query(PRINT_DIFFERENCES, &[]), "\n");
}

#[test]
fn tag_of_wheel_is_tag_in_name() {
    let text = WheelFile::write().query(PRINT_FILE, &["wireup-1.2.3.dist-info/WHEEL"]);
    let tag = format!("Tag: {TAG}");
    assert!(text.lines().any(|line| line == tag), "{text}");
}

#[test]
fn metadata_has_version_before_readme() {
    let text = WheelFile::write().query(PRINT_FILE, &["wireup-1.2.3.dist-info/METADATA"]);
    let (head, description) = text.split_once("\n\n").unwrap();
    for line in ["Metadata-Version: 2.4", "Name: wireup", "Version: 1.2.3"] {
        assert!(head.lines().any(|other| other == line), "{line} in {head}");
    }
    assert_eq!(description, "# wireup: a description\n");
}

#[test]
fn programs_of_wheel_are_executable() {
    let modes = WheelFile::write().query(PRINT_MODES, &[]);
    let expected = "\
644 wireup/__init__.py
644 wireup/py.typed
755 wireup-1.2.3.data/scripts/wireup
755 wireup-1.2.3.data/data/lib/wireup/wireup-agent
644 wireup-1.2.3.data/data/share/man/man1/wireup.1.gz
644 wireup-1.2.3.dist-info/licenses/LICENSE-APACHE
644 wireup-1.2.3.dist-info/licenses/LICENSE-MIT
644 wireup-1.2.3.dist-info/METADATA
644 wireup-1.2.3.dist-info/WHEEL
644 wireup-1.2.3.dist-info/RECORD
";
    assert_eq!(modes, expected);
}

//! The files of certificates and keys: their permissions, and writes that are
//! whole or not at all.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Most bytes of a file that is read: a bundle of many authorities, with room.
const FILE_MAX: u64 = 1024 * 1024;

/// Mode of files that all users may read.
pub(crate) const PUBLIC: u32 = 0o644;

/// Mode of a key.
pub(crate) const SECRET: u32 = 0o600;

/// Errors with a file or directory.
#[derive(Debug, thiserror::Error)]
pub enum PkiFileError {
    #[error("cannot {action} {}: {error}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        error: io::Error,
    },
    /// The path is not a directory, or not a file.
    #[error("{} is not a {expected_kind}", .path.display())]
    Kind {
        path: PathBuf,
        /// Kind that the path must have.
        expected_kind: &'static str,
    },
    /// Other users have permissions that only the owner may have.
    #[error("{} may be {how} by others (mode {mode:04o}); run: chmod {remedy:o} {}", .path.display(), .path.display())]
    Open {
        path: PathBuf,
        /// Forbidden access: "read" or "changed".
        how: &'static str,
        mode: u32,
        /// The mode it should have.
        remedy: u32,
    },
    #[error("{} belongs to user id {owner}; it must belong to user id {me} or root", .path.display())]
    Owner { path: PathBuf, owner: u32, me: u32 },
    #[error("{}: the password is not UTF-8: write it as text in one line", .0.display())]
    Encoding(PathBuf),
    /// The file is larger than [`FILE_MAX`].
    #[error("{} is larger than {FILE_MAX} bytes", .0.display())]
    Size(PathBuf),
}

fn failed<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> PkiFileError + 'a {
    move |error| PkiFileError::Io {
        action: what,
        path: path.to_owned(),
        error,
    }
}

/// Whether the error is a missing file.
pub(crate) fn is_missing(error: &PkiFileError) -> bool {
    matches!(error, PkiFileError::Io { error, .. } if error.kind() == io::ErrorKind::NotFound)
}

/// Refuses a file of another user than this one or root, or with a mode bit in `forbidden`.
fn check(path: &Path, found: &Metadata, forbidden: u32, remedy: u32) -> Result<(), PkiFileError> {
    let me = rustix::process::geteuid().as_raw();
    let path = || path.to_owned();
    if found.uid() != me && found.uid() != 0 {
        return Err(PkiFileError::Owner {
            path: path(),
            owner: found.uid(),
            me,
        });
    }
    let mode = found.mode() & 0o7777;
    if mode & forbidden == 0 {
        return Ok(());
    }
    Err(PkiFileError::Open {
        path: path(),
        how: if forbidden & 0o044 != 0 {
            "read"
        } else {
            "changed"
        },
        mode,
        remedy,
    })
}

/// Makes a private directory, with missing parents.
///
/// # Errors
/// [`PkiFileError`]; also when it exists and others may enter it.
pub(crate) fn make_private(path: &Path) -> Result<(), PkiFileError> {
    if let Some(parent) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        let result = DirBuilder::new().recursive(true).mode(0o755).create(parent);
        result.map_err(failed("create the directory", parent))?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_private(path),
        result => result.map_err(failed("create the directory", path)),
    }
}

/// Refuses a directory that others may enter or list.
///
/// # Errors
/// [`PkiFileError`]
pub(crate) fn check_private(path: &Path) -> Result<(), PkiFileError> {
    check(path, &directory(path)?, 0o077, 0o700)
}

fn directory(path: &Path) -> Result<Metadata, PkiFileError> {
    let found = fs::metadata(path).map_err(failed("open", path))?;
    match found.is_dir() {
        true => Ok(found),
        false => Err(PkiFileError::Kind {
            path: path.to_owned(),
            expected_kind: "directory",
        }),
    }
}

/// Refuses a directory that others may change or replace: it, and all above it up to the root, must
/// be this user's or root's. In a sticky one, such as `/tmp`, other users cannot rename entries
/// that is not his.
///
/// # Errors
/// [`PkiFileError`]
pub(crate) fn check_place(path: &Path) -> Result<(), PkiFileError> {
    check(path, &directory(path)?, 0o022, 0o700)?;
    // The given path, where another user could put another link, and its target.
    let named = std::path::absolute(path).map_err(failed("open", path))?;
    let real = fs::canonicalize(path).map_err(failed("open", path))?;
    for above in named.ancestors().chain(real.ancestors()).skip(1) {
        let found = fs::metadata(above).map_err(failed("open", above))?;
        let sticky = found.mode() & libc::S_ISVTX != 0;
        let forbidden = if sticky { 0 } else { 0o022 };
        check(above, &found, forbidden, 0o755)?;
    }
    Ok(())
}

/// Reads a file that only its owner may read.
///
/// # Errors
/// [`PkiFileError`]
pub(crate) fn read_secret(path: &Path) -> Result<Vec<u8>, PkiFileError> {
    read_secret_of(open(path)?, path)
}

/// Reads a secret from an open file.
///
/// # Errors
/// [`PkiFileError`]
pub(crate) fn read_secret_of(file: File, path: &Path) -> Result<Vec<u8>, PkiFileError> {
    read(file, path, 0o077, SECRET)
}

/// Reads a file that only its owner may change.
///
/// # Errors
/// [`PkiFileError`]
pub(crate) fn read_public(path: &Path) -> Result<Vec<u8>, PkiFileError> {
    read_public_of(open(path)?, path)
}

/// Reads a public file that is open.
///
/// # Errors
/// [`PkiFileError`]
pub(crate) fn read_public_of(file: File, path: &Path) -> Result<Vec<u8>, PkiFileError> {
    read(file, path, 0o022, PUBLIC)
}

/// Returns the error of a missing file.
pub(crate) fn absent(path: &Path) -> PkiFileError {
    failed("open", path)(io::ErrorKind::NotFound.into())
}

/// Opens a file for reading.
///
/// # Errors
/// [`PkiFileError`]
pub(crate) fn open(path: &Path) -> Result<File, PkiFileError> {
    // A FIFO in place of the file is refused, not waited for.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    options.open(path).map_err(failed("open", path))
}

fn read(file: File, path: &Path, forbidden: u32, remedy: u32) -> Result<Vec<u8>, PkiFileError> {
    let found = file.metadata().map_err(failed("open", path))?;
    if !found.is_file() {
        return Err(PkiFileError::Kind {
            path: path.to_owned(),
            expected_kind: "file",
        });
    }
    check(path, &found, forbidden, remedy)?;
    let mut bytes = Vec::new();
    let read = file.take(FILE_MAX + 1).read_to_end(&mut bytes);
    match read.map_err(failed("read", path))? as u64 > FILE_MAX {
        true => Err(PkiFileError::Size(path.to_owned())),
        false => Ok(bytes),
    }
}

/// Parses the certificates in the contents of a file. What cannot be read is missed by its reader.
pub(crate) fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    let all = CertificateDer::pem_slice_iter(pem);
    all.filter_map(Result::ok).collect()
}

/// Replaces a file atomically: a reader never sees a part of it.
///
/// # Errors
/// [`PkiFileError`]; the old file is unchanged.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), PkiFileError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let fresh = path.with_file_name(name);
    // Left by a process that had the same number.
    let _ = fs::remove_file(&fresh);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&fresh)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written.map_err(failed("write", path))?;
    sync_directory(path)
}

/// Replaces files of a directory, each with its mode, in this order.
///
/// # Errors
/// [`PkiFileError`]; the files before are replaced then.
pub(crate) fn write_all(dir: &Path, files: &[(&str, &str, u32)]) -> Result<(), PkiFileError> {
    let mut files = files.iter();
    files.try_for_each(|(file, text, mode)| write(&dir.join(file), text.as_bytes(), *mode))
}

/// Adds a line to a file, which is made if it is not there.
///
/// # Errors
/// [`PkiFileError`]
pub(crate) fn append(path: &Path, line: &str, mode: u32) -> Result<(), PkiFileError> {
    let opened = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(mode)
        .open(path);
    // In one piece: others may add theirs at the same time.
    let written = opened.and_then(|mut file| {
        file.write_all(line.as_bytes())
            .and_then(|()| file.sync_all())
    });
    written.map_err(failed("write", path))
}

/// Makes the names in a file's directory last.
fn sync_directory(path: &Path) -> Result<(), PkiFileError> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or_else(|| Path::new("."));
    File::open(parent)
        .and_then(|directory| directory.sync_all())
        .map_err(failed("write to", parent))
}

/// A directory that is filled before it gets its name.
#[derive(Debug)]
pub(crate) struct StagedDirectory {
    /// Directory for the files.
    pub(crate) path: PathBuf,
    target: PathBuf,
}

impl StagedDirectory {
    /// Begins the directory `target`.
    ///
    /// # Errors
    /// [`PkiFileError`]
    pub(crate) fn begin(target: &Path) -> Result<Self, PkiFileError> {
        let mut name = std::ffi::OsString::from(".");
        name.push(target.file_name().unwrap_or_default());
        name.push(format!(".{}.new", std::process::id()));
        let path = target.with_file_name(name);
        let _ = fs::remove_dir_all(&path);
        let result = DirBuilder::new().mode(0o700).create(&path);
        result.map_err(failed("create the directory", &path))?;
        Ok(Self {
            path,
            target: target.to_owned(),
        })
    }

    /// Gives it its name, which must be free.
    ///
    /// # Errors
    /// [`PkiFileError`]; nothing is left of it.
    pub(crate) fn finish(self) -> Result<(), PkiFileError> {
        // Renaming takes the place of an empty directory, and of nothing else.
        fs::rename(&self.path, &self.target).map_err(failed("make", &self.target))?;
        sync_directory(&self.target)
    }
}

impl Drop for StagedDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

//! Files that are copied to hosts with the plan of a job.
//!
//! The launcher reads the files and sends them with the job's plan. A host stores a program in
//! the job's own directory, and other files in the working directory of the ranks, unless a file of
//! that name exists: the user's files are never overwritten. Staged files are removed with the job.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::plan::directory::make_private;
use wireup_core::failure::RequestError;
use wireup_core::job::ids::{AppNum, NodeId, Nspace};
use wireup_core::job::octets;
use wireup_sys::remove_dir::remove_all;

/// Maximum size of all files of a job in bytes: every agent on the way holds them in memory.
const TOTAL_MAX: u64 = 64 * 1024 * 1024;

/// File that cannot be copied to hosts, or stored on one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StagingError {
    /// The file does not exist on the launcher's machine.
    #[error("{} must be copied to other hosts and does not exist", .0.display())]
    Missing(PathBuf),
    /// The path is that of a directory, a device or another special file.
    #[error("{} must be copied to other hosts and is not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// All files together exceed the maximum size.
    #[error(
        "with {} the files to be copied are larger than {} MiB; put them on the hosts, or on a file system of all hosts",
        .0.display(), TOTAL_MAX >> 20
    )]
    TooLarge(PathBuf),
    #[error("{action} {}: {error}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        error: io::Error,
    },
}

impl RequestError for StagingError {}

impl StagingError {
    pub(super) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |error| Self::Io {
            action: what,
            path,
            error,
        }
    }
}

/// Offered file that the ranks of a host load from the job's own directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PlacedFile {
    /// Name in the directory of the application's files.
    pub(super) name: OsString,
    pub(super) library: bool,
    /// Path in the content store, or of a file of the host that the loader would not find.
    pub(super) from: PathBuf,
    pub(super) is_host_file: bool,
}

/// File with its content, as it is sent to hosts.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StagedFile {
    /// Name, or path relative to the working directory of the ranks.
    #[serde(with = "octets")]
    name: PathBuf,
    mode: u32,
    #[serde(with = "octets")]
    bytes: Vec<u8>,
}

impl fmt::Debug for StagedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.name.display(), self.bytes.len())
    }
}

/// Number of bytes by which the files of a job may still grow.
#[derive(Debug)]
pub(crate) struct StagingBudget(u64);

impl Default for StagingBudget {
    fn default() -> Self {
        Self(TOTAL_MAX)
    }
}

impl StagedFile {
    /// Reads a file. A file with an absolute path is stored on hosts under the last component of the path.
    ///
    /// # Errors
    /// [`StagingError`]
    pub(crate) fn read(
        cwd: &Path,
        name: &Path,
        room: &mut StagingBudget,
    ) -> Result<Self, StagingError> {
        let path = cwd.join(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(StagingError::Missing(path));
            }
            Err(error) => return Err(StagingError::io("cannot open", &path)(error)),
        };
        let read = StagingError::io("cannot read", &path);
        let meta = file.metadata();
        let name = match name.is_absolute() {
            true => name.file_name().map(PathBuf::from),
            false => Some(name.to_owned()),
        };
        let (Ok(meta), Some(name)) = (meta, name) else {
            return Err(StagingError::NotAFile(path));
        };
        if !meta.is_file() {
            return Err(StagingError::NotAFile(path));
        }
        let mut bytes = Vec::new();
        // The file may grow while it is read.
        file.take(room.0 + 1)
            .read_to_end(&mut bytes)
            .map_err(read)?;
        match room.0.checked_sub(bytes.len() as u64) {
            Some(rest) => room.0 = rest,
            None => return Err(StagingError::TooLarge(path)),
        }
        Ok(Self {
            name,
            mode: meta.mode() & 0o777 | 0o600,
            bytes,
        })
    }

    /// Frees the content of the file; its name stays.
    pub(crate) fn unload(&mut self) {
        self.bytes = Vec::new();
    }
}

/// Identity of a file; a file that replaces it, and the file itself after a change, has another identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct FileIdentity([i64; 4]);

/// Time of change in the identity of a file that may change.
const ANY_TIME: i64 = i64::MIN;

impl FileIdentity {
    const BYTES: usize = 4 * size_of::<i64>();

    fn from_path(path: &Path) -> io::Result<Self> {
        let meta = path.symlink_metadata()?;
        let (device, number) = (meta.dev() as i64, meta.ino() as i64);
        Ok(Self([device, number, meta.mtime(), meta.mtime_nsec()]))
    }

    /// Returns the identity of a file that keeps it when its content changes.
    ///
    /// # Errors
    /// The error of the system if the file cannot be examined.
    pub(crate) fn with_any_content(path: &Path) -> io::Result<Self> {
        let Self([device, number, ..]) = Self::from_path(path)?;
        Ok(Self([device, number, ANY_TIME, ANY_TIME]))
    }

    /// Removes the file if it is this one.
    pub(crate) fn remove(&self, path: &Path) {
        let is_this = match self.0[2..] {
            [ANY_TIME, ANY_TIME] => Self::with_any_content(path),
            _ => Self::from_path(path),
        };
        if is_this.is_ok_and(|found| found == *self) {
            let _ = fs::remove_file(path);
        }
    }

    /// Serializes the identity for [`FileIdentity::parse`].
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Parses an identity; returns it with the bytes after it.
    pub(crate) fn parse(mut bytes: Vec<u8>) -> Option<(Self, Vec<u8>)> {
        let rest = (bytes.len() >= Self::BYTES).then(|| bytes.split_off(Self::BYTES))?;
        let words = bytes.chunks_exact(size_of::<i64>());
        let mut words = words.map(|word| Some(i64::from_le_bytes(word.try_into().ok()?)));
        let mut next = || words.next().flatten();
        Some((Self([next()?, next()?, next()?, next()?]), rest))
    }
}

/// Receives paths that must be removed later: a directory, or a file with its identity.
pub(crate) type CleanupSink<'a> = &'a mut dyn FnMut(&Path, Option<FileIdentity>);

/// Staged files of a host; removed when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct UnpackedFiles {
    directory: Option<PathBuf>,
    files: Vec<(PathBuf, FileIdentity)>,
}

/// Owner of staged files: an application of a job on one of its nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner<'a> {
    pub(super) job: &'a Nspace,
    pub(super) node: NodeId,
    pub(super) app: AppNum,
}

impl Owner<'_> {
    /// Directory of the job's staged files on the node. The name contains the node because hosts may share the parent.
    fn job_directory(&self) -> PathBuf {
        let Self { job, node, .. } = self;
        std::env::temp_dir().join(format!("{job}.n{node}.files"))
    }

    /// Directory of the application's staged files.
    pub(super) fn directory(&self) -> PathBuf {
        self.job_directory().join(self.app.0.to_string())
    }

    /// Directory of the application's staged libraries.
    pub(super) fn libraries(&self) -> PathBuf {
        self.directory().join("lib")
    }

    /// Path of the application's staged program.
    pub(super) fn program(&self, packed: &StagedFile) -> PathBuf {
        let name = packed.name.file_name().unwrap_or_default();
        self.directory().join(name)
    }
}

impl UnpackedFiles {
    /// Stores a program in the job's own directory. `cleanup` gets the path before it exists.
    ///
    /// # Errors
    /// [`StagingError`]
    pub(crate) fn put_program(
        &mut self,
        owner: Owner<'_>,
        packed: &StagedFile,
        cleanup: CleanupSink<'_>,
    ) -> Result<(), StagingError> {
        self.enter(owner, cleanup)?;
        let path = owner.program(packed);
        make(path.parent().unwrap_or(&path))?;
        write(&path, packed)
    }

    /// Links a file of the content store, or of the host, into the job's own directory. `cleanup` is
    /// as for [`put_program`](Self::put_program).
    ///
    /// # Errors
    /// [`StagingError`]
    pub(super) fn put_placed(
        &mut self,
        owner: Owner<'_>,
        placed: &PlacedFile,
        cleanup: CleanupSink<'_>,
    ) -> Result<(), StagingError> {
        self.enter(owner, cleanup)?;
        let mut directory = owner.directory();
        make(&directory)?;
        if placed.library {
            directory = owner.libraries();
            make(&directory)?;
        }
        let path = directory.join(&placed.name);
        let put = match placed.is_host_file {
            true => std::os::unix::fs::symlink(&placed.from, &path),
            false => fs::hard_link(&placed.from, &path),
        };
        put.map_err(StagingError::io("cannot make", &path))
    }

    /// Creates the job's own directory, if it does not exist.
    fn enter(&mut self, owner: Owner<'_>, cleanup: CleanupSink<'_>) -> Result<(), StagingError> {
        if self.directory.is_none() {
            let directory = owner.job_directory();
            cleanup(&directory, None);
            DirBuilder::new()
                .mode(0o700)
                .create(&directory)
                .map_err(StagingError::io("cannot make", &directory))?;
            self.directory = Some(directory);
        }
        Ok(())
    }

    /// Stores a file in the ranks' working directory, unless one exists. `cleanup` gets the path
    /// before it exists.
    ///
    /// # Errors
    /// [`StagingError`]
    pub(crate) fn put_file(
        &mut self,
        job: &Nspace,
        cwd: &Path,
        packed: &StagedFile,
        cleanup: CleanupSink<'_>,
    ) -> Result<(), StagingError> {
        let path = cwd.join(&packed.name);
        if path.symlink_metadata().is_ok() {
            return Ok(());
        }
        // Written under another name first: other processes must not read an incomplete file, and hosts may share the directory.
        let mut name = OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{job}.{}", std::process::id()));
        let partial = path.with_file_name(name);
        let put = write(&partial, packed).and_then(|()| {
            let identity = FileIdentity::from_path(&partial);
            let identity = identity.map_err(StagingError::io("cannot find", &partial))?;
            // Both names are links to one file.
            cleanup(&partial, Some(identity));
            cleanup(&path, Some(identity));
            match fs::hard_link(&partial, &path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                Err(error) => Err(StagingError::io("cannot make", &path)(error)),
                Ok(()) => {
                    self.files.push((path.clone(), identity));
                    Ok(())
                }
            }
        });
        let _ = fs::remove_file(&partial);
        put
    }
}

/// Creates a directory below the job's own, if it does not exist.
fn make(path: &Path) -> Result<(), StagingError> {
    make_private(path).map_err(StagingError::io("cannot make", path))
}

fn write(path: &Path, packed: &StagedFile) -> Result<(), StagingError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(packed.mode);
    let file = options
        .open(path)
        .map_err(StagingError::io("cannot make", path));
    file?
        .write_all(&packed.bytes)
        .map_err(StagingError::io("cannot write", path))
}

impl Drop for UnpackedFiles {
    fn drop(&mut self) {
        if let Some(directory) = &self.directory {
            let _ = remove_all(directory);
        }
        for (path, identity) in &self.files {
            identity.remove(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Nspace {
        Nspace::new("wireup-0123456789abcdef").unwrap()
    }

    fn packed(cwd: &Path, name: &str) -> StagedFile {
        StagedFile::read(cwd, Path::new(name), &mut StagingBudget::default()).unwrap()
    }

    #[test]
    fn file_is_created_where_missing_and_removed_again() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(from.path().join("data"), "text").unwrap();
        fs::write(from.path().join("own"), "ours").unwrap();
        fs::write(to.path().join("own"), "the user's").unwrap();
        let mut paths = Vec::new();
        let mut unpacked = UnpackedFiles::default();
        for name in ["data", "own"] {
            let packed = packed(from.path(), name);
            let cleanup = &mut |path: &Path, _| paths.push(path.to_owned());
            unpacked
                .put_file(&job(), to.path(), &packed, cleanup)
                .unwrap();
        }
        let read = |name: &str| fs::read_to_string(to.path().join(name)).ok();
        assert_eq!(read("data").as_deref(), Some("text"));
        assert_eq!(read("own").as_deref(), Some("the user's"));
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 2);
        assert_eq!(paths.last(), Some(&to.path().join("data")));
        drop(unpacked);
        assert_eq!(read("data"), None);
        assert_eq!(read("own").as_deref(), Some("the user's"));
    }

    #[test]
    fn identity_is_serialized_with_following_path() {
        let identity = FileIdentity::from_path(Path::new("/bin/true")).unwrap();
        let bytes = [&identity.to_bytes()[..], b"/bin/true"].concat();
        let parsed = FileIdentity::parse(bytes.clone());
        assert_eq!(parsed, Some((identity, b"/bin/true".to_vec())));
        assert_eq!(FileIdentity::parse(bytes[..31].to_vec()), None);
    }

    #[test]
    fn changed_file_is_removed_only_if_its_content_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "a").unwrap();
        let exact = FileIdentity::from_path(&path).unwrap();
        let any = FileIdentity::with_any_content(&path).unwrap();
        let file = File::options().append(true).open(&path).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        exact.remove(&path);
        assert!(path.exists());
        any.remove(&path);
        assert!(!path.exists());
    }

    #[test]
    fn replaced_or_modified_file_is_kept() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(from.path().join("data"), "text").unwrap();
        let packed = packed(from.path(), "data");
        let mut unpacked = UnpackedFiles::default();
        unpacked
            .put_file(&job(), to.path(), &packed, &mut |_, _| {})
            .unwrap();
        let path = to.path().join("data");
        fs::rename(&path, to.path().join("old")).unwrap();
        fs::write(&path, "another").unwrap();
        drop(unpacked);
        assert_eq!(fs::read_to_string(&path).unwrap(), "another");
        fs::remove_file(&path).unwrap();
        let mut unpacked = UnpackedFiles::default();
        unpacked
            .put_file(&job(), to.path(), &packed, &mut |_, _| {})
            .unwrap();
        fs::write(&path, "a result").unwrap();
        drop(unpacked);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a result");
    }

    #[test]
    fn program_is_executable_and_its_directory_private() {
        let owner = Owner {
            job: &job(),
            node: NodeId(3),
            app: AppNum(1),
        };
        let mut unpacked = UnpackedFiles::default();
        let mut paths = Vec::new();
        let packed = packed(Path::new("/"), "/bin/true");
        let cleanup = &mut |path: &Path, _| paths.push(path.to_owned());
        unpacked.put_program(owner, &packed, cleanup).unwrap();
        let path = owner.program(&packed);
        assert_eq!(path.file_name(), Path::new("/bin/true").file_name());
        assert!(path.starts_with(&paths[0]), "{path:?}, {paths:?}");
        let mode = fs::metadata(&paths[0]).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o111, 0o111);
        drop(unpacked);
        assert!(!paths[0].exists());
    }

    #[test]
    fn unstageable_file_is_named_with_reason() {
        let dir = tempfile::tempdir().unwrap();
        let read = |name: &str, room: u64| {
            let packed = StagedFile::read(dir.path(), Path::new(name), &mut StagingBudget(room));
            packed.map_err(|error| error.to_string())
        };
        fs::create_dir(dir.path().join("directory")).unwrap();
        fs::write(dir.path().join("five"), "12345").unwrap();
        let mut sub = dir.path().join("directory");
        sub.push("file");
        fs::write(&sub, "").unwrap();
        assert!(
            read("lost", 9)
                .unwrap_err()
                .contains("/lost must be copied")
        );
        assert!(
            read("directory", 9)
                .unwrap_err()
                .contains("not a regular file")
        );
        assert!(read("five", 4).unwrap_err().contains("larger than 64 MiB"));
        assert_eq!(read("five", 5).unwrap().name, Path::new("five"));
        let within = read("directory/file", 0).unwrap();
        assert_eq!(within.name, Path::new("directory/file"));
        assert_eq!(
            read(sub.to_str().unwrap(), 0).unwrap().name,
            Path::new("file")
        );
    }
}

//! Stores staged files on a host by their content, as long as its agent runs.
//!
//! Rule: the name of a file is its SHA-256 digest; a file with another digest is ignored. A launch executes its own link
//! to a file, because the store may be removed at any time.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::plan::directory::make_private;

/// SHA-256 of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Digest([u8; 32]);

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl Digest {
    /// Computes the digest of all bytes of a reader.
    pub(crate) fn from_reader(mut file: impl io::Read) -> io::Result<Self> {
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 256 * 1024];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(Self(hash.finalize().into())),
                Ok(read) => hash.update(&buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Formats the first half in hexadecimal.
    pub(crate) fn short(&self) -> String {
        HEXLOWER.encode(&self.0[..16])
    }
}

/// Directory of files that are named by their content.
#[derive(Debug)]
pub(crate) struct ContentStore(PathBuf);

impl ContentStore {
    /// Opens a directory; creates it if it does not exist.
    ///
    /// # Errors
    /// When the directory cannot be created, or other users have access to it.
    pub(crate) fn open(directory: PathBuf) -> io::Result<Self> {
        make_private(&directory)?;
        let meta = directory.symlink_metadata()?;
        let uid = rustix::process::geteuid().as_raw();
        match meta.is_dir() && meta.uid() == uid && meta.mode() & 0o077 == 0 {
            true => Ok(Self(directory)),
            false => Err(io::Error::other(
                "the directory must belong to this user, without access for others",
            )),
        }
    }

    /// Path of the file with this content, whether the file exists or not.
    pub(super) fn path(&self, digest: Digest) -> PathBuf {
        self.0.join(HEXLOWER.encode(&digest.0))
    }

    /// Whether the store has a file with this content; reads the file.
    pub(super) fn has(&self, digest: Digest, size: u64) -> bool {
        let file = File::open(self.path(digest));
        file.is_ok_and(|file| {
            let meta = file.metadata();
            meta.is_ok_and(|meta| meta.is_file() && meta.len() == size)
                && Digest::from_reader(file.take(size)).is_ok_and(|found| found == digest)
        })
    }

    /// Creates a file whose content is about to be received.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub(crate) fn expect(&self, digest: Digest, size: u64) -> io::Result<IncomingFile> {
        let path = self.path(digest);
        let partial = path.with_extension(std::process::id().to_string());
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o500);
        let file = options.open(&partial)?;
        Ok(IncomingFile {
            file: Some(file),
            partial,
            path,
            hash: Sha256::new(),
            remaining_bytes: size,
            digest,
        })
    }
}

/// File of a store that is being received; removed when dropped before it is complete.
#[derive(Debug)]
pub(crate) struct IncomingFile {
    file: Option<File>,
    partial: PathBuf,
    path: PathBuf,
    hash: Sha256,
    remaining_bytes: u64,
    digest: Digest,
}

impl IncomingFile {
    /// Writes the next bytes. Returns whether the file is complete, with the expected digest.
    ///
    /// # Errors
    /// When the bytes cannot be written, or are not those of the expected file.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let other = || io::Error::other("the file changed while it was copied");
        let left = self.remaining_bytes.checked_sub(bytes.len() as u64);
        self.remaining_bytes = left.ok_or_else(other)?;
        if let Some(file) = &mut self.file {
            file.write_all(bytes)?;
        }
        self.hash.update(bytes);
        if self.remaining_bytes > 0 {
            return match bytes.is_empty() {
                true => Err(other()),
                false => Ok(false),
            };
        }
        if self.hash.clone().finalize()[..] != self.digest.0 {
            return Err(other());
        }
        // A file that is open for writing cannot be executed.
        self.file = None;
        fs::rename(&self.partial, &self.path)?;
        Ok(true)
    }
}

impl Drop for IncomingFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.partial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_counts_only_with_its_content() {
        let place = tempfile::tempdir().unwrap();
        let store = ContentStore::open(place.path().join("store")).unwrap();
        let digest = Digest::from_reader(&b"contents"[..]).unwrap();
        assert!(!store.has(digest, 8));
        let mut file = store.expect(digest, 8).unwrap();
        assert!(!file.take(b"cont").unwrap());
        assert!(!store.has(digest, 8));
        assert!(file.take(b"ents").unwrap());
        assert!(store.has(digest, 8));
        drop(file);
        assert_eq!(fs::read(store.path(digest)).unwrap(), b"contents");
        fs::remove_file(store.path(digest)).unwrap();
        fs::write(store.path(digest), "contentz").unwrap();
        assert!(!store.has(digest, 8), "it was changed");
    }

    #[test]
    fn partial_or_different_file_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let store = ContentStore::open(place.path().join("store")).unwrap();
        let digest = Digest::from_reader(&b"contents"[..]).unwrap();
        for wrong in [&b"contentz"[..], b"contents and more", b""] {
            let mut file = store.expect(digest, 8).unwrap();
            let error = file.take(wrong).unwrap_err().to_string();
            assert!(error.contains("changed"), "{error}");
        }
        drop(store.expect(digest, 8).unwrap().take(b"cont"));
        assert_eq!(fs::read_dir(place.path().join("store")).unwrap().count(), 0);
    }

    #[test]
    fn directory_open_to_others_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("store");
        let open = || ContentStore::open(directory.clone());
        assert!(open().is_ok());
        assert!(open().is_ok(), "it is there and the user's alone");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        let error = open().unwrap_err().to_string();
        assert!(error.contains("without access for others"), "{error}");
        let link = place.path().join("link");
        std::os::unix::fs::symlink("/root", &link).unwrap();
        assert!(ContentStore::open(link).is_err());
    }
}

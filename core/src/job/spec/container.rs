//! What ranks run in.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::job::octets;

/// Where an image is mounted whose user names no directory.
pub const UENV_MOUNT: &str = "/user-environment";

/// What the ranks of a launch run in, on every node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// Images of software that are mounted for the ranks, in this order.
    pub uenvs: Vec<Uenv>,
}

impl ContainerSpec {
    /// Whether ranks see the host as it is.
    pub fn is_empty(&self) -> bool {
        self.uenvs.is_empty()
    }
}

/// A squashfs image of software, and where its files are found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Uenv {
    /// The image; a relative path counts from where the launcher was started.
    #[serde(with = "octets")]
    pub file: PathBuf,
    /// The directory it is mounted on; absolute.
    #[serde(with = "octets")]
    pub mount: PathBuf,
}

/// A text that names no image, or a directory that does not begin with a slash.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("give the file of an image, and behind a colon the absolute path of the directory where it is mounted")]
pub struct UenvError;

impl Uenv {
    /// Reads `FILE` or `FILE:MOUNT`. A file with a colon in its name needs its directory of mounting too.
    ///
    /// # Errors
    /// [`UenvError`]
    pub fn parse(text: &OsStr) -> Result<Self, UenvError> {
        let bytes = text.as_bytes();
        let owned = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
        let (file, mount) = match bytes.iter().rposition(|byte| *byte == b':') {
            Some(at) => (owned(&bytes[..at]), owned(&bytes[at + 1..])),
            None => (owned(bytes), PathBuf::from(UENV_MOUNT)),
        };
        let named = !file.as_os_str().is_empty();
        match named && mount.is_absolute() && mount != Path::new("/") && !bytes.contains(&0) {
            true => Ok(Self { file, mount }),
            false => Err(UenvError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<(String, String), UenvError> {
        let uenv = Uenv::parse(text.as_ref())?;
        let text = |path: PathBuf| path.into_os_string().into_string().unwrap();
        Ok((text(uenv.file), text(uenv.mount)))
    }

    #[test]
    fn the_directory_stands_behind_the_last_colon() {
        let pair = |file: &str, mount: &str| Ok((file.to_owned(), mount.to_owned()));
        assert_eq!(parsed("a.squashfs"), pair("a.squashfs", UENV_MOUNT));
        assert_eq!(parsed("/x/a:/opt/sw"), pair("/x/a", "/opt/sw"));
        assert_eq!(parsed("a:b:/opt"), pair("a:b", "/opt"));
    }

    #[test]
    fn a_directory_is_absolute_and_not_the_root() {
        for bad in ["", ":/opt", "a:", "a:opt", "a:/", "a:b"] {
            assert_eq!(parsed(bad), Err(UenvError), "{bad}");
        }
    }
}

//! Container of the ranks, as the user specifies it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::job::octets;

/// Mount point of an image for which the user names no directory.
pub const UENV_MOUNT: &str = "/user-environment";

/// Images and container in which the ranks of a launch run, on every node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// Images of software that are mounted for the ranks, in this order.
    pub uenvs: Vec<Uenv>,
    /// The image that ranks have for their root directory.
    pub image: Option<ImageSpec>,
}

impl ContainerSpec {
    /// Whether ranks see the host as it is.
    pub fn is_empty(&self) -> bool {
        self.uenvs.is_empty() && self.image.is_none()
    }
}

/// A program that makes containers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Runtime {
    Apptainer,
    Bwrap,
    Charliecloud,
    Crun,
    Podman,
}

impl Runtime {
    pub const ALL: [Self; 5] = [
        Self::Apptainer,
        Self::Bwrap,
        Self::Charliecloud,
        Self::Crun,
        Self::Podman,
    ];

    /// Returns the runtime of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }

    /// Returns the name that the option uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Apptainer => "apptainer",
            Self::Bwrap => "bwrap",
            Self::Charliecloud => "charliecloud",
            Self::Crun => "crun",
            Self::Podman => "podman",
        }
    }

    /// Returns the program of the runtime that is executed.
    pub fn program(self) -> &'static str {
        match self {
            Self::Charliecloud => "ch-run",
            _ => self.as_str(),
        }
    }

    /// Whether the runtime has images by name.
    pub fn has_images(self) -> bool {
        self == Self::Podman
    }

    /// Whether an image may be a file.
    pub fn has_files(self) -> bool {
        self == Self::Apptainer
    }
}

/// The image in which ranks run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ImageSpec {
    /// A root directory, if it begins with a slash or a dot, else the name of an image.
    #[serde(with = "octets")]
    pub image: OsString,
    /// Runtime that creates the container.
    pub runtime: Runtime,
    /// Files and directories of the host that are mounted in the container.
    pub mounts: Vec<BindMount>,
}

/// Error in the choice of an image.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ImageError {
    #[error(
        "--image {0}:…: {0} needs a root directory, but {image:?} is the name of an image (a directory starts with / or ./)",
        runtime.as_str()
    )]
    NoDirectory { image: OsString, runtime: Runtime },
    #[error("--image: give a root directory or the name of an image")]
    NoName,
}

impl ImageSpec {
    /// Creates the choice of an image, with the runtime that fits it unless one is named: bubblewrap for a directory,
    /// podman for a name.
    ///
    /// # Errors
    /// [`ImageError`]
    pub fn new(
        image: OsString,
        runtime: Option<Runtime>,
        mounts: Vec<BindMount>,
    ) -> Result<Self, ImageError> {
        let directory = image.as_bytes().starts_with(b"/") || image.as_bytes().starts_with(b".");
        let default = match directory {
            true => Runtime::Bwrap,
            false => Runtime::Podman,
        };
        let runtime = runtime.unwrap_or(default);
        match image.to_str() {
            _ if directory => {}
            Some("") | None => return Err(ImageError::NoName),
            Some(_) if runtime.has_images() => {}
            Some(_) => return Err(ImageError::NoDirectory { image, runtime }),
        }
        Ok(Self {
            image,
            runtime,
            mounts,
        })
    }

    /// Returns the root directory, if the image is one; a relative path starts at the launcher's directory.
    pub fn directory(&self) -> Option<&Path> {
        let bytes = self.image.as_bytes();
        let directory = bytes.starts_with(b"/") || bytes.starts_with(b".");
        directory.then_some(Path::new(&self.image))
    }
}

/// A directory or file of the host in a container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BindMount {
    /// Absolute path on the host.
    #[serde(with = "octets")]
    pub source: PathBuf,
    /// Absolute path in the container.
    #[serde(with = "octets")]
    pub target: PathBuf,
    pub read_only: bool,
}

/// A text that is no mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "give PATH, PATH:TARGET or either with :ro (read-only): absolute paths of a directory or file on the hosts and in the image"
)]
pub struct MountError;

impl BindMount {
    /// Mounts a path of the host at the same path of the container, writable.
    pub fn from_path(path: &Path) -> Self {
        Self {
            source: path.to_owned(),
            target: path.to_owned(),
            read_only: false,
        }
    }

    /// Whether it is at the same place as on the host.
    pub fn is_same(&self) -> bool {
        self.source == self.target
    }

    /// Reads a mount from `SOURCE[:TARGET][:ro]`.
    ///
    /// # Errors
    /// [`MountError`]
    pub fn parse(text: &OsStr) -> Result<Self, MountError> {
        let bytes = text.as_bytes();
        let rest = bytes.strip_suffix(b":ro");
        let mut parts = rest.unwrap_or(bytes).split(|byte| *byte == b':');
        let mut path = || {
            parts
                .next()
                .map(|part| PathBuf::from(OsStr::from_bytes(part)))
        };
        let source = path().unwrap_or_default();
        let target = path().unwrap_or_else(|| source.clone());
        let plain = |path: &Path| {
            let mut parts = path.components();
            path.is_absolute() && parts.all(|part| part != Component::ParentDir)
        };
        let fits = path().is_none() && !bytes.contains(&0) && plain(&source) && plain(&target);
        match fits && target != Path::new("/") {
            true => Ok(Self {
                source,
                target,
                read_only: rest.is_some(),
            }),
            false => Err(MountError),
        }
    }
}

impl fmt::Display for BindMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.display().fmt(f)?;
        if !self.is_same() {
            write!(f, ":{}", self.target.display())?;
        }
        f.write_str(if self.read_only { ":ro" } else { "" })
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
#[error(
    "give FILE:DIRECTORY: the file of an image, and the absolute path of the directory on which it is mounted"
)]
pub struct UenvError;

impl Uenv {
    /// Reads `FILE` or `FILE:MOUNT`. A file with a colon in its name needs its directory of mounting too.
    ///
    /// # Errors
    /// [`UenvError`]
    pub fn parse(text: &OsStr) -> Result<Self, UenvError> {
        let bytes = text.as_bytes();
        let owned = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
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
    fn image_directory_follows_last_colon() {
        let pair = |file: &str, mount: &str| Ok((file.to_owned(), mount.to_owned()));
        assert_eq!(parsed("a.squashfs"), pair("a.squashfs", UENV_MOUNT));
        assert_eq!(parsed("/x/a:/opt/sw"), pair("/x/a", "/opt/sw"));
        assert_eq!(parsed("a:b:/opt"), pair("a:b", "/opt"));
    }

    #[test]
    fn image_directory_is_absolute_and_not_root() {
        for bad in ["", ":/opt", "a:", "a:opt", "a:/", "a:b"] {
            assert_eq!(parsed(bad), Err(UenvError), "{bad}");
        }
    }

    #[test]
    fn mount_has_source_with_optional_target_and_mode() {
        for text in ["/data", "/data:/d", "/data:ro", "/data:/d:ro"] {
            let mount = BindMount::parse(text.as_ref()).unwrap();
            assert_eq!(mount.to_string(), text);
        }
        for bad in [
            "",
            "data",
            "/data:d",
            "/data:/",
            "/a:/b:rw",
            "/a:/b:/c",
            "/a:/b/../..",
            ":/a",
        ] {
            assert_eq!(BindMount::parse(bad.as_ref()), Err(MountError), "{bad}");
        }
    }

    #[test]
    fn runtime_must_fit_image() {
        let runtime_of = |image: &str, runtime| {
            let spec = ImageSpec::new(image.into(), runtime, Vec::new());
            spec.map(|spec| spec.runtime)
        };
        assert_eq!(runtime_of("/srv/root", None), Ok(Runtime::Bwrap));
        assert_eq!(runtime_of("./root", Some(Runtime::Crun)), Ok(Runtime::Crun));
        assert_eq!(runtime_of("debian:12", None), Ok(Runtime::Podman));
        let error = ImageError::NoDirectory {
            image: "debian:12".into(),
            runtime: Runtime::Crun,
        };
        assert_eq!(runtime_of("debian:12", Some(Runtime::Crun)), Err(error));
        assert_eq!(runtime_of("", None), Err(ImageError::NoName));
    }
}

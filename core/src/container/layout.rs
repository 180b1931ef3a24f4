//! The root directory of a container that is made of a root directory of files: an empty one, with a place for each
//! mount. So mounts may be anywhere, and neither they nor their places are made in the user's directory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{BindMount, strip_root};

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageEntry {
    pub name: OsString,
    pub kind: EntryKind,
}

/// The kind of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EntryKind {
    Directory,
    /// Anything that is neither a directory nor a link.
    File,
    /// A symbolic link with this text.
    Link(PathBuf),
}

/// Directories, files and links that are created in an empty directory, and the mounts below it, in this order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    pub directories: Vec<PathBuf>,
    pub files: Vec<PathBuf>,
    /// Links, with their texts.
    pub links: Vec<(PathBuf, PathBuf)>,
    pub mounts: Vec<BindMount>,
}

/// Reason for which a layout cannot be made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError<E> {
    #[error("cannot mount on {}: it is a symbolic link in the image; use the directory that it points to", .0.display())]
    ThroughLink(PathBuf),
    #[error("cannot mount in {}: it is a file in the image, not a directory", .0.display())]
    ThroughFile(PathBuf),
    #[error(transparent)]
    Unreadable(E),
}

/// Plans the layout for the files below `root`, with these mounts, each with whether its source is a directory. `list`
/// reads a directory of the host, and returns nothing for one that does not exist.
///
/// # Errors
/// [`LayoutError`] for a mount that has no place, or an error of `list`.
pub fn layout<E>(
    root: &Path,
    mounts: &[(BindMount, bool)],
    list: impl FnMut(&Path) -> Result<Vec<ImageEntry>, E>,
) -> Result<Layout, LayoutError<E>> {
    let mut work = Work {
        root,
        list,
        layout: Layout::default(),
    };
    let all: Vec<&(BindMount, bool)> = mounts.iter().collect();
    work.open(Path::new("/"), &all)?;
    Ok(work.layout)
}

struct Work<'a, L> {
    root: &'a Path,
    list: L,
    layout: Layout,
}

impl<E, L: FnMut(&Path) -> Result<Vec<ImageEntry>, E>> Work<'_, L> {
    /// Opens a directory that cannot be mounted whole, because other mounts are below it.
    fn open(&mut self, at: &Path, mounts: &[&(BindMount, bool)]) -> Result<(), LayoutError<E>> {
        let next = |mount: &BindMount| {
            let rest = mount.target.strip_prefix(at).ok()?;
            rest.components()
                .next()
                .map(|part| part.as_os_str().to_owned())
        };
        let source = self.root.join(strip_root(at));
        let entries = (self.list)(&source).map_err(LayoutError::Unreadable)?;
        for ImageEntry { name, kind } in &entries {
            let path = at.join(name);
            let taken = mounts
                .iter()
                .filter(|(mount, _)| next(mount).as_ref() == Some(name));
            let inside = taken.clone().all(|(mount, _)| mount.target != path);
            match (kind, taken.count()) {
                (EntryKind::Link(text), 0) => {
                    self.layout.links.push((strip_root(&path), text.clone()))
                }
                (kind, 0) => self.place(&path, *kind == EntryKind::Directory, None),
                (EntryKind::Link(_), _) => return Err(LayoutError::ThroughLink(path)),
                (EntryKind::File, _) if inside => return Err(LayoutError::ThroughFile(path)),
                _ => {}
            }
        }
        let mut names: Vec<OsString> = Vec::new();
        for (mount, _) in mounts {
            if let Some(name) = next(mount).filter(|name| !names.contains(name)) {
                names.push(name);
            }
        }
        for name in names {
            let path = at.join(&name);
            let here = mounts.iter().copied();
            let here: Vec<_> = here
                .filter(|(mount, _)| mount.target.starts_with(&path))
                .collect();
            match here.iter().find(|(mount, _)| mount.target == path) {
                Some((mount, directory)) => {
                    self.place(&path, *directory, Some(mount));
                    // What lies in it finds its place there, or is refused by the runtime.
                    let inside = here.iter().filter(|(mount, _)| mount.target != path);
                    let inside = inside.map(|(mount, _)| mount.clone());
                    self.layout.mounts.extend(inside);
                }
                None => {
                    self.layout.directories.push(strip_root(&path));
                    self.open(&path, &here)?;
                }
            }
        }
        Ok(())
    }

    /// Creates a mount point, with a mount of the user's or of the image's own entry.
    fn place(&mut self, path: &Path, directory: bool, mount: Option<&BindMount>) {
        let places = match directory {
            true => &mut self.layout.directories,
            false => &mut self.layout.files,
        };
        places.push(strip_root(path));
        let own = || BindMount {
            source: self.root.join(strip_root(path)),
            target: path.to_owned(),
            read_only: true,
        };
        let mount = mount.cloned().unwrap_or_else(own);
        self.layout.mounts.push(mount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(of: &Path) -> Result<Vec<ImageEntry>, String> {
        let entry = |name: &str, kind| ImageEntry {
            name: name.into(),
            kind,
        };
        Ok(match of.to_str().unwrap() {
            "/image/" | "/image" => vec![
                entry("bin", EntryKind::Link("usr/bin".into())),
                entry("usr", EntryKind::Directory),
                entry("home", EntryKind::Directory),
                entry("tmp", EntryKind::Directory),
                entry("file", EntryKind::File),
            ],
            "/image/home" => vec![entry("other", EntryKind::Directory)],
            "/image/absent" => return Err("absent".into()),
            _ => Vec::new(),
        })
    }

    fn layout_of(mounts: &[&str]) -> Result<Layout, LayoutError<String>> {
        let mounts = mounts.iter().map(|text| {
            let mount = BindMount::parse(text.as_ref()).unwrap();
            (mount, !text.ends_with(".txt"))
        });
        layout(Path::new("/image"), &mounts.collect::<Vec<_>>(), entries)
    }

    #[test]
    fn directory_containing_mount_is_opened() {
        let layout = layout_of(&["/tmp", "/home/u/run", "/x/y.txt"]).unwrap();
        let texts = |paths: &[PathBuf]| -> Vec<String> {
            paths
                .iter()
                .map(|path| path.display().to_string())
                .collect()
        };
        assert_eq!(layout.links, [("bin".into(), "usr/bin".into())]);
        let directories = [
            "usr",
            "tmp",
            "home",
            "home/other",
            "home/u",
            "home/u/run",
            "x",
        ];
        assert_eq!(texts(&layout.directories), directories);
        assert_eq!(texts(&layout.files), ["file", "x/y.txt"]);
        let mounts: Vec<String> = layout.mounts.iter().map(ToString::to_string).collect();
        let expected = [
            "/image/usr:/usr:ro",
            "/image/file:/file:ro",
            "/tmp",
            "/image/home/other:/home/other:ro",
            "/home/u/run",
            "/x/y.txt",
        ];
        assert_eq!(mounts, expected);
    }

    #[test]
    fn mounts_through_links_or_files_are_refused() {
        let through = LayoutError::ThroughLink("/bin".into());
        assert_eq!(layout_of(&["/a:/bin/x"]), Err(through));
        let through = LayoutError::ThroughFile("/file".into());
        assert_eq!(layout_of(&["/a:/file/x"]), Err(through));
    }
}

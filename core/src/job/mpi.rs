//! MPI libraries as programs and users know them: their implementations, their binary interfaces, and the names by which one is
//! chosen.
//!
//! Rule: programs run with any library of the binary interface that they were built for. Source: MPI standard 5.0, chapter 20
//! (`libmpi_abi.so.1`); <https://www.mpich.org/abi/> (`libmpi.so.12`, which Debian calls `libmpich.so.12`); the library versions of
//! Open MPI 4 and 5 (`libmpi.so.40`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::octets;

/// Binary interface between programs and MPI libraries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MpiAbi {
    /// MPICH, Intel MPI, MVAPICH and others.
    Mpich,
    /// Open MPI 4 and 5.
    OpenMpi,
    /// The interface of the MPI standard.
    Standard,
}

impl MpiAbi {
    pub const ALL: [Self; 3] = [Self::Mpich, Self::OpenMpi, Self::Standard];

    /// The names (DT_SONAME) of libraries with this interface, the usual one first.
    pub fn sonames(self) -> &'static [&'static str] {
        match self {
            Self::Mpich => &["libmpi.so.12", "libmpich.so.12"],
            Self::OpenMpi => &["libmpi.so.40"],
            Self::Standard => &["libmpi_abi.so.1"],
        }
    }

    /// The interface of the library with this name.
    pub fn from_soname(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|abi| abi.sonames().contains(&name))
    }

    /// The interface of the library that one for another language (Fortran, C++) belongs to.
    pub fn from_companion(name: &str) -> Option<Self> {
        let (stem, version) = name.strip_prefix("libmpi")?.split_once(".so.")?;
        match version {
            _ if Self::from_soname(name).is_some() => None,
            "12" => Some(Self::Mpich),
            "40" => Some(Self::OpenMpi),
            "1" if stem.ends_with("_abi") => Some(Self::Standard),
            _ => None,
        }
    }

    /// The word for it in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mpich => "mpich",
            Self::OpenMpi => "openmpi",
            Self::Standard => "standard",
        }
    }
}

impl fmt::Display for MpiAbi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Mpich => "MPICH's ABI",
            Self::OpenMpi => "Open MPI's ABI",
            Self::Standard => "the standard ABI",
        };
        write!(f, "{name} ({})", self.sonames()[0])
    }
}

/// Implementation of MPI, under the name of its makers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MpiFamily {
    Mpich,
    Intel,
    Mvapich,
    OpenMpi,
}

impl MpiFamily {
    /// Words for the families, in front of a version; the first one of a family is its name.
    const WORDS: [(&'static str, Self); 7] = [
        ("mpich", Self::Mpich),
        ("impi", Self::Intel),
        ("intelmpi", Self::Intel),
        ("mvapich", Self::Mvapich),
        ("openmpi", Self::OpenMpi),
        ("open-mpi", Self::OpenMpi),
        ("ompi", Self::OpenMpi),
    ];

    /// The word for it in names of MPIs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mpich => "mpich",
            Self::Intel => "impi",
            Self::Mvapich => "mvapich",
            Self::OpenMpi => "openmpi",
        }
    }

    /// The interface to a launcher that it uses by default.
    pub fn launch_interface(self) -> &'static str {
        match self {
            Self::OpenMpi => "pmix",
            Self::Mpich | Self::Intel | Self::Mvapich => "pmi",
        }
    }
}

impl fmt::Display for MpiFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mpich => "MPICH",
            Self::Intel => "Intel MPI",
            Self::Mvapich => "MVAPICH",
            Self::OpenMpi => "Open MPI",
        })
    }
}

/// An MPI that is installed on a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MpiInstallation {
    pub family: MpiFamily,
    /// Release, if its library has it.
    pub version: Option<String>,
    /// The library of each binary interface that it has; never empty.
    pub libraries: BTreeMap<MpiAbi, PathBuf>,
    /// Variable, directory or tool by which it was found.
    pub source: String,
    /// Variables that its ranks need.
    pub variables: Vec<(OsString, OsString)>,
}

impl MpiInstallation {
    /// The shortest name that distinguishes it from other versions: family and first number of the version.
    pub fn name(&self) -> String {
        let major = self.version.as_deref().and_then(|it| it.split('.').next());
        format!("{}{}", self.family.as_str(), major.unwrap_or_default())
    }

    /// Directory of its libraries.
    pub fn directory(&self) -> &Path {
        let library = self.libraries.values().next().and_then(|it| it.parent());
        library.unwrap_or_else(|| Path::new("/"))
    }
}

impl fmt::Display for MpiInstallation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.version {
            Some(version) => write!(f, "{} {version}", self.family)?,
            None => write!(f, "{} of unknown version", self.family)?,
        }
        write!(f, " in {}", self.directory().display())
    }
}

/// A family and the beginning of a version: `mpich`, `mpich5`, `impi2021.19`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MpiSelector {
    family: MpiFamily,
    /// Numbers with dots between them; any version if empty.
    version: String,
}

impl MpiSelector {
    /// Parses the name of an MPI; `None` for a name that means no family.
    pub fn parse(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        MpiFamily::WORDS.into_iter().find_map(|(word, family)| {
            let version = name.strip_prefix(word)?;
            let version = version.trim_start_matches(['-', '@', '/']);
            let mut bytes = version.bytes();
            let is_version = bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'.')
                && !version.starts_with(|c: char| !c.is_ascii_digit());
            is_version.then(|| Self {
                family,
                version: version.to_owned(),
            })
        })
    }

    /// Whether an installation has this name.
    pub fn matches(&self, installation: &MpiInstallation) -> bool {
        if self.family != installation.family {
            return false;
        }
        let version = installation.version.as_deref().unwrap_or_default();
        match version.strip_prefix(self.version.as_str()) {
            Some(rest) => {
                self.version.is_empty() || !rest.starts_with(|c: char| c.is_ascii_digit())
            }
            None => false,
        }
    }
}

/// An MPI that a site or a user has named (`--define-mpi`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MpiDefinition {
    pub name: String,
    /// Directory of the installation or of its libraries, or one of these.
    #[serde(with = "octets")]
    pub path: PathBuf,
    /// Variables that its ranks get.
    #[serde(with = "octets")]
    pub variables: Vec<(OsString, OsString)>,
}

/// A text that defines no MPI.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("give NAME=PATH with an absolute path, then VARIABLE=VALUE, separated by blanks")]
pub struct InvalidMpiDefinition;

impl MpiDefinition {
    /// Parses the value of `--define-mpi`.
    ///
    /// # Errors
    /// [`InvalidMpiDefinition`] for any other text.
    pub fn parse(text: &str) -> Result<Self, InvalidMpiDefinition> {
        let mut words = text.split_ascii_whitespace().map(|word| {
            let (name, value) = word.split_once('=')?;
            (!name.is_empty()).then_some((name, value))
        });
        let first = words.next().flatten().ok_or(InvalidMpiDefinition)?;
        let (name, path) = (first.0.to_owned(), PathBuf::from(first.1));
        let variables = words.map(|word| word.map(|(name, value)| (name.into(), value.into())));
        let variables = variables.collect::<Option<_>>();
        if name.contains('/') || !path.is_absolute() {
            return Err(InvalidMpiDefinition);
        }
        Ok(Self {
            name,
            path,
            variables: variables.ok_or(InvalidMpiDefinition)?,
        })
    }
}

/// The MPI that the ranks of a program shall load.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MpiSpec {
    /// A name or a path; the program's own MPI when absent.
    #[serde(with = "octets")]
    pub choice: Option<OsString>,
    /// MPIs that names may mean besides those of the host.
    pub definitions: Vec<MpiDefinition>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installed(family: MpiFamily, version: &str) -> MpiInstallation {
        MpiInstallation {
            family,
            version: (!version.is_empty()).then(|| version.to_owned()),
            libraries: BTreeMap::from([(MpiAbi::Mpich, "/opt/m/lib/libmpi.so.12".into())]),
            source: String::new(),
            variables: Vec::new(),
        }
    }

    #[test]
    fn abi_follows_soname_or_companion() {
        assert_eq!(MpiAbi::from_soname("libmpich.so.12"), Some(MpiAbi::Mpich));
        assert_eq!(
            MpiAbi::from_soname("libmpi_abi.so.1"),
            Some(MpiAbi::Standard)
        );
        assert_eq!(MpiAbi::from_soname("libmpifort.so.12"), None);
        for (name, abi) in [
            ("libmpifort.so.12", Some(MpiAbi::Mpich)),
            ("libmpichfort.so.12", Some(MpiAbi::Mpich)),
            ("libmpi_mpifh.so.40", Some(MpiAbi::OpenMpi)),
            ("libmpifort_abi.so.1", Some(MpiAbi::Standard)),
            ("libmpi.so.40", None),
            ("libmpijava.so.1", None),
        ] {
            assert_eq!(MpiAbi::from_companion(name), abi, "{name}");
        }
    }

    #[test]
    fn mpi_selector_matches_family_with_version_prefix() {
        let mpich = installed(MpiFamily::Mpich, "5.0.2");
        let matches = |name: &str, found: &MpiInstallation| {
            MpiSelector::parse(name).is_some_and(|selector| selector.matches(found))
        };
        for name in ["mpich", "mpich5", "MPICH-5.0", "mpich@5.0.2"] {
            assert!(matches(name, &mpich), "{name}");
        }
        for name in ["mpich4", "mpich50", "mpich5.0.22", "impi", "openmpi5"] {
            assert!(!matches(name, &mpich), "{name}");
        }
        assert!(matches(
            "impi2021.19",
            &installed(MpiFamily::Intel, "2021.19.0")
        ));
        assert!(matches("mvapich2", &installed(MpiFamily::Mvapich, "2.3.7")));
        assert!(matches("mpich", &installed(MpiFamily::Mpich, "")));
        assert!(!matches("mpich5", &installed(MpiFamily::Mpich, "")));
        for name in ["", "mpi", "mpichx", "lam", "mpich_abi"] {
            assert_eq!(MpiSelector::parse(name), None, "{name}");
        }
        assert_eq!(mpich.name(), "mpich5");
        assert_eq!(installed(MpiFamily::Intel, "").name(), "impi");
    }

    #[test]
    fn mpi_definition_has_path_with_variables() {
        let parsed = MpiDefinition::parse("site=/opt/mpi FI_PROVIDER=tcp A=b=c").unwrap();
        assert_eq!(
            (parsed.name.as_str(), &*parsed.path),
            ("site", Path::new("/opt/mpi"))
        );
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        assert_eq!(
            parsed.variables,
            [pair("FI_PROVIDER", "tcp"), pair("A", "b=c")]
        );
        for wrong in ["", "site", "site=opt", "=/opt", "a/b=/opt", "site=/opt x"] {
            assert!(MpiDefinition::parse(wrong).is_err(), "{wrong}");
        }
    }
}

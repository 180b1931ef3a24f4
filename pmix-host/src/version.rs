//! What libpmix calls itself, and which versions we accept.
#![cfg_attr(not(have_pmix), allow(dead_code, reason = "no libpmix to ask"))]

/// major.minor.release; whatever follows the last number is ignored, so that Debian's `4.2.2rc2`
/// counts as 4.2.2.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Version(u32, u32, u32);

/// Oldest version that has every function we call.
const OLDEST: Version = Version(4, 2, 2);

impl Version {
    /// Finds the version in the text of `PMIx_Get_version`, `OpenPMIx 5.0.1, repo rev: …`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let start = text.find(|c: char| c.is_ascii_digit())?;
        let mut parts = text[start..].splitn(3, '.').map(|part| {
            let end = part
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(part.len());
            part[..end].parse::<u32>().ok()
        });
        Some(Self(parts.next()??, parts.next()??, parts.next()??))
    }

    /// Major and minor number.
    pub(crate) fn release(self) -> (u32, u32) {
        (self.0, self.1)
    }

    /// A warning about the version, if there is one.
    ///
    /// # Errors
    /// [`TooOld`]
    pub(crate) fn judge(self) -> Result<Option<&'static str>, TooOld> {
        if self < OLDEST {
            return Err(TooOld(self));
        }
        // CVE-2023-41915 was fixed in 4.2.6 and 5.0.1.
        let vulnerable = self < Self(4, 2, 6) || self == Self(5, 0, 0);
        Ok(vulnerable.then_some(
            "is older than the fix of CVE-2023-41915 (4.2.6, 5.0.1), unless your distribution patched it",
        ))
    }
}

/// A version that cannot serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} is too old, {OLDEST} or later is needed")]
pub(crate) struct TooOld(Version);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_real_libraries_say() {
        let debian =
            "OpenPMIx 4.2.2rc2 (PMIx Standard: 4.2, Stable ABI: 0.0, Provisional ABI: 0.0)";
        assert_eq!(Version::parse(debian), Some(Version(4, 2, 2)));
        let wheel =
            "OpenPMIx 5.0.11rc1 (PMIx Standard: 5.1, Stable ABI: 5.0, Provisional ABI: 5.0)";
        assert_eq!(Version::parse(wheel), Some(Version(5, 0, 11)));
        assert_eq!(
            Version::parse("OpenPMIx 6.1.0, repo"),
            Some(Version(6, 1, 0))
        );
        for bad in ["", "OpenPMIx", "5", "5.0", "5.0.x", "99999999999.0.0"] {
            assert_eq!(Version::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn old_versions_are_refused_and_vulnerable_ones_warned_about() {
        assert!(Version(4, 2, 1).judge().is_err());
        assert!(Version(3, 9, 9).judge().is_err());
        for (version, warns) in [
            (Version(4, 2, 2), true),
            (Version(4, 2, 5), true),
            (Version(4, 2, 6), false),
            (Version(5, 0, 0), true),
            (Version(5, 0, 1), false),
            (Version(6, 1, 0), false),
        ] {
            assert_eq!(
                version.judge().map(|warning| warning.is_some()),
                Ok(warns),
                "{version}"
            );
        }
    }
}

//! Names of jobs.
//!
//! Rule: Open MPI 5 knows a job by 16 bits of a hash of its name, and takes two jobs with the same bits
//! for one: what spawns the second fails or waits for ever. By chance that would happen to every
//! thirteenth launch that spawns a hundred times, so a job gets a name whose bits no other job of its
//! launch has had. Source: `opal_pmix_convert_nspace` and `OPAL_HASH_STR` of Open MPI 5.0.

use std::cell::RefCell;
use std::collections::HashSet;

use wireup_core::failure::CommandError;
use wireup_core::job::ids::Nspace;

/// Attempts before a name with used bits is taken: after many jobs of one launch hardly any others are left.
const TRIES: u32 = 100;

/// What jobs of a launch have been called, as far as it matters for further ones.
#[derive(Clone, Debug, Default)]
pub struct JobNames {
    families: RefCell<HashSet<u16>>,
}

impl JobNames {
    /// Those of a launch whose first job has this one.
    pub(crate) fn new(first: &Nspace) -> Self {
        Self {
            families: HashSet::from([openmpi_family(first)]).into(),
        }
    }

    /// A name that no other job has had on this machine, and that cannot be guessed: PMIx lets
    /// every local process that knows it pose as a rank.
    ///
    /// # Errors
    /// [`CommandError`] when the system has no random numbers.
    pub(crate) fn fresh(&self) -> Result<Nspace, CommandError> {
        let mut families = self.families.borrow_mut();
        let mut name = random()?;
        for _ in 1..TRIES {
            if !families.contains(&openmpi_family(&name)) {
                break;
            }
            name = random()?;
        }
        families.insert(openmpi_family(&name));
        Ok(name)
    }
}

fn random() -> Result<Nspace, CommandError> {
    let mut random = [0u8; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| CommandError::system("no random numbers", errno))?;
    let name = format!("wireup-{:016x}", u64::from_le_bytes(random));
    Ok(Nspace::new(&name).expect("letters, digits and a dash"))
}

/// What Open MPI 5 knows a job by.
pub(crate) fn openmpi_family(name: &Nspace) -> u16 {
    let mixed = name.as_str().bytes().fold(0u32, |hash, byte| {
        let hash = hash.wrapping_add(u32::from(byte));
        let hash = hash.wrapping_add(hash << 10);
        hash ^ (hash >> 6)
    });
    let hash = mixed.wrapping_add(mixed << 3);
    let hash = hash ^ (hash >> 11);
    let hash = hash.wrapping_add(hash << 15);
    (hash >> 16) as u16 ^ hash as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn family_equals_hash_of_open_mpi() {
        // The upper half of the "process" that its MPI_ERRORS_ARE_FATAL reports (5.0.11).
        for (name, process) in [
            ("wireup-c8881f7f14013a39", 3_016_491_008_u32),
            ("wireup-742e807be6704806", 211_615_744),
            ("wireup-2ee5a3230c9fc073", 2_604_859_392),
        ] {
            let name = Nspace::new(name).unwrap();
            assert_eq!(u32::from(openmpi_family(&name)) << 16, process, "{name}");
        }
    }

    #[test]
    fn jobs_of_launch_are_distinct_for_open_mpi() {
        let names = JobNames::default();
        for jobs in 1..=20_000 {
            names.fresh().unwrap();
            assert_eq!(names.families.borrow().len(), jobs);
        }
        // None is left: a name all the same.
        names.families.borrow_mut().extend(0..=u16::MAX);
        names.fresh().unwrap();
    }
}

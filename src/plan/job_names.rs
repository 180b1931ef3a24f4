//! Makes names of jobs.
//!
//! Rule: Open MPI 5 identifies a job by 16 bits of a hash of its name, and confuses two jobs with the same bits:
//! the process that spawns the second fails or waits for ever. With random names this would happen in one of
//! thirteen launches with a hundred spawns, so a job gets a name whose bits no earlier job of its
//! launch had. Source: `opal_pmix_convert_nspace` and `OPAL_HASH_STR` of Open MPI 5.0.

use std::cell::RefCell;
use std::collections::HashSet;

use wireup_core::failure::CommandError;
use wireup_core::job::ids::Nspace;

/// Number of attempts before a name with used bits is accepted: after many jobs of one launch hardly any bits are unused.
const TRIES: u32 = 100;

/// Hash bits of the names of a launch's jobs, which names of further jobs must not have.
#[derive(Clone, Debug, Default)]
pub struct JobNames {
    families: RefCell<HashSet<u16>>,
}

impl JobNames {
    /// Starts with the name of the initial job.
    pub(crate) fn new(first: &Nspace) -> Self {
        Self {
            families: HashSet::from([openmpi_family(first)]).into(),
        }
    }

    /// Makes a name that no other job on this machine had and that cannot be guessed: with the name, every local
    /// process can connect to the PMIx server as a rank.
    ///
    /// # Errors
    /// [`CommandError`] when the system returns no random numbers.
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

/// Hash bits by which Open MPI 5 identifies a job.
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
        // Number of the "process" in texts of MPI_ERRORS_ARE_FATAL (Open MPI 5.0.11); the bits are its upper half.
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
        // All bits are used: one more name is made.
        names.families.borrow_mut().extend(0..=u16::MAX);
        names.fresh().unwrap();
    }
}

//! `mpiexec -pmi_args PORT INTERFACE KEY PID`, which programs of MPICH and Intel MPI that were started without a launcher
//! execute when they spawn: a launch whose rank 0 is that program.

use std::ffi::OsString;

use super::serve::become_proxies;
use crate::rank_proxy::mpich_singleton;
use wireup_core::failure::CommandError;

/// Command of the rank proxy; started by launches.
pub(super) const RANK_COMMAND: &str = "singleton-rank";

/// Option that identifies the line.
const OPTION: &str = "-pmi_args";

/// Returns the words after the option of mpiexec, if the line has it: port, interface, key and pid.
pub(super) fn arguments(words: &[OsString]) -> Option<&[OsString]> {
    let at = words.iter().position(|word| word == OPTION)?;
    // Only options of Hydra without a value precede it.
    let is_plain = |word: &OsString| word == "-v" || word == "-verbose";
    words[..at].iter().all(is_plain).then(|| &words[at + 1..])
}

/// Executes `wireup run`; returns only if that fails.
pub(super) fn execute(arguments: &[OsString]) -> CommandError {
    let [port, _interface, key, _pid] = arguments else {
        let text = format!("{OPTION} needs PORT INTERFACE KEY PID; programs that spawn write it");
        return CommandError::request(text);
    };
    let options = ["--pmi", "pmi1", "--oversubscribe", "-n", "1"].map(OsString::from);
    become_proxies(options, RANK_COMMAND, [port.clone(), key.clone()])
}

/// Runs the rank proxy of the program; `words` are those after the command.
pub(super) fn rank(words: &[OsString]) -> Result<u8, CommandError> {
    if let [port, key] = words
        && let (Some(port), Some(key)) = (port.to_str(), key.to_str())
        && let Ok(port) = port.parse()
    {
        return mpich_singleton::serve(port, key);
    }
    let text = format!("{RANK_COMMAND} needs PORT KEY");
    Err(CommandError::request(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_of_mpich_singleton_is_parsed() {
        let words = |text: &str| -> Vec<OsString> { text.split(' ').map(OsString::from).collect() };
        let line = words("-v -pmi_args 4711 default_interface default_key 99");
        assert_eq!(arguments(&line), Some(&line[2..]));
        assert_eq!(arguments(&words("-n 2 ./app -pmi_args 4711")), None);
        assert!(matches!(execute(&line[..2]), CommandError::Request(_)));
    }
}

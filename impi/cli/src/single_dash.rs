//! The specification's spelling: `-server COUNT -port PORT -auth LIST`. Source: IMPI 2.2.1, 2.3.3.

use std::ffi::OsString;

/// Returns the same words in the form that clap reads.
pub fn respell(args: Vec<OsString>) -> Vec<OsString> {
    if args
        .get(1)
        .is_none_or(|word| word != "-server" && word != "--server")
    {
        return args;
    }
    let words = args
        .into_iter()
        .enumerate()
        .map(|(at, word)| match word.to_str() {
            Some("-server" | "--server") if at == 1 => "server".into(),
            Some("-port") => "--port".into(),
            Some("-auth") => "--auth".into(),
            _ => word,
        });
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_of_specification_is_parsed() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(
            respell(words("wireup -server 2 -port 5678 -auth 3,1-0")),
            words("wireup server 2 --port 5678 --auth 3,1-0")
        );
        assert_eq!(
            respell(words("wireup decode -port")),
            words("wireup decode -port")
        );
    }
}

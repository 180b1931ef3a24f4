//! The specification's spelling: `-server COUNT -port PORT -auth LIST -file FILE`, and `-client K HOST:PORT` with the options of
//! `agent` behind it. Source: IMPI 2.2.1, 2.3.3.

use std::ffi::OsString;

/// Returns the same words in the form that clap reads.
pub fn respell(args: Vec<OsString>) -> Vec<OsString> {
    match args.get(1).and_then(|word| word.to_str()) {
        Some("-server" | "--server") => respell_server(args),
        Some("-client" | "--client") if args.len() > 3 => respell_client(args),
        _ => args,
    }
}

fn respell_server(args: Vec<OsString>) -> Vec<OsString> {
    let words = args
        .into_iter()
        .enumerate()
        .map(|(at, word)| match word.to_str() {
            Some("-server" | "--server") if at == 1 => "server".into(),
            Some("-port") => "--port".into(),
            Some("-auth") => "--auth".into(),
            Some("-file") => "--file".into(),
            Some("-print-server") => "--print-server".into(),
            _ => word,
        });
    words.collect()
}

fn respell_client(mut args: Vec<OsString>) -> Vec<OsString> {
    let rest = args.split_off(4);
    args.swap(2, 3);
    args[1] = "agent".into();
    args.insert(3, "--client".into());
    args.extend(rest);
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_of_specification_is_parsed() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(
            respell(words(
                "wireup -server 2 -port 5678 -auth 3,1-0 -file f -print-server"
            )),
            words("wireup server 2 --port 5678 --auth 3,1-0 --file f --print-server")
        );
        assert_eq!(
            respell(words(
                "wireup -client 1 10.0.0.1:5678 -n 2 -- mpiexec -client"
            )),
            words("wireup agent 10.0.0.1:5678 --client 1 -n 2 -- mpiexec -client")
        );
        assert_eq!(
            respell(words("wireup decode -port")),
            words("wireup decode -port")
        );
    }
}

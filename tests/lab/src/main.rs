//! `lab`: several hosts on this machine, for use by hand. The hosts are gone when it ends.

use std::ffi::OsString;
use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use wireup_lab::{Host, Lab, UNREACHABLE, remote_shell};

const USAGE: &str = "usage: lab N [--share DIRECTORY]...
       lab rsh [OPTION]... HOST WORD...

Starts hosts node01 to nodeN, then reads commands from standard input:

  HOST COMMAND...    runs a command line of the shell on a host, as root
  hosts              names, addresses and first processes (for nsenter --all --target PID)
  ps HOST            what runs there
  files HOST         what lies in its own /tmp, /run and /dev/shm
  partition A B      loses all that two hosts send to each other
  isolate HOST       the same between it and all others
  heal [A B]         undoes partitions
  slow MS PERCENT    delays all that hosts send by MS and loses PERCENT of it; slow 0 0 undoes it
  down HOST          pulls its cable; up HOST plugs it in again
  pause HOST         stops all processes; resume HOST continues them
  kill HOST          kills all processes
  crash HOST         as a loss of power
  exit               as the end of the input: ends all hosts

--share keeps a directory below /tmp, /run or /dev/shm visible on the hosts.

lab rsh, called on a host, runs a command on another one as ssh does: words are joined with blanks
and given to a shell, with root's login environment. Options of ssh are accepted without effect. Under
the name rsh (a link to it) the program does the same without the first word.

Needs root and iproute2.";

fn main() -> ExitCode {
    let mut words = std::env::args();
    let name = words.next().unwrap_or_default();
    // A launcher's option for the program in place of ssh takes one path.
    if Path::new(&name)
        .file_name()
        .is_some_and(|name| name == "rsh")
    {
        return rsh(words);
    }
    if words.next().as_deref() == Some("rsh") {
        return rsh(words);
    }
    match lab() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("lab: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Options of `ssh` that have a value as a word of its own.
const WITH_VALUE: &str = "BbcDEeFIiJLlmOopQRSWw";

fn rsh(mut words: impl Iterator<Item = String>) -> ExitCode {
    let host = loop {
        match words.next() {
            Some(word) if word.len() == 2 && word.starts_with('-') => {
                if WITH_VALUE.contains(&word[1..]) {
                    words.next();
                }
            }
            Some(word) if word.starts_with('-') => {}
            Some(host) => break host,
            None => {
                eprintln!("{USAGE}");
                return ExitCode::from(UNREACHABLE);
            }
        }
    };
    let command: Vec<String> = words.collect();
    match remote_shell(&host, &command.join(" ")) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("lab: rsh: {error}");
            ExitCode::from(UNREACHABLE)
        }
    }
}

fn lab() -> Result<(), String> {
    let mut words = std::env::args_os().skip(1);
    let count = words.next().and_then(|word| word.to_str()?.parse().ok());
    let Some(count) = count else {
        println!("{USAGE}");
        return Ok(());
    };
    let mut builder = Lab::builder(count);
    while let Some(word) = words.next() {
        let directory: Option<OsString> = (word == "--share").then(|| words.next()).flatten();
        let directory = directory.ok_or_else(|| format!("what is {}?\n{USAGE}", word.display()))?;
        builder = builder.share(directory);
    }
    let lab = builder.start().map_err(|error| error.to_string())?;
    list(&lab);
    let served = lab.with_remote_shell(|| read_commands(&lab));
    served.map_err(|error| error.to_string())
}

fn read_commands(lab: &Lab) {
    let terminal = std::io::stdin().is_terminal();
    loop {
        if terminal {
            print!("lab> ");
            let _ = std::io::stdout().flush();
        }
        let mut line = String::new();
        // Not held over the command, which may read the rest.
        let read = std::io::stdin().lock().read_line(&mut line);
        match (read, line.trim()) {
            (Ok(0) | Err(_), _) | (_, "exit") => return,
            (_, "") => {}
            (_, line) => {
                if let Err(message) = obey(lab, line) {
                    eprintln!("lab: {message}");
                }
            }
        }
    }
}

fn list(lab: &Lab) {
    for host in lab.hosts() {
        let state = if host.has_crashed() { " crashed" } else { "" };
        let (name, v4, v6) = (host.name(), host.ipv4(), host.ipv6());
        println!("{name} {v4} {v6} process {}{state}", host.init_pid());
    }
}

fn obey(lab: &Lab, line: &str) -> Result<(), String> {
    let find = |name: &str| {
        lab.named(name)
            .ok_or_else(|| format!("no command or host {name:?}: try help"))
    };
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let done = match words[..] {
        ["help"] => {
            println!("{USAGE}");
            Ok(())
        }
        ["hosts"] => {
            list(lab);
            Ok(())
        }
        ["heal"] => lab.heal_all(),
        ["heal", one, other] => lab.heal(find(one)?, find(other)?),
        ["partition", one, other] => lab.partition(find(one)?, find(other)?),
        ["isolate", host] => lab.isolate(find(host)?),
        ["slow", delay, loss] => {
            let number = |word: &str| word.parse().map_err(|_| format!("{word} is no number"));
            let delay = std::time::Duration::from_millis(number(delay)?);
            let loss = u8::try_from(number(loss)?).map_err(|error| error.to_string())?;
            lab.slow_down(delay, loss)
        }
        ["down", host] => lab.link_down(find(host)?),
        ["up", host] => lab.link_up(find(host)?),
        ["pause", host] => find(host)?.pause(),
        ["resume", host] => find(host)?.resume(),
        ["kill", host] => find(host)?.kill_all(),
        ["crash", host] => lab.crash(find(host)?),
        ["ps", host] => {
            for process in find(host)?.processes() {
                println!("{process}");
            }
            Ok(())
        }
        ["files", host] => {
            for file in find(host)?.files() {
                println!("{}", file.display());
            }
            Ok(())
        }
        _ => {
            let (name, command) = line.split_once(' ').unwrap_or((line, "exec sh -i"));
            return run(find(name)?, command);
        }
    };
    done.map_err(|error| error.to_string())
}

fn run(host: &Host, command: &str) -> Result<(), String> {
    let status = host.command("sh").args(["-c", command]).status();
    let status = status.map_err(|error| error.to_string())?;
    if !status.success() {
        eprintln!("lab: {}: {status}", host.name());
    }
    Ok(())
}

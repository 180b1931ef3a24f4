//! Names the process that sent a signal, for the line about the end of a job.

use std::fs;
use std::path::Path;

/// Describes a sender, for example `pid 4711 (wireup kill, user alice)`, as far as it is known.
pub fn describe(pid: i32, uid: u32) -> String {
    let user = user_of(uid, &fs::read_to_string("/etc/passwd").unwrap_or_default());
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    match program_of(&line) {
        Some(program) => format!("pid {pid} ({program}, {user})"),
        None => format!("pid {pid} ({user})"),
    }
}

/// Returns the program of a command line from the kernel, without its directory; of wireup also the command.
fn program_of(line: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(line);
    let mut words = text.split('\0');
    let name = Path::new(words.next()?).file_name()?.to_str()?.to_owned();
    Some(match (name.as_str(), words.next()) {
        ("wireup", Some(command)) if !command.is_empty() => format!("{name} {command}"),
        _ => name,
    })
}

/// Returns the user's name from the file alone: the launcher is linked without the C library's name services.
fn user_of(uid: u32, passwd: &str) -> String {
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid.to_string()).then_some(name)
    });
    match name {
        Some(name) => format!("user {name}"),
        None => format!("user {uid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sender_is_named_by_program_and_user() {
        let program = |line: &[u8]| program_of(line);
        assert_eq!(
            program(b"/opt/bin/wireup\0kill\x003f\0"),
            Some("wireup kill".to_owned())
        );
        assert_eq!(program(b"-bash\0"), Some("-bash".to_owned()));
        assert_eq!(program(b""), None);
        let passwd = "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n";
        assert_eq!(user_of(1000, passwd), "user alice");
        assert_eq!(user_of(7, passwd), "user 7");
    }
}

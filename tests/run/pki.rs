//! `wireup pki`, through the executable that users call.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::{Outcome, Run};
use crate::users::{USER, as_user};

const WIREUP: &str = env!("CARGO_BIN_EXE_wireup");

/// `wireup pki` on an authority's directory.
fn pki(dir: &Path, words: &[&str]) -> Outcome {
    let dir = dir.to_str().unwrap();
    let command = [WIREUP, "pki", "--dir", dir];
    Run::command(command.iter().chain(words)).run()
}

fn shown(dir: &Path) -> Vec<Value> {
    let out = pki(dir, &["show", "--json"]).expect_quiet_success().out();
    serde_json::from_str(&out).unwrap()
}

/// Whether OpenSSL, if it is there, takes the certificate for what it is to be used for.
fn openssl_agrees(dir: &Path, name: &str, purpose: &str) -> Option<bool> {
    let output = Command::new("openssl")
        .args(["verify", "-x509_strict", "-purpose", purpose, "-CAfile"])
        .arg(dir.join("ca.pem"))
        .arg(dir.join(name).join("cert.pem"))
        .output();
    output.ok().map(|output| output.status.success())
}

#[test]
fn certificates_are_made_shown_and_renewed() {
    let top = tempfile::tempdir().unwrap();
    let dir = &top.path().join("pki");
    let outcome = pki(dir, &["init", "--name", "cluster a"]).expect(0);
    outcome.expect_one_line(&["made ", "cluster a", "valid until 2"]);
    let issued = pki(dir, &["issue", "--name", "n1", "--name", "n2"]).expect(0);
    let next = issued.err();
    assert!(
        next.contains("wireup: next, ") && next.contains("push"),
        "{next}"
    );
    assert!(
        next.contains("wireup-agent") || next.contains("wireup agent"),
        "{next}"
    );
    let words = [
        "issue",
        "--name",
        "slurm",
        "--role",
        "scheduler",
        "--days",
        "9",
    ];
    pki(dir, &words).expect(0);
    let all = shown(dir);
    let column = |name: &str| -> Vec<String> {
        let cells = all.iter().map(|one| one[name].to_string());
        cells
            .map(|cell| cell.trim_matches('"').to_owned())
            .collect()
    };
    assert_eq!(column("name"), ["CN=cluster a", "n1", "n2", "slurm"]);
    assert_eq!(column("role"), ["authority", "node", "node", "scheduler"]);
    assert_eq!(column("days"), ["3649", "364", "364", "8"]);
    let key = dir.join("slurm/key.pem");
    assert_eq!(
        fs::metadata(&key).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let before = fs::read(&key).unwrap();
    let renewed = pki(dir, &["renew"]).expect(0);
    renewed.expect_one_line(&["renewed ", "scheduler slurm"]);
    assert!(fs::read(&key).unwrap() != before);
    assert_eq!(shown(dir)[3]["days"], 364);
    let table = pki(dir, &["show"]).expect_quiet_success().out();
    assert!(table.starts_with("NAME "), "{table}");
    for (name, purpose, agrees) in [
        ("n1", "sslserver", true),
        ("n1", "sslclient", true),
        ("slurm", "sslclient", true),
        ("slurm", "sslserver", false),
    ] {
        let verdict = openssl_agrees(dir, name, purpose).unwrap_or(agrees);
        assert_eq!(verdict, agrees, "{name} {purpose}");
    }
}

#[test]
fn revoke_names_command_that_copies_list() {
    let top = tempfile::tempdir().unwrap();
    let dir = &top.path().join("pki");
    pki(dir, &["init"]).expect(0);
    pki(dir, &["issue", "--name", "n[1-2]"]).expect(0);
    let revoked = pki(dir, &["revoke", "--name", "n1"]).expect(0).err();
    let command = format!("(wireup pki --dir {} push --hosts LIST)", dir.display());
    assert!(revoked.contains(&command), "{revoked}");
    let to = top.path().join("tls");
    let push = ["push", "--hosts", "n2", "--to", to.to_str().unwrap()];
    pki(dir, &push).expect(0);
    let list = |path: &Path| fs::read(path.join("crl.pem")).unwrap();
    assert_eq!(list(&to.join("n2")), list(dir));
}

#[test]
fn impossible_pki_request_is_refused_in_one_line() {
    let top = tempfile::tempdir().unwrap();
    let dir = &top.path().join("pki");
    let refuses = |words: &[&str], needed: &[&str]| {
        let outcome = pki(dir, words).expect(125);
        outcome.expect_one_line(needed);
        assert_eq!(outcome.err().lines().count(), 1, "{outcome:?}");
    };
    refuses(
        &["issue", "--name", "n1"],
        &["no authority in", "wireup pki init"],
    );
    pki(dir, &["init"]).expect(0);
    refuses(&["init"], &["already exists"]);
    refuses(&["issue"], &["--name"]);
    refuses(&["issue", "--name", "a/b"], &["invalid name \"a/b\""]);
    refuses(&["init", "--days", "0"], &["'0' for '--days"]);
    refuses(&["show", "/no/such.pem"], &["/no/such.pem: No such file"]);
    fs::set_permissions(dir.join("ca.key"), fs::Permissions::from_mode(0o644)).unwrap();
    refuses(
        &["issue", "--name", "n1"],
        &["may be read by others (mode 0644)", "chmod 600"],
    );
    assert!(!dir.join("n1").exists());
}

#[test]
fn authority_of_ordinary_user_is_private_in_home() {
    let Some(user) = as_user() else { return };
    let here = crate::users::Reachable::new();
    let agent = Path::new(WIREUP).with_file_name("wireup-agent");
    here.copy(&agent);
    let home = tempfile::tempdir().unwrap();
    let id = USER.parse().unwrap();
    std::os::unix::fs::chown(home.path(), Some(id), Some(id)).unwrap();
    let wireup = here.wireup();
    let run = |words: &[&str]| {
        let words = words.iter().map(Path::new);
        let words = [wireup.as_path(), Path::new("pki")]
            .into_iter()
            .chain(words);
        Run::command(words)
            .env("HOME", home.path())
            .under(["env", "-u", "XDG_CONFIG_HOME"])
            .under(&user)
            .run()
    };
    run(&["init"]).expect(0);
    let dir = home.path().join(".config/wireup/pki");
    assert_eq!(
        fs::metadata(&dir).unwrap().permissions().mode() & 0o777,
        0o700
    );
    run(&["issue", "--name", "n[1-2]"]).expect(0);
    run(&["issue", "--name", "s", "--role", "scheduler"]).expect(0);
    // Each node is another home here, and has a shell.
    let by = format!("env HOME={}/{{host}}", home.path().display());
    for _ in 0..2 {
        let pushed = run(&["push", "--by", &by]).expect(0).err();
        assert_eq!(
            pushed.matches("copied the certificate of n").count(),
            2,
            "{pushed}"
        );
    }
    for name in ["n1", "n2"] {
        let copy = home
            .path()
            .join(format!("{name}/.config/wireup/tls/{name}"));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&copy), 0o700);
        assert_eq!(mode(&copy.join("key.pem")), 0o600);
        let mut files: Vec<_> = fs::read_dir(&copy)
            .unwrap()
            .map(|it| it.unwrap().file_name())
            .collect();
        files.sort();
        assert_eq!(files, ["ca.pem", "cert.pem", "key.pem"]);
        for file in files {
            let [from, to] =
                [dir.join(name), copy.clone()].map(|in_dir| fs::read(in_dir.join(&file)).unwrap());
            assert_eq!(from, to, "{file:?}");
        }
    }
    let shared = home.path().join("shared");
    run(&["push", "--hosts", "n2", "--to", shared.to_str().unwrap()]).expect(0);
    assert!(shared.join("n2/key.pem").exists() && !shared.join("n1").exists());
    let failed = run(&["push", "--hosts", "n1", "--by", "false {host}"]).expect(1);
    failed.expect_one_line(&[
        "cannot copy the certificate of n1: false n1 sh ended with exit status: 1",
    ]);
    let missing = run(&["push", "--hosts", "n[1-3]", "--to", "/"]).expect(125);
    missing.expect_one_line(&["n3 has no certificate in", "wireup pki issue --name n3"]);
    // Another user's is not used, even where it could be.
    std::os::unix::fs::chown(&dir, Some(id + 1), Some(id)).unwrap();
    let refused = pki(&dir, &["issue", "--name", "n1"]).expect(125);
    refused.expect_one_line(&["belongs to user id 54322; it must belong to user id 0 or root"]);
}

#[test]
fn command_without_its_executable_is_described_and_refused() {
    let here = crate::users::Reachable::new();
    let wireup = here.wireup();
    let wireup = wireup.to_str().unwrap();
    let help = Run::command([wireup, "pki", "issue", "--help"]).run();
    let help = help.expect_quiet_success().out();
    assert!(help.contains("--role <ROLE>"), "{help}");
    for command in [["pki", "show"], ["agent", "--tls=/"]] {
        let outcome = Run::command([wireup].iter().chain(&command))
            .run()
            .expect(125);
        outcome.expect_one_line(&[
            "this command needs wireup-agent, which is neither ",
            "/wireup-agent nor ",
        ]);
    }
}

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use data_encoding::HEXUPPER;

use super::pki_commands::{expand, next_step};
use super::*;

const NOW: Duration = Duration::from_secs(1_800_000_000);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + NOW
}

fn valid(days: u32) -> Validity {
    Validity::days(now(), days)
}

fn authority() -> (tempfile::TempDir, PathBuf) {
    let top = tempfile::tempdir().unwrap();
    let dir = top.path().join("a/pki");
    init(&dir, "test", valid(100)).unwrap();
    (top, dir)
}

fn issue_one(dir: &Path, name: &str, addresses: &[&str], role: Role) -> Result<PathBuf, PkiError> {
    let addresses: Vec<String> = addresses.iter().map(|&a| a.to_owned()).collect();
    issue(dir, &[name.to_owned()], &addresses, role, valid(10))
        .map(|mut directories| directories.remove(0))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn files(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn keys_are_readable_by_owner_only() {
    let (_top, dir) = authority();
    let node = issue_one(&dir, "n1", &[], Role::Node).unwrap();
    assert_eq!((mode(&dir), mode(&node)), (0o700, 0o700));
    assert_eq!(mode(&dir.join(CA_KEY)), 0o600);
    assert_eq!(mode(&node.join(KEY)), 0o600);
    assert_eq!(files(&dir), ["ca.key", "ca.pem", "issued.tsv", "n1"]);
    assert_eq!(files(&node), ["ca.pem", "cert.pem", "key.pem"]);
}

#[test]
fn certificate_has_identity_and_usable_names() {
    let (_top, dir) = authority();
    let addresses = ["n1.example.org", "10.0.0.1", "fd00::1"];
    let node = issue_one(&dir, "n1", &addresses, Role::Node).unwrap();
    let found = read(&node.join(CERTIFICATE)).unwrap();
    let identity = Identity::new("n1", Role::Node).unwrap();
    assert_eq!(found.identity, Some(identity));
    assert_eq!(found.names, ["n1", "n1.example.org", "10.0.0.1", "fd00::1"]);
    assert_eq!(found.not_after, now() + 10 * DAY);
    assert!(found.not_before < now() && !found.authority);
    let scheduler = issue_one(&dir, "slurm", &[], Role::Scheduler).unwrap();
    let found = read(&scheduler.join(CERTIFICATE)).unwrap();
    assert_eq!(found.identity.unwrap().role, Role::Scheduler);
    assert_eq!(issued(&dir).unwrap(), ["n1", "slurm"]);
}

#[test]
fn renewal_keeps_identity_and_names_but_changes_key() {
    let (_top, dir) = authority();
    let node = issue_one(&dir, "n1", &["10.0.0.1"], Role::Node).unwrap();
    let read_all = || {
        let found = read(&node.join(CERTIFICATE)).unwrap();
        (found, fs::read(node.join(KEY)).unwrap())
    };
    let (before, key) = read_all();
    renew(&dir, &load(&dir).unwrap(), "n1", valid(50)).unwrap();
    let (after, fresh) = read_all();
    assert_eq!(
        (&after.identity, &after.names),
        (&before.identity, &before.names)
    );
    assert_eq!(after.not_after, now() + 50 * DAY);
    assert!(key != fresh);
    assert_eq!(files(&node), ["ca.pem", "cert.pem", "key.pem"]);
}

#[test]
fn certificate_expires_no_later_than_its_authority() {
    let (_top, dir) = authority();
    issue(&dir, &["n1".into()], &[], Role::Node, valid(1000)).unwrap();
    let found = read(&dir.join("n1").join(CERTIFICATE)).unwrap();
    assert_eq!(found.not_after, now() + 100 * DAY);
    let late = Validity::days(now() + 101 * DAY, 10);
    let error = issue(&dir, &["n2".into()], &[], Role::Node, late).unwrap_err();
    assert!(
        error.to_string().contains("the authority has expired"),
        "{error}"
    );
    assert_eq!(files(&dir), ["ca.key", "ca.pem", "issued.tsv", "n1"]);
}

#[test]
fn key_readable_by_others_is_refused_with_remedy() {
    let (_top, dir) = authority();
    issue_one(&dir, "n1", &[], Role::Node).unwrap();
    let refuses = |path: &Path, wrong: u32, remedy: &str| {
        let before = mode(path);
        chmod(path, wrong);
        let error = issue_one(&dir, "n2", &[], Role::Node)
            .unwrap_err()
            .to_string();
        let expected = format!("(mode {wrong:04o}); run: chmod {remedy} {}", path.display());
        assert!(error.ends_with(&expected), "{error}");
        chmod(path, before);
    };
    refuses(&dir, 0o750, "700");
    refuses(&dir.join(CA_KEY), 0o640, "600");
    refuses(&dir.join(CA_KEY), 0o604, "600");
    refuses(&dir.join(CA), 0o664, "644");
    chmod(&dir, 0o755);
    let error = init(&dir, "again", valid(1)).unwrap_err().to_string();
    assert!(error.contains("may be read by others"), "{error}");
    chmod(&dir, 0o700);
    chmod(&dir.join("n1"), 0o711);
    let error = renew(&dir, &load(&dir).unwrap(), "n1", valid(1)).unwrap_err();
    assert!(error.to_string().contains("(mode 0711)"), "{error}");
}

#[test]
fn existing_files_are_kept_and_failure_creates_none() {
    let (_top, dir) = authority();
    let key = fs::read(dir.join(CA_KEY)).unwrap();
    assert!(matches!(
        init(&dir, "again", valid(1)),
        Err(PkiError::AuthorityExists(_))
    ));
    issue_one(&dir, "n1", &[], Role::Node).unwrap();
    let names = ["n2", "n1"].map(str::to_owned);
    let result = issue(&dir, &names, &[], Role::Node, valid(1));
    assert!(matches!(result, Err(PkiError::Issued { .. })));
    let twice = ["n2", "n2"].map(str::to_owned);
    let result = issue(&dir, &twice, &[], Role::Node, valid(1));
    assert!(matches!(result, Err(PkiError::Issued { .. })));
    for name in ["../n3", "", "a/b", "ca.pem", "ca.key", "crl.pem"] {
        assert!(issue_one(&dir, name, &[], Role::Node).is_err(), "{name}");
    }
    assert!(issue_one(&dir, "n3", &["not a name"], Role::Node).is_err());
    let pair = ["n3", "n4"].map(str::to_owned);
    let result = issue(&dir, &pair, &["x".into()], Role::Node, valid(1));
    assert!(matches!(result, Err(PkiError::Addresses)));
    assert_eq!(files(&dir), ["ca.key", "ca.pem", "issued.tsv", "n1"]);
    assert_eq!(fs::read(dir.join(CA_KEY)).unwrap(), key);
}

#[test]
fn missing_or_foreign_file_is_named() {
    let (_top, dir) = authority();
    let elsewhere = dir.join("none");
    let error = load(&elsewhere).err().unwrap().to_string();
    assert!(error.contains("wireup pki init"), "{error}");
    let authority = load(&dir).unwrap();
    let error = renew(&dir, &authority, "n9", valid(1)).unwrap_err();
    assert!(
        error.to_string().contains("wireup pki issue --name n9"),
        "{error}"
    );
    let other = dir.join("other");
    init(&other, "other", valid(1)).unwrap();
    fs::copy(other.join(CA), dir.join(CA)).unwrap();
    let error = load(&dir).err().unwrap().to_string();
    assert!(
        error.contains("the key does not match the certificate"),
        "{error}"
    );
    fs::write(dir.join(CA), "nonsense").unwrap();
    let error = load(&dir).err().unwrap().to_string();
    assert!(
        error.contains("invalid certificate of the authority"),
        "{error}"
    );
}

#[test]
fn revoking_name_revokes_all_its_certificates_only() {
    let (_top, dir) = authority();
    let one = issue_one(&dir, "n1", &[], Role::Node).unwrap();
    let two = issue_one(&dir, "n2", &[], Role::Node).unwrap();
    let pem = |node: &Path| fs::read(node.join(CERTIFICATE)).unwrap();
    let first = pem(&one);
    let authority = load(&dir).unwrap();
    renew(&dir, &authority, "n1", valid(50)).unwrap();
    let second = pem(&one);
    assert_eq!(
        revocation::revoke(&dir, &["n1".into()], &[], now()).unwrap(),
        2
    );
    // The new one is not taken back, and its directory has the list.
    renew(&dir, &authority, "n1", valid(50)).unwrap();
    let is_revoked = |pem: &[u8]| {
        let ca = CertificateDer::from_pem_slice(authority.certificate.as_bytes()).unwrap();
        let list = fs::read(one.join(REVOKED)).unwrap();
        let list = crate::revocation_lists::RevocationLists::read(&list, &[ca]).unwrap();
        list.contains(&CertificateDer::from_pem_slice(pem).unwrap())
    };
    let are_revoked = [&first, &second, &pem(&one), &pem(&two)].map(|pem| is_revoked(pem));
    assert_eq!(are_revoked, [true, true, false, false]);

    // By its number, as `show` and openssl have it; what was revoked before stays so.
    let serial = read(&two.join(CERTIFICATE)).unwrap().serial;
    let serial = HEXUPPER.encode(&serial);
    assert_eq!(revocation::revoke(&dir, &[], &[serial], now()).unwrap(), 1);
    let are_revoked = [&first, &second, &pem(&one), &pem(&two)].map(|pem| is_revoked(pem));
    assert_eq!(are_revoked, [true, true, false, true]);
    let shown = |node: &Path| revocation::is_revoked(&node.join(CERTIFICATE)).unwrap();
    assert_eq!((shown(&one), shown(&two)), (false, true));
    // A directory that is gone is no way out, and its name is not given again unseen.
    fs::remove_dir_all(&two).unwrap();
    assert_eq!(
        revocation::revoke(&dir, &["n2".into()], &[], now()).unwrap(),
        0
    );
    let error = revocation::revoke(&dir, &["n9".into()], &[], now()).unwrap_err();
    assert!(
        error.to_string().contains("no certificate of n9"),
        "{error}"
    );
    let error = revocation::revoke(&dir, &[], &["n1".into()], now()).unwrap_err();
    assert!(matches!(error, PkiError::Serial(_)), "{error}");
}

#[test]
fn revocation_list_of_other_authority_is_refused() {
    let (_top, dir) = authority();
    let (_other_top, other) = authority();
    issue_one(&dir, "n1", &[], Role::Node).unwrap();
    revocation::revoke(&dir, &["n1".into()], &[], now()).unwrap();
    fs::copy(dir.join(REVOKED), other.join(REVOKED)).unwrap();
    issue_one(&other, "n1", &[], Role::Node).unwrap();
    // Of the same name, as authorities have by default.
    let error = revocation::is_revoked(&other.join("n1").join(CERTIFICATE)).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no authority of this node (ca.pem) signed"),
        "{error}"
    );
    let error = revocation::revoke(&other, &["n1".into()], &[], now()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no authority of this node (ca.pem) signed"),
        "{error}"
    );
}

#[test]
fn name_ranges_expand_like_host_lists_and_keep_zeros() {
    let lists = ["n[05-08],login", "10.0.0.1", "fd00::1"].map(str::to_owned);
    let names = expand(&lists).unwrap();
    assert_eq!(
        names,
        ["n05", "n06", "n07", "n08", "login", "10.0.0.1", "fd00::1"]
    );
    let (_top, dir) = authority();
    let directories = issue(&dir, &names, &[], Role::Node, valid(10)).unwrap();
    assert_eq!(directories.len(), 7);
    let found = read(&dir.join("n05").join(CERTIFICATE)).unwrap();
    assert_eq!(found.names, ["n05"]);
    for list in ["", "n[05", "n[8-5]"] {
        assert!(expand(&[list.to_owned()]).is_err(), "{list}");
    }
    let slots = expand(&["n1:4".to_owned()]).unwrap();
    assert!(issue(&dir, &slots, &[], Role::Node, valid(10)).is_err());
}

#[test]
fn next_step_copies_certificates_and_starts_agents() {
    let step = |names: &[&str], root| {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        next_step(None, &names, root)
    };
    assert_eq!(
        step(&["n1"], true),
        "next, run wireup pki push --hosts 'n1', and on these hosts systemctl enable --now wireup-agent"
    );
    assert_eq!(
        step(&["n1", "n2"], false),
        "next, run wireup pki push --hosts 'n[1-2]' (with --to ~/.config/wireup/tls if all hosts share this home directory), \
         and on these hosts wireup agent"
    );
    let named = next_step(Some(Path::new("/p")), &["n1".to_owned()], true);
    assert!(named.contains("wireup pki --dir /p push"), "{named}");
}

//! Packages of the workspace: licences, sources and crates that are excluded, as `deny.toml` lists them.
//!
//! `cargo deny`, where it is installed, checks the same file and more; this needs nothing but cargo.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use spdx::{Expression, LicenseReq, ParseMode};
use toml::de::{DeTable, DeValue};

/// The part of `deny.toml` that is checked here.
struct Rules {
    licenses: Vec<String>,
    banned: Vec<String>,
}

impl Rules {
    fn parse(text: &str) -> Self {
        let table = DeTable::parse(text).unwrap();
        let list = |section: &str, name: &str| {
            table.get_ref()[section].get_ref()[name]
                .get_ref()
                .as_array()
                .unwrap()
                .clone()
        };
        let text = |value: &DeValue<'_>| value.as_str().unwrap().to_owned();
        Self {
            licenses: list("licenses", "allow")
                .iter()
                .map(|value| text(value.get_ref()))
                .collect(),
            banned: list("bans", "deny")
                .iter()
                .map(|value| text(value.get_ref()["crate"].get_ref()))
                .collect(),
        }
    }
}

/// The part of `cargo metadata` that is read.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    license: Option<String>,
    /// None for the workspace's own.
    source: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    path: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
}

impl Metadata {
    /// Returns the packages that are built for this machine, with those of tests and build scripts;
    /// needs no network.
    fn of_this_workspace(root: &Path) -> Self {
        let rustc = Command::new("rustc")
            .args(["--print", "host-tuple"])
            .output()
            .unwrap();
        let host = String::from_utf8(rustc.stdout).unwrap();
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--offline", "--locked"])
            .args(["--filter-platform", host.trim()])
            .current_dir(root)
            .output()
            .unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{complaint}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The packages that are part of the build: `packages` has those of other platforms too.
    fn built(&self) -> impl Iterator<Item = &Package> {
        let is_built =
            |package: &&Package| self.resolve.nodes.iter().any(|node| node.id == package.id);
        self.packages.iter().filter(is_built)
    }
}

/// Returns the reason for which a package may not be used, if there is one.
fn objection(package: &Package, rules: &Rules) -> Option<String> {
    let Package {
        name,
        license,
        source,
        ..
    } = package;
    if rules.banned.contains(name) {
        return Some(format!("{name} is banned"));
    }
    if source
        .as_deref()
        .is_some_and(|source| !source.starts_with("registry+"))
    {
        return Some(format!("{name} is no release of a registry: {source:?}"));
    }
    let Some(license) = license else {
        return Some(format!("{name} has no licence"));
    };
    let allowed = |licence: &LicenseReq| rules.licenses.contains(&licence.to_string());
    match Expression::parse_mode(license, ParseMode::LAX) {
        Err(error) => Some(format!("{name}: {error}")),
        Ok(expression) if !expression.evaluate(allowed) => {
            Some(format!("{name} has the licence {license}"))
        }
        Ok(_) => None,
    }
}

#[test]
fn every_crate_has_allowed_licence_and_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rules = std::fs::read_to_string(root.join("deny.toml")).unwrap();
    let rules = Rules::parse(&rules);
    let metadata = Metadata::of_this_workspace(root);
    assert!(metadata.built().count() > 50, "these are not all crates");
    let objections: Vec<_> = metadata
        .built()
        .filter_map(|package| objection(package, &rules))
        .collect();
    assert!(objections.is_empty(), "{objections:#?}");
    let own = metadata
        .packages
        .iter()
        .filter(|package| package.source.is_none());
    for Dependency { name, req, .. } in own
        .flat_map(|package| &package.dependencies)
        .filter(|it| it.path.is_none())
    {
        assert_ne!(req, "*", "the version of {name} is left open");
    }
}

#[test]
fn forbidden_imports_are_found() {
    let rules =
        Rules::parse("licenses.allow = ['MIT', 'ISC']\nbans.deny = [{ crate = 'openssl-sys' }]");
    let package = |name: &str, license: Option<&str>, source: &str| Package {
        id: String::new(),
        name: name.to_owned(),
        license: license.map(str::to_owned),
        source: Some(source.to_owned()),
        dependencies: Vec::new(),
    };
    let registry = "registry+https://github.com/rust-lang/crates.io-index";
    for (name, license, source, fine) in [
        ("a", Some("MIT"), registry, true),
        ("a", Some("Apache-2.0/MIT"), registry, true),
        ("a", Some("(MPL-2.0 OR MIT) AND ISC"), registry, true),
        ("a", Some("MPL-2.0 AND MIT"), registry, false),
        ("a", Some("GPL-3.0-only"), registry, false),
        ("a", Some("what you like"), registry, false),
        ("a", None, registry, false),
        ("a", Some("MIT"), "git+https://example.org/a", false),
        ("openssl-sys", Some("MIT"), registry, false),
    ] {
        let objection = objection(&package(name, license, source), &rules);
        assert_eq!(
            objection.is_none(),
            fine,
            "{name} {license:?} {source}: {objection:?}"
        );
    }
}

#[test]
fn upward_import_is_refused() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = root.join("scripts/structure");
    let check = |root: &Path| Command::new(&script).arg(root).output().unwrap();
    assert!(check(root).status.success(), "{:?}", check(root));

    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    std::fs::create_dir_all(src.join("plan")).unwrap();
    std::fs::write(src.join("stdio.rs"), "use crate::plan::pattern::Pattern;\n").unwrap();
    assert!(check(dir.path()).status.success());
    let up = "use std::{fs, io};\nuse super::super::{control::{self, run}, failure};\n";
    std::fs::write(src.join("plan/pattern.rs"), up).unwrap();
    let refused = check(dir.path());
    assert!(!refused.status.success());
    let message = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(message.lines().count(), 2, "{message}");
    assert!(
        message.contains("src/plan/pattern.rs: plan uses control::run"),
        "{message}"
    );
}

#[test]
fn figure_above_its_limit_is_refused() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/structure");
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("core/src");
    std::fs::create_dir_all(&src).unwrap();
    let fields: String = (0..40).map(|n| format!("    f{n}: u8,\n")).collect();
    let core = format!("//! A node.\n\npub struct NodeCore {{\n{fields}}}\n");
    std::fs::write(src.join("node.rs"), core).unwrap();
    let refused = Command::new(&script).arg(dir.path()).output().unwrap();
    assert!(!refused.status.success());
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(
        message.starts_with("NodeCore: fields: 40 is more than "),
        "{message}"
    );
}

#[test]
fn script_help_equals_its_comment() {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    for (script, beginning) in [
        ("demo", "From a fresh clone to real MPI programs"),
        ("test", "Installs what the tests need"),
        ("package", "Makes what people install"),
    ] {
        for option in ["--help", "-h"] {
            let mut command = Command::new(scripts.join(script));
            let output = command.arg(option).output().unwrap();
            assert!(output.status.success(), "{script}: {output:?}");
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(text.starts_with(beginning), "{script}: {text}");
        }
    }
}

//! Defaults files: which of them count, in which order, and the errors about invalid ones.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::common::{DEADLINE, Outcome, Run};

/// The words of a rank that prints its variables A and B.
const SHOW: [&str; 3] = ["sh", "-c", "echo ${A--} ${B--}"];

/// A run with these texts as the site's and the user's file.
fn with_files<'a>(site: &str, user: &str, words: impl IntoIterator<Item = &'a str>) -> Run {
    let run = Run::new(words);
    let site_path = run.dir().join("site.toml");
    fs::write(&site_path, site).unwrap();
    if !user.is_empty() {
        fs::write(run.dir().join("wireup.toml"), user).unwrap();
    }
    run.env("WIREUP_SITE_CONFIG", site_path)
}

/// One rank that prints its variables, after these options.
fn show(site: &str, user: &str, options: &[&str]) -> Outcome {
    let words = ["-n", "1"].iter().chain(options).chain(&SHOW);
    with_files(site, user, words.copied()).run()
}

/// `wireup config show` with these files.
fn shown(site: &str, user: &str, libpmix: &str) -> Outcome {
    let run = Run::command([env!("CARGO_BIN_EXE_wireup"), "config", "show"]);
    let site_path = run.dir().join("site.toml");
    fs::write(&site_path, site).unwrap();
    fs::write(run.dir().join("wireup.toml"), user).unwrap();
    run.env("WIREUP_SITE_CONFIG", site_path)
        .env("WIREUP_LIBPMIX", libpmix)
        .run()
}

#[test]
fn option_overrides_user_config_which_overrides_site_config() {
    let site = "[run]\nlabel = true\nenv = ['A=site', 'B=site']";
    let user = "[run]\nenv = ['B=user']";
    assert_eq!(
        show(site, "", &[]).expect_quiet_success().out(),
        "[0] site site\n"
    );
    assert_eq!(
        show(site, user, &[]).expect_quiet_success().out(),
        "[0] site user\n"
    );
    let line = show(site, user, &["-x", "A=line", "--no-label"]);
    assert_eq!(line.expect_quiet_success().out(), "line user\n");
    let off = show(site, "[run]\nlabel = false", &[]);
    assert_eq!(off.expect_quiet_success().out(), "site site\n");
    let anew = show(site, user, &["--no-env", "-x", "A=line"]);
    assert_eq!(anew.expect_quiet_success().out(), "[0] line -\n");
    let without = show(site, user, &["--no-config"]);
    assert_eq!(without.expect_quiet_success().out(), "- -\n");
}

#[test]
fn default_variable_reaches_every_app_unless_overridden() {
    let site = "[run]\noversubscribe = true\nenv = ['A=site', 'B=site']";
    let own = ["-n", "1", "-x", "B=own"];
    let words = SHOW
        .iter()
        .chain(&[":"])
        .chain(&own)
        .chain(&SHOW)
        .chain(&[":", "-n", "1", "--no-env"]);
    let outcome = with_files(site, "", words.chain(&SHOW).copied()).run();
    let lines = outcome.expect_quiet_success().sorted_lines();
    assert_eq!(lines, ["- -", "site own", "site site"]);
}

#[test]
fn site_time_limit_ends_job_unless_negated() {
    let site = "[run]\ntimeout = 0.2";
    let outcome = with_files(site, "", ["-n", "1", "sleep", "60"]).run();
    outcome.expect(124);
    let outcome = with_files(site, "", ["--no-timeout", "-n", "1", "sleep", "0.5"]).run();
    outcome.expect_quiet_success();
}

#[test]
fn invalid_config_file_is_reported_with_place_and_remedy() {
    for (site, user, words) in [
        (
            "[run]\nlable = true",
            "",
            ["site.toml:2: ", "did you mean 'label'?"],
        ),
        (
            "",
            "[run]\npmi = 'pmx'",
            ["wireup.toml:2: ", "possible values: auto"],
        ),
        ("", "x = ", ["wireup.toml:1: ", ""]),
    ] {
        let outcome = show(site, user, &[]).expect(125);
        assert_eq!(outcome.out(), "");
        outcome.expect_one_line(&words);
        assert_eq!(outcome.err().lines().count(), 1, "{outcome:?}");
    }
    // What the line itself does wrong is not blamed on the file.
    let outcome = show("[run]\nlabel = true", "", &["--pmi=pmx"]).expect(125);
    let line = outcome.expect_one_line(&["invalid value 'pmx' for '--pmi <PMI>'"]);
    assert!(!line.contains("toml"), "{line}");
}

#[test]
fn named_config_file_must_exist_and_any_must_be_readable() {
    let missing = Run::new(["-n", "1", "true"]).env("WIREUP_SITE_CONFIG", "/nowhere/w.toml");
    let outcome = missing.run().expect(125);
    outcome.expect_one_line(&["WIREUP_SITE_CONFIG names /nowhere/w.toml, which does not exist"]);
    let run = Run::new(["-n", "1", "true"]);
    fs::create_dir(run.dir().join("wireup.toml")).unwrap();
    let outcome = run.run().expect(125);
    outcome.expect_one_line(&["cannot read the defaults in ", "wireup.toml", "--no-config"]);
    let run = Run::new(["--no-config", "-n", "1", "true"]);
    fs::create_dir(run.dir().join("wireup.toml")).unwrap();
    run.run().expect_quiet_success();
}

#[test]
fn run_opens_only_two_config_files_once() {
    if !Path::new("/usr/bin/strace").exists() {
        return crate::common::skip("what a run opens: needs strace");
    }
    let alone = Run::new(["-n", "1", "true"]);
    // Only the launcher of a detached job reads them.
    let refused = Run::new(["-n", "1", "--detach", "./missing"]).clean_within(DEADLINE);
    for (run, code) in [(alone, 0), (refused, 127)] {
        let trace = run.dir().join("trace");
        let words = [
            "strace",
            "-f",
            "-e",
            "trace=%file",
            "-o",
            trace.to_str().unwrap(),
        ];
        let words = words.map(str::to_owned);
        let env = ["env", "-u", "WIREUP_SITE_CONFIG"];
        let outcome = run.under(words).under(env).run().expect(code);
        let trace = fs::read_to_string(outcome.dir().join("trace")).unwrap();
        let looked: Vec<&str> = trace
            .lines()
            .filter(|line| line.contains("wireup.toml"))
            .collect();
        assert_eq!(looked.len(), 2, "{looked:?}");
    }
}

#[test]
fn config_show_prints_defaults_with_origin_as_valid_file() {
    let site = "[run]\ntimeout = 3600\nenv = ['A=\"1\"']\nlibpmix = '/site'";
    let user = "[run]\nlabel = true\nenv = ['B=2']";
    let outcome = shown(site, user, "/from/environment").expect_quiet_success();
    let text = outcome.out();
    for line in [
        "label = true # DIR/wireup.toml",
        "timeout = 3600 # DIR/site.toml",
        r#"env = ["A=\"1\"", "B=2"] # DIR/site.toml and DIR/wireup.toml"#,
        r#"libpmix = "/from/environment" # $WIREUP_LIBPMIX"#,
        r#"# pmi = "auto" # built in"#,
        "# output # not set",
        "# kill-on-bad-exit # not set",
    ] {
        let line = line.replace("DIR", outcome.dir().to_str().unwrap());
        let squeezed = text
            .lines()
            .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "));
        assert!(squeezed.into_iter().any(|l| l == line), "{line}: {text}");
    }
    let again = shown("", &text, "").expect_quiet_success().out();
    assert!(again.contains("timeout = 3600"), "{again}");
}

#[test]
fn verbose_output_names_config_files() {
    let outcome = show("[run]\nlabel = true\npmi = 'none'", "", &["-v"]).expect(0);
    assert!(
        outcome.err().contains("site.toml: label, pmi\n"),
        "{outcome:?}"
    );
}

#[test]
fn defaults_writable_by_every_user_are_refused() {
    let run = with_files("label = true\n", "", ["-n", "1", "true"]);
    let mode = fs::Permissions::from_mode(0o666);
    fs::set_permissions(run.dir().join("site.toml"), mode).unwrap();
    let outcome = run.run().expect(125);
    outcome.expect_one_line(&["site.toml", "every user may write to it"]);
}

//! The page of `--report` in a real browser: wide launches, light, dark and printed, and texts of others.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::browser::{self, Browser};
use crate::common::{Run, skip};

const WIREUP: &str = env!("CARGO_BIN_EXE_wireup");

/// Text that would run a script if it were not shown as text.
const HOSTILE: &str = "</script><img src=x onerror=document.title=1>";

/// A stream of `ranks` ranks on `hosts` hosts, of which the last is waited for, with names that try to be more than text.
pub(crate) fn wide_stream(ranks: u32, hosts: u32) -> String {
    let node = |rank: u32| rank * hosts / ranks;
    let name = |node: u32| match node == hosts - 1 {
        true => format!(r"slow{HOSTILE}\u001b[31m"),
        false => format!("n{node}"),
    };
    let mut stream = String::new();
    let mut at = 0;
    let mut line = |text: String| {
        at += 50;
        let ms = at / 1000;
        let _ = writeln!(stream, r#"{{"time":"t","ms":{ms},"us":{at},{text}}}"#);
    };
    let nodes: Vec<String> = (0..hosts)
        .map(|node| {
            let (name, ranks) = (name(node), ranks / hosts);
            format!(r#"{{"node":{node},"host":"{name}","ranks":{ranks}}}"#)
        })
        .collect();
    line(format!(
        r#""event":"job","state":"planned","version":1,"job":"wide","pid":1,"size":{ranks},"wireup":"0.9","command":"wireup run 'a{HOSTILE}'","offered":["pmix"],"nodes":[{}],"apps":[]"#,
        nodes.join(",")
    ));
    for state in ["started", "connected"] {
        for rank in 0..ranks {
            let (node, host) = (node(rank), name(node(rank)));
            line(format!(
                r#""event":"rank","state":"{state}","rank":{rank},"node":{node},"host":"{host}","app":0,"pid":{rank}"#
            ));
        }
    }
    for generation in 0..5 {
        line(format!(
            r#""event":"fence","kind":"pmix","participants":"wide[*]","generation":{generation},"ranks":{ranks},"nodes":{hosts},"spread_us":9000,"own_us":90,"last":[{{"node":{last},"host":"{}","behind_us":8000}},{{"node":0,"host":"n0","behind_us":100}}]"#,
            name(hosts - 1),
            last = hosts - 1
        ));
    }
    line(format!(
        r#""event":"warning","message":"{HOSTILE}\u001b[31m""#
    ));
    stream
}

/// The page of such a launch, and the directory that has it.
fn wide_page(ranks: u32, hosts: u32) -> (tempfile::TempDir, PathBuf) {
    page_of(&wide_stream(ranks, hosts))
}

/// The page of this stream, and the directory that has it.
fn page_of(stream: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let words = [WIREUP, "report", "-", "-o", page.to_str().unwrap()];
    let run = Run::command(words).stdin_bytes(stream);
    run.run().expect_quiet_success();
    (dir, page)
}

/// The table's cells, row by row, without its head.
#[track_caller]
pub(crate) fn rows(browser: &mut Browser, table: &str) -> Vec<Vec<String>> {
    let expression = format!(
        "[...document.querySelectorAll('#{table} tr')].slice(1).map(row => [...row.cells].map(cell => cell.textContent))"
    );
    serde_json::from_value(browser.value(&expression)).unwrap()
}

/// The number of different colours in the picture of the ranks.
fn colours(browser: &mut Browser) -> u64 {
    let count = "(() => { const c = document.getElementById('timeline');
        const all = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer);
        return new Set(all).size; })()";
    browser.value(count).as_u64().unwrap()
}

#[test]
fn page_shows_1024_and_16384_ranks_and_names_slowest_host() {
    if !browser::is_installed() {
        return skip("the page in a browser: needs chromium");
    }
    for (ranks, hosts) in [(1024, 16), (16_384, 256)] {
        let (dir, page) = wide_page(ranks, hosts);
        let mut browser = Browser::start(dir.path());
        browser.show(&page);
        let first = &rows(&mut browser, "hosts")[0];
        assert_eq!(first[0], format!(r"slow{HOSTILE}\u001b[31m"));
        assert!(first.contains(&(ranks / hosts).to_string()), "{first:?}");
        // With many ranks, a row of the picture has several; a table gives the number that it
        // leaves out.
        let rows = rows(&mut browser, "ranks");
        assert_eq!(rows.len(), 501);
        assert_eq!(rows[500], [format!("and {} more", ranks - 500)]);
        assert!(colours(&mut browser) > 3);
        let tall = browser.value("document.getElementById('timeline').clientHeight");
        assert!(
            tall.as_u64()
                .is_some_and(|tall| (100..2000).contains(&tall)),
            "{tall}"
        );
        // What others wrote is text, everywhere.
        assert_eq!(browser.value("document.images.length"), 0);
        let title = browser.value("document.title");
        assert!(
            title.as_str().unwrap().starts_with("Not finished: "),
            "{title}"
        );
        let command = browser.text("#command");
        assert_eq!(command, format!("wireup run 'a{HOSTILE}'"));
        let warning = browser.text("#warnings");
        assert!(
            warning.contains(&format!(r"{HOSTILE}\u001b[31m")),
            "{warning}"
        );
        let subtitle = browser.text("#subtitle");
        assert!(
            subtitle.starts_with("Launch wide: ") && subtitle.contains("wireup 0.9"),
            "{subtitle}"
        );
    }
}

/// Red, green and blue of a computed colour.
fn brightness(colour: &str) -> u32 {
    let parts = colour.split(|c: char| !c.is_ascii_digit());
    let numbers = parts.filter_map(|part| part.parse::<u32>().ok());
    numbers.take(3).sum()
}

#[test]
fn page_is_readable_in_dark_light_and_print() {
    if !browser::is_installed() {
        return skip("the page in a browser: needs chromium");
    }
    let (dir, page) = wide_page(64, 4);
    let mut browser = Browser::start(dir.path());
    let ink = |browser: &mut Browser| brightness(&browser.style("body", "color"));
    // The colour of the picture's line at time 0: it is drawn and has no style.
    let drawn = |browser: &mut Browser| {
        let sum = "(() => { const c = document.getElementById('timeline');
            const [red, green, blue] = c.getContext('2d').getImageData(0, 0, 1, 1).data;
            return red + green + blue; })()";
        browser.value(sum).as_u64().unwrap()
    };
    browser.emulate("screen", "light");
    browser.show(&page);
    assert!(ink(&mut browser) < 200);
    assert!(drawn(&mut browser) > 500);
    assert_eq!(browser.style(".scroll", "overflowY"), "auto");
    // Also of a page that is open when the colours change.
    browser.emulate("screen", "dark");
    assert!(ink(&mut browser) > 500);
    let redrawn = "new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))";
    browser.value(redrawn);
    assert!(drawn(&mut browser) < 300);
    browser.emulate("print", "dark");
    // On paper nothing is scrolled, and ink is dark whatever the screen has.
    for scrolled in [".scroll", "#command"] {
        assert_eq!(browser.style(scrolled, "maxHeight"), "none", "{scrolled}");
    }
    for control in [".tools", ".filter"] {
        assert_eq!(browser.style(control, "display"), "none", "{control}");
    }
    // Browsers print no other backgrounds.
    for coloured in ["#parts span", ".swatch", ".legend li"] {
        let adjusted = browser.style(coloured, "printColorAdjust");
        assert_eq!(adjusted, "exact", "{coloured}");
    }
    assert!(ink(&mut browser) < 200);
    browser.value(redrawn);
    assert!(drawn(&mut browser) > 500);
    if Command::new("pdftotext").arg("-v").output().is_err() {
        return skip("the printed page: needs pdftotext");
    }
    let text = printed(&browser.print(), dir.path());
    for rank in 0..64 {
        let line = text.lines().find(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some(&rank.to_string())
                && words
                    .next()
                    .is_some_and(|host| host.starts_with(['n', 's']))
        });
        assert!(line.is_some(), "rank {rank} is not on paper: {text}");
    }
    for part in [
        "Launch wide",
        "Where the time went",
        "wireup run 'a</script>",
        "Warnings",
        "in contact",
    ] {
        assert!(text.contains(part), "{part:?} is not on paper: {text}");
    }
}

/// The words of a PDF.
fn printed(pdf: &str, dir: &Path) -> String {
    let file = dir.join("page.pdf");
    let encoded = dir.join("page.base64");
    std::fs::write(&encoded, pdf).unwrap();
    let status = Command::new("base64")
        .arg("-d")
        .arg(encoded)
        .stdout(std::fs::File::create(&file).unwrap())
        .status();
    assert!(status.unwrap().success());
    let text = Command::new("pdftotext")
        .args(["-layout", file.to_str().unwrap(), "-"])
        .stderr(Stdio::null())
        .output()
        .unwrap();
    assert!(text.status.success(), "{text:?}");
    String::from_utf8(text.stdout).unwrap()
}

/// The words of a line, as a shell takes them.
fn words_of_shell(line: &str) -> Vec<String> {
    let script = format!("printf '%s\\0' {line}");
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_terminator('\0').map(str::to_owned).collect()
}

#[test]
fn page_shows_command_quoted_for_shell_and_without_secrets() {
    let argument = format!("it's {HOSTILE}\n\u{1b}[31m");
    let set = [
        "-x",
        "FI_CXI_KEY=s3cret",
        "-x",
        "DB_PASSWORD=s3cret",
        "-x",
        "A=b c",
    ];
    let script = "echo \"$FI_CXI_KEY $DB_PASSWORD\"";
    let program = ["sh", "-c", script, &argument, "", "$HOME", "*"];
    let options = ["--json", "status", "--report", "page.html"];
    let words = [&options[..], &set, &program].concat();
    let outcome = Run::ranks(2, &words).run().expect(0);
    assert_eq!(outcome.out(), "s3cret s3cret\n".repeat(2));
    let stream = std::fs::read_to_string(outcome.dir().join("status")).unwrap();
    let planned: Value = serde_json::from_str(stream.lines().next().unwrap()).unwrap();
    let command = planned["command"].as_str().unwrap();
    let shown = words_of_shell(command);
    let hidden = |word: &&str| word.replace("s3cret", "…hidden");
    let expected: Vec<String> = words.iter().map(hidden).collect();
    assert!(
        shown[0].ends_with("wireup") && shown[1] == "run",
        "{command}"
    );
    assert!(shown.ends_with(&expected), "{command}: {expected:?}");
    let app = words_of_shell(planned["apps"][0]["command"].as_str().unwrap());
    assert!(app[0].ends_with("/sh"), "{app:?}");
    assert_eq!(
        app[1..],
        program[1..]
            .iter()
            .map(|word| (*word).to_owned())
            .collect::<Vec<_>>()[..]
    );
    assert_eq!(planned["wireup"], env!("CARGO_PKG_VERSION"));
    let page = std::fs::read_to_string(outcome.dir().join("page.html")).unwrap();
    for (name, text) in [("stream", &stream), ("page", &page)] {
        assert!(!text.contains("s3cret"), "{name}: {text}");
    }
    if !browser::is_installed() {
        return skip("the page in a browser: needs chromium");
    }
    let mut browser = Browser::start(outcome.dir());
    browser.show(&outcome.dir().join("page.html"));
    assert_eq!(browser.text("#command"), command);
    assert_eq!(browser.value("document.images.length"), 0);
    let programs = browser.text("#programs");
    assert!(
        programs.starts_with("2 x ") && programs.contains("/sh -c "),
        "{programs}"
    );
}

/// Measures of the page.
const CHECKS: &str = include_str!("page/checks.js");

/// A launch of three ranks on two hosts, of which rank 1 fails by SIGSEGV.
const FAILED: &str = include_str!("page/failed.jsonl");

/// A browser that shows the page of a stream, with [`CHECKS`].
struct ShownPage {
    browser: Browser,
    page: PathBuf,
    /// The browser's files are in the first; it ends before they are removed.
    dirs: Vec<tempfile::TempDir>,
}

impl ShownPage {
    /// `None` without a browser.
    fn of(stream: &str) -> Option<Self> {
        if !browser::is_installed() {
            skip("the page in a browser: needs chromium");
            return None;
        }
        let (dir, page) = page_of(stream);
        let browser = Browser::start(dir.path());
        let mut shown = Self {
            browser,
            page,
            dirs: vec![dir],
        };
        shown.browser.resize(1280);
        shown.browser.emulate("screen", "light");
        shown.load();
        Some(shown)
    }

    /// Shows the page of another stream.
    fn show(&mut self, stream: &str) {
        let (dir, page) = page_of(stream);
        self.page = page;
        self.dirs.push(dir);
        self.load();
    }

    fn load(&mut self) {
        self.browser.show(&self.page);
        self.browser.value(&format!("{CHECKS}; null"));
    }

    #[track_caller]
    fn value<T: serde::de::DeserializeOwned>(&mut self, expression: &str) -> T {
        serde_json::from_value(self.browser.value(expression)).unwrap()
    }

    /// The labels of the time axis.
    #[track_caller]
    fn axis(&mut self) -> Axis {
        self.value("axis()")
    }
}

#[derive(Debug, PartialEq, serde::Deserialize)]
struct Axis {
    values: Vec<f64>,
    units: Vec<String>,
    steps: Vec<f64>,
    overlaps: bool,
}

impl Axis {
    #[track_caller]
    fn check(&self) {
        let [step] = self.steps[..] else {
            panic!("not one step: {self:?}");
        };
        let digit = step / 10_f64.powf(step.log10().floor());
        let is_round = [1.0, 2.0, 5.0]
            .iter()
            .any(|round| (digit - round).abs() < 1e-6);
        assert!(is_round && self.values.len() >= 2, "{self:?}");
        assert_eq!(self.units.len(), 1, "{self:?}");
        assert!(!self.overlaps, "{self:?}");
    }
}

/// The last line of [`FAILED`] with another cause and exit code.
fn ended(exit_code: u8, cause: &str) -> String {
    let mut lines: Vec<&str> = FAILED.lines().collect();
    lines.pop();
    let lines = lines
        .into_iter()
        .filter(|line| exit_code != 0 || !line.contains(r#""state":"ending""#))
        .map(|line| format!("{line}\n"));
    let result = format!(
        r#"{{"time":"t","ms":440,"us":440000,"event":"result","version":1,"job":"w1","exit_code":{exit_code},"exit_policy":null,"on_failure":null,"requeue":false,"cause":{cause},"start":"s","end":"e","elapsed_ms":440,"apps":[],"ranks":[]}}"#
    );
    lines.chain([format!("{result}\n")]).collect()
}

#[test]
fn report_page_verdict_names_cause_and_duration() {
    let rank =
        r#""message":"m","rank":1,"node":0,"host":"first-node.example","app":0,"program":"/x""#;
    let Some(mut shown) = ShownPage::of(FAILED) else {
        return;
    };
    let missing = r#"{"kind":"fence_timeout","message":"m","missing":{"count":5,"ranks":[{"rank":2,"node":1,"host":"second-node.example","app":0,"pid":12,"last":"","idle_ms":1}],"nodes":[],"silent":[]}}"#;
    for (stream, title, style) in [
        (
            FAILED.to_owned(),
            "Failed: rank 1, SIGSEGV, after 0.39 s",
            "failed",
        ),
        (
            ended(3, &format!(r#"{{"kind":"rank_failed",{rank},"code":3}}"#)),
            "Failed: rank 1, exit code 3, after 0.39 s",
            "failed",
        ),
        (
            ended(0, &format!(r#"{{"kind":"rank_failed",{rank},"code":3}}"#)),
            "Succeeded: 3 ranks on 2 hosts, 1 rank failed, in 0.44 s",
            "succeeded",
        ),
        (
            ended(7, &format!(r#"{{"kind":"aborted",{rank},"code":7}}"#)),
            "Failed: rank 1, aborted with code 7, after 0.39 s",
            "failed",
        ),
        (
            ended(125, missing),
            "Failed: rank 2 and 4 more, missing in a fence, after 0.39 s",
            "failed",
        ),
        (
            ended(124, r#"{"kind":"timeout","message":"m"}"#),
            "Failed: time limit reached, after 0.39 s",
            "failed",
        ),
        (
            ended(130, r#"{"kind":"interrupted","message":"m","signal":2}"#),
            "Interrupted: SIGINT, after 0.39 s",
            "stopped",
        ),
        (
            ended(0, "null"),
            "Succeeded: 3 ranks on 2 hosts, in 0.44 s",
            "succeeded",
        ),
        (
            FAILED.lines().next().unwrap().to_owned() + "\n",
            "Not finished: the record ends after 10.0 ms",
            "stopped",
        ),
    ] {
        shown.show(&stream);
        assert_eq!(shown.value::<String>("document.title"), title);
        let first: String = shown.value("document.body.innerText.trim().split('\\n')[0]");
        assert_eq!(first, title);
        let heading: String = shown.value("document.querySelector('h1').className");
        assert_eq!(heading, style, "{title}");
        let ink = shown.browser.style("body", "color");
        assert_ne!(shown.browser.style("h1", "color"), ink, "{title}");
    }
}

#[test]
fn report_page_marks_and_links_ranks_of_cause() {
    let Some(mut shown) = ShownPage::of(FAILED) else {
        return;
    };
    let marked: Vec<String> =
        shown.value("all('#ranks tr.failed').map(row => row.cells[0].textContent)");
    assert_eq!(marked, ["1"]);
    assert_eq!(rows(&mut shown.browser, "ranks")[0][0], "1");
    let labels: Vec<(String, String)> =
        shown.value("all('#labels li').map(label => [label.textContent, label.className])");
    assert_eq!(
        labels[0],
        ("✗ rank 1 on first-node.example".into(), "failed".into())
    );
    assert_eq!(labels.iter().filter(|label| label.1 == "failed").count(), 1);
    let red: Vec<u32> = shown.value("redRows()");
    assert_eq!(red, [0], "red is for failures only");
    for link in ["#verdict a", "#labels a"] {
        shown.load();
        let focus = format!(
            "new Promise(done => {{ addEventListener('hashchange', () => setTimeout(() => done(document.activeElement.id)));
                location.hash = ''; document.querySelector('{link}').click(); }})"
        );
        assert_eq!(shown.value::<String>(&focus), "rank-1", "{link}");
    }
    shown.show(&ended(0, "null"));
    assert_eq!(shown.value::<Vec<u32>>("redRows()"), [0_u32; 0]);
    let failures: u32 = shown.value("all('.failed').filter(isShown).length");
    assert_eq!(failures, 0);
}

#[test]
fn report_page_links_rank_missing_in_table() {
    let Some(mut shown) = ShownPage::of(&wide_stream(1024, 16)) else {
        return;
    };
    shown.value::<()>("location.hash = 'rank-1023'; null");
    let id = "new Promise(done => { const look = () => document.activeElement.id ? done(document.activeElement.id)
        : setTimeout(look, 5); look(); })";
    assert_eq!(shown.value::<String>(id), "rank-1023");
}

#[test]
fn report_page_stacks_times() {
    let Some(mut shown) = ShownPage::of(FAILED) else {
        return;
    };
    // The parts of 440 ms: 10, 40, 20, 60, 300 and 10.
    assert_eq!(shown.value::<Vec<u32>>("shares()"), [2, 9, 5, 14, 68, 2]);
    let text: String = shown.value("document.getElementById('path').textContent");
    assert!(text.contains("300.00 ms68 %ranks ran"), "{text}");
    let percents: Vec<u32> =
        shown.value("all('#path li').map(line => parseInt(line.children[2].textContent))");
    assert_eq!(percents, [2, 9, 5, 14, 68, 2], "their sum is 100");
    let remarks = shown.browser.text("#remarks");
    let share = "wireup's share is 18 %, that of the programs and their MPI 82 %";
    assert!(remarks.contains(share), "{remarks}");
}

#[test]
fn report_page_draws_program_without_mpi_as_running() {
    let plain = FAILED
        .lines()
        .filter(|line| !line.contains(r#""state":"connected""#));
    let plain: String = plain.map(|line| format!("{line}\n")).collect();
    let Some(mut shown) = ShownPage::of(FAILED) else {
        return;
    };
    for (stream, states) in [
        (FAILED, &["loads", "runs"][..]),
        (plain.as_str(), &["runs"][..]),
    ] {
        shown.show(stream);
        let legend: Vec<String> =
            shown.value("all('.legend li').filter(isShown).map(state => state.className)");
        assert_eq!(legend, [states, &["fence", "failed"]].concat());
        // The bar has the colours of the picture.
        let mut colours: Vec<String> =
            shown.value("all('.swatch').map(swatch => swatch.style.background)");
        colours.retain(|colour| !colour.contains("wireup"));
        let expected: Vec<String> = states
            .iter()
            .map(|state| format!("var(--{state})"))
            .collect();
        assert_eq!(colours, expected);
    }
}

#[test]
fn report_page_axis_has_round_ticks_in_one_unit() {
    let Some(mut shown) = ShownPage::of(FAILED) else {
        return;
    };
    shown.value::<()>("document.getElementById('timeline').focus(); null");
    let whole = shown.axis();
    assert_eq!(whole.units, ["ms"]);
    for _ in 0..16 {
        shown.axis().check();
        shown.browser.press("+");
    }
    assert!(shown.axis().steps[0] < 1.0, "{:?}", shown.axis());
    shown.browser.press("0");
    assert_eq!(shown.axis(), whole);
    let text: String = shown.value("document.body.innerText");
    assert!(text.contains(" µs") && !text.contains(" us"), "{text}");
    let grey: u32 = shown.value("saturation('--fence')");
    assert!(grey < 40, "fences are grey: {grey}");
}

#[test]
fn report_page_hides_empty_parts_and_names_kinds() {
    let Some(mut shown) = ShownPage::of(FAILED) else {
        return;
    };
    assert_eq!(shown.value::<Vec<String>>("emptyColumns()"), [""; 0]);
    let titles: Vec<String> = shown.value("all('#ranks th').map(title => title.textContent)");
    assert!(titles.contains(&"in contact".to_owned()), "{titles:?}");
    for empty in ["finalized", "bound to", "most memory"] {
        assert!(!titles.contains(&empty.to_owned()), "{titles:?}");
    }
    let kinds: Vec<String> = shown.value("column('fences', 'kind')");
    assert_eq!(kinds, ["PMI barrier on one node", "PMI barrier"]);
    let failures: Vec<String> = shown.value("column('ranks', 'failure')");
    assert_eq!(failures, ["failed", "", ""]);
    let own = r#""cause":"rank_failed""#;
    let cause = r#"{"kind":"rank_failed","message":"rank 1 was killed","rank":1,"#;
    assert!(FAILED.contains(own) && FAILED.contains(cause));
    let missing = r#"{"kind":"fence_timeout","message":"m","missing":{"count":1,"ranks":[{"rank":2,"node":1,"host":"h","app":0,"pid":12,"last":"","idle_ms":1}],"nodes":[],"silent":[]},"#;
    shown.show(&FAILED.replace(cause, missing));
    let failures: Vec<String> = shown.value("column('ranks', 'failure')");
    assert_eq!(failures, ["missing in a fence", "failed", ""]);
    let interrupted = FAILED.replace(cause, r#"{"kind":"interrupted","message":"m","#);
    shown.show(&interrupted.replace(own, r#""cause":"interrupted""#));
    let titles: Vec<String> = shown.value("all('#ranks th').map(title => title.textContent)");
    assert!(!titles.contains(&"failure".to_owned()), "{titles:?}");
    let headings = "all('h2').filter(isShown).map(heading => heading.textContent)";
    let fences = "Fences".to_owned();
    assert!(shown.value::<Vec<String>>(headings).contains(&fences));
    let none = FAILED
        .lines()
        .filter(|line| !line.contains(r#""event":"fence""#));
    let none: String = none.map(|line| format!("{line}\n")).collect();
    shown.show(&none);
    let shown: Vec<String> = shown.value(headings);
    assert!(!shown.contains(&fences) && shown.contains(&"Ranks".to_owned()));
}

#[test]
fn report_page_texts_have_contrast_and_names() {
    let Some(mut shown) = ShownPage::of(FAILED) else {
        return;
    };
    let interrupted = r#"{"kind":"interrupted","message":"m","signal":2}"#;
    for (stream, style) in [
        (ended(0, "null"), "succeeded"),
        (ended(130, interrupted), "stopped"),
        (FAILED.to_owned(), "failed"),
    ] {
        shown.show(&stream);
        let verdict: String = shown.value("document.querySelector('h1').className");
        assert_eq!(verdict, style);
        for colours in ["light", "dark"] {
            shown.browser.emulate("screen", colours);
            let pale: Vec<String> = shown.value("paleTexts()");
            assert!(pale.is_empty(), "{style}, {colours}: {pale:?}");
        }
    }
    let roles = shown.browser.named_roles();
    for (role, count) in [
        ("image", 2),
        ("table", 3),
        ("region", 3),
        ("searchbox", 3),
        ("button", 20),
        ("link", 5),
    ] {
        let named = roles
            .iter()
            .filter(|(of, name)| of == role && !name.is_empty());
        assert!(named.count() >= count, "{role}: {roles:?}");
        let unnamed = roles
            .iter()
            .filter(|(of, name)| of == role && name.is_empty());
        assert_eq!(unnamed.count(), 0, "{role}: {roles:?}");
    }
}

#[test]
fn report_page_works_by_keyboard_and_touch() {
    let Some(mut shown) = ShownPage::of(FAILED) else {
        return;
    };
    let whole = shown.axis();
    shown.value::<()>("document.getElementById('in').focus(); null");
    shown.browser.press("Enter");
    let near = shown.axis();
    assert!(near.values[0] > whole.values[0], "{near:?}");
    shown.value::<()>("document.getElementById('timeline').focus(); null");
    shown.browser.press("ArrowRight");
    let later = shown.axis();
    assert!(later.values[0] > near.values[0], "{later:?}");
    shown.browser.press("ArrowLeft");
    assert_eq!(shown.axis(), near);
    shown.browser.press("ArrowLeft");
    let earlier = shown.axis();
    assert!(earlier.values[0] < near.values[0], "{earlier:?}");
    shown.value::<()>("document.getElementById('all').click(); null");
    assert_eq!(shown.axis(), whole);
    shown.browser.swipe("#timeline", 0.2, 0.5);
    let touched = shown.axis();
    touched.check();
    let (first, last) = (touched.values[0], touched.values[touched.values.len() - 1]);
    assert!(first > 80.0 && last < 225.0, "{touched:?}");
    shown.value::<()>("document.querySelector('#ranks th button').focus(); null");
    shown.browser.press("Enter");
    shown.browser.press("Enter");
    let order: String = shown.value("document.activeElement.parentElement.ariaSort");
    assert_eq!(order, "descending", "the focus stays");
}

#[test]
fn report_page_tables_sort_and_filter_slowest_first() {
    let Some(mut shown) = ShownPage::of(&ended(0, "null")) else {
        return;
    };
    // They lasted 370, 330 and 329 ms; others waited for the second host.
    let ranks = "column('ranks', 'rank')";
    assert_eq!(shown.value::<Vec<String>>(ranks), ["0", "2", "1"]);
    let hosts: Vec<String> = shown.value("column('hosts', 'host')");
    assert_eq!(hosts, ["second-node.example", "first-node.example"]);
    let took: Vec<String> = shown.value("column('fences', 'took')");
    assert_eq!(took, ["20.10 ms", "9.50 ms"]);
    let sort = |title: &str| {
        format!(
            "all('#ranks th button').find(title => title.textContent === '{title}').click(); null"
        )
    };
    shown.value::<()>(&sort("ended"));
    assert_eq!(shown.value::<Vec<String>>(ranks), ["0", "2", "1"]);
    shown.value::<()>(&sort("ended"));
    assert_eq!(shown.value::<Vec<String>>(ranks), ["1", "2", "0"]);
    let filter = |text: &str| {
        format!(
            "(() => {{ const field = document.querySelector('section:has(#ranks) input'); field.value = '{text}';
                field.dispatchEvent(new Event('input')); }})(); null"
        )
    };
    shown.value::<()>(&filter("FIRST sigterm"));
    assert_eq!(shown.value::<Vec<String>>(ranks), ["0"]);
    let count: String =
        shown.value("document.querySelector('section:has(#ranks) output').textContent");
    assert_eq!(count, "1 of 3");
    shown.value::<()>(&filter(""));
    assert_eq!(shown.value::<Vec<String>>(ranks).len(), 3);
}

#[test]
fn report_page_fits_375_pixels() {
    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Scrolling {
        wide: u32,
        #[serde(rename = "seen")]
        visible: u32,
        page: u32,
    }
    let Some(mut shown) = ShownPage::of(FAILED) else {
        return;
    };
    shown.browser.resize(375);
    for stream in [FAILED.to_owned(), wide_stream(1024, 16)] {
        shown.show(&stream);
        shown.axis().check();
        assert_eq!(shown.value::<Vec<String>>("cutLabels()"), [""; 0]);
        let scrolling: Scrolling = shown.value("scrolling()");
        assert!(
            scrolling.wide >= 2 && scrolling.visible == scrolling.wide,
            "{scrolling:?}"
        );
        assert_eq!(
            scrolling.page, 0,
            "the page itself does not scroll sideways"
        );
    }
}

#[test]
fn report_page_of_missing_hosts_is_about_hosts() {
    let lost = ended(
        122,
        r#"{"kind":"node_failed","message":"m","host":"second-node.example","node":1}"#,
    );
    let unjoined: String = lost
        .lines()
        .filter(|line| !line.contains(r#""event":"node""#))
        .map(|line| format!("{line}\n"))
        .collect();
    let Some(mut shown) = ShownPage::of(FAILED) else {
        return;
    };
    for (is_virtual, heading) in [(false, "Hosts"), (true, "Virtual nodes")] {
        let field = format!(r#""virtual_nodes":{is_virtual},"apps""#);
        shown.show(&unjoined.replacen(r#""apps""#, &field, 1));
        let headings: Vec<String> = shown.value("all('h2').map(heading => heading.textContent)");
        assert!(headings.contains(&heading.to_owned()), "{headings:?}");
    }
}

#[test]
fn report_page_of_virtual_nodes_has_no_advice_about_hosts() {
    let rank = r#""rank":1,"node":0,"host":"first-node.example","app":0"#;
    let aborted = ended(
        7,
        &format!(r#"{{"kind":"aborted","message":"m",{rank},"code":7}}"#),
    );
    let joined = |line: &&str| line.contains(r#""event":"node""#);
    let nodes: String = aborted
        .lines()
        .filter(|line| !joined(line))
        .map(|line| format!("{line}\n"))
        .collect();
    let Some(mut shown) = ShownPage::of(FAILED) else {
        return;
    };
    for (stream, heading, is_advised) in
        [(&aborted, "Hosts", true), (&nodes, "Virtual nodes", false)]
    {
        shown.show(stream);
        let advice = shown.browser.text("#advice");
        assert_eq!(
            advice.contains("wireup doctor --hosts"),
            is_advised,
            "{advice}"
        );
        let headings: Vec<String> = shown.value("all('h2').map(heading => heading.textContent)");
        assert!(headings.contains(&heading.to_owned()), "{headings:?}");
    }
}

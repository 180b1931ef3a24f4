//! The page of `--report` in a real browser: wide launches, light, dark and printed, and texts of others.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::browser::{self, Browser};
use crate::common::{Run, skip};

const WIREUP: &str = env!("CARGO_BIN_EXE_wireup");

/// What would be more than text if it were not shown as text.
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
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let words = [WIREUP, "report", "-", "-o", page.to_str().unwrap()];
    let run = Run::command(words).stdin_bytes(wide_stream(ranks, hosts));
    run.run().expect_quiet_success();
    (dir, page)
}

/// The table's cells, row by row, without its head.
#[track_caller]
pub(crate) fn rows(browser: &mut Browser, table: &str) -> Vec<Vec<String>> {
    let asked = format!(
        "[...document.querySelectorAll('#{table} tr')].slice(1).map(row => [...row.cells].map(cell => cell.textContent))"
    );
    serde_json::from_value(browser.value(&asked)).unwrap()
}

/// The number of different colours in the picture of the ranks.
fn colours(browser: &mut Browser) -> u64 {
    let count = "(() => { const c = document.getElementById('timeline');
        const all = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer);
        return new Set(all).size; })()";
    browser.value(count).as_u64().unwrap()
}

#[test]
fn a_browser_shows_1024_and_16384_ranks_and_names_the_slowest_host() {
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
        // Of many ranks a row of the picture has several; a table says how many it leaves out.
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
        assert_eq!(browser.value("document.title"), "wireup: wide");
        let command = browser.text("#command");
        assert_eq!(command, format!("wireup run 'a{HOSTILE}'"));
        let warning = browser.text("#warnings");
        assert!(
            warning.contains(&format!(r"{HOSTILE}\u001b[31m")),
            "{warning}"
        );
        let subtitle = browser.text("#subtitle");
        assert!(subtitle.contains("wireup 0.9"), "{subtitle}");
    }
}

/// Red, green and blue of a computed colour.
fn brightness(colour: &str) -> u32 {
    let parts = colour.split(|c: char| !c.is_ascii_digit());
    let numbers = parts.filter_map(|part| part.parse::<u32>().ok());
    numbers.take(3).sum()
}

#[test]
fn the_page_is_readable_in_the_dark_in_the_light_and_on_paper() {
    if !browser::is_installed() {
        return skip("the page in a browser: needs chromium");
    }
    let (dir, page) = wide_page(64, 4);
    let mut browser = Browser::start(dir.path());
    let ink = |browser: &mut Browser| brightness(&browser.style("body", "color"));
    // The colour of the picture's words, which are drawn and have no style.
    let drawn = |browser: &mut Browser| {
        let sum = "(() => { const c = document.getElementById('timeline');
            const data = c.getContext('2d').getImageData(0, 22, 60, c.height - 22).data;
            let best = 0, at = 0;
            for (let i = 0; i < data.length; i += 4) if (data[i + 3] > best) { best = data[i + 3]; at = i; }
            return data[at] + data[at + 1] + data[at + 2]; })()";
        browser.value(sum).as_u64().unwrap()
    };
    browser.emulate("screen", "light");
    browser.show(&page);
    assert!(ink(&mut browser) < 200);
    assert!(drawn(&mut browser) < 200);
    assert_eq!(browser.style("#ranks", "overflowY"), "auto");
    // Also of a page that is open when the colours change.
    browser.emulate("screen", "dark");
    assert!(ink(&mut browser) > 500);
    let redrawn = "new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))";
    browser.value(redrawn);
    assert!(drawn(&mut browser) > 500);
    browser.emulate("print", "dark");
    // On paper nothing is scrolled, and ink is dark whatever the screen has.
    for scrolled in ["#ranks", "#hosts", "#command"] {
        assert_eq!(browser.style(scrolled, "maxHeight"), "none", "{scrolled}");
    }
    assert_eq!(browser.style(".legend output", "display"), "none");
    assert!(ink(&mut browser) < 200);
    browser.value(redrawn);
    assert!(drawn(&mut browser) < 200);
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
        "bound to",
        "failure",
    ] {
        assert!(text.contains(part), "{part:?} is not on paper: {text}");
    }
}

/// The words of a PDF.
fn printed(pdf: &str, dir: &Path) -> String {
    let file = dir.join("page.pdf");
    let encoded = dir.join("page.base64");
    std::fs::write(&encoded, pdf).unwrap();
    let made = Command::new("base64")
        .arg("-d")
        .arg(encoded)
        .stdout(std::fs::File::create(&file).unwrap())
        .status();
    assert!(made.unwrap().success());
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
fn the_command_is_shown_as_a_shell_needs_it_and_without_secrets() {
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
    let made = ["--json", "status", "--report", "page.html"];
    let words = [&made[..], &set, &program].concat();
    let outcome = Run::ranks(2, &words).run().expect(0);
    assert_eq!(outcome.out(), "s3cret s3cret\n".repeat(2));
    let stream = std::fs::read_to_string(outcome.dir().join("status")).unwrap();
    let planned: Value = serde_json::from_str(stream.lines().next().unwrap()).unwrap();
    let command = planned["command"].as_str().unwrap();
    let shown = words_of_shell(command);
    let hidden = |word: &&str| word.replace("s3cret", "…hidden");
    let wanted: Vec<String> = words.iter().map(hidden).collect();
    assert!(
        shown[0].ends_with("wireup") && shown[1] == "run",
        "{command}"
    );
    assert!(shown.ends_with(&wanted), "{command}: {wanted:?}");
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

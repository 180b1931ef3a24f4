//! The documentation as a site, as `scripts/site` builds it: every page in Chromium, narrow and wide, light and dark.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use wireup_test_support::{repository, skip};

use super::expect;

#[path = "../run/browser.rs"]
#[allow(dead_code)] // the tests of the report page use the rest
mod browser;

use browser::Browser;

/// Waits until a page and its pictures are loaded; returns its address, the colours of its theme, the pixels by which it is
/// wider than the window, and the pictures that did not load.
const CHECK: &str = "new Promise(done => { const look = () => document.readyState !== 'complete' ? setTimeout(look, 5) : done({
        address: location.pathname,
        dark: document.documentElement.classList.contains('navy'),
        excess: Math.max(document.documentElement.scrollWidth, document.body.scrollWidth) - innerWidth,
        pictures: document.images.length,
        broken: [...document.images].filter(image => !image.naturalWidth).map(image => image.src),
    }); look(); })";

/// Returns the pages below a directory of the site.
fn pages(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(pages(&path));
        } else if path.extension().is_some_and(|end| end == "html") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Returns what is wrong with the page that the browser shows.
fn faults(shown: &Value, page: &Path, colours: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if shown["address"] != page.to_str().unwrap() {
        faults.push(format!("shows {}", shown["address"]));
    }
    if shown["dark"] != (colours == "dark") {
        faults.push("theme of other colours".to_owned());
    }
    if shown["excess"].as_i64().unwrap() > 0 {
        faults.push(format!("{} pixels too wide", shown["excess"]));
    }
    if shown["broken"] != json!([]) {
        faults.push(format!("pictures not loaded: {}", shown["broken"]));
    }
    faults
}

#[test]
fn site_fits_narrow_and_wide_windows_and_loads_pictures() {
    if !browser::is_installed() {
        return skip("the site in a browser: needs chromium");
    }
    let dir = tempfile::tempdir().unwrap();
    let site = dir.path().canonicalize().unwrap().join("site");
    expect(Command::new(repository().join("scripts/site")).arg(&site));
    // Two are for mdbook: the list of pages in a frame, and all pages in one for printing, which opens a dialog.
    let mut found = pages(&site);
    found.retain(|page| !page.ends_with("toc.html") && !page.ends_with("print.html"));
    assert!(found.len() > 40, "{found:?}");
    let mut browser = Browser::start(dir.path());
    let mut wrong = Vec::new();
    let mut pictures = 0;
    for width in [375, 1280] {
        browser.resize(width);
        for colours in ["light", "dark"] {
            browser.emulate("screen", colours);
            for page in &found {
                let url = format!("file://{}", page.display());
                browser.call("Page.navigate", json!({"url": url}));
                let shown = browser.value(CHECK);
                pictures += shown["pictures"].as_u64().unwrap();
                for fault in faults(&shown, page, colours) {
                    wrong.push(format!(
                        "{} at {width} pixels, {colours}: {fault}",
                        page.display()
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(pictures >= 4 * 7, "{pictures} pictures");
}

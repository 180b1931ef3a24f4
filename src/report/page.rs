//! The page about a launch (`--report`, `wireup report`): one file that refers to no other.
//!
//! The page's script builds everything from the timeline, which the page contains as JSON. Names of hosts and
//! programs, and texts of failures, are foreign data: the script puts them into the page as
//! text only, and the policy in the page's head permits no other script.

use wireup_core::timeline::{Timeline, breakdown};

const HEAD: &str = include_str!("page/head.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

pub(crate) fn page(timeline: &Timeline) -> String {
    let data = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "breakdown": breakdown(timeline),
        "virtual_nodes": timeline.has_virtual_nodes(),
        "timeline": timeline,
    });
    // In a script element only this character can end the element, or begin a comment.
    let data = data.to_string().replace('<', "\\u003c");
    HEAD.replace("/*style*/", STYLE)
        .replace("/*script*/", SCRIPT)
        .replace("/*data*/", &data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_words_for_all_kinds() {
        let documented = include_str!("../../docs/status.md");
        let causes = documented.split("\n| kind | |\n").nth(1).unwrap();
        let causes = causes.lines().take_while(|line| line.starts_with('|'));
        let causes = causes
            .filter_map(|line| line.split('|').nth(1))
            .flat_map(|kinds| kinds.split('`').skip(1).step_by(2));
        let fences = documented.split("all its nodes: `kind` (").nth(1).unwrap();
        let fences = fences.split(')').next().unwrap().split('`');
        let kinds: Vec<&str> = causes.chain(fences.skip(1).step_by(2)).collect();
        assert!(kinds.len() > 20, "{kinds:?}");
        for kind in kinds {
            assert!(SCRIPT.contains(&format!(" {kind}: \"")), "{kind}");
        }
    }

    #[test]
    fn foreign_text_cannot_end_script() {
        let line = concat!(
            r#"{"time":"t","ms":1,"us":1,"event":"warning","message":"</script><img src=x onerror=alert(1)>"}"#,
            "\n"
        );
        let page = page(&Timeline::read(line.as_bytes()).unwrap());
        assert_eq!(page.matches("</script").count(), 2, "the page's own");
        assert!(page.contains(r"\u003c/script>\u003cimg"));
        assert!(
            !page.contains("/*"),
            "every part is in its place, and no comment"
        );
    }
}

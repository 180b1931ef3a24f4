//! Standard output and standard error in one pipe, file or terminal, as below `2>&1`.

use std::io::Write as _;
use std::path::Path;

use crate::common::{Output, Run, Running, eventually};

/// Destination of both streams.
#[derive(Clone, Copy, Debug)]
enum Shared {
    Pipe,
    File,
    /// One file, opened twice.
    FileTwice,
    Terminal,
}

const ALL: [Shared; 4] = [
    Shared::Pipe,
    Shared::File,
    Shared::FileTwice,
    Shared::Terminal,
];

impl Shared {
    /// The run with its outputs there, and its input with the test.
    fn start(self, run: Run) -> Running {
        let run = match self {
            Self::Pipe => run.after_shell("exec 2>&1;"),
            Self::File => run.after_shell("exec >both 2>&1;"),
            Self::FileTwice => run.after_shell("exec >both 2>both;"),
            Self::Terminal => return run.after_shell("stty -echo;").terminal().start(),
        };
        run.stdin_held().start()
    }

    fn in_file(self) -> bool {
        matches!(self, Self::File | Self::FileTwice)
    }

    /// Returns the output of the run.
    fn written(self, dir: &Path, captured: Vec<u8>) -> String {
        let bytes = match self.in_file() {
            true => std::fs::read(dir.join("both")).unwrap_or_default(),
            false => captured,
        };
        String::from_utf8(bytes).unwrap().replace("\r\n", "\n")
    }

    /// Types a line once the run has written this.
    fn answer(
        self,
        running: &mut Running,
        stdin: &mut Option<std::process::ChildStdin>,
        text: &str,
    ) {
        eventually(text, || {
            let captured = running.so_far(Output::Stdout);
            let written = self.written(running.work(), captured);
            written.contains(text).then_some(())
        });
        match self {
            Self::Terminal => running.type_text("\n"),
            _ => {
                let stdin = stdin.get_or_insert_with(|| running.stdin());
                stdin.write_all(b"\n").unwrap();
            }
        }
    }

    /// Returns the output of a run after its end; the run reads a line after each of `texts`.
    #[track_caller]
    fn run(self, run: Run, texts: &[&str], code: i32) -> String {
        let mut running = self.start(run);
        let mut stdin = None;
        for text in texts {
            self.answer(&mut running, &mut stdin, text);
        }
        drop(stdin);
        let outcome = running.finish().expect(code);
        self.written(outcome.dir(), outcome.stdout.clone())
    }
}

#[test]
fn lines_of_both_streams_stay_whole() {
    const LINES: usize = 4000;
    let (out, err) = ("o".repeat(40), "e".repeat(50));
    let script = format!("yes {out} | head -n {LINES} & yes {err} | head -n {LINES} >&2; wait");
    for shared in ALL {
        let run = Run::ranks(4, ["-l", "sh", "-c", &script]);
        let written = shared.run(run, &[], 0);
        let mut pieces = 0;
        let mut bytes = [0; 2];
        for line in written.lines() {
            let text = line
                .strip_prefix('[')
                .and_then(|line| line.split_once("] "));
            let (_, text) = text.unwrap_or_else(|| panic!("{shared:?}: {line}"));
            let first = text.bytes().next().unwrap_or_default();
            assert!(text.bytes().all(|byte| byte == first), "{shared:?}: {line}");
            bytes[usize::from(first == b'e')] += text.len();
            pieces += usize::from(text != out && text != err);
        }
        assert_eq!(
            bytes,
            [4 * LINES * out.len(), 4 * LINES * err.len()],
            "{shared:?}"
        );
        // A writer that stops for a tenth of a second in a line has the line shown in pieces. Few of the writes, which are blocks
        // of 4096 bytes, do.
        let writes = (bytes[0] + bytes[1]) / 4096;
        assert!(
            pieces <= writes / 10,
            "{shared:?}: {pieces} pieces, {writes} writes"
        );
    }
}

#[test]
fn label_never_appears_inside_line_of_other_stream() {
    let script = "printf abc; read x; echo err >&2; read x; echo def";
    for shared in ALL {
        let run = Run::ranks(1, ["-l", "sh", "-c", script]);
        let written = shared.run(run, &["abc", "err"], 0);
        assert_eq!(written, "[0] abc\n[0] err\n[0] def\n", "{shared:?}");
        // Without labels every byte arrives, and no other.
        let run = Run::ranks(1, ["sh", "-c", script]);
        let written = shared.run(run, &["abc", "err"], 0);
        assert_eq!(written, "abcerr\ndef\n", "{shared:?}");
    }
}

#[test]
fn message_of_wireup_starts_line() {
    let script = "printf part; read x; exit 3";
    for shared in ALL {
        let run = Run::ranks(1, ["sh", "-c", script]);
        let written = shared.run(run, &["part"], 3);
        let start = "part\nwireup: rank 0 (";
        assert!(written.starts_with(start), "{shared:?}: {written}");
    }
}

#[test]
fn unlabelled_streams_hold_back_each_others_unfinished_lines() {
    // Each half line is finished at once, by a process that finds its other half in the way.
    let script = "for i in 1 2 3 4 5 6 7 8 9; do printf out; printf err >&2; \
                  echo put; echo or >&2; done";
    for shared in ALL {
        // On a busy host, a rank may pause within a line for 100 ms: its half is shown then.
        let is_whole = (0..4).any(|_| {
            let run = Run::ranks(4, ["sh", "-c", script]);
            let written = shared.run(run, &[], 0);
            let expected = "output\nerror\n".len() * 36;
            assert_eq!(written.len(), expected, "{shared:?}: {written}");
            let mut lines = written.lines();
            lines.all(|line| line == "output" || line == "error")
        });
        assert!(is_whole, "{shared:?}");
    }
}

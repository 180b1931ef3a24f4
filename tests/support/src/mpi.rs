//! Runs of MPI programs, and the lines of their ranks.

use std::ffi::OsString;

use crate::outcome::{Outcome, field};
use crate::programs::{Mpi, mpis};
use crate::{Run, skip, wireup};

/// The MPI of that name; `None`, and the test is ignored, when it is not installed.
#[track_caller]
pub fn mpi(name: &str) -> Option<Mpi> {
    let found = mpis().into_iter().find(|mpi| mpi.name == name);
    if found.is_none() {
        skip(&format!("{name} is not installed: run scripts/setup"));
    }
    found
}

impl Mpi {
    /// `wireup run` of one of its test programs: options, program, its arguments.
    pub fn run(&self, ranks: u32, options: &[&str], program: &str, args: &[&str]) -> Run {
        self.run_as(
            ranks,
            options,
            &[],
            self.program(program).as_os_str().into(),
            args,
        )
    }

    /// Runs a program whose ranks each run alone: under Open MPI 4.1 two that start at the same
    /// moment may both want to make one directory below `TMPDIR`, and one fails.
    pub fn run_alone(&self, ranks: u32, options: &[&str], program: &str, args: &[&str]) -> Run {
        let own = r#"sh -c 'mkdir own%r; TMPDIR=$PWD/own%r exec "$@"' own"#;
        self.run(ranks, &[&["--wrap", own], options].concat(), program, args)
    }

    /// Runs a program below a shell whose commands wireup does not follow, as with users' scripts.
    pub fn run_script(&self, ranks: u32, options: &[&str], program: &str) -> Run {
        let shell = ["sh", "-c", "eval 'exec \"$0\" \"$@\"'"];
        let program = self.program(program).as_os_str().into();
        self.run_as(ranks, options, &shell, program, &[])
    }

    /// `wireup run` that is itself a rank, among `outer` ones, of this MPI's own launcher.
    pub fn run_nested(&self, outer: u32, ranks: u32, program: &str) -> Run {
        self.run_inside(self.own_launcher(), outer, ranks, program)
    }

    /// This MPI's own launcher as the only rank of `wireup run`.
    pub fn run_launcher(&self, ranks: u32, program: &str) -> Run {
        let mut words = self.own_launcher();
        words.extend(["-n".into(), ranks.to_string().into()]);
        words.push(self.program(program).into());
        self.with_env(Run::ranks(1, words))
    }

    fn own_launcher(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec![self.launcher.as_os_str().into()];
        if self.name.starts_with("openmpi") {
            words.extend(["--allow-run-as-root", "--oversubscribe"].map(OsString::from));
        }
        words
    }

    /// Runs a program in `wireup run` inside a rank of another `wireup run`.
    pub fn run_in_wireup(&self, outer: u32, ranks: u32, program: &str) -> Run {
        let words = [wireup().into(), "run".into(), "--oversubscribe".into()];
        self.run_inside(words.into(), outer, ranks, program)
    }

    fn run_inside(&self, mut words: Vec<OsString>, outer: u32, ranks: u32, program: &str) -> Run {
        words.extend(["-n".into(), outer.to_string().into()]);
        words.push(wireup().into());
        words.extend(["run", "--oversubscribe", "-n"].map(OsString::from));
        words.push(ranks.to_string().into());
        words.push(self.program(program).into());
        self.with_env(Run::command(words))
    }

    fn run_as(
        &self,
        ranks: u32,
        options: &[&str],
        wrapper: &[&str],
        program: OsString,
        args: &[&str],
    ) -> Run {
        let words = options.iter().chain(wrapper).map(OsString::from);
        let args = args.iter().map(OsString::from);
        self.with_env(Run::ranks(ranks, words.chain([program]).chain(args)))
    }

    fn with_env(&self, run: Run) -> Run {
        self.env
            .iter()
            .fold(run, |run, (name, value)| run.env(name, value))
    }
}

impl Outcome {
    /// The lines with which a test program called `word` reports, by rank.
    ///
    /// Returns the lines of the ranks, in the order of ranks.
    ///
    /// # Panics
    ///
    /// Unless each of `size` ranks printed one line, with the job's size if it has one.
    #[track_caller]
    pub fn by_rank(&self, word: &str, size: u32) -> Vec<String> {
        let text = self.out();
        let start = format!("{word} ");
        let mut lines: Vec<(u32, &str)> = text
            .lines()
            .filter(|line| line.starts_with(&start))
            .map(|line| (number(line, "rank"), line))
            .collect();
        lines.sort_unstable();
        let ranks: Vec<u32> = lines.iter().map(|(rank, _)| *rank).collect();
        assert_eq!(
            ranks,
            (0..size).collect::<Vec<_>>(),
            "ranks that reported; {self:?}"
        );
        for (_, line) in &lines {
            let printed_size = field(line, "size").map(|_| number(line, "size"));
            assert_eq!(printed_size.unwrap_or(size), size, "size in {line:?}");
        }
        lines.into_iter().map(|(_, line)| line.to_owned()).collect()
    }

    /// Fails unless the labels tell two ranks of `spawn` from the two of each of the two jobs that they
    /// spawned.
    #[track_caller]
    pub fn expect_labels_of_jobs(&self) {
        let out = self.out();
        for (label, text) in [
            ("[0]", "spawn rank=0 "),
            ("[1]", "spawn rank=1 "),
            ("[1:0]", "spawned rank=0 "),
            ("[1:1]", "spawned rank=1 "),
            ("[2:0]", "spawned rank=0 "),
            ("[2:1]", "spawned rank=1 "),
        ] {
            let found = out.lines().filter_map(|line| line.strip_prefix(label));
            let texts: Vec<&str> = found.map(str::trim_start).collect();
            assert_eq!(texts.len(), 1, "{label}; {self:?}");
            assert!(texts[0].starts_with(text), "{label}; {self:?}");
        }
    }

    /// Fails unless jobs of three ranks that `pmix_spawn` spawned one after the other know how many
    /// processes of the launch come before each of them.
    #[track_caller]
    pub fn expect_offsets(&self, parents: u32, jobs: u32) {
        let lines = self.sorted_lines().into_iter();
        let lines = lines.filter(|line| line.starts_with("pmix_spawned "));
        let mut found: Vec<_> = lines
            .map(|line| ["global", "offset", "rank"].map(|key| number(&line, key)))
            .collect();
        found.sort_unstable();
        let place = |at| [parents + at, parents + at / 3 * 3, at % 3];
        let expected: Vec<_> = (0..3 * jobs).map(place).collect();
        assert_eq!(found, expected, "{self:?}");
    }

    /// Fails unless the exit code is 0 and wireup printed nothing. MPIs may warn.
    #[track_caller]
    pub fn expect_success(self) -> Self {
        let err = self.err();
        let ours = err.lines().find(|line| line.starts_with("wireup: "));
        assert_eq!(ours, None, "{self:?}");
        self.expect(0)
    }
}

/// The number behind `key=` in a report.
#[track_caller]
pub fn number(line: &str, key: &str) -> u32 {
    let text = field(line, key).unwrap_or_else(|| panic!("no {key} in {line:?}"));
    text.parse()
        .unwrap_or_else(|_| panic!("{key} in {line:?} is no number"))
}

/// Returns the node name of this machine.
pub fn node_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_str().unwrap().to_owned()
}

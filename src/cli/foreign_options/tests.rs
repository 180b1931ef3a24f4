use super::option_table::OWN;
use super::*;
use crate::cli::run_args::RunArgs;

fn words(text: &str) -> Vec<OsString> {
    text.split_whitespace().map(OsString::from).collect()
}

fn translated(text: &str) -> Result<(Vec<OsString>, Vec<OsString>), ForeignError> {
    translate(&OptionTable::from_parser::<RunArgs>(), &OWN, words(text))
        .map(|result| (result.words, result.everywhere))
}

#[track_caller]
fn becomes(line: &str, ours: &str) {
    assert_eq!(translated(line), Ok((words(ours), Vec::new())), "{line}");
}

#[test]
fn np_is_respelled_only_among_options() {
    becomes("-l -np 2 a -np 3", "-l -n 2 a -np 3");
    becomes("--wdir -np -np 2 a", "--wdir -np -n 2 a");
    becomes("--timeout=3 -np 2 -- -np 3", "--timeout=3 -n 2 -- -np 3");
    becomes("--np=2 a", "-n 2 a");
    becomes("-np2 -ppn2 a -np3", "-n 2 --ppn 2 a -np3");
    becomes("-n2 a", "-n 2 a");
}

#[test]
fn equivalent_foreign_options_are_accepted() {
    becomes("-env A 1 -env B=2 a", "-x A=1 -x B=2 a");
    becomes("--kill-on-bad-exit=1 a", "--kill-on-bad-exit a");
    becomes("--kill-on-bad-exit=0 a", "--no-kill-on-bad-exit a");
    becomes("--tasks-per-node=2 a", "--ppn 2 a");
    becomes("-tag-output -wd d a", "--label --wdir d a");
    becomes("--cpu-bind none --allow-run-as-root -genvall a", "a");
    becomes("--cpu-bind=none a -genvall", "a -genvall");
    becomes(
        "-bind-to core -report-bindings a",
        "--bind-to core --report-bindings a",
    );
    becomes("--report-bindings a", "--report-bindings a");
    becomes("--bind-to-socket a", "--bind-to package a");
    becomes("-ppn 2 a", "--ppn 2 a");
    becomes("-perhost 2 -map-by node a", "--ppn 2 --map-by node a");
    becomes("-host b,c:2 a", "--hosts b,c:2 a");
    becomes("-hosts b --nodelist=c[1-2] a", "--hosts b --hosts c[1-2] a");
    becomes("-f h -hostfile i a", "--hostfile h --hostfile i a");
    becomes("--nooversubscribe a", "--no-oversubscribe a");
    becomes(
        "-wdir d -timeout=4 -oversubscribe a",
        "--wdir d --timeout=4 --oversubscribe a",
    );
    let expected = Ok((words("-n 2 a -genv C 3"), words("-x A=1 -x B=2")));
    assert_eq!(translated("-genv A 1 -n 2 -genv B 2 a -genv C 3"), expected);
    assert_eq!(
        translated("-genv A=1 -n 2 --genv=B=2 a -genv C 3"),
        expected
    );
}

#[test]
fn list_after_x_adds_each_variable() {
    becomes("-x A,LC_* -n 2 a", "-x A -x LC_* -n 2 a");
    becomes("-xA,B, a -x A,B", "-x A -x B a -x A,B");
    becomes("-lx A,B a", "-l -x A -x B a");
    becomes("-x A=1,B a", "-x A=1,B a");
    becomes("--env A,B -nx,y a", "--env A,B -nx,y a");
    becomes("-x", "-x");
}

#[test]
fn option_after_json_means_stdout() {
    becomes("--json --dry-run a", "--json=- --dry-run a");
    becomes("--json -n 2 a --json", "--json=- -n 2 a --json");
    becomes("--json -- a", "--json=- -- a");
    becomes("--json - a", "--json - a");
    becomes("--json f a", "--json f a");
    becomes("--json=f -n 2 a", "--json=f -n 2 a");
    becomes("--json", "--json");
}

#[test]
fn options_without_counterpart_are_refused_with_remedy() {
    for (line, needed) in [
        (
            "--mca btl self,tcp a",
            "--mca: write -x OMPI_MCA_btl=self,tcp",
        ),
        ("-l -mca btl tcp a", "-mca: write -x OMPI_MCA_btl=tcp"),
        ("--rank-by=core a", "--rank-by=core: ranks are numbered as"),
        ("--cpu-bind=cores a", "write --bind-to core,"),
        ("-c 2 -n 4 a", "write -n 2 for 2 ranks"),
        ("--pernode a", "write --ppn 1"),
        ("--gpus-per-task=1 a", "write --gpus-per-rank N"),
        ("--mem=4G a", "--rlimit as=4G"),
        ("-m cyclic a", "--map-by node for cyclic"),
        ("-o out.%t a", "write --output out.%t"),
        ("--exclusive=user a", "not a batch system"),
        ("-outfile-pattern out.%r a", "write --output 'out.%r',"),
        ("-N 2 a", "write --nodes 2 or --ppn 2"),
        ("--nolocal a", "only if it is in the list"),
        ("-e err.%t a", "or 2> err.%t for one file of all ranks"),
        ("--error=err a", "or 2> err for one file of all ranks"),
        ("-i in a", "write < in at the end of the line"),
        ("--input in a", "--stdin none, all or RANK selects the"),
        ("--quiet a", "prints nothing of its own when all goes well"),
        ("-q a", "prints nothing of its own when all goes well"),
        ("-J name a", "wireup names jobs itself"),
        ("--job-name=name a", "wireup ps shows them"),
        ("-p batch a", "-p: wireup is not a batch system"),
        ("--partition=batch a", "give it to sbatch or salloc"),
        ("--wait=30 a", "a job runs until all its ranks have ended"),
        ("-W 30 a", "write --timeout SECONDS for the whole job"),
        ("--gres=gpu:1 a", "--gres=gpu:1: write --gpus-per-rank N"),
        (
            "--display-map a",
            "write -v, which shows where the ranks run",
        ),
        ("-display-map a", "or --report-bindings"),
        ("-machinefile", "-machinefile needs a value"),
        ("--ntasks=3 a", "write -n 3"),
        ("-s all a", "write --stdin all"),
        ("--mca btl", "-x OMPI_MCA_btl=..."),
        ("-genv A", "-genv needs 2 values"),
        ("-np", "-np needs a value"),
    ] {
        let refusal = translated(line).expect_err(line).to_string();
        assert!(refusal.contains(needed), "{line}: {refusal}");
        assert!(!refusal.contains('{'), "{line}: {refusal}");
    }
}

#[test]
fn unknown_braces_of_texts_stay() {
    let fill = |text: &str| filled(text, Some(OsStr::new("-o")), &words("a b"));
    assert_eq!(fill("{0}={1},{2}"), "-o=a,b");
    assert_eq!(fill("${HOME}/{1} {x}{2}"), "${HOME}/a {x}b");
    assert_eq!(fill("a}{ {1"), "a}{ {1");
    assert_eq!(filled("{1} {2}", None, &words("a")), "a ...");
}

#[test]
fn unknown_words_are_left_to_parser() {
    becomes("--frobnicate -np 2 a", "--frobnicate -np 2 a");
    becomes("-np 2 --frobnicate=3 a", "-n 2 --frobnicate=3 a");
}

#[test]
fn foreign_options_hide_no_own_options() {
    let own = OptionTable::from_parser::<RunArgs>();
    let mut names = BTreeSet::new();
    for habit in HABITS {
        assert!(habit.values <= 2);
        for name in habit.names {
            assert!(names.insert(name), "{name} is there twice");
            // With its value it is none of ours.
            let long = format!("--{name}");
            assert!(
                name.contains('=') || name.starts_with('-') || !own.knows(OsStr::new(&long)),
                "{long} is an option of ours now: take it out of the table"
            );
        }
        if let OptionTranslation::Option(option) = habit.meaning {
            assert!(own.knows(OsStr::new(option)), "{option}");
        }
    }
}

/// Lines of docs/coming-from.md: what another launcher is given, and what wireup is.
fn documented() -> Vec<(Vec<String>, String)> {
    let page = include_str!("../../../docs/coming-from.md");
    let rows = page.lines().filter(|line| line.starts_with("| `-"));
    rows.map(|row| {
        let mut cells = row.trim_matches('|').split(" | ");
        let (theirs, ours) = (cells.next().unwrap(), cells.next().unwrap());
        let words = theirs.split('`').skip(1).step_by(2);
        (words.map(str::to_owned).collect(), ours.trim().to_owned())
    })
    .collect()
}

#[test]
fn page_on_other_launchers_matches_behaviour() {
    let own = OptionTable::from_parser::<RunArgs>();
    let rows = documented();
    assert!(rows.len() > 40);
    for (theirs, ours) in rows {
        for word in &theirs {
            let line = words(&format!("{word} a"));
            let taken = translate(&own, &OWN, line).is_ok_and(|result| {
                let rest: Vec<OsString> =
                    result.everywhere.into_iter().chain(result.words).collect();
                own.knows(&rest[0]) || rest == ["a"]
            });
            // Values of options that are ours are judged by the parser.
            let stated = ours.starts_with("as it is");
            let same = word.starts_with("--map-by")
                || word.starts_with("--pty")
                || word.starts_with("--output");
            assert!(taken == stated || same, "{word}: {ours}");
        }
        let options = ours.split('`').skip(1).step_by(2);
        for option in options.filter_map(|text| text.split(' ').next()) {
            assert!(
                !option.starts_with('-') || own.knows(OsStr::new(option)),
                "{option} is no option of wireup run"
            );
        }
    }
}

use std::path::Path;

use super::*;

/// What a command line starts, in an environment with `HOME=/home/u` and `LIBS=/opt/lib`, from the
/// directory `/w`. Words are separated by `|` without blanks. Commands read as `(DIRECTORY) NAME=VALUE program
/// args`, where only what differs is told and `…` stands for arguments that are not known.
fn starts(line: &str) -> String {
    let env = [("HOME", "/home/u"), ("LIBS", "/opt/lib")];
    let before = Place {
        env: env.map(|(name, value)| (name.into(), value.into())).into(),
        cwd: "/w".into(),
    };
    let argv = line
        .replace(" || ", " \u{1}\u{1} ")
        .replace(" | ", " \u{1} ");
    let argv = argv.split('|').map(|word| word.replace('\u{1}', "|"));
    let argv: Vec<OsString> = argv.map(OsString::from).collect();
    let wrapper = named(&argv[0]).unwrap_or_else(|| panic!("{line}: not known"));
    let command = Command {
        argv,
        cut: false,
        place: before.clone(),
    };
    match wrapper.behind(&command) {
        Behind::Nothing => "nothing".into(),
        Behind::Opaque(what) => format!("opaque: {what:?}"),
        Behind::Commands(commands) => {
            let told: Vec<String> = commands.iter().map(|c| tell(c, &before)).collect();
            told.join("; ")
        }
    }
}

fn named(program: &OsStr) -> Option<Known> {
    let name = Path::new(program).file_name()?;
    known(&[name.to_str()?.to_owned()])
}

fn tell(command: &Command, before: &Place) -> String {
    let text = |text: &OsStr| text.to_string_lossy().into_owned();
    let mut words = Vec::new();
    if command.place.cwd != before.cwd {
        words.push(format!("({})", command.place.cwd.display()));
    }
    for (name, _) in &before.env {
        if !command.place.env.iter().any(|(known, _)| known == name) {
            words.push(format!("-{}", text(name)));
        }
    }
    for (name, value) in &command.place.env {
        if !before.env.contains(&(name.clone(), value.clone())) {
            words.push(format!("{}={}", text(name), text(value)));
        }
    }
    words.extend(command.argv.iter().map(|word| text(word)));
    words.extend(command.cut.then(|| "…".to_owned()));
    words.join(" ")
}

/// Fails, with all that differ, unless each line starts what is told.
#[track_caller]
fn expect(table: &[(&str, &str)]) {
    let differing: Vec<String> = table
        .iter()
        .map(|(line, wanted)| (line, wanted, starts(line)))
        // Of what is opaque only that it is.
        .filter(|(_, wanted, got)| match **wanted {
            "opaque" => !got.starts_with("opaque: "),
            wanted => wanted != got,
        })
        .map(|(line, wanted, got)| format!("{line}\n  is     {got}\n  wanted {wanted}"))
        .collect();
    assert!(differing.is_empty(), "\n{}", differing.join("\n"));
}

#[test]
fn options_and_their_values_are_passed_over() {
    expect(&[
        ("numactl|app|-N|x", "app -N x"),
        ("numactl|-N|0|-m|0|./app|a b", "./app a b"),
        ("numactl|-N0|-lm1|app", "app"),
        ("numactl|--cpunodebind=0|--membind|1|app", "app"),
        // The start of a name is enough, if it fits one option alone.
        ("numactl|--cpun|0|app", "app"),
        ("numactl|--cpu|0|app", "opaque"),
        ("numactl|--|-app", "-app"),
        ("numactl|--no-such|app", "opaque"),
        ("numactl|-N|0", "nothing"),
        ("numactl|--show", "nothing"),
        ("/usr/bin/numactl|-C|+0-3|app", "app"),
        ("taskset|-c|0,2|app", "app"),
        ("taskset|0x3|app|0x3", "app 0x3"),
        ("taskset|-p|1234", "nothing"),
        ("taskset|-pc|0|1234", "nothing"),
        ("nice|app", "app"),
        ("nice|-n|5|app", "app"),
        ("nice|-n5|app", "app"),
        ("nice|-10|app", "app"),
        ("nice|--10|app", "app"),
        ("nice|--adjustment=-3|app", "app"),
        ("nice", "nothing"),
        ("ionice|-c|2|-n7|-t|app", "app"),
        ("ionice|-p|1", "nothing"),
        ("chrt|-f|50|app", "app"),
        ("chrt|-b|app", "app"),
        ("chrt|--deadline|--sched-period|9|0|app|0", "app 0"),
        ("chrt|-p|1", "nothing"),
        ("nohup|app", "app"),
        ("setsid|-cw|app", "app"),
        ("timeout|10|app", "app"),
        ("timeout|-s|KILL|--kill-after=3|10s|app|10", "app 10"),
        ("timeout|--help", "nothing"),
        ("stdbuf|-oL|-e|0|app", "app"),
        ("stdbuf|--output=L|app", "app"),
        ("time|-v|app", "app"),
        ("time|-f|%e %M|-o|file|app", "app"),
        ("valgrind|app", "app"),
        (
            "valgrind|--tool=callgrind|--any-option=x|-q|app|--x",
            "app --x",
        ),
        ("valgrind|-z|app", "opaque"),
        ("valgrind.bin|app", "app"),
        ("strace|-f|-o|log|-e|trace=read|app", "app"),
        ("strace|-ffttolog|app", "app"),
        ("strace|-E|A=1|-E|HOME|app", "-HOME A=1 app"),
        ("strace|--daemonize|app", "app"),
        ("strace|-p|1", "nothing"),
        ("ltrace|-f|-l|libmpi*|-x|main|app", "app"),
        ("perf|stat|-e|cycles,instructions|-r|3|app|x", "app x"),
        ("perf|stat|--|app", "app"),
        ("perf|record|-g|--call-graph|dwarf|-F|99|-o|data|app", "app"),
        ("perf|record|-F99|-ecycles|app", "app"),
        ("perf|record|--switch-output|app", "app"),
        ("perf|--no-pager|stat|app", "app"),
        ("perf|top", "opaque"),
        ("perf|record|-p|1", "nothing"),
    ]);
}

#[test]
fn debuggers_and_terminals_are_told_their_program_in_their_own_way() {
    expect(&[
        ("gdb|--args|app|-x|y", "app -x y"),
        ("gdb|-args|app", "app"),
        ("gdb|-batch|-ex|run|-ex|bt|--args|./app|1", "./app 1"),
        ("gdb|-ex=run|-q|./app", "./app"),
        ("gdb|./app|core", "./app"),
        ("gdb|./app|-batch|-x|script", "./app"),
        ("gdb|-exec|app|-s|symbols", "app"),
        ("gdb|-cd|sub|--args|./app", "(/w/sub) ./app"),
        ("gdb|-p|1", "nothing"),
        ("gdb", "opaque"),
        ("gdb|--no-such-option|app", "opaque"),
        ("xterm|-e|app|a|b", "app a b"),
        (
            "xterm|-hold|-geometry|80x24|-T|rank|-e|gdb|--args|app",
            "gdb --args app",
        ),
        ("xterm|-e|app a b; bash", "app a b; bash"),
        ("xterm", "opaque"),
    ]);
}

#[test]
fn env_changes_what_its_command_finds() {
    expect(&[
        ("env|app", "app"),
        ("env", "nothing"),
        ("env|A=1|B=x=y|app|C=3", "A=1 B=x=y app C=3"),
        ("env|A=1", "nothing"),
        ("env|-u|HOME|app", "-HOME app"),
        ("env|-uHOME|--unset=LIBS|app", "-HOME -LIBS app"),
        ("env|-i|A=1|app", "-HOME -LIBS A=1 app"),
        ("env|-|app", "-HOME -LIBS app"),
        ("env|--ignore-environment|HOME=/x|app", "-LIBS HOME=/x app"),
        // Removed first, then set.
        ("env|-u|A|A=1|app", "A=1 app"),
        ("env|-C|sub|app", "(/w/sub) app"),
        ("env|--chdir=/x|A=1|./app", "(/x) A=1 ./app"),
        ("env|-S|A=1 app 'b c' d\\_e", "A=1 app b c d e"),
        ("env|-S|-i app", "-HOME -LIBS app"),
        ("env|-Sapp \"${LIBS}/x\"|y", "app /opt/lib/x y"),
        ("env|-vS|app a # not this|b", "app a b"),
        ("env|-S|app $LIBS", "opaque"),
        ("env|-S|app 'open", "opaque"),
        ("env|-S|-S app|x", "app x"),
        ("env|--default-signal=PIPE|--block-signal|app", "app"),
        ("env|--|app", "app"),
        ("env|--frobnicate|app", "opaque"),
    ]);
}

#[test]
fn every_command_of_a_shells_text_is_seen() {
    expect(&[
        ("sh|-c|app", "app"),
        ("sh|-c|exec app a 'b c' \"d e\" f\\ g", "app a b c d e f g"),
        ("bash|-ec|a; b && c || d | e & f\ng", "a; b; c; d; e; f; g"),
        ("bash|-o|pipefail|-c|a", "a"),
        ("bash|--norc|-c|a", "a"),
        ("sh|-c|echo hi; true; test -n x && [ 1 = 1 ]", "nothing"),
        ("sh|-c|", "nothing"),
        ("sh|-c|# nothing here", "nothing"),
        ("sh|-c|app >out 2>&1 <in 3>>log &>x # rest", "app"),
        ("sh|-c|2>err app", "app"),
        ("sh|-c|app 2", "app 2"),
        ("sh|-c|if a; then b; else c; fi", "a; b; c"),
        ("sh|-c|while a; do b; done", "a; b"),
        ("sh|-c|for x in 1 2; do app $x; done", "app …"),
        ("sh|-c|{ a; b; }; ( c; d )", "a; b; c; d"),
        ("sh|-c|! time -p app", "app"),
        (
            "sh|-c|command -v x; command -p app; exec -a name app2",
            "app; app2",
        ),
        ("sh|-c|a \\\n b", "a b"),
        ("xterm|-e|sh -c app", "sh -c app"),
    ]);
}

#[test]
fn a_shells_arguments_and_variables_are_filled_in() {
    expect(&[
        ("sh|-c|exec \"$@\"|sh|app|a b|c", "app a b c"),
        ("sh|-c|exec \"$0\" \"$@\"|app|x", "app x"),
        ("sh|-c|$1 $2 ${3}|sh|app|a", "app a"),
        ("sh|-c|exec \"$@\"", "nothing"),
        (
            "sh|-c|$LIBS/app ${HOME}x \"$HOME\"",
            "/opt/lib/app /home/ux /home/u",
        ),
        ("sh|-c|P=app; $P $UNSET \"$UNSET\"", "app "),
        ("sh|-c|P='app a'; $P; \"$P\"", "app a; app a"),
        ("sh|-c|${APP:-app} x", "app x"),
        ("sh|-c|~/app", "/home/u/app"),
        // A number is one word whatever it is.
        (
            "sh|-c|numactl -N $WIREUP_LOCAL_RANK ./app",
            "numactl -N 0 ./app",
        ),
        (
            "sh|-c|taskset -c $((2*$PMI_RANK)) ./app",
            "taskset -c 0 ./app",
        ),
        ("sh|-c|app $(hostname) x", "app …"),
        ("sh|-c|app `hostname` x", "app …"),
        ("sh|-c|app *.dat", "app …"),
        ("sh|-c|app {a,b}", "app …"),
        ("sh|-c|read x; app $x", "app …"),
        ("sh|-c|'app' '$HOME' \"\\$HOME\"", "app $HOME $HOME"),
        ("sh|-c|app a=b", "app a=b"),
    ]);
}

#[test]
fn what_a_shell_changes_is_there_for_what_it_starts() {
    expect(&[
        ("sh|-c|A=1 app", "A=1 app"),
        ("sh|-c|A=1; app", "app"),
        ("sh|-c|A=1; export A; app", "A=1 app"),
        ("sh|-c|export A=1 B=2; app", "A=1 B=2 app"),
        (
            "sh|-c|export LD_LIBRARY_PATH=/x:$LIBS; app",
            "LD_LIBRARY_PATH=/x:/opt/lib app",
        ),
        ("sh|-c|HOME=/x; app", "HOME=/x app"),
        ("sh|-c|unset HOME; app", "-HOME app"),
        ("sh|-c|cd sub && ./app", "(/w/sub) ./app"),
        ("sh|-c|cd; ./app", "(/home/u) ./app"),
        (
            "sh|-c|set -e; set -o pipefail; ulimit -s unlimited; app",
            "app",
        ),
    ]);
}

#[test]
fn what_cannot_be_followed_is_opaque() {
    for text in [
        "$(which app) x",
        "\"$APP_UNKNOWN_$(x)\"",
        "$WIREUP_HOST",
        "f() { app; }; f",
        "function f { app; }",
        "case x in x) app;; esac",
        "[[ -n x ]] && app",
        "eval app",
        ". ./env.sh; app",
        "source env.sh; app",
        "shift; app",
        "cat <<X\napp\nX",
        "app <(x)",
        "app 'open",
        "app \"open",
        "cd $(x); ./app",
        "if a; then cd b; fi; ./app",
        "PATH=$(x) app",
        "export LD_LIBRARY_PATH=$(x); app",
        "read PATH; app",
        "set -- app; \"$@\"",
    ] {
        expect(&[(&format!("bash|-c|{text}"), "opaque")]);
    }
    expect(&[
        ("sh", "opaque"),
        ("sh|script.sh", "opaque"),
        ("bash|-x|script.sh|-c", "opaque"),
        // A profile may set anything.
        ("bash|-lc|app", "opaque"),
        ("bash|--login|-c|app", "opaque"),
        ("bash|--version", "nothing"),
    ]);
}

#[test]
fn options_behind_unknown_arguments_are_not_guessed() {
    let behind = |argv: &[&str]| {
        let command = Command {
            argv: argv.iter().map(OsString::from).collect(),
            cut: true,
            place: Place {
                env: Vec::new(),
                cwd: "/w".into(),
            },
        };
        named(argv[0].as_ref()).unwrap().behind(&command)
    };
    for argv in [&["numactl", "-N"][..], &["numactl"], &["timeout"], &["sh"]] {
        assert!(matches!(behind(argv), Behind::Opaque(_)), "{argv:?}");
    }
    let Behind::Commands(commands) = behind(&["numactl", "-N", "0", "app"]) else {
        panic!("the program is known");
    };
    assert!(commands[0].cut && commands[0].argv == ["app"]);
    assert!(
        matches!(behind(&["sh", "-c", "exec \"$@\""]), Behind::Opaque(_)),
        "its arguments are not known"
    );
}

#[test]
fn any_text_is_read_without_a_panic() {
    use proptest::prelude::*;
    let word = prop_oneof![
        Just("sh -c"),
        Just("'"),
        Just("\""),
        Just("${"),
        Just("$(("),
        Just("`"),
        Just("\\"),
        Just("{a,b}"),
        Just("x=1"),
        Just("-S"),
        Just("\n"),
        Just("cd"),
        Just("exec"),
        Just("~é"),
        Just(")"),
        Just(";"),
    ];
    proptest!(|(words in proptest::collection::vec(word, 0..12), sep in "[ |]?")| {
        let text = words.join(&sep);
        let _ = starts(&format!("bash|-c|{text}|a"));
        let _ = starts(&format!("env|-S{text}|a"));
        let _ = starts(&format!("gdb|{text}"));
    });
}

use std::path::Path;

use super::*;

/// Returns the command that a command line starts, in an environment with `HOME=/home/u` and `LIBS=/opt/lib`, from the
/// directory `/w`. Words are separated by `|` without blanks. Commands read as `(DIRECTORY) NAME=VALUE program
/// args`, where only differing parts are given.
fn starts(line: &str) -> String {
    let env = [("HOME", "/home/u"), ("LIBS", "/opt/lib")];
    let before = ExecContext {
        env: env.map(|(name, value)| (name.into(), value.into())).into(),
        cwd: "/w".into(),
    };
    let argv: Vec<OsString> = line.split('|').map(OsString::from).collect();
    let wrapper = named(&argv[0]).unwrap_or_else(|| panic!("{line}: not known"));
    match wrapper.parse_target(&argv, &before) {
        Ok(command) => describe(&command, &before),
        Err(DetectionReason::StartsNothing) => "nothing".into(),
        Err(DetectionReason::Opaque(reason)) => format!("opaque: {reason:?}"),
        Err(other) => panic!("{line}: {other:?}"),
    }
}

fn named(program: &OsStr) -> Option<KnownWrapper> {
    let name = Path::new(program).file_name()?;
    find_wrapper(&[name.to_str()?.to_owned()])
}

fn describe(command: &WrappedCommand, before: &ExecContext) -> String {
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
    words.join(" ")
}

/// Fails, with all lines that differ, unless each one starts the program that is given.
#[track_caller]
fn expect(table: &[(&str, &str)]) {
    let differing: Vec<String> = table
        .iter()
        .map(|(line, expected)| (line, expected, starts(line)))
        // For opaque commands the details are not compared.
        .filter(|(_, expected, got)| match **expected {
            "opaque" => !got.starts_with("opaque: "),
            expected => expected != got,
        })
        .map(|(line, expected, got)| format!("{line}\n  is     {got}\n  wanted {expected}"))
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
        // An abbreviation is accepted if it fits only one option.
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
fn debuggers_and_terminals_find_program_by_own_syntax() {
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
        ("xterm|-e|app a b; bash", "opaque"),
        ("xterm", "opaque"),
    ]);
}

#[test]
fn env_changes_library_search_of_its_command() {
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
        // The variable is removed first, then set.
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
fn any_text_is_parsed_without_panic() {
    use proptest::prelude::*;
    let word = prop_oneof![
        Just("app"),
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
        let _ = starts(&format!("env|-S{text}|a"));
        let _ = starts(&format!("gdb|{text}"));
    });
}

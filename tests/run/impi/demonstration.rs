//! The demonstration of docs/impi.md: jobs of different MPIs, each with its MPI inside, exchange and reduce between each
//! other.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{KEY, server};
use crate::common::{Mpi, Outcome, Run, mpi, mpi4py, repository, skip, wireup};

const PAGE: &str = include_str!("../../../docs/impi.md");

/// The library for processes; `None`, and the test is ignored, where it was not built.
#[track_caller]
fn library() -> Option<PathBuf> {
    let library = wireup().with_file_name("libwireup_impi.so");
    if library.exists() {
        return Some(library);
    }
    skip("libwireup_impi.so is not there: cargo build --workspace");
    None
}

/// The lines of the page's code that have these words.
fn lines(words: &str) -> Vec<&'static str> {
    PAGE.lines().filter(|line| line.contains(words)).collect()
}

/// A command of the page as one client, for a user who has these files and these programs besides the system's.
fn client(line: &str, server: &str, files: &[&Path], programs: &[&Path], mpi: &Mpi) -> Run {
    let run = Run::command(["sh", "-c", line]);
    for file in files {
        fs::copy(file, run.dir().join(file.file_name().unwrap())).unwrap();
    }
    // Machines of tests may have one core.
    let defaults = "[run]\noversubscribe = true\n";
    fs::write(run.dir().join("wireup.toml"), defaults).unwrap();
    let system = env::var_os("PATH").unwrap_or_default();
    let programs = programs.iter().map(|program| program.parent().unwrap());
    let path = programs
        .map(Path::to_owned)
        .chain(env::split_paths(&system));
    let run = run.env("PATH", env::join_paths(path).unwrap());
    let run = mpi
        .env
        .iter()
        .fold(run, |run, (name, value)| run.env(name, value));
    run.env("server", server).env(KEY.0, KEY.1)
}

/// Runs all at once; what each printed, in order.
fn together(clients: Vec<Run>) -> Vec<Vec<String>> {
    let started: Vec<_> = clients.into_iter().map(Run::start).collect();
    let ended = started.into_iter().map(|run| run.finish().expect_success());
    ended
        .map(|outcome: Outcome| outcome.sorted_lines())
        .collect()
}

/// The two launches of the page, in which these MPIs are `$mpich` and `$openmpi`.
fn in_python(first: &str, second: &str) -> Option<Vec<Vec<String>>> {
    let library = library()?;
    let (listening, address) = server(2);
    let commands = lines("--impi $server,client=");
    let commands = commands.iter().filter(|line| line.contains("impi.py"));
    let clients = commands.zip([first, second]).map(|(line, name)| {
        let mpi = mpi(name)?;
        let with = mpi4py(&mpi)?;
        let library_variable = with.env.iter().find(|(name, _)| name == "MPI4PY_LIBMPI");
        let libraries = Path::new(&library_variable?.1).parent()?.to_owned();
        let script = repository().join("examples/impi.py");
        let module = repository().join("impi/python/wireup_impi.py");
        // `python3` of the page has mpi4py.
        let programs = [&*wireup(), &*with.python];
        let run = client(line, &address, &[&script, &module], &programs, &mpi);
        let run = run.env("WIREUP_IMPI_LIBRARY", &library);
        Some(run.env("mpich", &libraries).env("openmpi", &libraries))
    });
    let clients = clients.collect::<Option<Vec<Run>>>()?;
    assert_eq!(clients.len(), 2, "commands of the page");
    let lines_by_client = together(clients);
    assert_eq!(listening.end(), Some(0));
    Some(lines_by_client)
}

/// The directory of an MPI's library, and the Python that loads it.
fn python_of(name: &str) -> Option<(PathBuf, PathBuf)> {
    let with = mpi4py(&mpi(name)?)?;
    let library_variable = with.env.iter().find(|(name, _)| name == "MPI4PY_LIBMPI");
    Some((
        Path::new(&library_variable?.1).parent()?.to_owned(),
        with.python,
    ))
}

#[test]
fn commands_of_impi_page_give_documented_output() {
    let (Some(library), Some(mpich)) = (library(), mpi("mpich5")) else {
        return;
    };
    let (Some((mpich_in, python)), Some((openmpi_in, _))) =
        (python_of("mpich5"), python_of("openmpi5"))
    else {
        return;
    };
    let block = PAGE.split("```").find(|block| block.contains("impi.py\n"));
    let mut script: Vec<String> = block
        .expect("a block of commands")
        .lines()
        .skip(1)
        .map(str::to_owned)
        .collect();
    let first = script.iter_mut().find(|line| line.contains("client=0"));
    first.expect("the first launch").push_str(" & first=$!");
    script.push("wait $first && cat <&$output".to_owned());
    let example = repository().join("examples/impi.py");
    let script = format!("exec bash -ec '{}'", script.join("\n"));
    let run = client(&script, "", &[&example], &[&wireup(), &python], &mpich);
    let run = run.env("wireup", repository());
    let run = run.env("libraries", library.parent().unwrap());
    let run = run.env("mpich", mpich_in).env("openmpi", openmpi_in);
    let lines = run.run().expect_success().sorted_lines();
    let begin = "MPICH: inside ";
    let shown = PAGE.lines().skip_while(|line| !line.starts_with(begin));
    let mut shown: Vec<&str> = shown.take_while(|line| !line.starts_with("```")).collect();
    shown.sort_unstable();
    assert_eq!(lines, shown);
}

#[test]
fn intel_mpi_and_open_mpi_exchange_and_reduce() {
    let Some(lines_by_client) = in_python("impi", "openmpi5") else {
        return;
    };
    let first = [
        "Intel(R): inside 1, from process 2: 5",
        "process 0 of 4: sum 6",
    ];
    let second = ["Open: inside 5, from process 0: 1", "process 2 of 4: sum 6"];
    assert_eq!(lines_by_client, [first, second]);
}

/// Returns the C program, compiled with this MPI as the page describes.
fn compiled(mpi: &Mpi, dir: &Path) -> PathBuf {
    let described = Command::new(repository().join("scripts/mpi-env"))
        .args(["--compiler", &mpi.name])
        .output()
        .unwrap();
    let described = String::from_utf8(described.stdout).unwrap();
    let mut words = described.split_whitespace();
    let compiler = words.next().expect("a compiler");
    let more = words.collect::<Vec<_>>().join(" ");
    let [line] = lines("-lwireup_impi")[..] else {
        panic!("one line of the page compiles");
    };
    let line = line.replacen("mpicc", "$compiler", 1);
    let program = dir.join(&mpi.name);
    fs::create_dir(&program).unwrap();
    fs::copy(repository().join("examples/impi.c"), program.join("impi.c")).unwrap();
    let output = Command::new("sh")
        .args(["-ec", &format!("{line} $more -Wall -Wextra -Werror")])
        .current_dir(&program)
        .env("compiler", compiler)
        .env("more", more)
        .env("wireup", repository())
        .env("libraries", wireup().parent().unwrap())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    program.join("impi")
}

#[test]
fn programs_in_c_of_three_mpis_exchange_and_reduce() {
    if library().is_none() {
        return;
    }
    let mpis = ["mpich5", "openmpi5", "impi"].map(mpi);
    let Some(mpis) = mpis.into_iter().collect::<Option<Vec<Mpi>>>() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (listening, address) = server(3);
    let clients = mpis.iter().zip(0..).map(|(mpi, number)| {
        let program = compiled(mpi, dir.path());
        let line = format!("wireup run --impi $server,client={number} -n 2 ./impi");
        client(&line, &address, &[&program], &[&wireup()], mpi)
    });
    let lines_by_client = together(clients.collect());
    assert_eq!(
        lines_by_client,
        [
            [
                "MPICH: inside 1, from process 4: 9",
                "process 0 of 6: sum 15"
            ],
            [
                "Open: inside 5, from process 0: 1",
                "process 2 of 6: sum 15"
            ],
            [
                "Intel(R): inside 9, from process 2: 5",
                "process 4 of 6: sum 15"
            ],
        ]
    );
    assert_eq!(listening.end(), Some(0));
}

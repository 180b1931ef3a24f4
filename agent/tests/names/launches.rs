//! Launches of MPI programs that find each other by names in each store.

use rustix::process::Signal;

use crate::common::{Mpi, Outcome, Output, Run, eventually, field};
use crate::places::Place;

for_each_mpi!(mpich5 impi openmpi4 openmpi5: {
    launches_connect_by_names_in_files => |mpi| at(Place::file(), mpi, connects),
    launches_connect_by_names_in_etcd => |mpi| at(Place::etcd(), mpi, connects),
    launches_connect_by_names_in_directory => |mpi| at(Place::ldap(), mpi, connects),
    names_in_directory_outlive_launch_on_request => |mpi| at(Place::ldap(), mpi, outlives),
    names_in_files_outlive_launch_on_request => |mpi| at(Place::file(), mpi, outlives),
    names_in_etcd_outlive_launch_on_request => |mpi| at(Place::etcd(), mpi, outlives),
});

fn at(place: Option<Place>, mpi: Mpi, test: impl Fn(&Mpi, &Place)) {
    if let Some(place) = place {
        test(&mpi.with_dynamic_processes(), &place);
    }
}

/// Publishes a name as a client of PMI-1, and stays.
const PUBLISHER: &str = r#"
    ask() { printf '%s\n' "$1" >&"$PMI_FD"; IFS= read -r reply <&"$PMI_FD"; }
    ask 'cmd=init pmi_version=1 pmi_subversion=1'
    ask 'cmd=publish_name service=kept port=somewhere'
    echo "$reply"
    sleep 600
"#;

#[test]
fn names_of_killed_launcher_are_unpublished() {
    let Some(place) = Place::file() else { return };
    let options = ["--names", place.backend(), "--pmi", "pmi1"];
    let words = ["bash", "-c", PUBLISHER];
    // The guard and the process that keeps the names live a little longer.
    let run = Run::ranks(1, options).more(words);
    let running = run.clean_within(crate::common::DEADLINE).start();
    running.wait_for(Output::Stdout, "rc=0");
    // The file's name also has the one by which the launches of this test meet.
    let is_there = || {
        let entries = std::fs::read_dir(place.shared().join(".mpinamepub")).unwrap();
        let mut names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.any(|name| name.ends_with("kept"))
    };
    assert!(is_there());
    running.signal(Signal::KILL);
    running.finish();
    // MPICH's own name server would find it.
    eventually("the name is withdrawn", || (!is_there()).then_some(()));
}

fn run(mpi: &Mpi, place: &Place, options: &[&str], mode: &str) -> Run {
    let store = place.backend();
    let options = [&["--names", store, "--virtual-nodes", "2"], options].concat();
    let run = mpi.run(2, &options, "launches", &[mode, "the service"]);
    let variables = place.variables().into_iter();
    variables.fold(run, |run, (name, value)| run.env(name, value))
}

fn got(outcome: &Outcome, text: &str) {
    for line in outcome.by_rank("launches", 2) {
        assert_eq!(field(&line, "got"), Some(text), "{line}");
    }
}

fn connects(mpi: &Mpi, place: &Place) {
    let (first, second) = (
        run(mpi, place, &[], "accept"),
        run(mpi, place, &[], "connect"),
    );
    let second = second.beside(&first);
    let (first, second) = (first.start(), second.start());
    for outcome in [first.finish(), second.finish()] {
        got(&outcome.expect(0), "6");
    }
}

fn outlives(mpi: &Mpi, place: &Place) {
    // All of them meet.
    let first = run(mpi, place, &[], "leave");
    let of = |options: &[&str], mode| run(mpi, place, options, mode).beside(&first);
    let (persistent, found, again) = (
        of(&["--names=keep"], "leave"),
        of(&[], "left"),
        of(&[], "left"),
    );
    let missing = of(&[], "left");
    first.run().expect(0);
    // Without the option a name goes with its launch.
    let missing = missing.run();
    assert_ne!(missing.code, 0, "{missing:?}");
    persistent.run().expect(0);
    for looks in [found, again] {
        let outcome = looks.run().expect(0);
        let out = outcome.out();
        assert_eq!(out.matches("got=left-behind").count(), 2, "{out}");
    }
}

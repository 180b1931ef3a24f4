//! The server is killed, at every operation: before and after what it asks, and what it is asked.

use super::{End, Job, KILLED, table};

#[test]
fn sidecar_killed_at_start_ends_launch() {
    let rows = [
        "hello 1 before",
        "hello 1 after",
        "init 1 before",
        "init 1 after",
        "init reply 1 before",
        "init reply 1 after",
        "register_job 1 before",
        "register_job 1 after",
        "register_job reply 1 before",
        "register_job reply 1 after",
    ]
    .map(|moment| (moment, End::Lost));
    table(Job::Hello, "kill", &rows, &[KILLED]);
}

#[test]
fn sidecar_killed_before_last_finalize_ends_launch() {
    let rows = [
        ("client_connected 1 before", End::Lost),
        ("client_connected 1 after", End::Lost),
        ("client_connected 2 before", End::Lost),
        ("client_connected 2 after", End::Lost),
        ("client_finalized 1 before", End::Lost),
        ("client_finalized 1 after", End::Lost),
        ("client_finalized 2 before", End::Lost),
        ("client_finalized 2 after", End::Late),
        ("finalize 1 before", End::Late),
        ("finalize reply 1 before", End::Late),
        ("finalize reply 1 after", End::Late),
    ];
    table(Job::Hello, "kill", &rows, &[KILLED]);
}

#[test]
fn sidecar_killed_in_first_or_last_fence_ends_launch() {
    let rows = [
        "node=1 fence 1 before",
        "node=0 fence 1 after",
        "node=1 fence reply 1 before",
        "node=0 fence reply 1 after",
        "node=0 fence 2 before",
        "node=1 fence 2 after",
        "node=0 fence reply 2 before",
        "node=1 fence reply 2 after",
        // Both servers at once, and still one line.
        "fence 1 before",
        "fence reply 1 before",
    ]
    .map(|moment| (moment, End::Lost));
    table(Job::Modex, "kill", &rows, &[KILLED]);
}

#[test]
fn sidecar_killed_on_either_side_of_direct_modex_ends_launch() {
    let rows = [
        "node=1 direct_modex 1 before",
        "node=0 direct_modex 1 after",
        "node=1 direct_modex reply 1 before",
        "node=0 direct_modex reply 1 after",
        "node=1 dmodex_request 1 before",
        "node=0 dmodex_request 1 after",
        "node=1 dmodex_request reply 1 before",
        "node=0 dmodex_request reply 1 after",
    ]
    .map(|moment| (moment, End::Lost));
    table(Job::Clients("direct"), "kill", &rows, &[KILLED]);
}

#[test]
fn sidecar_killed_during_publish_and_lookup_ends_launch() {
    let rows = [
        "publish 1 before",
        "publish 1 after",
        "node=1 publish reply 1 before",
        "publish reply 1 after",
        "node=1 lookup 1 before",
        "node=0 lookup 1 after",
        "node=1 lookup reply 1 before",
        "node=0 lookup reply 1 after",
        "unpublish 1 before",
        "unpublish reply 1 after",
    ]
    .map(|moment| (moment, End::Lost));
    let store = Job::Other("pmix_store", &["types"]);
    table(store, "kill", &rows, &[KILLED]);
}

#[test]
fn sidecar_killed_during_group_operations_ends_launch() {
    let rows = [
        "group 1 before",
        "group 1 after",
        "node=0 group 1 after",
        "node=1 group reply 1 before",
        "group reply 1 after",
        "node=1 group 2 before",
        "node=0 group reply 2 before",
    ]
    .map(|moment| (moment, End::Lost));
    let groups = Job::Other("pmix_groups", &["all"]);
    table(groups, "kill", &rows, &[KILLED]);
}

#[test]
fn sidecar_killed_at_abort_does_not_hide_received_abort() {
    let abort = Job::Client("abort");
    table(abort, "kill", &[("abort 1 before", End::Lost)], &[KILLED]);
    let rows = [
        "abort 1 after",
        "abort reply 1 before",
        "abort reply 1 after",
    ];
    table(
        abort,
        "kill",
        &rows.map(|moment| (moment, End::Aborted)),
        &[],
    );
}

#[test]
fn sidecar_killed_at_log_or_query_ends_launch() {
    for operation in ["log", "query"] {
        let moments = ["1 before", "1 after", "reply 1 before", "reply 1 after"];
        let moments = moments.map(|moment| format!("{operation} {moment}"));
        let rows: Vec<_> = moments.iter().map(|m| (m.as_str(), End::Lost)).collect();
        table(Job::Client(operation), "kill", &rows, &[KILLED]);
    }
}

#[test]
fn sidecar_killed_at_event_ends_launch() {
    // The event that ends the ranks has reached them after a notify: they may finish before their server dies.
    let rows = [
        ("node=0 notify_event 1 before", End::Lost),
        ("node=0 notify_event 1 after", End::Lost),
        ("node=1 notify 1 before", End::Lost),
        ("node=1 notify 1 after", End::LostOrLate),
        ("node=1 notify reply 1 before", End::LostOrLate),
        ("node=1 notify reply 1 after", End::LostOrLate),
    ];
    table(Job::Clients("event"), "kill", &rows, &[KILLED]);
}

#[test]
fn sidecar_killed_during_spawn_and_connect_ends_launch() {
    let rows = [
        "spawn 1 before",
        "spawn 1 after",
        "spawn reply 1 before",
        "spawn reply 1 after",
        "node=1 connect 1 before",
        "node=0 connect reply 1 after",
        "node=0 disconnect 1 after",
        "node=1 disconnect reply 1 before",
        // Of the first children, while the second ones are spawned.
        "deregister_job 1 before",
        "deregister_job 1 after",
        "deregister_job reply 1 before",
    ]
    .map(|moment| (moment, End::Lost));
    let family = Job::Other("pmix_spawn", &["family", "2"]);
    table(family, "kill", &rows, &[KILLED]);
}

#[test]
fn sidecar_killed_at_non_mpi_request_ends_launch() {
    let jobs: [(Job, &[&str]); 6] = [
        (
            Job::Other("pmix_push", &["cat", "1", "0", "100"]),
            &["push_stdin 1 before", "push_stdin reply 1 after"],
        ),
        (
            Job::Other("pmix_iof", &["pull", "10"]),
            &["iof_pull 1 before", "iof_pull 1 after"],
        ),
        (
            Job::Other("pmix_control", &["signal"]),
            &[
                "job_control 1 before",
                "job_control 1 after",
                "job_control reply 1 after",
            ],
        ),
        (
            Job::Other("pmix_credential", &["own"]),
            &[
                "get_credential 1 before",
                "get_credential reply 1 after",
                "validate_credential 1 after",
                "validate_credential reply 1 before",
            ],
        ),
        (
            Job::Other("pmix_alloc", &["new:slots=1"]),
            &[
                "allocate 1 before",
                "allocate 1 after",
                "allocate reply 1 after",
            ],
        ),
        (
            Job::Other("pmix_events", &["lost"]),
            &["register_events 1 before", "register_events 1 after"],
        ),
    ];
    for (job, moments) in jobs {
        let rows: Vec<_> = moments.iter().map(|m| (*m, End::Lost)).collect();
        table(job, "kill", &rows, &[KILLED]);
    }
}

//! Hostile ranks on root's agents: what they do to wireup and to their hosts disturbs no other user.

use std::time::Duration;

use rustix::process::Signal;

use crate::bystanders::{Limits, during};
use crate::cluster::{Cluster, MALLORY};
use crate::common::{DEADLINE, Output, Run, Running, executable};
use crate::users::of;

const EVERYWHERE: [&str; 5] = [
    "--oversubscribe",
    "--hosts",
    "node01:1,node02:1,node03:1",
    "-n",
    "3",
];

/// Disturbance that other users may notice: they share two or more processors with the attack.
const LIMITS: Limits = Limits {
    launch: Duration::from_secs(60),
    memory: 128,
};

fn hostile(cluster: &Cluster, script: &str) -> Run {
    let run = cluster.run(2, EVERYWHERE).more(["bash", "-c", script]);
    of(MALLORY, run)
}

/// Ends an attack that goes on.
#[track_caller]
fn end(running: Running) {
    running.signal(Signal::TERM);
    let outcome = running.clean_within(DEADLINE).finish();
    assert_ne!(outcome.code, 0, "{outcome:?}");
}

#[test]
fn garbage_for_pmi_server_of_any_host_is_survived() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let attacks = [
        "head -c 50000000 /dev/urandom >&$PMI_FD; sleep 1000",
        // A line that never ends, and requests without end whose answers are not read.
        "head -c 50000000 /dev/zero | tr '\\0' x >&$PMI_FD; sleep 1000",
        "printf 'cmd=init pmi_version=1 pmi_subversion=1\\n' >&$PMI_FD; \
         timeout 3 yes cmd=get_maxes >&$PMI_FD; exit 1",
    ];
    let attack = || {
        for script in attacks {
            let outcome = hostile(&cluster, script).run();
            assert_ne!(outcome.code, 0, "{outcome:?}");
        }
    };
    if let Some(observed) = during(&cluster, attack) {
        observed.undisturbed(LIMITS);
    }
}

#[test]
fn floods_of_output_on_every_host() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let flood = "yes $WIREUP_RANK | head -c 30000000; yes | head -c 1000000 >&2; exit 3";
    let attack = || {
        let nothing = std::fs::File::create("/dev/null").unwrap();
        let run = hostile(&cluster, flood).stdout_to(nothing);
        run.deadline(Duration::from_secs(200)).run().expect(3);
        // It is not read.
        let mut held = hostile(&cluster, "yes").stdout_held().start();
        let pipe = held.take_stdout();
        let new = of(MALLORY, cluster.run(2, EVERYWHERE).more(["true"]));
        new.run().expect(0);
        // The launcher keeps what was printed for a reader, as long as there is one.
        drop(pipe);
        end(held);
    };
    if let Some(observed) = during(&cluster, attack) {
        observed.undisturbed(LIMITS);
    }
}

#[test]
fn fork_bombs_end_with_their_job() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    // As many as a limit allows, each in a session of its own. A shell would pause when it is refused one.
    let bomb = "ulimit -u 150; echo up; exec perl -MPOSIX=setsid -e '$SIG{CHLD} = \"IGNORE\"; \
                while (1) { my $pid = fork; next if !defined $pid or $pid; setsid; sleep 2; exit }'";
    let attack = || {
        let running = hostile(&cluster, bomb).start();
        running.wait_for_many(Output::Stdout, "up", 3);
        crate::common::eventually("it forks", || {
            (cluster.host(1).processes().len() > 50).then_some(())
        });
        end(running);
    };
    if let Some(observed) = during(&cluster, attack) {
        observed.undisturbed(LIMITS);
    }
}

#[test]
fn connections_to_every_port_and_socket_are_survived() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    // Says nothing, or garbage, to whatever listens: other users' PMIx servers, and agents.
    let program = r#"
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void try(int fd, struct sockaddr *to, socklen_t length, int speaks)
{
    char garbage[4096];
    for (size_t i = 0; i < sizeof garbage; i++)
        garbage[i] = (char)rand();
    if (connect(fd, to, length) == 0 && speaks)
        (void)!write(fd, garbage, sizeof garbage);
}

int main(void)
{
    static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
    int held = 0;
    for (int round = 0; round < 40; round++) {
        for (int table = 0; table < 2; table++) {
            char line[512];
            unsigned port, state;
            FILE *file = fopen(tables[table], "r");
            while (file != NULL && fgets(line, sizeof line, file) != NULL) {
                if (sscanf(line, " %*d: %*[0-9A-F]:%x %*[0-9A-F]:%*x %x", &port, &state) != 2 || state != 10)
                    continue;
                struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
                to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
                int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
                try(fd, (struct sockaddr *)&to, sizeof to, round % 2);
                usleep(1000);
                held += fd >= 0;
            }
            if (file != NULL)
                fclose(file);
        }
        struct sockaddr_un to = {.sun_family = AF_UNIX, .sun_path = "/run/wireup/agent.sock"};
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        try(fd, (struct sockaddr *)&to, sizeof to, round % 2);
    }
    printf("held %s\n", held > 0 ? "some" : "none");
    fflush(stdout);
    sleep(5);
    return 3;
}
"#;
    let Some(program) = executable(cluster.dir(), "ports", program, &["-O1", "-D_GNU_SOURCE"])
    else {
        return;
    };
    let attack = || {
        let run = cluster.run(2, EVERYWHERE).more([&program]);
        let outcome = of(MALLORY, run).run().expect(3);
        assert_eq!(outcome.out().matches("held some").count(), 3, "{outcome:?}");
    };
    if let Some(observed) = during(&cluster, attack) {
        observed.undisturbed(LIMITS);
    }
}

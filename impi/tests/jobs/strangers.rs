//! Connections that do not belong to the job, at the ports of its hosts.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use wireup_impi_io::agent::process_handshake::AGENT;
use wireup_impi_io::agent::{Events, JoinedMember, ListeningHost, PublishedHost};

use super::{Job, everything, settings, start};

/// Opens connections to the address: one sends a few bytes, one garbage, the others nothing.
fn strangers(count: usize, address: SocketAddr) -> Vec<TcpStream> {
    let open = || TcpStream::connect(address).unwrap();
    let mut strangers: Vec<TcpStream> = (0..count).map(|_| open()).collect();
    // Of very many the last ones stay.
    strangers[count - 1].write_all(b"W").unwrap();
    strangers[count - 2]
        .write_all(b"GET / HTTP/1.0\r\nHost: somewhere\r\n\r\n")
        .unwrap();
    strangers
}

#[test]
fn strangers_do_not_delay_processes() {
    let job = Job::start(&[1, 2], &[]);
    let doors = job.variables.iter();
    let doors = doors.map(|variables| variables[AGENT].parse().unwrap());
    // One after the other, at 10 s for each, would take longer than any test may.
    let strangers: Vec<_> = doors.map(|door| strangers(100, door)).collect();
    job.run(everything);
    for mut garbage in strangers.into_iter().map(|mut all| all.remove(98)) {
        let ended = garbage.read(&mut [0]);
        assert!(!matches!(ended, Ok(1..)), "it was let in");
    }
    for mut agent in job.agents {
        drop(agent.0.stdin.take());
        let (code, stderr) = super::end(agent);
        assert_eq!(code, Some(0), "{stderr}");
    }
}

#[test]
fn strangers_connecting_as_hosts_do_not_delay_startup() {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let mut server = start(&["-server", "2", "--address", "127.0.0.1"]);
    let server = server.first_line();
    let hosts = [0, 1].map(|_| ListeningHost::listen(loopback).unwrap());
    // One after the other, at 5 s for each, would take longer than the hosts wait for each other.
    let strangers = strangers(30, hosts[0].place().unwrap());
    std::thread::scope(|scope| {
        for (client, host) in (0..).zip(hosts) {
            let server = &server;
            scope.spawn(move || {
                let place = PublishedHost {
                    address: host.place().unwrap(),
                    procs: 1,
                };
                let member = JoinedMember::join(settings(server, client), &[place]).unwrap();
                let host = host.connect(member.invitation(), 0).unwrap();
                let events = Events::default();
                events.launch_over().report(false);
                host.serve(&events, Duration::from_secs(60), &mut |_| ())
                    .unwrap();
                member.leave();
            });
        }
    });
    drop(strangers);
}

//! LAM with processes in C, by libwireup_impi.

use std::process::{Child, Command};

use wireup_test_support::Owned;

use super::parts::{Agent, Lam, server};
use super::{library, prepared};

fn checked(mode: &str, options: &[&str]) {
    prepared(|lam, dir| {
        let Some(libraries) = library::libraries() else {
            return;
        };
        let program = dir.join("peer");
        library::compile("gcc", &[], &libraries, ("lam/peer.c", &program));
        let (listening, address) = server(2);
        let ring = dir.join("ring");
        let words = [ring.to_str().unwrap(), mode];
        let client = Lam::start((lam, dir), (0, "127.0.0.2", 2), &address, &words);
        let mut agent = Agent::start(1, "127.0.0.1", &address, options);
        let variables = agent.variables();
        let start = |index: u32| {
            let mut command = Command::new(&program);
            let command = command.arg(mode).envs(&variables).env_remove("WIREUP_RANK");
            command.env("PMI_RANK", index.to_string()).spawn().unwrap()
        };
        let running: Vec<Child> = (0..2).map(start).collect();
        for process in running {
            assert_eq!(Owned(process).end(), Some(0));
        }
        let output = client.end();
        assert_eq!(output.matches("of 4 is done").count(), 2, "{output}");
        agent.end();
        assert_eq!(listening.end(), Some(0));
    });
}

#[test]
fn c_program_runs_in_byte_order_of_lam() {
    checked("PLAIN", &["--lam"]);
}

#[test]
fn c_program_runs_in_external32_with_swapping_lam() {
    checked("SWAPPED", &[]);
}

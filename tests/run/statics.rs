//! Programs without dynamic libraries: their interface is detected from their contents.

use std::path::Path;

use crate::common::{Run, executable};

/// Both kinds, with the compiler's option.
const KINDS: [&[&str]; 2] = [&["-static"], &["-static-pie", "-fPIE"]];

/// A program that knows these variables.
fn knows(variables: &[&str]) -> String {
    let asks = variables
        .iter()
        .map(|name| format!("getenv(\"{name}\") != 0 || "));
    let asks: String = asks.collect();
    format!("#include <stdlib.h>\nint main(void) {{ return {asks}0; }}\n")
}

#[test]
fn static_program_is_offered_interface_of_its_client() {
    for kind in KINDS {
        for (variables, has, interface) in [
            (
                &["PMI_RANK", "PMIX_ID"][..],
                "no client of PMI or PMIx",
                "PMI: no program loads an MPI",
            ),
            (&["PMI_FD"], "a client of PMI\n", "PMI: program 1 needs PMI"),
            (&["PMIX_NAMESPACE"], "a client of PMIx\n", ""),
            (
                &["PMI_FD", "PMIX_NAMESPACE"],
                "clients of PMI and PMIx\n",
                "",
            ),
        ] {
            let run = Run::new(["--dry-run", "-v"]);
            let text = knows(variables);
            let Some(program) = executable(run.dir(), "app", &text, kind) else {
                return;
            };
            let outcome = run.more([&program]).run().expect(0);
            let message = format!("{} is static and has {has}", program.display());
            assert!(outcome.err().contains(&message), "{kind:?}: {outcome:?}");
            // Whether PMIx can be served is another matter.
            let line = format!("interface  {interface}");
            assert!(outcome.out().contains(&line), "{kind:?}: {outcome:?}");
        }
    }
}

#[test]
fn static_pmi_client_is_served() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let text = std::fs::read_to_string(sources.join("pmi_wireup.c")).unwrap();
    let include = format!("-I{}", sources.display());
    for kind in KINDS {
        let run = Run::ranks(2, ["-v"]);
        let options: Vec<&str> = kind.iter().copied().chain([&*include]).collect();
        let Some(program) = executable(run.dir(), "app", &text, &options) else {
            return;
        };
        let outcome = run.more([&program]).run().expect(0);
        for message in ["; offered: PMI\n", "is static and has a client of PMI\n"] {
            assert!(outcome.err().contains(message), "{kind:?}: {outcome:?}");
        }
    }
}

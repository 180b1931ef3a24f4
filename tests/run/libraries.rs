//! Libraries and programs that look right and misbehave once they are used as parts of a PMIx
//! server. Exit code 125 and one line; no rank is started. Those that can be seen to be wrong are
//! in `refusals`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::common::{Run, pmix, shared_library};

/// A directory with such parts.
struct Parts {
    dir: tempfile::TempDir,
}

impl Parts {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir }
    }

    fn file(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// A library made from this C text, on top of others.
    fn library(&self, name: &str, source: &str, others: &[&Path]) -> Option<PathBuf> {
        let source = self.file(&format!("{name}.c"), source.as_bytes(), 0o644);
        shared_library(self.dir.path(), &format!("{name}.so"), &source, others)
    }
}

/// Checks the refusal of a run whose ranks would print a line if they were started.
#[track_caller]
fn refused(word: &str, path: &Path, words: &[&str]) {
    let value = format!("{word}{}", path.display());
    let args = ["--pmi", "pmix", "--libpmix", &value];
    let run = Run::ranks(2, args).more(["echo", "a rank was started"]);
    let outcome = run.run().expect(125);
    assert_eq!(outcome.out(), "", "{value}: {outcome:?}");
    let line = outcome.expect_one_line(words);
    assert_eq!(outcome.err(), format!("{line}\n"), "nothing else");
    let remedy =
        line.contains("--libpmix") || line.contains("; use the wireup-pmix-host of this wireup");
    assert!(remedy, "no remedy; {outcome:?}");
}

#[test]
fn libpmix_version_is_checked_by_calling_it() {
    let parts = Parts::new();
    for (name, body, words) in [
        // Not to be seen in the file.
        (
            "hidden",
            "static char text[] = \"PMIy 3.2.3\"; text[3] = 'x'; return text;",
            "version 3.2.3 is too old, 4.2.2 or later is needed",
        ),
        ("silent", "return 0;", "has no version"),
        (
            "strange",
            "return \"my own\";",
            "has no version number in \"my own\"",
        ),
    ] {
        let source = format!("const char *PMIx_Get_version(void) {{ {body} }}\n");
        let Some(library) = parts.library(name, &source, &[]) else {
            return;
        };
        let path = library.to_str().unwrap();
        refused("", &library, &[path, words, "with --libpmix"]);
    }
}

#[test]
fn libpmix_that_refuses_crashes_or_exits_is_distinguished() {
    let Some(real) = pmix("pmix4") else {
        return;
    };
    let parts = Parts::new();
    let header = "#include <signal.h>\n#include <stdio.h>\n#include <unistd.h>\n";
    for (name, init, words) in [
        (
            "refuses",
            "return -1;",
            "PMIx_server_init failed (PMIx status -1); see its output with -vv",
        ),
        (
            "dies",
            "signal(SIGSEGV, SIG_DFL); return raise(SIGSEGV);",
            "its process was killed by signal 11 (SIGSEGV)",
        ),
        (
            "aborts",
            "fprintf(stderr, \"out of luck\\n\"); return raise(SIGABRT);",
            "its last words: out of luck",
        ),
        ("leaves", "_exit(3);", "its process exited with code 3"),
    ] {
        let source = format!("{header}int PMIx_server_init(void) {{ {init} }}\n");
        let Some(library) = parts.library(name, &source, &[&real.library]) else {
            return;
        };
        let words = [
            "the PMIx server of ",
            words,
            "try another libpmix (--libpmix)",
        ];
        refused("", &library, &words);
    }
    // Before it can be asked for anything.
    let load = "__attribute__((constructor)) static void load(void) { _exit(4); }\n";
    let library = parts.library("load", &format!("{header}{load}"), &[&real.library]);
    refused("", &library.unwrap(), &["its process exited with code 4"]);
}

#[test]
fn shim_without_its_functions_is_named() {
    let source = "#include \"wire.h\"\n\
                  unsigned wireup_shim_abi(void);\n\
                  unsigned wireup_shim_abi(void) { return WIREUP_SHIM_ABI; }\n";
    let parts = Parts::new();
    let Some(shim) = parts.library("hollow", source, &[]) else {
        return;
    };
    let path = shim.to_str().unwrap();
    refused(
        "shim=",
        &shim,
        &[path, "undefined symbol: wireup_", "with --libpmix shim="],
    );
}

#[test]
fn program_that_is_not_sidecar_is_given_up() {
    let parts = Parts::new();
    let host = |name: &str, script: &str, words: &[&str]| {
        let program = parts.file(name, script.as_bytes(), 0o755);
        refused("host=", &program, words);
    };
    host("text", "hello\n", &["Exec format error"]);
    host(
        "lost",
        "#!/no/such/interpreter\n",
        &["cannot be executed: No such file"],
    );
    let complains = "#!/bin/sh\necho something else >&2\nexit 3\n";
    let words = ["its process exited with code 3; its last words: something else"];
    host("complains", complains, &words);
    // Talks, and listens, but in another language.
    let foreign = "#!/bin/sh\nhead -c 100 /bin/sh >&3\nexec cat <&3\n";
    host("foreign", foreign, &["invalid message from it"]);
}

//! The corpus of the fuzz target.
#![allow(clippy::disallowed_methods, reason = "tests read files")]

use std::path::Path;

use super::*;
use crate::pmix::sidecar_protocol::serve::{self, Body};
use crate::pmix::sidecar_protocol::{ControlRefusal, ForkEnv, Hello, SidecarNotice};

/// One input per message of the control socket; those of the upcall socket are golden vectors.
fn control_inputs() -> Vec<(String, Vec<u8>)> {
    let refusal = ControlRefusal {
        status: Status::ERR_NOT_FOUND,
        text: "gone".into(),
    };
    let env = ForkEnv {
        common: vec![("A".into(), "1".into())],
        clients: vec![(Rank(0), vec![("B".into(), "2".into())])],
    };
    let hello = Hello {
        libpmix: "OpenPMIx".into(),
    };
    let mut inputs = [
        ("hello", SidecarNotice::Hello(hello)),
        ("warning", SidecarNotice::Warning("beware".into())),
    ]
    .map(|(name, notice)| (name.to_owned(), serve::notice(&notice).unwrap()))
    .to_vec();
    for (control, id) in every_request().into_iter().zip(1..) {
        let kind = control.kind();
        let body = match kind {
            super::super::sidecar_protocol::ControlKind::RegisterJob => Body::ForkEnv(&env),
            super::super::sidecar_protocol::ControlKind::DirectModex => Body::Data(b"abc"),
            _ => Body::Done,
        };
        let mut both = serve::reply(kind, id, Ok(body)).unwrap();
        both.extend(control.encode(id).unwrap());
        inputs.push((format!("{kind:?}"), both));
        inputs.push((
            format!("{kind:?}-refused"),
            serve::reply(kind, id, Err(&refusal)).unwrap(),
        ));
    }
    inputs
}

#[test]
fn corpus_has_every_message_of_both_sockets() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let golden = folder.join("shim/tests/golden/c");
    let mut inputs: Vec<(String, Vec<u8>)> = control_inputs()
        .into_iter()
        .map(|(name, bytes)| (name, [b"\x01\x20", bytes.as_slice()].concat()))
        .collect();
    for entry in std::fs::read_dir(golden).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "bin") {
            let bytes = std::fs::read(&path).unwrap();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            inputs.push((name, [b"\x00\x20", bytes.as_slice()].concat()));
        }
    }
    for (name, bytes) in inputs {
        let stored = folder.join("fuzz/corpus/frame").join(&name);
        if std::env::var_os("WIREUP_WRITE_GOLDEN").is_some() {
            std::fs::write(&stored, &bytes).unwrap();
        }
        assert!(
            std::fs::read(&stored).unwrap() == bytes,
            "{name} is out of date"
        );
    }
}

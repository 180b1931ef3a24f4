//! Whether an image can be run on this host, and what its ranks would find. A process of its own makes the container and
//! removes it: it has to have a single thread, and a runtime may hang.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Asked, examined_program};
use crate::backend::{cleanup_record, container};
use crate::sys::pidfd::wait_for;
use wireup_core::doctor::facts::{Image, Program};
use wireup_core::job::spec::ImageSpec;

/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(40);

/// What came of it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Tried {
    pub(super) image: Image,
    pub(super) program: Option<Program>,
}

impl Tried {
    fn failed(problem: String) -> Self {
        let image = Image {
            problem: Some(problem),
            ..Image::default()
        };
        Self {
            image,
            program: None,
        }
    }
}

/// Has it tried.
pub(super) fn look(asked: &Asked, cwd: &Path) -> Tried {
    match tried(asked, cwd) {
        Ok(tried) => tried,
        Err(error) => Tried::failed(error.to_string()),
    }
}

fn tried(asked: &Asked, cwd: &Path) -> std::io::Result<Tried> {
    // Another user could take a name that can be known before.
    let number = cleanup_record::number()?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg0("wireup")
        .args(["doctor", "--container", &format!("{number:016x}"), "--wdir"])
        .arg(cwd)
        .args(&asked.image_words)
        .arg("--")
        .args(&asked.program)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    // What it prints fits into a pipe.
    let ended = wait_for(&child, PATIENCE);
    if !ended {
        // It may have ended by itself in between.
        let _ = child.kill();
    }
    let output = child.wait_with_output()?;
    if let Ok(tried) = serde_json::from_slice(&output.stdout) {
        return Ok(tried);
    }
    container::remove_attempt(number);
    Ok(Tried::failed(match ended {
        true => format!("no container was made: {}", output.status),
        false => format!("no container was made within {} s", PATIENCE.as_secs()),
    }))
}

/// What is printed by the process that tries it.
pub fn made(number: u64, image: &ImageSpec, argv: &[OsString], cwd: &Path) -> String {
    let tried = if container::has_runtime(image) {
        let made = container::attempt(number, image, cwd, |env| {
            examined_program::look_with(argv, cwd, env).0
        });
        match made {
            Ok(program) => Tried {
                program,
                ..Tried::default()
            },
            Err(failure) => Tried::failed(failure.to_string()),
        }
    } else {
        let no_runtime = Some(image.runtime.program().to_owned());
        Tried {
            image: Image {
                no_runtime,
                ..Image::default()
            },
            program: None,
        }
    };
    serde_json::to_string(&tried).expect("text only") + "\n"
}

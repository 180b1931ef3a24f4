//! Checks whether an image can be run on this host, and inspects the program as its ranks would find it. A separate process
//! makes the container and removes it: that process must have a single thread, and a runtime may hang.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{DoctorSubject, examined_program, run_within};
use crate::backend::{cleanup_record, container};
use wireup_core::doctor::facts::{ImageCheck, ProgramFacts};
use wireup_core::job::spec::ImageSpec;

/// Time that the check may take.
const PATIENCE: Duration = Duration::from_secs(40);

/// Result of the check.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ImageTrial {
    pub(super) image: ImageCheck,
    pub(super) program: Option<ProgramFacts>,
}

impl ImageTrial {
    fn failed(problem: String) -> Self {
        let image = ImageCheck {
            problem: Some(problem),
            ..ImageCheck::default()
        };
        Self {
            image,
            program: None,
        }
    }
}

/// Checks the image in a separate process.
pub(super) fn try_image(subject: &DoctorSubject, cwd: &Path) -> ImageTrial {
    tried(subject, cwd).unwrap_or_else(|error| ImageTrial::failed(error.to_string()))
}

fn tried(subject: &DoctorSubject, cwd: &Path) -> std::io::Result<ImageTrial> {
    // A predictable name could be taken by another user.
    let number = cleanup_record::number()?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg0("wireup")
        .args(["doctor", "--container", &format!("{number:016x}"), "--wdir"])
        .arg(cwd)
        .args(&subject.image_words)
        .arg("--")
        .args(&subject.program);
    let (ended, output) = run_within(&mut command, PATIENCE)?;
    if let Ok(tried) = serde_json::from_slice(&output.stdout) {
        return Ok(tried);
    }
    container::remove_attempt(number);
    Ok(ImageTrial::failed(match ended {
        true => format!("no container was made: {}", output.status),
        false => format!("no container was made within {} s", PATIENCE.as_secs()),
    }))
}

/// Makes the check, and returns the line that the separate process prints.
pub fn report_trial(number: u64, image: &ImageSpec, argv: &[OsString], cwd: &Path) -> String {
    let tried = if container::has_runtime(image) {
        let program = container::attempt(number, image, cwd, |env| {
            examined_program::inspect_with_env(argv, cwd, env).0
        });
        match program {
            Ok(program) => ImageTrial {
                program,
                ..ImageTrial::default()
            },
            Err(failure) => ImageTrial::failed(failure.to_string()),
        }
    } else {
        let no_runtime = Some(image.runtime.program().to_owned());
        ImageTrial {
            image: ImageCheck {
                no_runtime,
                ..ImageCheck::default()
            },
            program: None,
        }
    };
    serde_json::to_string(&tried).expect("text only") + "\n"
}

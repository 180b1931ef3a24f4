//! A command of the site in place of a REST service.
//!
//! It is executed as `COMMAND create`, with the request's body on standard input, `COMMAND auth ID`, `COMMAND revoke ID`
//! and `COMMAND list NAME`. Standard output has the answer of a service. Exit codes: 0, 3 (no such service), 4 (cannot
//! do that); any other is a failure, whose first line on standard error is shown.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;
use zeroize::Zeroizing;

use wireup_core::fabric::manager_rest::{ANSWER_MAX, ManagerReply, ManagerRequest};

/// Timeout of one execution.
const LIMIT: Duration = Duration::from_secs(30);

pub(super) struct SiteCommand(Vec<String>);

impl SiteCommand {
    pub(super) fn new(words: &str) -> Option<Self> {
        let words = shlex::split(words)?;
        (!words.is_empty()).then_some(Self(words))
    }

    pub(super) async fn send_request(&self, request: &ManagerRequest) -> ManagerReply {
        match timeout(LIMIT, self.execute(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => ManagerReply::Lost(format!("{}: {error}", self.0[0])),
            Err(_) => ManagerReply::Lost(format!("no reply within {} s", LIMIT.as_secs())),
        }
    }

    async fn execute(&self, request: &ManagerRequest) -> std::io::Result<ManagerReply> {
        let (words, body): (Vec<&str>, String) = match request {
            ManagerRequest::Create(grant_request) => (vec!["create"], grant_request.json()),
            ManagerRequest::Auth(id) => (vec!["auth", id.as_str()], String::new()),
            ManagerRequest::Revoke(id) => (vec!["revoke", id.as_str()], String::new()),
            ManagerRequest::List(name) => (vec!["list", name], String::new()),
        };
        let child = Command::new(&self.0[0])
            .args(&self.0[1..])
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => return Ok(ManagerReply::Impossible(format!("{}: {error}", self.0[0]))),
        };
        if let Some(mut input) = child.stdin.take() {
            // A command may not read it.
            let _ = input.write_all(body.as_bytes()).await;
        }
        let output = child.wait_with_output().await?;
        let body = Zeroizing::new(output.stdout);
        if body.len() > ANSWER_MAX {
            return Ok(ManagerReply::Lost("the reply is too long".to_owned()));
        }
        Ok(match output.status.code() {
            Some(0) => ManagerReply::Status(200, body),
            Some(3) => ManagerReply::Status(404, Zeroizing::default()),
            Some(4) => ManagerReply::Status(405, Zeroizing::default()),
            _ => {
                let stderr = String::from_utf8_lossy(&output.stderr);
                let line = stderr.lines().find(|line| !line.trim().is_empty());
                let line: String = line.unwrap_or_default().chars().take(200).collect();
                ManagerReply::Lost(format!("{} ({line})", output.status))
            }
        })
    }
}

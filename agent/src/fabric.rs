//! Asks for the credential of a launch, keeps it in a record until it is revoked, and revokes it
//! (`wireup-agent fabric-keeper`). The order of the requests is decided in [`core::fabric`](wireup_core::fabric).
//!
//! - [`transport`]: requests to a REST service; [`site_command`]: to a command of the site
//! - [`grant_records`]: the records on disk, and the processes that work on them
//! - [`grant_process`]: the process that a launcher, or a step, starts

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::{Instant, sleep};

use self::grant_records::LockedGrantRecord;
use self::site_command::SiteCommand;
use self::transport::{ServiceError, ServiceUrl};
use crate::site_services::FileError;
use crate::site_settings;
use wireup_core::fabric::grant_lifecycle::{GrantAction, GrantLifecycle};
use wireup_core::fabric::grant_record::GrantRecord;
use wireup_core::fabric::manager_rest::{ManagerReply, ManagerRequest};
use wireup_core::job::spec::{FabricSource, FabricSpec};

pub mod grant_process;
pub mod grant_records;
mod site_command;
mod transport;

/// The file of settings.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FabricConfigFile {
    token_file: Option<PathBuf>,
    cacert: Option<PathBuf>,
}

/// Adds what the site's settings have for a manager, and the launch does not name.
fn with_site_settings(mut spec: FabricSpec) -> Result<FabricSpec, FileError> {
    if matches!(spec.source, FabricSource::Service(_)) {
        let (config, _): (FabricConfigFile, _) = site_settings::settings("fabric")?;
        spec.token = spec.token.or(config.token_file);
        spec.authorities = spec.authorities.or(config.cacert);
    }
    Ok(spec)
}

/// Receiver of requests for fabric grants.
enum FabricManager {
    Service(Box<ServiceUrl>),
    Command(SiteCommand),
}

/// Reason for which a manager cannot be used.
#[derive(Debug, thiserror::Error)]
enum ManagerError {
    #[error(transparent)]
    Service(#[from] ServiceError),
    #[error("cannot split the command into words; check its quotes")]
    Words,
    #[error("the grant comes from the environment, not from a fabric manager")]
    None,
}

impl FabricManager {
    fn new(spec: &FabricSpec) -> Result<Self, ManagerError> {
        match &spec.source {
            FabricSource::Service(address) => {
                let service = ServiceUrl::new(address, spec)?;
                Ok(Self::Service(Box::new(service)))
            }
            FabricSource::Command(words) => {
                let command = SiteCommand::new(words).ok_or(ManagerError::Words)?;
                Ok(Self::Command(command))
            }
            FabricSource::Environment | FabricSource::Request => Err(ManagerError::None),
        }
    }

    async fn send_request(&self, request: &ManagerRequest) -> ManagerReply {
        let answer = match self {
            Self::Service(service) => service.send_request(&request.http()).await,
            Self::Command(command) => command.send_request(request).await,
        };
        let with_title = |reason: String| format!("cannot {}: {reason}", request.title());
        match answer {
            ManagerReply::Lost(reason) => ManagerReply::Lost(with_title(reason)),
            ManagerReply::Unsent(reason) => ManagerReply::Unsent(with_title(reason)),
            // About no request in particular.
            other @ (ManagerReply::Impossible(_) | ManagerReply::Status(..)) => other,
        }
    }
}

/// Executes a life's orders until there is a credential, or a reason why there is none, or the launch is over. The
/// record on disk holds all that is left of it before each request.
async fn drive(
    manager: &FabricManager,
    (life, mut order): (&mut GrantLifecycle, GrantAction),
    record: &mut LockedGrantRecord,
    started_at: Instant,
) -> std::io::Result<GrantAction> {
    loop {
        match order {
            GrantAction::Send(request) => {
                record.write(&life.record())?;
                let answer = manager.send_request(&request).await;
                order = life.answered(&answer, started_at.elapsed());
            }
            GrantAction::Wait(wait) => {
                sleep(wait).await;
                order = life.waited();
            }
            GrantAction::Provide(_) | GrantAction::Refuse(_) => {
                record.write(&life.record())?;
                return Ok(order);
            }
            GrantAction::Over { .. } => {
                if life.is_void() {
                    record.remove();
                } else {
                    record.write(&life.record())?;
                }
                return Ok(order);
            }
        }
    }
}

/// Revokes the credentials that other processes have left behind. Those whose process lives are left alone.
pub async fn sweep() {
    for mut leftover in grant_records::lock_leftovers() {
        let Some(record) = leftover.read() else {
            continue;
        };
        let name = record.name.clone();
        match finish(record, &mut leftover, Duration::ZERO).await {
            None => eprintln!("wireup: revoked the fabric grant of launch {name}"),
            Some(leak) => {
                eprintln!("wireup: cannot revoke the fabric grant of launch {name}: {leak}");
            }
        }
    }
}

/// Revokes the grant of a record, after a delay. Returns the reason if a part of the grant may remain.
async fn finish(
    record: GrantRecord,
    record_file: &mut LockedGrantRecord,
    delay: Duration,
) -> Option<String> {
    sleep(delay).await;
    let manager = match FabricManager::new(&record.spec) {
        Ok(manager) => manager,
        Err(error) => return Some(error.to_string()),
    };
    let since = Instant::now();
    let (mut life, order) = GrantLifecycle::resume(record, Duration::ZERO);
    match drive(&manager, (&mut life, order), record_file, since).await {
        Ok(GrantAction::Over { leak }) => leak,
        Ok(_) => Some("the revocation did not end".to_owned()),
        Err(error) => Some(format!("cannot write its record: {error}")),
    }
}

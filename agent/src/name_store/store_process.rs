//! The process that keeps the names of one launch (`wireup-agent name-store BACKEND [MEET]`): its standard input is the
//! connection to the launcher. It ends with that connection, after it has withdrawn the names bound to the launch.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;

use prost::bytes::Bytes;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::StreamExt as _;
use wireup::failure::CommandError;
use wireup_core::job::ids::UserId;
use wireup_core::job::name_store_kind::NameStoreKind;
use wireup_core::link::agent_protocol::{AgentRequest, VERSION};
use wireup_core::link::frame::{BODY_MAX, FrameAddress};
use wireup_core::link::liveness::{LivenessMessage, SILENCE};
use wireup_core::link::{decode, encode};
use wireup_core::name_server::PROCESS_OF_STORE;
use wireup_core::name_server::message::{NameServerCommand, NameServerReport};
use wireup_core::names::BYTES_MAX;
use wireup_core::names::name_server_requests::NameServerRequest;

#[cfg(feature = "etcd")]
use super::etcd_store::EtcdStore;
use super::file_store::FileStore;
#[cfg(feature = "ldap")]
use super::ldap_store::LdapStore;
use super::service::NameStoreService;
use super::{NameStore, StoreError, stored_name};
use crate::budget::Budgets;
use crate::launch::RoutedFrame;
use crate::launch::descriptor::LaunchToken;
use crate::launch::frame_link::{LinkInput, LinkReader, LinkWriter, link};
#[cfg(not(all(feature = "etcd", feature = "ldap")))]
use crate::missing_feature::MissingFeature;

/// Longest message of a launch.
const MESSAGE_MAX: usize = BYTES_MAX + 64 * 1024 * 1024;

/// Serves the launcher at standard input. The words are the arguments after the command.
///
/// # Errors
/// If no launcher gives such words or such a standard input.
pub fn main(words: &[String]) -> Result<u8, CommandError> {
    let refused = || {
        CommandError::request("this command is for `wireup run` to use: it keeps names".to_owned())
    };
    let (backend, meet) = match words {
        [backend] => (backend, ""),
        [backend, meet] => (backend, &**meet),
        _ => return Err(refused()),
    };
    let backend: NameStoreKind = backend.parse().map_err(|_| refused())?;
    let failed = |error| CommandError::system("cannot keep names", error);
    // It withdraws the names of a launcher that is killed.
    let _ = rustix::process::set_parent_process_death_signal(None);
    // A process without its name is one all the same.
    let _ = std::fs::write("/proc/self/comm", PROCESS_OF_STORE.to_bytes());
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let socket = StdStream::from(socket.map_err(failed)?);
    socket.set_nonblocking(true).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let session = data_encoding::HEXLOWER.encode(&LaunchToken::random().to_bytes()[..8]);
    runtime.block_on(async {
        let socket = UnixStream::from_std(socket).map_err(failed)?;
        let scope = stored_name::scope(meet);
        match backend {
            NameStoreKind::File(directory) => {
                let store = FileStore::new(directory.into(), session.clone());
                serve(Ok(store), scope, session, socket).await;
            }
            #[cfg(feature = "etcd")]
            NameStoreKind::Etcd(endpoints) => {
                serve(EtcdStore::new(&endpoints), scope, session, socket).await;
            }
            #[cfg(not(feature = "etcd"))]
            NameStoreKind::Etcd(_) => {
                let missing = Err::<FileStore, _>(MissingFeature("etcd").into());
                serve(missing, scope, session, socket).await;
            }
            #[cfg(feature = "ldap")]
            NameStoreKind::Ldap(url) => {
                serve(
                    LdapStore::new(&url, session.clone()),
                    scope,
                    session,
                    socket,
                )
                .await;
            }
            #[cfg(not(feature = "ldap"))]
            NameStoreKind::Ldap(_) => {
                let missing = Err::<FileStore, _>(MissingFeature("ldap").into());
                serve(missing, scope, session, socket).await;
            }
            NameStoreKind::Agents => return Err(refused()),
        }
        Ok(0)
    })
}

/// Serves a launch until its connection ends. If the store cannot be used, every request is answered with the error.
async fn serve<S: NameStore>(
    store: Result<S, StoreError>,
    scope: String,
    session: String,
    socket: UnixStream,
) {
    let user = UserId(rustix::process::geteuid().as_raw());
    let account = Budgets::default().account(user.0);
    let (mut reader, mut writer) = link(socket, &account);
    let (out, mut to_launch) = mpsc::unbounded_channel();
    let store = match store {
        Ok(store) => store,
        Err(error) => {
            let refused = crate::name_servers::refused(error.to_string());
            if writer.control(&refused).is_ok() {
                writer.flush().await;
            }
            return;
        }
    };
    let keeper = Arc::new(NameStoreService::new(
        store,
        scope,
        session,
        user,
        out.clone(),
    ));
    let mut tasks = JoinSet::new();
    let mut renewal = interval(keeper.session_time() / 3);
    renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut renewing = None;
    let mut message = Vec::new();
    let mut met = false;
    loop {
        tokio::select! {
            incoming = reader.next() => match incoming {
                Some(Ok(LinkInput::Carried(packet))) if met => {
                    if message.len() + packet.body.len() > MESSAGE_MAX {
                        break;
                    }
                    message.extend_from_slice(&packet.body);
                    if packet.more {
                        continue;
                    }
                    match decode(&std::mem::take(&mut message)) {
                        Ok(NameServerCommand::Store(asked)) => {
                            let keeper = keeper.clone();
                            // Earlier publications are complete before the next request.
                            if matches!(asked, NameServerRequest::Keep { .. }) {
                                keeper.handle(asked).await;
                            } else {
                                tasks.spawn(async move { keeper.handle(asked).await });
                            }
                        }
                        // Launches do not meet here.
                        Ok(NameServerCommand::Relay { .. }) => {}
                        Err(_) => break,
                    }
                }
                Some(Ok(LinkInput::Control { more: false, body })) if !met => {
                    met = matches!(
                        decode(&body),
                        Ok(AgentRequest::Meet { version: VERSION, .. })
                    );
                    if !met || out.send(NameServerReport::Welcome).is_err() {
                        break;
                    }
                }
                Some(Ok(LinkInput::Sign(LivenessMessage::Ask))) => {
                    if writer.sign(LivenessMessage::Alive { silence: Some(SILENCE) }).is_err() {
                        break;
                    }
                }
                Some(Ok(LinkInput::Sign(_))) => {}
                _ => break,
            },
            Some(message) = to_launch.recv() => {
                if !write(&mut writer, &message) {
                    break;
                }
            }
            _ = renewal.tick() => {
                let keeper = keeper.clone();
                let is_over = renewing.as_ref().is_none_or(tokio::task::AbortHandle::is_finished);
                if is_over {
                    renewing = Some(tasks.spawn(async move { keeper.renew().await }));
                }
            }
            Some(_) = tasks.join_next() => {}
            () = writer.flush(), if writer.waits() => {}
        }
    }
    drop::<LinkReader>(reader);
    keeper.close();
    while tasks.join_next().await.is_some() {}
    keeper.end().await;
}

/// Writes a message; returns false if the launcher does not read.
fn write(writer: &mut LinkWriter, message: &NameServerReport) -> bool {
    let mut rest = Bytes::from(encode(message));
    loop {
        let body = rest.split_to(rest.len().min(BODY_MAX));
        let more = !rest.is_empty();
        let packet = RoutedFrame {
            to: FrameAddress::Launcher,
            from: FrameAddress::EveryNode,
            more,
            body,
        };
        match writer.carry(&packet) {
            Err(_) => return false,
            Ok(()) if !more => return true,
            Ok(()) => {}
        }
    }
}

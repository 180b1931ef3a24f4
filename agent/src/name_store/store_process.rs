//! The process that keeps the names of one launch (`wireup-agent name-store BACKEND [MEET]`): its standard input is the
//! connection to the launcher. It ends with that connection, after it has withdrawn the names bound to the launch.

use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::StreamExt as _;
use wireup_core::failure::CommandError;
use wireup_core::job::ids::UserId;
use wireup_core::job::name_store_kind::NameStoreKind;
use wireup_core::link::agent_protocol::{AgentReport, AgentRequest, VERSION};
use wireup_core::link::liveness::SILENCE;
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
use crate::launch::descriptor::LaunchToken;
use crate::launch::frame_link::{LinkInput, LinkReader, LinkWriter, link};
use crate::launch::frame_router::{RoutedFrame, frames_to_launcher};
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
        CommandError::request(
            "this command is internal: `wireup run` uses it to store names".to_owned(),
        )
    };
    let (backend, meet) = match words {
        [backend] => (backend, ""),
        [backend, meet] => (backend, &**meet),
        _ => return Err(refused()),
    };
    let backend: NameStoreKind = backend.parse().map_err(|_| refused())?;
    let failed = |error| CommandError::system("cannot store names", error);
    // It withdraws the names of a launcher that is killed.
    let _ = rustix::process::set_parent_process_death_signal(None);
    // A process without its name is one all the same.
    let _ = std::fs::write("/proc/self/comm", PROCESS_OF_STORE.to_bytes());
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let socket = UnixStream::from(socket.map_err(failed)?);
    socket.set_nonblocking(true).map_err(failed)?;
    let runtime = crate::worker_threads::single_task().map_err(failed)?;
    let session = data_encoding::HEXLOWER.encode(&LaunchToken::random().to_bytes()[..8]);
    runtime.block_on(async {
        let user = UserId(rustix::process::geteuid().as_raw());
        let account = Budgets::default().account(user.0);
        let launch = link(socket, &account).map_err(failed)?;
        let scope = stored_name::scope(meet);
        match backend {
            NameStoreKind::File(directory) => {
                let store = FileStore::new(directory.into(), session.clone());
                serve(Ok(store), scope, session, user, launch).await;
            }
            #[cfg(feature = "etcd")]
            NameStoreKind::Etcd(endpoints) => {
                serve(EtcdStore::new(&endpoints), scope, session, user, launch).await;
            }
            #[cfg(not(feature = "etcd"))]
            NameStoreKind::Etcd(_) => {
                let missing = Err::<FileStore, _>(MissingFeature("etcd").into());
                serve(missing, scope, session, user, launch).await;
            }
            #[cfg(feature = "ldap")]
            NameStoreKind::Ldap(url) => {
                let store = LdapStore::new(&url, session.clone());
                serve(store, scope, session, user, launch).await;
            }
            #[cfg(not(feature = "ldap"))]
            NameStoreKind::Ldap(_) => {
                let missing = Err::<FileStore, _>(MissingFeature("ldap").into());
                serve(missing, scope, session, user, launch).await;
            }
            NameStoreKind::Agents => return Err(refused()),
        }
        Ok(0)
    })
}

/// Serves a launch until its connection ends. If the store cannot be used, the launch is refused with the reason.
async fn serve<S: NameStore>(
    store: Result<S, StoreError>,
    scope: String,
    session: String,
    user: UserId,
    (mut reader, mut writer): (LinkReader, LinkWriter),
) {
    let (out, mut to_launch) = mpsc::unbounded_channel();
    let store = match store {
        Ok(store) => store,
        Err(error) => {
            let reason = error.to_string();
            return writer.report(&AgentReport::Refused { reason }).await;
        }
    };
    let service = NameStoreService::new(store, scope, session, user, out.clone());
    let mut renewal = interval(service.session_time() / 3);
    renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut connection = StoreConnection {
        service: Arc::new(service),
        writer,
        replies: out,
        tasks: JoinSet::new(),
        renewal: None,
        message: Vec::new(),
        is_met: false,
    };
    loop {
        tokio::select! {
            input = reader.next() => {
                let Some(Ok(input)) = input else { break };
                if connection.on_input(input).await.is_break() {
                    break;
                }
            }
            Some(message) = to_launch.recv() => {
                let mut frames = frames_to_launcher(Bytes::from(encode(&message)));
                if !frames.all(|frame| connection.writer.carry(&frame).is_ok()) {
                    break;
                }
            }
            _ = renewal.tick() => connection.renew(),
            Some(_) = connection.tasks.join_next() => {}
            () = connection.writer.flush(), if connection.writer.waits() => {}
        }
    }
    drop::<LinkReader>(reader);
    connection.end().await;
}

/// The connection to the launcher, and the tasks that carry out its requests.
struct StoreConnection<S: NameStore> {
    service: Arc<NameStoreService<S>>,
    writer: LinkWriter,
    replies: mpsc::UnboundedSender<NameServerReport>,
    tasks: JoinSet<()>,
    /// The last renewal of the session.
    renewal: Option<AbortHandle>,
    /// The beginning of a message of which packets are missing.
    message: Vec<u8>,
    /// Whether the launcher has introduced itself.
    is_met: bool,
}

impl<S: NameStore> StoreConnection<S> {
    /// Handles what the launcher has sent. Breaks if it cannot be served.
    async fn on_input(&mut self, input: LinkInput) -> ControlFlow<()> {
        match input {
            LinkInput::Carried(packet) if self.is_met => return self.on_packet(packet).await,
            LinkInput::Control { more: false, body } if !self.is_met => {
                self.is_met = matches!(
                    decode(&body),
                    Ok(AgentRequest::Meet {
                        version: VERSION,
                        ..
                    })
                );
                if !self.is_met || self.replies.send(NameServerReport::Welcome).is_err() {
                    return ControlFlow::Break(());
                }
            }
            LinkInput::Sign(sign) if self.writer.answer(sign, SILENCE) => {}
            _ => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    /// Adds a packet to the message, and carries out its request once it is complete.
    async fn on_packet(&mut self, packet: RoutedFrame) -> ControlFlow<()> {
        if self.message.len() + packet.body.len() > MESSAGE_MAX {
            return ControlFlow::Break(());
        }
        self.message.extend_from_slice(&packet.body);
        if packet.more {
            return ControlFlow::Continue(());
        }
        match decode(&std::mem::take(&mut self.message)) {
            Ok(NameServerCommand::Store(request)) => {
                let service = self.service.clone();
                // Later requests find the names of this one.
                if matches!(request, NameServerRequest::Keep { .. }) {
                    service.handle(request).await;
                } else {
                    self.tasks
                        .spawn(async move { service.handle(request).await });
                }
            }
            // Launches do not meet here.
            Ok(NameServerCommand::Relay { .. }) => {}
            Err(_) => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    /// Renews the session, unless that is under way.
    fn renew(&mut self) {
        let is_over = self.renewal.as_ref().is_none_or(AbortHandle::is_finished);
        if is_over {
            let service = self.service.clone();
            self.renewal = Some(self.tasks.spawn(async move { service.renew().await }));
        }
    }

    /// Completes the requests that have come, and ends the session.
    async fn end(mut self) {
        self.service.close();
        while self.tasks.join_next().await.is_some() {}
        self.service.end().await;
    }
}

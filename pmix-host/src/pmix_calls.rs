//! The agent's requests as PMIx calls. Does not read or order them (see `serve`).

use std::collections::BTreeSet;
use std::ffi::{OsStr, c_char};
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::c_memory::{self, CInfos, CProc, CallbackData, c_string, check};
use crate::forwarded_output::Output;
use crate::idle::{self, IdleWait};
use crate::libraries::Libraries;
use crate::locality;
use crate::operation_waiter::{WaitError, Waiter};
use crate::replies::ReplyWriter;
use wireup_core::job::ids::Rank;
use wireup_core::pmix::keys;
use wireup_core::pmix::server_settings;
use wireup_core::pmix::sidecar_protocol::serve::Body;
use wireup_core::pmix::sidecar_protocol::{ClientRegistration, ControlRefusal, ForkEnv};
use wireup_core::pmix::value::{DataRange, Info, PmixProc, PmixRank, Status, Text, Value, find};
use wireup_core::pmix::wire::Reader;

/// The PMIx server and its jobs.
pub(crate) struct PmixServer {
    pub(crate) libraries: Libraries,
    pub(crate) replies: Arc<ReplyWriter>,
    running: bool,
    /// File with the topology that the server shares with the ranks.
    topology: Option<PathBuf>,
    pub(crate) jobs: BTreeSet<Text>,
    /// Every name that was ever registered with libpmix, since 4.2.2 deadlocks when one is
    /// registered again: it keeps the locks of a job's data, by name, for as long as the user has
    /// jobs.
    names: BTreeSet<Text>,
    pub(crate) output: Output,
}

impl PmixServer {
    pub(crate) fn new(libraries: Libraries, replies: Arc<ReplyWriter>) -> Self {
        Self {
            libraries,
            replies,
            running: false,
            topology: None,
            jobs: BTreeSet::new(),
            names: BTreeSet::new(),
            output: Output::default(),
        }
    }

    pub(crate) fn init(&mut self, infos: &[u8]) -> Result<(), ControlRefusal> {
        if self.running {
            let text = "the PMIx server is already running";
            return Err(ControlRefusal::new(Status::ERR_INIT, text));
        }
        self.topology = topology(infos);
        let infos = CInfos::decode(self.libraries.shim, infos)?;
        let version = &self.libraries.version;
        // SAFETY: the module is static and larger than any version's; the infos live until the
        // call returned, and libpmix copies them.
        let status = unsafe {
            let shim = self.libraries.shim;
            let module = shim.wireup_module(version.major.into(), version.minor.into());
            let pmix = self.libraries.pmix;
            pmix.PMIx_server_init(module, infos.items(), infos.count())
        };
        check(status, "PMIx_server_init failed").map_err(explained)?;
        self.running = true;
        // SAFETY: the server runs, and this is its main thread.
        let status = unsafe { self.libraries.shim.wireup_watch_alerts() };
        check(status, "watching alerts failed")?;
        // SAFETY: the server runs.
        let status = unsafe { self.libraries.shim.wireup_follow_tool() };
        check(
            status,
            "cannot get the directives of the tool that started the launcher",
        )
    }

    pub(crate) fn register_job(
        &mut self,
        nspace: &Text,
        clients: &[ClientRegistration],
        infos: &[u8],
    ) -> Result<ForkEnv, ControlRefusal> {
        self.check_running()?;
        let infos = locality::completed(self.libraries.pmix, infos)?;
        let infos = CInfos::decode(self.libraries.shim, &infos)?;
        if !self.names.insert(nspace.clone()) {
            let text = format!("the job name {nspace} was used before, choose another");
            return Err(ControlRefusal::new(Status::ERR_BAD_PARAM, text));
        }
        let registered = self.register(nspace, clients, infos);
        match &registered {
            Ok(_) => {
                self.jobs.insert(nspace.clone());
            }
            // What libpmix noted of it must not be there for the other jobs' sake. The first
            // failure must report it.
            Err(_) => drop(self.deregister(nspace)),
        }
        registered
    }

    fn register(
        &self,
        nspace: &Text,
        clients: &[ClientRegistration],
        infos: CInfos,
    ) -> Result<ForkEnv, ControlRefusal> {
        let pmix = self.libraries.pmix;
        let name = c_string(nspace);
        let local = i32::try_from(clients.len()).expect("bounded by the frame's size");
        let waiter = Waiter::new();
        // SAFETY: name and infos live until the callback came, or for ever.
        waiter.start(|callback, data| unsafe {
            let (items, count) = (infos.items(), infos.count());
            pmix.PMIx_server_register_nspace(name.as_ptr(), local, items, count, callback, data)
        });
        finish(waiter.wait(), "PMIx_server_register_nspace", (infos, name))?;

        let procs = clients
            .iter()
            .map(|client| CProc::new(self.libraries.shim, nspace, client.rank.into()));
        let procs = procs.collect::<Result<Vec<_>, _>>()?;
        let waiter = Waiter::new();
        for (client, proc) in clients.iter().zip(&procs) {
            // SAFETY: the proc lives until the callback came, or for ever; there is no server
            // object.
            waiter.start(|callback, data| unsafe {
                let (uid, gid, object) = (client.uid, client.gid, std::ptr::null_mut());
                pmix.PMIx_server_register_client(proc.0, uid, gid, object, callback, data)
            });
        }
        let procs = finish(waiter.wait(), "PMIx_server_register_client", procs)?;
        let environments = clients
            .iter()
            .zip(&procs)
            .map(|(client, proc)| Ok((client.rank, self.setup_fork(proc)?)));
        Ok(split_common(
            environments.collect::<Result<_, ControlRefusal>>()?,
        ))
    }

    fn setup_fork(&self, proc: &CProc) -> Result<Vec<(Text, Text)>, ControlRefusal> {
        let mut environment: *mut *mut c_char = std::ptr::null_mut();
        let pmix = self.libraries.pmix;
        // SAFETY: the proc is valid; libpmix grows the array, which starts empty, with malloc.
        let status = unsafe { pmix.PMIx_server_setup_fork(proc.0, &raw mut environment) };
        // SAFETY: all that libpmix made is ours now, also if it failed half way.
        let variables = unsafe { c_memory::take_environment(environment) };
        check(status, "PMIx_server_setup_fork failed")?;
        Ok(variables)
    }

    pub(crate) fn direct_modex(&self, id: u64, proc: &PmixProc) -> Result<(), ControlRefusal> {
        self.check_registered(&proc.nspace)?;
        self.replies.concerns(id, &proc.nspace);
        let name = CProc::new(self.libraries.shim, &proc.nspace, proc.rank)?;
        let pmix = self.libraries.pmix;
        let status = self.callback_data(id, ()).start(|data| {
            // SAFETY: libpmix copies the proc; the callback takes the box, once.
            unsafe { pmix.PMIx_server_dmodex_request(name.0, Some(c_memory::on_modex), data) }
        });
        check(status, "PMIx_server_dmodex_request failed")
    }

    pub(crate) fn notify(
        &self,
        id: u64,
        code: Status,
        source: &PmixProc,
        range: DataRange,
        infos: &[u8],
    ) -> Result<(), ControlRefusal> {
        self.check_running()?;
        let infos = CInfos::decode(self.libraries.shim, infos)?;
        let source = CProc::new(self.libraries.shim, &source.nspace, source.rank)?;
        let (proc, items, count) = (source.0, infos.items(), infos.count());
        let (pmix, done) = (self.libraries.pmix, Some(c_memory::on_done as _));
        let status = self.callback_data(id, (source, infos)).start(|data| {
            // SAFETY: source, which libpmix copies only up to 5.0, and infos live in the box until the
            // callback, which takes it, once.
            unsafe { pmix.PMIx_Notify_event(code.0, proc, range.0, items, count, done, data) }
        });
        if status == Status::OPERATION_SUCCEEDED.0 {
            self.replies.finish(id, Ok(Body::Done));
            return Ok(());
        }
        check(status, "PMIx_Notify_event failed")
    }

    /// Has libpmix's thread do something without effect: forget a process it never knew.
    pub(crate) fn probe(&self, id: u64) -> Result<(), ControlRefusal> {
        self.check_running()?;
        let unknown = self.unknown_process()?;
        let data = Box::into_raw(Box::new(self.callback_data(id, ()))).cast();
        let pmix = self.libraries.pmix;
        // SAFETY: libpmix copies the proc; the callback takes the box, once, also on errors.
        unsafe { pmix.PMIx_server_deregister_client(unknown.0, Some(c_memory::on_done), data) };
        Ok(())
    }

    /// Returns the data of a callback that answers a request. libpmix uses the arguments until then.
    pub(crate) fn callback_data(&self, id: u64, arguments: impl Send + 'static) -> CallbackData {
        CallbackData {
            replies: Arc::clone(&self.replies),
            id,
            arguments: Box::new(arguments),
        }
    }

    /// Returns a process that libpmix never knew.
    fn unknown_process(&self) -> Result<CProc, ControlRefusal> {
        let rank = PmixRank::from(Rank(0));
        CProc::new(self.libraries.shim, &"wireup-probe".into(), rank)
    }

    pub(crate) fn deregister_job(&mut self, nspace: &Text) -> Result<(), ControlRefusal> {
        if !self.jobs.remove(nspace) {
            return Err(unknown_job(nspace));
        }
        // libpmix never answers for those of its processes that published nothing.
        self.replies.refuse_for(nspace, &unknown_job(nspace));
        self.deregister(nspace)
    }

    fn deregister(&self, nspace: &Text) -> Result<(), ControlRefusal> {
        let name = c_string(nspace);
        let pmix = self.libraries.pmix;
        let waiter = Waiter::new();
        waiter.start(|callback, data| {
            // SAFETY: the name lives until the callback came, or for ever.
            unsafe { pmix.PMIx_server_deregister_nspace(name.as_ptr(), callback, data) };
            Status::SUCCESS.0
        });
        finish(waiter.wait(), "PMIx_server_deregister_nspace", name).map(drop)
    }

    /// Completes the operations for which libpmix waits, forgets all jobs and stops the server.
    pub(crate) fn finalize(&mut self) -> Result<(), ControlRefusal> {
        // SAFETY: the link was started; this runs once, and not inside an upcall.
        unsafe { self.libraries.shim.wireup_link_stop() };
        if !self.running {
            return Ok(());
        }
        self.running = false;
        // Messages that are queued are sent first.
        if let Ok(unknown) = self.unknown_process() {
            let (idle, data) = IdleWait::new();
            // SAFETY: libpmix copies the proc; the callback takes the data, once, also on errors.
            unsafe {
                let pmix = &self.libraries.pmix;
                pmix.PMIx_server_deregister_client(unknown.0, Some(idle::request_report), data);
            }
            idle.wait();
        }
        let jobs = std::mem::take(&mut self.jobs);
        let deregistered = jobs.iter().try_for_each(|nspace| self.deregister(nspace));
        // SAFETY: the server runs, and nothing else of ours calls libpmix any more.
        let status = unsafe { self.libraries.pmix.PMIx_server_finalize() };
        // 4.2 leaves it; 5.0 has removed it.
        if let Some(path) = self.topology.take()
            && let Err(error) = std::fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            let text = format!("cannot remove {}: {error}", path.display());
            return Err(ControlRefusal::new(Status::ERROR, text));
        }
        deregistered?;
        check(status, "PMIx_server_finalize failed")
    }

    pub(crate) fn check_running(&self) -> Result<(), ControlRefusal> {
        match self.running {
            true => Ok(()),
            false => Err(ControlRefusal::new(
                Status::ERR_INIT,
                "the PMIx server is not running",
            )),
        }
    }

    /// Refuses a request about a job that the running server does not have.
    pub(crate) fn check_registered(&self, nspace: &Text) -> Result<(), ControlRefusal> {
        self.check_running()?;
        match self.jobs.contains(nspace) {
            true => Ok(()),
            false => Err(unknown_job(nspace)),
        }
    }
}

/// Returns the file in which libpmix shares the topology, whether or not libpmix will make one. Source: `pmix_hwloc.c`
/// of 4.2 and 5.0.
fn topology(infos: &[u8]) -> Option<PathBuf> {
    let infos = Info::decode_list(&mut Reader::new(infos)).ok()?;
    let Some(Value::String(dir)) = find(&infos, keys::SERVER_TMPDIR) else {
        return None;
    };
    Some(Path::new(OsStr::from_bytes(dir.as_bytes())).join("hwloc.sm"))
}

/// Time limit of a connection over the loopback: packets that are dropped have no answer.
const LOOPBACK_TIMEOUT: Duration = Duration::from_secs(3);

/// Adds the cause of a failed start, where this process can detect one, and the remedy.
fn explained(mut failed: ControlRefusal) -> ControlRefusal {
    let connected = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| TcpStream::connect_timeout(&listener.local_addr()?, LOOPBACK_TIMEOUT));
    if let Err(error) = connected {
        let text = format!(
            ": no connection over the loopback: {error}; run `ip link set lo up`, or permit 127.0.0.1 in the firewall"
        );
        failed.text.push_str(&text);
        return failed;
    }
    let set = std::env::vars_os().filter(|(name, value)| {
        let name = name.as_encoded_bytes();
        name.starts_with(b"PMIX_MCA_") && !server_settings::contains(name, value.as_bytes())
    });
    let mut set: Vec<String> = set
        .map(|(name, value)| format!("{}={}", name.display(), value.display()))
        .collect();
    set.sort();
    if !set.is_empty() {
        let text = format!(
            ": {} in the environment may be the cause; unset it, or see the server's output with -vv",
            set.join(" ")
        );
        failed.text.push_str(&text);
    }
    failed
}

fn unknown_job(nspace: &Text) -> ControlRefusal {
    let text = format!("job {nspace} is not registered");
    ControlRefusal::new(Status::ERR_NOT_FOUND, text)
}

/// Judges a wait, and returns the operations' data, unless they may still use it.
fn finish<T>(waited: Result<(), WaitError>, what: &str, used: T) -> Result<T, ControlRefusal> {
    match waited {
        Ok(()) => Ok(used),
        Err(WaitError::Failed(status)) => {
            Err(ControlRefusal::new(status, format!("{what} failed")))
        }
        Err(WaitError::Timeout) => {
            std::mem::forget(used);
            let text = format!("{what} did not finish");
            Err(ControlRefusal::new(Status::ERR_TIMEOUT, text))
        }
    }
}

/// Separates the infos that all clients have in common from those that differ.
fn split_common(mut clients: Vec<(Rank, Vec<(Text, Text)>)>) -> ForkEnv {
    let Some(((_, first), others)) = clients.split_first() else {
        return ForkEnv::default();
    };
    let everywhere =
        |variable: &&(Text, Text)| others.iter().all(|(_, own)| own.contains(variable));
    let common: Vec<_> = first.iter().filter(everywhere).cloned().collect();
    for (_, own) in &mut clients {
        own.retain(|variable| !common.contains(variable));
    }
    ForkEnv { common, clients }
}

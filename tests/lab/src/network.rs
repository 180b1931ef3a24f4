//! The network between the hosts: a bridge in a namespace of its own, without a way out.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use crate::host::Host;
use crate::slow::{SlowNetwork, Weather};
use crate::start::{before_exec, enter, network_namespace};
use crate::{Error, MAX_HOSTS};

/// Search path for iproute2: root's own PATH may lack it.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Link address of no host: frames to it are lost.
const NOBODY: &str = "02:00:00:00:ff:ff";

/// IPv4 address of the host of that number.
pub(crate) fn address(index: usize) -> Ipv4Addr {
    debug_assert!(index < MAX_HOSTS);
    Ipv4Addr::new(10, 99, 0, index as u8 + 1)
}

/// IPv6 address of the host of that number.
pub(crate) fn address6(index: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, index as u16 + 1)
}

fn hardware(index: usize) -> String {
    format!("02:00:00:00:00:{:02x}", index + 1)
}

/// The bridge and the cables to it.
#[derive(Debug)]
pub(crate) struct Fabric {
    namespace: Arc<OwnedFd>,
    /// Slow network that replaces the bridge.
    slow: Mutex<Option<SlowNetwork>>,
}

impl Fabric {
    pub(crate) fn new() -> Result<Self, Error> {
        let namespace = network_namespace().map_err(|e| Error::system("network namespace", e))?;
        Ok(Self {
            namespace: Arc::new(namespace),
            slow: Mutex::default(),
        })
    }

    /// Delays and loses all frames between the hosts in this way from now on.
    pub(crate) fn set_weather(&self, hosts: usize, weather: Weather) -> Result<(), Error> {
        let mut slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        // The one before reads the same cables.
        drop(slow.take());
        let bridged = weather.delay.is_zero() && weather.loss == 0;
        let master = if bridged { "master br0" } else { "nomaster" };
        let lines = (0..hosts).map(|index| format!("link set w{index} {master}\n"));
        self.ip(&lines.collect::<String>())?;
        if !bridged {
            let started = SlowNetwork::start(Arc::clone(&self.namespace), hosts, weather);
            *slow = Some(started.map_err(|error| Error::system("slow network", error))?);
        }
        Ok(())
    }

    /// Gives every host its `eth0`.
    pub(crate) fn connect(&self, hosts: &[Host]) -> Result<(), Error> {
        let mut batch = String::from("link add name br0 type bridge\nlink set br0 up\n");
        for (index, host) in hosts.iter().enumerate() {
            let (pid, hardware) = (host.init_pid(), hardware(index));
            let _ = writeln!(
                batch,
                "link add name w{index} type veth peer name eth0 address {hardware} netns {pid}\n\
                 link set w{index} master br0 up"
            );
        }
        self.ip(&batch)?;
        let inside = hosts.iter().enumerate().map(|(index, host)| {
            // No address but these: what is cut off by address is cut off then.
            let batch = format!(
                "link set lo up\n\
                 link set eth0 addrgenmode none\n\
                 addr add {}/24 dev eth0\n\
                 addr add {}/64 dev eth0 nodad\n\
                 link set eth0 up\n",
                address(index),
                address6(index)
            );
            start_ip(&batch, |command| host.enter(command))
        });
        // All are started before the first is waited for.
        let started: Vec<_> = inside.collect();
        started.into_iter().try_for_each(|child| finish(child?))
    }

    /// Raises or cuts the bridge's end of a host's cable.
    pub(crate) fn set_link(&self, host: &Host, up: bool) -> Result<(), Error> {
        let state = if up { "up" } else { "down" };
        self.ip(&format!("link set w{} {state}\n", host.index()))
    }

    fn ip(&self, batch: &str) -> Result<(), Error> {
        let child = start_ip(batch, |command| {
            let namespace = Arc::clone(&self.namespace);
            before_exec(command, move || {
                enter(namespace.as_fd(), libc::CLONE_NEWNET)
            });
        });
        finish(child?)
    }
}

/// Decides whether what `from` sends to `to` arrives.
pub(crate) fn set_reachable(from: &Host, to: &Host, reachable: bool) -> Result<(), Error> {
    if from.has_crashed() {
        return Ok(());
    }
    let index = to.index();
    let hardware = if reachable {
        hardware(index)
    } else {
        NOBODY.to_owned()
    };
    let (v4, v6) = (address(index), address6(index));
    let batch = format!(
        "neigh replace {v4} lladdr {hardware} nud permanent dev eth0\n\
         neigh replace {v6} lladdr {hardware} nud permanent dev eth0\n"
    );
    finish(start_ip(&batch, |command| from.enter(command))?)
}

fn start_ip(batch: &str, place: impl FnOnce(&mut Command)) -> Result<Child, Error> {
    let failed = |error| Error::system("ip (of iproute2)", error);
    let mut command = Command::new("ip");
    command
        .args(["-batch", "-"])
        .env("PATH", PATH)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    place(&mut command);
    let mut child = command.spawn().map_err(failed)?;
    // The input fits into the pipe in any case; an error shows in the program's own output.
    let _ = child
        .stdin
        .take()
        .expect("piped")
        .write_all(batch.as_bytes());
    Ok(child)
}

fn finish(child: Child) -> Result<(), Error> {
    let output = child
        .wait_with_output()
        .map_err(|error| Error::system("ip", error))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Tool {
        program: "ip",
        message,
    })
}

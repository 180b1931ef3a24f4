//! One host of a launch: where the hosts of other clients and its own processes connect.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use wireup_impi_core::external32::Representation;
use wireup_impi_core::world::ImpiJob;

use super::invitation::HostInvitation;
use super::process_handshake::Welcome;
use super::service::ServedLaunch;
use super::{AgentError, Events, host_connect, service};

/// A host before the start-up: it listens.
#[derive(Debug)]
pub struct ListeningHost {
    address: IpAddr,
    hosts: TcpListener,
    door: TcpListener,
}

/// A host that is connected with all others; its processes may connect.
#[derive(Debug)]
pub struct ConnectedHost {
    world: ImpiJob,
    /// Index of the host in the world.
    number: usize,
    channels: Vec<(usize, TcpStream)>,
    door: TcpListener,
    invitation: HostInvitation,
}

impl ListeningHost {
    /// Listens at an address, from which it also connects.
    ///
    /// # Errors
    /// When it cannot.
    pub fn listen(address: IpAddr) -> Result<Self, AgentError> {
        let listen = |what: &str| {
            let listener = TcpListener::bind((address, 0));
            listener.map_err(AgentError::io(format!("{what} at {address}")))
        };
        Ok(Self {
            address,
            hosts: listen("listening for hosts")?,
            door: listen("listening for processes")?,
        })
    }

    /// Returns the address for other hosts.
    ///
    /// # Errors
    /// When the system does not know it.
    pub fn place(&self) -> Result<SocketAddr, AgentError> {
        self.hosts.local_addr().map_err(AgentError::io("listening"))
    }

    /// Returns the address for the host's processes.
    ///
    /// # Errors
    /// When the system does not know it.
    pub fn door(&self) -> Result<SocketAddr, AgentError> {
        self.door.local_addr().map_err(AgentError::io("listening"))
    }

    /// Connects with all other hosts. `index` counts the hosts of the own client.
    ///
    /// # Errors
    /// When the invitation is to no world, or one host cannot be reached or does not come.
    pub fn connect(
        self,
        invitation: HostInvitation,
        index: usize,
    ) -> Result<ConnectedHost, AgentError> {
        let world = invitation.world()?;
        let number = world.first_host(invitation.client as usize) + index;
        let own = world.hosts.get(number).map(|host| host.client);
        if own != Some(invitation.client as usize) {
            let why = format!("the client has no host {index}");
            return Err(AgentError::Broken(why));
        }
        let channels = host_connect::connect_all(&world, number, &self.hosts, self.address)?;
        Ok(ConnectedHost {
            world,
            number,
            channels,
            door: self.door,
            invitation,
        })
    }
}

impl ConnectedHost {
    /// Serves the processes until all have finished and all hosts have sent FINI. [`Events::launch_over`] reports that
    /// no further process will connect. After that, the others have `patience` to end. `print` gets lines of processes.
    ///
    /// # Errors
    /// When a process, another host or the network broke the job.
    pub fn serve(
        self,
        events: &Events,
        patience: Duration,
        print: &mut dyn FnMut(&str),
    ) -> Result<(), AgentError> {
        let representation = if self.invitation.lam {
            Representation::LittleEndian
        } else {
            Representation::External32
        };
        let welcome = Welcome {
            ticket: self.invitation.ticket,
            first: self.world.hosts[self.number].first,
            lam: self.invitation.lam,
            representation,
            values: self.invitation.values,
        };
        service::serve(
            self.number,
            &self.world,
            self.channels,
            &self.door,
            welcome,
            ServedLaunch {
                events,
                patience,
                print,
            },
        )
    }
}

//! One host of a launch: where the hosts of other clients and its own processes connect.

use std::net::{IpAddr, SocketAddr, TcpListener};

use super::invitation::HostInvitation;
use super::{AgentError, ConnectedHost, host_connect};

/// A host before the start-up: it listens.
#[derive(Debug)]
pub struct ListeningHost {
    address: IpAddr,
    hosts: TcpListener,
    door: TcpListener,
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

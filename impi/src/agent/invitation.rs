//! Invitation of a client's agent to its hosts on other machines: one line, `CLIENT TICKET ORDER VALUES`.

use wireup_impi_core::hexadecimal::{hex, unhex};
use wireup_impi_core::world::{ImpiJob, decode};

use super::AgentError;
use super::process_handshake::ProcessTicket;

/// Data of the job that a host of the client needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostInvitation {
    pub client: u32,
    /// Whether another client is LAM.
    pub lam: bool,
    /// Ticket that admits processes.
    pub ticket: ProcessTicket,
    /// The values of all clients.
    pub values: Vec<u8>,
}

impl HostInvitation {
    /// Encodes the invitation as a line, without its end.
    pub fn line(&self) -> String {
        let order = if self.lam { "lam" } else { "external32" };
        let (ticket, values) = (hex(&self.ticket), hex(&self.values));
        format!("{} {ticket} {order} {values}", self.client)
    }

    /// Parses the line of [`Self::line`]; `None` for other text.
    pub fn from_line(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let mut word = || words.next();
        let invitation = Self {
            client: word()?.parse().ok()?,
            ticket: unhex(word()?)?.try_into().ok()?,
            lam: match word()? {
                "lam" => true,
                "external32" => false,
                _ => return None,
            },
            values: unhex(word()?)?,
        };
        words.next().is_none().then_some(invitation)
    }

    /// Returns the world of all clients.
    pub(super) fn world(&self) -> Result<ImpiJob, AgentError> {
        let wrong = |why: &dyn std::fmt::Display| {
            AgentError::Broken(format!("invalid values of the clients: {why}"))
        };
        let (clients, collected) = decode(&self.values).ok_or_else(|| wrong(&"not readable"))?;
        ImpiJob::new(clients, &collected).map_err(|error| wrong(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_invitation_as_written_is_parsed() {
        for lam in [false, true] {
            let invitation = HostInvitation {
                client: 3,
                lam,
                ticket: [0xa5; 16],
                values: vec![0, 1, 0xff],
            };
            let line = invitation.line();
            assert_eq!(HostInvitation::from_line(&line), Some(invitation));
            for wrong in [
                line.replace("0001ff", "0001f"),
                line.replace("0001ff", "0001fg"),
                line.replace("a5a5", "a5"),
                format!("{line} more"),
                line.replacen('3', "-3", 1),
                String::new(),
            ] {
                assert_eq!(HostInvitation::from_line(&wrong), None, "{wrong}");
            }
        }
    }
}

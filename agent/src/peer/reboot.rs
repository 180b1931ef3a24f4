//! Whether a host that was lost has rebooted, as its agent tells by the boot of its kernel.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::connection::{Line, Peers};
use super::error::PeerError;
use crate::budget::BudgetAccount;
use crate::proto::v1;
use wireup_core::link::control::{NO_SIGN, VERSION};

/// Longest delay of the report of a loss by the question. An agent that crashed and one that serves answer at once.
const PATIENCE: Duration = Duration::from_secs(1);

impl Peers {
    /// The reason of a loss, after a question to the agent that is at the same place now. `boot` is what the lost agent told of
    /// its own machine. A host that is silent is not asked: it would not answer.
    pub(super) async fn explain(
        &self,
        loss: PeerError,
        boot: &str,
        line: &Line,
        account: &Arc<BudgetAccount>,
    ) -> PeerError {
        let answers = matches!(&loss, PeerError::Lost { cause, .. } if cause != NO_SIGN);
        if boot.is_empty() || !answers {
            return loss;
        }
        let member = line.member();
        let asked = async {
            let line = self.line(member, account).await.ok()?;
            let request = v1::StatusRequest { version: VERSION };
            let answer = line.client().status(request).await.ok()?;
            Some(answer.into_inner().boot)
        };
        match timeout(PATIENCE, asked).await {
            Ok(Some(now)) if !now.is_empty() && now != boot => {
                PeerError::Rebooted(member.name.clone())
            }
            _ => loss,
        }
    }
}

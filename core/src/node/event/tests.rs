use std::fmt::Debug;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::arbitrary::{from_node, job_context, peer_message};
use super::{NodeReport, PeerMessage};
use crate::interlaunch::HeadNodeMessage;
use crate::interlaunch::arbitrary::packet;
use crate::job::arbitrary::job_spec;
use crate::job::spec::JobSpec;
use crate::link;
use crate::node::JobContext;

/// Read back, a message is what it was; a part of one is none.
fn comes_through<T: Serialize + DeserializeOwned + Debug>(message: &T) -> TestCaseResult {
    let written = link::encode(message);
    let read: T = link::decode(&written).unwrap();
    prop_assert_eq!(format!("{read:?}"), format!("{message:?}"));
    prop_assert!(link::decode::<T>(&written[..written.len() - 1]).is_err());
    Ok(())
}

proptest! {
    #[test]
    fn peer_message_roundtrips(message in peer_message()) {
        comes_through::<PeerMessage>(&message)?;
    }

    #[test]
    fn interlaunch_message_roundtrips(packet in packet()) {
        comes_through::<HeadNodeMessage>(&packet)?;
    }

    #[test]
    fn node_report_roundtrips(report in from_node()) {
        comes_through::<NodeReport>(&report)?;
    }

    #[test]
    fn job_spec_roundtrips(spec in job_spec()) {
        comes_through::<JobSpec>(&spec)?;
        prop_assert_eq!(link::decode::<JobSpec>(&link::encode(&spec)), Ok(spec));
    }

    #[test]
    fn job_context_roundtrips(job in job_context()) {
        comes_through::<JobContext>(&job)?;
        prop_assert_eq!(link::decode::<JobContext>(&link::encode(&job)), Ok(job));
    }
}

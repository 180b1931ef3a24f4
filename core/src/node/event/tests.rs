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
    fn what_one_node_says_to_another_comes_through(message in peer_message()) {
        comes_through::<PeerMessage>(&message)?;
    }

    #[test]
    fn what_one_launch_says_to_another_comes_through(packet in packet()) {
        comes_through::<HeadNodeMessage>(&packet)?;
    }

    #[test]
    fn what_the_launcher_is_told_comes_through(told in from_node()) {
        comes_through::<NodeReport>(&told)?;
    }

    #[test]
    fn what_a_user_asked_for_comes_through(spec in job_spec()) {
        comes_through::<JobSpec>(&spec)?;
        prop_assert_eq!(link::decode::<JobSpec>(&link::encode(&spec)), Ok(spec));
    }

    #[test]
    fn what_all_nodes_know_of_a_job_comes_through(job in job_context()) {
        comes_through::<JobContext>(&job)?;
        prop_assert_eq!(link::decode::<JobContext>(&link::encode(&job)), Ok(job));
    }
}

use tonic::Code;

use super::*;
use crate::proto::v1::{LaunchProcessesRequest, LaunchState, PeerInfo};
use crate::scheduled::launch_request::LaunchRequest;

fn user(uid: u32) -> Caller {
    Caller::Local { uid }
}

fn scheduler() -> Caller {
    let name = "s".to_owned();
    Caller::Scheduler { name }
}

/// A launch that is made known on its second node.
fn registered(id: &str, owner: u32) -> Arc<ScheduledLaunch> {
    let peer = |name: &str, first_rank| PeerInfo {
        node_id: name.to_owned(),
        grpc_address: format!("{name}:7437"),
        first_rank,
        num_ranks: 1,
    };
    let message = LaunchProcessesRequest {
        launch_id: id.to_owned(),
        entrypoint: "true".into(),
        tasks_per_node: 1,
        first_rank: 1,
        world_size: 2,
        node_index: Some(1),
        peers: vec![peer("nowhere", 0), peer("node01", 1)],
        ..Default::default()
    };
    let request = LaunchRequest::check(message, "node01").unwrap();
    let held = crate::budget::Budgets::default().account(owner).hold(0);
    Arc::new(ScheduledLaunch::new(&request, owner, None, held))
}

fn add(
    launches: &Arc<ScheduledLaunches>,
    id: &str,
    owner: u32,
    caller: &Caller,
) -> Result<Arc<ScheduledLaunch>, Code> {
    let reserved = launches.reserve(id, owner, caller);
    let launch = registered(id, owner);
    reserved
        .map_err(|status| status.code())?
        .fill(Arc::clone(&launch));
    Ok(launch)
}

#[test]
fn launches_added_by_user_exclude_no_others() {
    let launches = Arc::default();
    let add = |id: &str, owner, caller: &_| add(&launches, id, owner, caller).map(drop);
    for n in 0..PER_USER {
        add(&format!("x{n}"), 7, &user(7)).unwrap();
    }
    assert_eq!(add("more", 7, &user(7)), Err(Code::ResourceExhausted));
    assert_eq!(add("more", 8, &user(8)), Ok(()));
    assert_eq!(add("s1", 7, &scheduler()), Ok(()));
    // All users together are no match for a scheduler either.
    let others = (PER_USER + 1..LIVE).zip(10..);
    others.for_each(|(n, uid)| add(&format!("y{n}"), uid, &user(uid)).unwrap());
    assert_eq!(add("more", 9, &user(9)), Err(Code::ResourceExhausted));
    assert_eq!(add("s2", 9, &scheduler()), Ok(()));
    assert_eq!(add("s3", 9, &user(0)), Ok(()));
    launches.find("x0", &user(7)).unwrap().abort();
    assert_eq!(add("more", 9, &user(9)), Ok(()));
}

#[test]
fn launch_without_parent_times_out_and_cannot_start() {
    let launches = Arc::default();
    let waiting = add(&launches, "waiting", 7, &user(7)).unwrap();
    let brought = add(&launches, "brought", 7, &user(7)).unwrap();
    assert!(launches.part("brought", 8).is_none());
    assert!(launches.part("brought", 7).is_some());
    let due = waiting.waits_since().unwrap() + BROUGHT_WITHIN;
    let moment = Duration::from_millis(1);
    assert_eq!(launches.end_overdue(due - moment), Some(due));
    assert_eq!(waiting.ended(), None);

    assert_eq!(launches.end_overdue(due), None);
    let info = &waiting.info(false)[0];
    assert_eq!(info.state(), LaunchState::Ended);
    assert_eq!(
        info.error_message,
        "the launcher did not reach this node within 10 minutes"
    );
    assert_eq!(brought.ended(), None);
    // A caller that sends it now gets the order to end it at once.
    assert!(launches.part("waiting", 7).unwrap().is_aborted());
}

#[test]
fn every_user_has_names_of_his_own_and_learns_of_no_others() {
    let launches = Arc::default();
    add(&launches, "a", 7, &user(7)).unwrap();
    add(&launches, "a", 8, &user(8)).unwrap();
    let owner = |id: &str, caller: &_| launches.find(id, caller).map(|launch| launch.owner);
    let owner = |id: &str, caller: &_| owner(id, caller).map_err(|status| status.code());
    assert_eq!((owner("a", &user(7)), owner("a", &user(8))), (Ok(7), Ok(8)));
    assert_eq!(owner("a", &user(9)), Err(Code::NotFound));
    assert_eq!(
        add(&launches, "a", 7, &user(7)).unwrap_err(),
        Code::AlreadyExists
    );
    assert_eq!(owner("a", &scheduler()), Err(Code::FailedPrecondition));
    // What was started for others has one name for all who may see all.
    add(&launches, "a", 9, &scheduler()).unwrap();
    assert_eq!(
        (owner("a", &scheduler()), owner("a", &user(0))),
        (Ok(9), Ok(9))
    );
    assert_eq!((owner("a", &user(7)), owner("a", &user(9))), (Ok(7), Ok(9)));
    assert_eq!(
        add(&launches, "a", 10, &user(0)).unwrap_err(),
        Code::AlreadyExists
    );
    assert_eq!(launches.visible_to(&user(8)).len(), 1);
    assert_eq!(launches.visible_to(&scheduler()).len(), 3);
}

#[test]
fn launches_ended_by_user_do_not_evict_others() {
    let launches = Arc::default();
    add(&launches, "mine", 7, &user(7)).unwrap().end();
    for n in 0..=REMEMBERED_LAUNCHES {
        add(&launches, &format!("x{n}"), 8, &user(8)).unwrap().end();
    }
    assert!(launches.find("mine", &user(7)).is_ok());
    assert_eq!(launches.visible_to(&user(8)).len(), REMEMBERED_LAUNCHES);
}

#[test]
fn scheduler_controls_its_launches_and_reads_others() {
    let launches = Arc::default();
    let other = Caller::Scheduler {
        name: "other".into(),
    };
    add(&launches, "its", 7, &scheduler()).unwrap();
    add(&launches, "roots", 0, &user(0)).unwrap();
    add(&launches, "for", 7, &user(0)).unwrap();
    add(&launches, "users", 7, &user(7)).unwrap();
    let steers = |id: &str, caller: &_| match launches.steer(id, caller) {
        Ok(_) => None,
        Err(status) => Some((status.code(), status.message().to_owned())),
    };
    for (id, starter) in [("roots", 0), ("for", 0), ("users", 7)] {
        let denied = format!(
            "scheduler \"s\" may only read launch {id:?}, which local user {starter} started"
        );
        let denied = Some((Code::PermissionDenied, denied));
        assert_eq!(steers(id, &scheduler()), denied);
        assert!(launches.find(id, &scheduler()).is_ok());
    }
    assert_eq!(steers("its", &scheduler()), None);
    assert!(steers("its", &other).is_some());
    assert_eq!(
        (steers("its", &user(7)), steers("its", &user(0))),
        (None, None)
    );
}

//! Groups whose members are notified of the death of others: groups constructed with that
//! attribute, and groups constructed by invitation, of which the host learns by the events that cross it.
//!
//! Every node follows all of them, so that the node of a process that dies knows which processes to notify.
//!
//! Rule: the leader of an invitation is the inviting process, until a member raises `GROUP_LEADER_SELECTED`.
//! Of groups that are constructed the host knows no leader before that event. Source:
//! docs/pmix-groups.md#groups.

use std::sync::Arc;

use crate::job::proc::Proc;

/// Most groups followed; later ones go unwatched.
const WATCHED_MAX: usize = 1 << 12;

/// Reason of a notification to members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupLoss {
    /// A member has died.
    Member,
    /// The leader has died.
    Leader,
    /// An invited process died that had not joined.
    Invited,
}

/// An event for members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupNotice {
    pub loss: GroupLoss,
    pub name: Arc<[u8]>,
    /// Context id of the group, if it has one.
    pub context: Option<u64>,
    /// The recipients; never empty.
    pub to: Vec<Proc>,
}

#[derive(Debug)]
struct WatchedGroup {
    name: Arc<[u8]>,
    /// Members; the invited processes while the group is incomplete.
    members: Vec<Proc>,
    leader: Option<Proc>,
    complete: bool,
    context: Option<u64>,
}

/// Groups whose members are notified of deaths.
#[derive(Debug, Default)]
pub struct GroupWatch {
    groups: Vec<WatchedGroup>,
}

impl GroupWatch {
    /// Adds a constructed group whose members requested notifications of deaths.
    pub fn add_constructed_group(
        &mut self,
        name: Arc<[u8]>,
        members: Vec<Proc>,
        context: Option<u64>,
    ) {
        self.ended(&name, |proc| members.contains(proc));
        self.add(WatchedGroup {
            name,
            members,
            leader: None,
            complete: true,
            context,
        });
    }

    /// Whether such a group has this name and any of these members.
    pub fn contains(&self, name: &[u8], is_member: impl Fn(&Proc) -> bool) -> bool {
        let mut groups = self.groups.iter();
        groups.any(|group| *group.name == *name && group.members.iter().any(&is_member))
    }

    /// Removes groups of this name with any of these members.
    pub fn ended(&mut self, name: &[u8], is_member: impl Fn(&Proc) -> bool) {
        self.groups
            .retain(|group| *group.name != *name || !group.members.iter().any(&is_member));
    }

    /// Adds a group to which a process invites others, and perhaps itself.
    pub fn invited(&mut self, name: Arc<[u8]>, leader: Proc, mut members: Vec<Proc>) {
        if !members.contains(&leader) {
            members.push(leader.clone());
        }
        self.ended(&name, |proc| *proc == leader);
        self.add(WatchedGroup {
            name,
            members,
            leader: Some(leader),
            complete: false,
            context: None,
        });
    }

    /// Marks a group as complete, as its leader has announced.
    pub fn completed(&mut self, name: &[u8], leader: &Proc) {
        let is_led = |group: &&mut WatchedGroup| {
            *group.name == *name && group.leader.as_ref() == Some(leader)
        };
        if let Some(group) = self.groups.iter_mut().find(is_led) {
            group.complete = true;
        }
    }

    /// Sets the leader of a group, as a member has announced itself.
    pub fn chosen(&mut self, name: &[u8], leader: &Proc) {
        if let Some(group) = self.find_group(name, leader) {
            group.leader = Some(leader.clone());
        }
    }

    /// Removes a member that has announced that it leaves.
    pub fn on_member_left(&mut self, name: &[u8], member: &Proc) {
        if let Some(group) = self.find_group(name, member) {
            group.members.retain(|proc| proc != member);
            group.leader.take_if(|leader| leader == member);
        }
        self.groups.retain(|group| !group.members.is_empty());
    }

    /// Handles the death of a process, and returns the notifications for its groups.
    pub fn died(&mut self, proc: &Proc) -> Vec<GroupNotice> {
        let mut notices = Vec::new();
        for group in &mut self.groups {
            let before = group.members.len();
            group.members.retain(|member| member != proc);
            if group.members.len() == before {
                continue;
            }
            let led = group.leader.take_if(|leader| leader == proc).is_some();
            let (loss, to) = match (&group.leader, group.complete) {
                _ if led => (GroupLoss::Leader, group.members.clone()),
                (Some(leader), false) => (GroupLoss::Invited, vec![leader.clone()]),
                _ => (GroupLoss::Member, group.members.clone()),
            };
            if !to.is_empty() {
                let (name, context) = (Arc::clone(&group.name), group.context);
                notices.push(GroupNotice {
                    loss,
                    name,
                    context,
                    to,
                });
            }
        }
        self.groups.retain(|group| !group.members.is_empty());
        notices
    }

    fn find_group(&mut self, name: &[u8], member: &Proc) -> Option<&mut WatchedGroup> {
        let mut groups = self.groups.iter_mut();
        groups.find(|group| *group.name == *name && group.members.contains(member))
    }

    fn add(&mut self, group: WatchedGroup) {
        if self.groups.len() < WATCHED_MAX {
            self.groups.push(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::ids::{Nspace, Rank};

    fn proc(rank: u32) -> Proc {
        Proc::new(Nspace::new("job").unwrap(), Rank(rank))
    }

    fn procs(ranks: &[u32]) -> Vec<Proc> {
        ranks.iter().map(|rank| proc(*rank)).collect()
    }

    fn name(text: &str) -> Arc<[u8]> {
        text.as_bytes().into()
    }

    fn death_notices(watch: &mut GroupWatch, died: u32) -> Vec<(GroupLoss, Vec<Proc>)> {
        let notices = watch.died(&proc(died)).into_iter();
        notices.map(|notice| (notice.loss, notice.to)).collect()
    }

    #[test]
    fn members_get_each_death_once_and_until_group_ends() {
        let mut watch = GroupWatch::default();
        watch.add_constructed_group(name("a"), procs(&[0, 1, 2]), Some(7));
        watch.add_constructed_group(name("b"), procs(&[1, 3]), None);
        let notices = watch.died(&proc(1));
        assert_eq!(notices.len(), 2);
        assert_eq!(
            (notices[0].context, &*notices[0].name),
            (Some(7), &b"a"[..])
        );
        assert_eq!(notices[0].to, procs(&[0, 2]));
        assert_eq!(death_notices(&mut watch, 1), []);
        watch.ended(b"a", |proc| procs(&[0, 1, 2]).contains(proc));
        assert_eq!(death_notices(&mut watch, 2), []);
    }

    #[test]
    fn groups_of_one_name_and_other_members_are_others() {
        let mut watch = GroupWatch::default();
        watch.add_constructed_group(name("a"), procs(&[0, 1]), None);
        watch.add_constructed_group(name("a"), procs(&[2, 3]), None);
        watch.ended(b"a", |member| *member == proc(2));
        assert_eq!(death_notices(&mut watch, 3), []);
        assert_eq!(
            death_notices(&mut watch, 0),
            [(GroupLoss::Member, procs(&[1]))]
        );
    }

    #[test]
    fn leader_gets_deaths_of_invited_and_members_get_new_leader() {
        let mut watch = GroupWatch::default();
        watch.invited(name("a"), proc(0), procs(&[1, 2, 3, 4, 5]));
        assert_eq!(
            death_notices(&mut watch, 5),
            [(GroupLoss::Invited, procs(&[0]))]
        );
        watch.completed(b"a", &proc(0));
        assert_eq!(
            death_notices(&mut watch, 4),
            [(GroupLoss::Member, procs(&[1, 2, 3, 0]))]
        );
        assert_eq!(
            death_notices(&mut watch, 0),
            [(GroupLoss::Leader, procs(&[1, 2, 3]))]
        );
        watch.chosen(b"a", &proc(2));
        watch.on_member_left(b"a", &proc(3));
        assert_eq!(death_notices(&mut watch, 3), []);
        assert_eq!(
            death_notices(&mut watch, 2),
            [(GroupLoss::Leader, procs(&[1]))]
        );
        assert_eq!(death_notices(&mut watch, 1), []);
        assert!(watch.groups.is_empty());
    }
}

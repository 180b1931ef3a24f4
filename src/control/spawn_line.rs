//! Spawns that wait for the same thing, one after the other.

use std::collections::VecDeque;
use std::time::Duration;

use super::queued_spawn::QueuedSpawn;

/// Spawns for which something is done one after the other.
#[derive(Debug, Default)]
pub(super) struct SpawnLine {
    /// The spawn for which something is under way, unless it was given up.
    pub(super) owner: Option<QueuedSpawn>,
    /// Spawns that wait for their turn.
    pub(super) waiting: VecDeque<QueuedSpawn>,
}

impl SpawnLine {
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let all = self.owner.iter().chain(&self.waiting);
        all.filter_map(|spawn| Some(spawn.limit?.1)).min()
    }

    /// Takes the spawns that wait too long.
    pub(super) fn take_late(&mut self, now: Duration) -> Vec<QueuedSpawn> {
        let is_late = |spawn: &QueuedSpawn| spawn.limit.is_some_and(|(_, at)| at <= now);
        let owner = self.owner.take_if(|owner| is_late(owner));
        let mut late: Vec<QueuedSpawn> = owner.into_iter().collect();
        if self.waiting.iter().any(is_late) {
            let (more, rest): (Vec<_>, _) = self.waiting.drain(..).partition(is_late);
            late.extend(more);
            self.waiting = VecDeque::from(rest);
        }
        late
    }
}

//! Queue of spawns that are handled one at a time.

use std::time::Duration;

use super::queued_spawn::QueuedSpawn;

/// Spawns of which one at a time is handled.
#[derive(Debug, Default)]
pub(super) struct SpawnLine {
    /// Spawn that is being handled, unless it was given up.
    pub(super) owner: Option<QueuedSpawn>,
    /// Spawns that wait for their turn, oldest first.
    pub(super) waiting: Vec<QueuedSpawn>,
}

impl SpawnLine {
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let all = self.owner.iter().chain(&self.waiting);
        all.filter_map(|spawn| Some(spawn.limit?.1)).min()
    }

    /// Removes and returns the spawns whose deadline has passed.
    pub(super) fn take_late(&mut self, now: Duration) -> Vec<QueuedSpawn> {
        let is_late = |spawn: &QueuedSpawn| spawn.limit.is_some_and(|(_, at)| at <= now);
        let owner = self.owner.take_if(|owner| is_late(owner));
        let waiting = self.waiting.extract_if(.., |spawn| is_late(spawn));
        owner.into_iter().chain(waiting).collect()
    }
}

//! The scheduler's dice, and a network between nodes that is as unkind as it may be.

use wireup_core::job::ids::NodeId;

/// A small deterministic generator (SplitMix64): the same seed gives the same run everywhere.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From 0 to `end` − 1.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    pub(crate) fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    pub(crate) fn pick<'a, X>(&mut self, from: &'a [X]) -> &'a X {
        &from[self.below(from.len())]
    }
}

/// A message under way.
struct Flight<M> {
    from: NodeId,
    to: NodeId,
    message: M,
}

/// Holds messages until the scheduler lets one arrive.
pub(crate) struct Net<M> {
    flights: Vec<Flight<M>>,
    /// Whether messages of one link keep their order.
    ordered: bool,
    /// Chance in percent that a delivered message comes once more later.
    repeats: usize,
}

impl<M: Clone> Net<M> {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        Self {
            flights: Vec::new(),
            ordered: rng.percent(50),
            repeats: *rng.pick(&[0, 0, 10, 40]),
        }
    }

    pub(crate) fn send(&mut self, from: NodeId, to: NodeId, message: M) {
        assert_ne!(from, to, "a node sent to itself");
        self.flights.push(Flight { from, to, message });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Takes some message off the net: (from, to, message).
    pub(crate) fn deliver(&mut self, rng: &mut Rng) -> (NodeId, NodeId, M) {
        let mut at = rng.below(self.flights.len());
        let link = (self.flights[at].from, self.flights[at].to);
        if self.ordered {
            let mut links = self.flights.iter().map(|flight| (flight.from, flight.to));
            at = links.position(|l| l == link).expect("that flight is one");
        }
        let flight = self.flights.remove(at);
        if rng.percent(self.repeats) {
            // A repetition keeps its place or comes later, so it overtakes nothing it followed.
            let place = rng.between(at, self.flights.len());
            let message = flight.message.clone();
            self.flights.insert(place, Flight { message, ..flight });
        }
        (flight.from, flight.to, flight.message)
    }

    /// A node is gone: nothing reaches it, and of what it sent the last part may be lost.
    pub(crate) fn kill(&mut self, node: NodeId, rng: &mut Rng) {
        let remaining = rng.between(0, self.flights.len());
        let mut at = 0;
        self.flights.retain(|flight| {
            at += 1;
            flight.to != node && (flight.from != node || at <= remaining)
        });
    }
}

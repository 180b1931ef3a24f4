//! Gather, Scatter, Allgather and Alltoall, and their forms with blocks of different lengths.

use super::{BlockMerge, CollectiveChannel, CollectiveStep, Topology, receive, send, tags};

impl Topology {
    fn channel(&self, one: usize, other: usize) -> CollectiveChannel {
        if self.client(one) == self.client(other) {
            CollectiveChannel::Local
        } else {
            CollectiveChannel::Collective
        }
    }

    fn blocks_of(&self, client: usize) -> Vec<usize> {
        self.members(client).collect()
    }

    fn blocks_of_all(&self, clients: &[usize]) -> Vec<usize> {
        let members = clients.iter().flat_map(|client| self.members(*client));
        members.collect()
    }

    pub(super) fn gather_directly(&self, root: usize, tag: i32, me: usize) -> Vec<CollectiveStep> {
        if me != root {
            return vec![send(root, tag, self.channel(me, root), &[me])];
        }
        let others = (0..self.size()).filter(|other| *other != root);
        others
            .map(|other| {
                receive(
                    other,
                    tag,
                    self.channel(other, root),
                    &[other],
                    BlockMerge::Replace,
                )
            })
            .collect()
    }

    pub(super) fn gather_by_masters(
        &self,
        root: usize,
        tag: i32,
        me: usize,
    ) -> Vec<CollectiveStep> {
        let client = self.client(me);
        let standing = self.standing(client, root);
        if me != standing {
            return vec![send(standing, tag, CollectiveChannel::Local, &[me])];
        }
        let others = self.members(client).filter(|other| *other != me);
        let local = |other| {
            receive(
                other,
                tag,
                CollectiveChannel::Local,
                &[other],
                BlockMerge::Replace,
            )
        };
        let mut steps: Vec<CollectiveStep> = others.map(local).collect();
        let masters = self.fan_in(root, client);
        let children = masters.children.into_iter();
        steps.extend(children.map(|(child, clients)| {
            let blocks = self.blocks_of_all(&clients);
            receive(
                child,
                tag,
                CollectiveChannel::Collective,
                &blocks,
                BlockMerge::Replace,
            )
        }));
        steps.extend(masters.parent.map(|(parent, clients)| {
            let blocks = self.blocks_of_all(&clients);
            send(parent, tag, CollectiveChannel::Collective, &blocks)
        }));
        steps
    }

    pub(super) fn scatter_directly(&self, root: usize, tag: i32, me: usize) -> Vec<CollectiveStep> {
        if me != root {
            return vec![receive(
                root,
                tag,
                self.channel(me, root),
                &[me],
                BlockMerge::Replace,
            )];
        }
        let others = (0..self.size()).filter(|other| *other != root);
        others
            .map(|other| send(other, tag, self.channel(other, root), &[other]))
            .collect()
    }

    pub(super) fn scatter_by_masters(&self, root: usize, me: usize) -> Vec<CollectiveStep> {
        let tag = tags::SCATTER;
        let client = self.client(me);
        let standing = self.standing(client, root);
        if me != standing {
            return vec![receive(
                standing,
                tag,
                CollectiveChannel::Local,
                &[me],
                BlockMerge::Replace,
            )];
        }
        // The way of a gather, backwards.
        let masters = self.fan_in(root, client);
        let mut steps = Vec::new();
        steps.extend(masters.parent.map(|(parent, clients)| {
            let blocks = self.blocks_of_all(&clients);
            receive(
                parent,
                tag,
                CollectiveChannel::Collective,
                &blocks,
                BlockMerge::Replace,
            )
        }));
        let children = masters.children.into_iter().rev();
        steps.extend(children.map(|(child, clients)| {
            let blocks = self.blocks_of_all(&clients);
            send(child, tag, CollectiveChannel::Collective, &blocks)
        }));
        let others = self.members(client).filter(|other| *other != me);
        steps.extend(others.map(|other| send(other, tag, CollectiveChannel::Local, &[other])));
        steps
    }

    pub(super) fn allgather(&self, long: bool, tag: i32, me: usize) -> Vec<CollectiveStep> {
        if long {
            return self.allgather_by_masters(tag, me);
        }
        let all: Vec<usize> = (0..self.size()).collect();
        let mut steps = self.gather_by_masters(0, tag, me);
        steps.extend(self.bcast(0, &all, me));
        steps
    }

    /// Sends each client's blocks to each other client once.
    fn allgather_by_masters(&self, tag: i32, me: usize) -> Vec<CollectiveStep> {
        let client = self.client(me);
        let master = self.master(client);
        let all: Vec<usize> = (0..self.size()).collect();
        if me != master {
            return vec![
                send(master, tag, CollectiveChannel::Local, &[me]),
                receive(
                    master,
                    tag,
                    CollectiveChannel::Local,
                    &all,
                    BlockMerge::Replace,
                ),
            ];
        }
        let members = || self.members(client).skip(1);
        let others = || (0..self.masters()).filter(move |other| *other != client);
        let mut steps: Vec<CollectiveStep> = members()
            .map(|other| {
                receive(
                    other,
                    tag,
                    CollectiveChannel::Local,
                    &[other],
                    BlockMerge::Replace,
                )
            })
            .collect();
        let own = self.blocks_of(client);
        steps.extend(
            others()
                .map(|other| send(self.master(other), tag, CollectiveChannel::Collective, &own)),
        );
        steps.extend(others().map(|other| {
            receive(
                self.master(other),
                tag,
                CollectiveChannel::Collective,
                &self.blocks_of(other),
                BlockMerge::Replace,
            )
        }));
        steps.extend(members().map(|other| send(other, tag, CollectiveChannel::Local, &all)));
        steps
    }

    fn block(&self, from: usize, to: usize) -> usize {
        from * self.size() + to
    }

    pub(super) fn alltoall_directly(&self, tag: i32, me: usize) -> Vec<CollectiveStep> {
        let size = self.size();
        // Each begins with another, so that not all send to the same.
        let peers = || (1..size).map(|step| (me + step) % size);
        let mut steps: Vec<CollectiveStep> = peers()
            .map(|to| send(to, tag, self.channel(me, to), &[self.block(me, to)]))
            .collect();
        steps.extend(peers().map(|from| {
            receive(
                from,
                tag,
                self.channel(me, from),
                &[self.block(from, me)],
                BlockMerge::Replace,
            )
        }));
        steps
    }

    /// Returns the steps of an all-to-all exchange in which all data from one client to another is one message.
    pub(super) fn alltoall_by_masters(&self, me: usize) -> Vec<CollectiveStep> {
        let tag = tags::ALLTOALL;
        let client = self.client(me);
        let master = self.master(client);
        let everyone = || 0..self.size();
        let of = |from: usize| {
            everyone()
                .map(|to| self.block(from, to))
                .collect::<Vec<_>>()
        };
        let for_one = |to: usize| {
            everyone()
                .map(|from| self.block(from, to))
                .collect::<Vec<_>>()
        };
        if me != master {
            return vec![
                send(master, tag, CollectiveChannel::Local, &of(me)),
                receive(
                    master,
                    tag,
                    CollectiveChannel::Local,
                    &for_one(me),
                    BlockMerge::Replace,
                ),
            ];
        }
        let between = |from: usize, to: usize| {
            let pairs = self
                .members(from)
                .flat_map(|from| self.members(to).map(move |to| (from, to)));
            pairs
                .map(|(from, to)| self.block(from, to))
                .collect::<Vec<_>>()
        };
        let members = || self.members(client).skip(1);
        let others = || (0..self.masters()).filter(move |other| *other != client);
        let mut steps: Vec<CollectiveStep> = members()
            .map(|other| {
                receive(
                    other,
                    tag,
                    CollectiveChannel::Local,
                    &of(other),
                    BlockMerge::Replace,
                )
            })
            .collect();
        steps.extend(others().map(|other| {
            send(
                self.master(other),
                tag,
                CollectiveChannel::Collective,
                &between(client, other),
            )
        }));
        steps.extend(others().map(|other| {
            receive(
                self.master(other),
                tag,
                CollectiveChannel::Collective,
                &between(other, client),
                BlockMerge::Replace,
            )
        }));
        steps.extend(
            members().map(|other| send(other, tag, CollectiveChannel::Local, &for_one(other))),
        );
        steps
    }
}

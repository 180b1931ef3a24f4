//! Gather, Scatter, Allgather and Alltoall, and their forms with blocks of different lengths.

use super::{CollectiveStep, Topology, tags};

impl Topology {
    fn blocks_of_all(&self, clients: &[usize]) -> Vec<usize> {
        let members = clients.iter().flat_map(|client| self.members(*client));
        members.collect()
    }

    pub(super) fn gather_directly(&self, root: usize, tag: i32, me: usize) -> Vec<CollectiveStep> {
        let messages = self.messages(me, tag);
        if me != root {
            return vec![messages.send(root, &[me])];
        }
        let others = (0..self.size()).filter(|other| *other != root);
        others
            .map(|other| messages.receive(other, &[other]))
            .collect()
    }

    pub(super) fn gather_by_masters(
        &self,
        root: usize,
        tag: i32,
        me: usize,
    ) -> Vec<CollectiveStep> {
        let messages = self.messages(me, tag);
        let client = self.client(me);
        let standing = self.standing(client, root);
        if me != standing {
            return vec![messages.send(standing, &[me])];
        }
        let mut steps: Vec<CollectiveStep> = messages
            .other_members()
            .map(|other| messages.receive(other, &[other]))
            .collect();
        let masters = self.fan_in(root, client);
        for (child, clients) in masters.children {
            steps.push(messages.receive(child, &self.blocks_of_all(&clients)));
        }
        if let Some((parent, clients)) = masters.parent {
            steps.push(messages.send(parent, &self.blocks_of_all(&clients)));
        }
        steps
    }

    pub(super) fn scatter_directly(&self, root: usize, tag: i32, me: usize) -> Vec<CollectiveStep> {
        let messages = self.messages(me, tag);
        if me != root {
            return vec![messages.receive(root, &[me])];
        }
        let others = (0..self.size()).filter(|other| *other != root);
        others.map(|other| messages.send(other, &[other])).collect()
    }

    pub(super) fn scatter_by_masters(&self, root: usize, me: usize) -> Vec<CollectiveStep> {
        let messages = self.messages(me, tags::SCATTER);
        let client = self.client(me);
        let standing = self.standing(client, root);
        if me != standing {
            return vec![messages.receive(standing, &[me])];
        }
        // The way of a gather, backwards.
        let masters = self.fan_in(root, client);
        let mut steps = Vec::new();
        if let Some((parent, clients)) = masters.parent {
            steps.push(messages.receive(parent, &self.blocks_of_all(&clients)));
        }
        for (child, clients) in masters.children.into_iter().rev() {
            steps.push(messages.send(child, &self.blocks_of_all(&clients)));
        }
        for other in messages.other_members() {
            steps.push(messages.send(other, &[other]));
        }
        steps
    }

    pub(super) fn allgather(&self, long: bool, tag: i32, me: usize) -> Vec<CollectiveStep> {
        let all: Vec<usize> = (0..self.size()).collect();
        if long {
            let process_blocks = |process| vec![process];
            let client_blocks = |from, _| self.members(from).collect();
            let result_blocks = |_| all.clone();
            return self.exchange_by_masters(tag, me, process_blocks, client_blocks, result_blocks);
        }
        let mut steps = self.gather_by_masters(0, tag, me);
        steps.extend(self.bcast(0, &all, me));
        steps
    }

    /// Exchanges blocks between the masters, with one message from each client to each other. A process sends its master
    /// `process_blocks` and receives `result_blocks`; `client_blocks` go from one client to another.
    fn exchange_by_masters(
        &self,
        tag: i32,
        me: usize,
        process_blocks: impl Fn(usize) -> Vec<usize>,
        client_blocks: impl Fn(usize, usize) -> Vec<usize>,
        result_blocks: impl Fn(usize) -> Vec<usize>,
    ) -> Vec<CollectiveStep> {
        let messages = self.messages(me, tag);
        let client = self.client(me);
        let master = self.master(client);
        if me != master {
            return vec![
                messages.send(master, &process_blocks(me)),
                messages.receive(master, &result_blocks(me)),
            ];
        }
        let clients = || (0..self.masters()).filter(move |other| *other != client);
        let mut steps = Vec::new();
        for process in messages.other_members() {
            steps.push(messages.receive(process, &process_blocks(process)));
        }
        for other in clients() {
            steps.push(messages.send(self.master(other), &client_blocks(client, other)));
        }
        for other in clients() {
            steps.push(messages.receive(self.master(other), &client_blocks(other, client)));
        }
        for process in messages.other_members() {
            steps.push(messages.send(process, &result_blocks(process)));
        }
        steps
    }

    fn block(&self, from: usize, to: usize) -> usize {
        from * self.size() + to
    }

    pub(super) fn alltoall_directly(&self, tag: i32, me: usize) -> Vec<CollectiveStep> {
        let messages = self.messages(me, tag);
        let size = self.size();
        // Each begins with another, so that not all send to the same.
        let peers = || (1..size).map(|step| (me + step) % size);
        let mut steps: Vec<CollectiveStep> = peers()
            .map(|to| messages.send(to, &[self.block(me, to)]))
            .collect();
        steps.extend(peers().map(|from| messages.receive(from, &[self.block(from, me)])));
        steps
    }

    /// Returns the steps of an all-to-all exchange in which all data from one client to another is one message.
    pub(super) fn alltoall_by_masters(&self, me: usize) -> Vec<CollectiveStep> {
        let processes = || 0..self.size();
        let process_blocks = |from| processes().map(|to| self.block(from, to)).collect();
        let result_blocks = |to| processes().map(|from| self.block(from, to)).collect();
        let client_blocks = |from, to| {
            let blocks = |from| self.members(to).map(move |to| self.block(from, to));
            self.members(from).flat_map(blocks).collect()
        };
        let tag = tags::ALLTOALL;
        self.exchange_by_masters(tag, me, process_blocks, client_blocks, result_blocks)
    }
}

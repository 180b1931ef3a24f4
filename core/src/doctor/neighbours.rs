//! Pairs of hosts that test their connection. Each host connects to the next in the list, which makes a ring, and to
//! its parent in a tree. So each host makes two connections, and a fault of one host shows at hosts that are far apart
//! in the list.

/// Returns the indices of the hosts that host `own` of `count` connects to.
pub fn neighbour_indices(own: usize, count: usize) -> Vec<usize> {
    let mut all = Vec::new();
    if count > 1 {
        all.push((own + 1) % count);
        let parent = own.saturating_sub(1) / 2;
        if parent != own && !all.contains(&parent) {
            all.push(parent);
        }
    }
    all
}

/// Returns each pair of hosts that test their connection, once.
pub fn pairs(count: usize) -> Vec<(usize, usize)> {
    let mut pairs: Vec<(usize, usize)> = (0..count)
        .flat_map(|own| {
            neighbour_indices(own, count)
                .into_iter()
                .map(move |other| (own, other))
        })
        .map(|(a, b)| (a.min(b), a.max(b)))
        .collect();
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

/// Splits the pairs into rounds of at most `most`, in which no host is twice.
pub fn rounds(pairs: &[(usize, usize)], most: usize) -> Vec<Vec<(usize, usize)>> {
    let mut rounds: Vec<Vec<(usize, usize)>> = Vec::new();
    for &(a, b) in pairs {
        let free = |round: &&mut Vec<(usize, usize)>| {
            let taken = |&(c, d): &(usize, usize)| c == a || c == b || d == a || d == b;
            round.len() < most && !round.iter().any(taken)
        };
        match rounds.iter_mut().find(free) {
            Some(round) => round.push((a, b)),
            None => rounds.push(vec![(a, b)]),
        }
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_have_each_pair_once_and_no_host_twice() {
        assert!(pairs(1).is_empty());
        assert_eq!(pairs(2), [(0, 1)]);
        for count in [3, 4, 17] {
            let all = pairs(count);
            let rounds = rounds(&all, 4);
            let mut found: Vec<_> = rounds.iter().flatten().copied().collect();
            found.sort_unstable();
            assert_eq!(found, all);
            for round in rounds {
                let mut hosts: Vec<usize> = round.iter().flat_map(|(a, b)| [*a, *b]).collect();
                let whole = hosts.len();
                hosts.sort_unstable();
                hosts.dedup();
                assert!(hosts.len() == whole && round.len() <= 4, "{round:?}");
            }
        }
    }

    #[test]
    fn each_host_is_reached_by_another_and_reaches_at_most_two() {
        assert!(neighbour_indices(0, 1).is_empty());
        for count in [2, 3, 4, 17, 1000] {
            let mut reached = vec![false; count];
            for own in 0..count {
                let all = neighbour_indices(own, count);
                assert!((1..=2).contains(&all.len()) && !all.contains(&own));
                all.into_iter().for_each(|other| reached[other] = true);
            }
            assert!(reached.into_iter().all(|it| it), "{count}");
        }
    }
}

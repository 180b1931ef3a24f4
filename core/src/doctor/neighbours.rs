//! Which hosts try to reach each other: the next in the list, which makes a ring, and the parent in a tree, so that each
//! host makes two connections and a fault of one host shows at hosts that are far apart in the list.

/// The numbers of the hosts that host `own` of `count` tries to reach.
pub fn of(own: usize, count: usize) -> Vec<usize> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_is_reached_by_another_and_reaches_at_most_two() {
        assert!(of(0, 1).is_empty());
        for count in [2, 3, 4, 17, 1000] {
            let mut reached = vec![false; count];
            for own in 0..count {
                let all = of(own, count);
                assert!((1..=2).contains(&all.len()) && !all.contains(&own));
                all.into_iter().for_each(|other| reached[other] = true);
            }
            assert!(reached.into_iter().all(|it| it), "{count}");
        }
    }
}

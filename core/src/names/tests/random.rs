//! Random requests in any order, against the plainest store there can be.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum RandomEvent {
    Ask(u32, NameRequest),
    Ends(u32),
    Later,
}

fn range() -> impl Strategy<Value = NameRange> {
    let member = |ranks: Vec<u32>| {
        let job = Nspace::new("job").unwrap();
        let members = ranks
            .into_iter()
            .map(|rank| (job.clone(), RankOrWildcard::One(Rank(rank))));
        NameRange::Custom(members.collect())
    };
    prop_oneof![
        1 => Just(NameRange::Local),
        1 => Just(NameRange::Namespace),
        4 => Just(NameRange::Session),
        1 => Just(NameRange::Global),
        1 => Just(NameRange::ProcLocal),
        1 => vec(0..4_u32, 0..2).prop_map(member),
    ]
}

fn keys(most: usize) -> impl Strategy<Value = Vec<Vec<u8>>> {
    let key = prop_oneof![Just("a"), Just("b"), Just("c")];
    vec(key.prop_map(super::key), 1..=most)
}

fn step() -> impl Strategy<Value = RandomEvent> {
    let persistence = prop_oneof![
        4 => Just(Persistence::FirstRead),
        1 => Just(Persistence::Proc),
        1 => Just(Persistence::Session),
    ];
    let publish = (range(), persistence, keys(2)).prop_map(|(range, persistence, keys)| {
        let value = |key: Vec<u8>| (key, text("value"));
        NameRequest::Publish {
            range,
            persistence,
            limits: ValueLimits::default(),
            values: keys.into_iter().map(value).collect(),
        }
    });
    let wait =
        (0..4_u64, proptest::option::of(1..4_u64)).prop_map(|(at_least, seconds)| LookupWait {
            at_least,
            timeout: seconds.map(Duration::from_secs),
        });
    let lookup = (range(), keys(3), proptest::option::weighted(0.7, wait));
    let lookup = lookup.prop_map(|(range, keys, wait)| {
        NameRequest::Lookup(NameLookup {
            range,
            accepts: AcceptedData::Anything,
            keys,
            wait,
        })
    });
    let removal = prop_oneof![
        proptest::option::of(range()).prop_map(UnpublishScope::Own),
        Just(UnpublishScope::Anybodys),
    ];
    let unpublish =
        (removal, keys(2)).prop_map(|(removal, keys)| NameRequest::Unpublish { removal, keys });
    let request = prop_oneof![4 => publish, 4 => lookup, 1 => unpublish];
    prop_oneof![
        12 => (0..4_u32, request).prop_map(|(rank, request)| RandomEvent::Ask(rank, request)),
        1 => (0..4_u32).prop_map(RandomEvent::Ends),
        2 => Just(RandomEvent::Later),
    ]
}

/// A published value: key, publisher, range, persistence.
type Entry = (Vec<u8>, NameRequester, NameRange, Persistence);

/// One list of values and one of waiters, walked from the start each time.
#[derive(Default)]
struct Plain {
    entries: Vec<Entry>,
    waiters: Vec<(u32, NameRequester, NameLookup, Option<Moment>)>,
}

fn within(range: &NameRange, center: &NameRequester, other: &NameRequester) -> bool {
    match range {
        NameRange::Rm => false,
        NameRange::Session | NameRange::Global => true,
        NameRange::Local => center.node == other.node,
        NameRange::Namespace => center.proc.nspace == other.proc.nspace,
        NameRange::ProcLocal => center.proc == other.proc,
        NameRange::Custom(members) => members.contains(&(
            other.proc.nspace.clone(),
            RankOrWildcard::One(other.proc.rank),
        )),
    }
}

/// Whether two publishers of a range publish in the same place.
fn same_place(range: &NameRange, one: &NameRequester, other: &NameRequester) -> bool {
    matches!(range, NameRange::Custom(_)) || within(range, one, other)
}

fn place(range: &NameRange) -> usize {
    [
        "ProcLocal",
        "Custom",
        "Local",
        "Namespace",
        "Session",
        "Global",
    ]
    .iter()
    .position(|name| format!("{range:?}").starts_with(name))
    .unwrap()
}

impl Plain {
    fn find(&self, who: &NameRequester, lookup: &NameLookup) -> Vec<Entry> {
        let mut keys: Vec<&Vec<u8>> = Vec::new();
        for key in &lookup.keys {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let find = |key: &Vec<u8>| {
            let is_visible = |(published, owner, range, _): &&Entry| {
                published == key && within(range, owner, who) && within(&lookup.range, who, owner)
            };
            let all = self.entries.iter().filter(is_visible);
            // The first of the narrowest.
            all.min_by_key(|(_, _, range, _)| place(range)).cloned()
        };
        keys.into_iter().filter_map(find).collect()
    }

    fn enough(found: &[Entry], lookup: &NameLookup) -> bool {
        let mut keys = lookup.keys.clone();
        keys.sort();
        keys.dedup();
        let all = keys.len();
        let at_least = lookup.wait.map_or(0, |wait| wait.at_least as usize);
        found.len()
            >= if at_least == 0 {
                all
            } else {
                at_least.min(all)
            }
    }

    fn hand_out(&mut self, found: &[Entry]) -> NameReply {
        self.entries
            .retain(|entry| entry.3 != Persistence::FirstRead || !found.contains(entry));
        NameReply::Found(values(found))
    }

    fn ask(
        &mut self,
        number: u32,
        who: NameRequester,
        request: NameRequest,
        now: Moment,
    ) -> Vec<(u32, NameReply)> {
        match request {
            NameRequest::Publish {
                range,
                persistence,
                limits: _,
                values,
            } => {
                let mut new = self.entries.clone();
                for (key, _) in values {
                    if new.iter().any(|(k, owner, r, _)| {
                        *k == key && *r == range && same_place(r, owner, &who)
                    }) {
                        return vec![(number, refused(NameRefusal::Duplicate(key)))];
                    }
                    new.push((key, who.clone(), range.clone(), persistence));
                }
                self.entries = new;
                let mut answers = vec![(number, NameReply::Done)];
                for (number, who, lookup, deadline) in std::mem::take(&mut self.waiters) {
                    let found = self.find(&who, &lookup);
                    if Self::enough(&found, &lookup) {
                        answers.push((number, self.hand_out(&found)));
                    } else {
                        self.waiters.push((number, who, lookup, deadline));
                    }
                }
                answers
            }
            NameRequest::Lookup(lookup) => {
                let found = self.find(&who, &lookup);
                let answer = match lookup.wait {
                    _ if Self::enough(&found, &lookup) => self.hand_out(&found),
                    Some(wait) => {
                        let deadline = wait.timeout.map(|timeout| now + timeout);
                        self.waiters.push((number, who, lookup, deadline));
                        return Vec::new();
                    }
                    None if found.is_empty() => refused(NameRefusal::NotFound),
                    None => {
                        let lasting = |entry: &&Entry| entry.3 != Persistence::FirstRead;
                        let lasting: Vec<Entry> = found.iter().filter(lasting).cloned().collect();
                        NameReply::Partial(values(&lasting))
                    }
                };
                vec![(number, answer)]
            }
            NameRequest::Unpublish { removal, mut keys } => {
                keys.sort();
                keys.dedup();
                let doomed = |(key, owner, range, _): &Entry| {
                    keys.contains(key)
                        && match &removal {
                            UnpublishScope::Own(None) => owner.proc == who.proc,
                            UnpublishScope::Own(Some(only)) => {
                                owner.proc == who.proc && range == only
                            }
                            UnpublishScope::Anybodys => *range == NameRange::Session,
                        }
                };
                let mut found: Vec<Vec<u8>> = Vec::new();
                self.entries.retain(|entry| {
                    if doomed(entry) {
                        found.push(entry.0.clone());
                    }
                    !doomed(entry)
                });
                found.sort();
                found.dedup();
                let answer = match found.len() {
                    0 => refused(NameRefusal::NotFound),
                    some if some < keys.len() => NameReply::Partial(Vec::new()),
                    _ => NameReply::Done,
                };
                vec![(number, answer)]
            }
            NameRequest::List => unreachable!("no test lists names"),
        }
    }

    fn drop_waiters(
        &mut self,
        why: NameRefusal,
        doomed: impl Fn(&NameRequester, Option<Moment>) -> bool,
    ) -> Vec<(u32, NameReply)> {
        let mut answers = Vec::new();
        self.waiters.retain(|(number, who, _, deadline)| {
            let doomed = doomed(who, *deadline);
            if doomed {
                answers.push((*number, refused(why.clone())));
            }
            !doomed
        });
        answers
    }
}

fn values(found: &[Entry]) -> Vec<FoundName> {
    let value = |(key, owner, _, persistence): &Entry| FoundName {
        key: key.clone(),
        owner: owner.proc.clone(),
        data: text("value"),
        once: *persistence == Persistence::FirstRead,
    };
    found.iter().map(value).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_order_of_requests_ends_as_in_simplest_store(steps in vec(step(), 1..60)) {
        let (mut shop, mut plain) = (Shop::default(), Plain::default());
        let mut answered = Vec::new();
        for step in steps {
            let (mut got, mut expected) = match step {
                RandomEvent::Ask(rank, request) => {
                    let number = shop.ask(&who(rank), request.clone());
                    let expected = plain.ask(number, who(rank), request, shop.now);
                    // Not sorted: who is served first is part of it.
                    let got = std::mem::take(&mut shop.answers);
                    prop_assert_eq!(&got, &expected);
                    (got, expected)
                }
                RandomEvent::Ends(rank) => {
                    let proc = who(rank).proc;
                    shop.store.proc_ended(&proc, &mut shop.answers);
                    plain.entries.retain(|(_, owner, _, persistence)| {
                        owner.proc != proc || *persistence != Persistence::Proc
                    });
                    let ended = NameRefusal::RequesterEnded;
                    let expected = plain.drop_waiters(ended, |who, _| who.proc == proc);
                    (std::mem::take(&mut shop.answers), expected)
                }
                RandomEvent::Later => {
                    let got = shop.later(1);
                    let now = shop.now;
                    let over = |at: Option<Moment>| at.is_some_and(|at| at <= now);
                    (got, plain.drop_waiters(NameRefusal::Timeout, |_, at| over(at)))
                }
            };
            got.sort_by_key(|(number, _)| *number);
            expected.sort_by_key(|(number, _)| *number);
            prop_assert_eq!(&got, &expected);
            answered.extend(got.into_iter().map(|(number, _)| number));
        }
        shop.store.tear_down(&mut shop.answers);
        answered.extend(shop.answers.iter().map(|(number, _)| *number));
        answered.sort_unstable();
        // Every request exactly once.
        prop_assert_eq!(answered, (1..=shop.last).collect::<Vec<_>>());
    }
}

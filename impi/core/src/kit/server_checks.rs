//! Scripts of clients for a server under test, with the required answers.

use super::conformance_rules::Rule;
use crate::command::Command;
use crate::world::Label;

/// Step of a script. Clients are numbered by their ranks; an unknown one has the next number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// The client connects to the server.
    Open(usize),
    /// The client sends these bytes.
    Send(usize, Vec<u8>),
    /// The client sends these bytes one by one.
    Dribble(usize, Vec<u8>),
    /// The server must send it these bytes.
    Expect(usize, Vec<u8>),
    /// The server must not send it anything yet.
    Quiet(usize),
    /// The server must close the connection, and send nothing.
    Closed(usize),
    /// The client closes its connection.
    Leave(usize),
}

/// One test of a server, which ends with success, except for [`Rule::LostReported`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Check {
    pub rule: Rule,
    /// A conversation of one session.
    pub steps: Vec<Step>,
}

/// Credentials with which the server admits clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Whether the server accepts clients without authentication.
    pub none: bool,
    /// Key of the server.
    pub key: Option<u64>,
}

/// Rules about the output and the start of a server, apart from its conversations.
pub const STARTS: [Rule; 4] = [
    Rule::AddressLine,
    Rule::OneLine,
    Rule::AuthNoneWarning,
    Rule::AuthUnavailable,
];

/// A method that no server has.
const NO_METHOD: u32 = 1 << 30;

struct Script {
    clients: usize,
    access: Access,
    steps: Vec<Step>,
}

impl Script {
    fn send(&mut self, client: usize, bytes: Vec<u8>) {
        self.steps.push(Step::Send(client, bytes));
    }

    fn expect(&mut self, client: usize, bytes: Vec<u8>) {
        self.steps.push(Step::Expect(client, bytes));
    }

    /// Adds a client's messages up to its authentication, in the order of the conversation.
    fn greet(&mut self, client: usize, more: &[u32]) {
        let (mask, choice) = match self.access.key {
            Some(_) => (2_u32, [0, 0, 0, 1, 0, 0, 0, 0]),
            None => (1, [0; 8]),
        };
        let masks = std::iter::once(mask | more.first().unwrap_or(&0));
        let masks = masks.chain(more.iter().skip(1).copied());
        self.steps.push(Step::Open(client));
        let masks: Vec<u8> = masks.flat_map(u32::to_be_bytes).collect();
        self.send(client, Command::Auth.unit(&masks));
        self.expect(client, choice.to_vec());
        if let Some(key) = self.access.key {
            self.send(client, key.to_be_bytes().to_vec());
        }
    }

    fn rank(client: usize) -> Vec<u8> {
        Command::Impi.unit(&word(client))
    }

    fn each(&mut self, step: impl Fn(usize) -> Step) {
        self.steps.extend((0..self.clients).map(step));
    }

    fn expect_size(&mut self) {
        let size = Command::Impi.unit(&word(self.clients));
        self.each(|client| Step::Expect(client, size.clone()));
    }

    fn send_ranks(&mut self) {
        self.each(|client| Step::Send(client, Self::rank(client)));
        self.expect_size();
    }

    fn join(&mut self) {
        (0..self.clients).for_each(|client| self.greet(client, &[]));
        self.send_ranks();
    }

    /// Exchanges one label of all, whose values have different lengths.
    fn exchange(&mut self, label: i32) {
        let value = |client: usize| vec![u8::try_from(client + 1).unwrap_or(0); 3 * client + 1];
        // Those of greater ranks first.
        for client in (0..self.clients).rev() {
            self.send(client, coll(label, &[], &value(client)));
        }
        let all: Vec<u8> = (0..self.clients).flat_map(value).collect();
        let mask = u32::MAX >> (32 - self.clients);
        self.each(|client| Step::Expect(client, coll(label, &mask.to_be_bytes(), &all)));
    }

    fn done(&mut self) {
        self.each(|client| Step::Send(client, Command::Done.unit(&[])));
        self.each(|client| Step::Expect(client, Command::Done.unit(&[])));
    }

    fn fini(&mut self) {
        self.each(|client| Step::Send(client, Command::Fini.unit(&[])));
    }

    fn rest(&mut self) {
        self.exchange(Label::Hosts as i32);
        self.done();
        self.fini();
    }

    fn session(&mut self) {
        self.join();
        self.rest();
    }
}

fn word(value: usize) -> [u8; 4] {
    u32::try_from(value).unwrap_or(u32::MAX).to_be_bytes()
}

fn coll(label: i32, mask: &[u8], value: &[u8]) -> Vec<u8> {
    Command::Coll.unit(&[&label.to_be_bytes()[..], mask, value].concat())
}

/// Returns the checks of a server of `clients` clients, 2 to 31. Those of methods that it does not have are left out.
pub fn checks(clients: usize, access: Access) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut add = |rule, access, write: &dyn Fn(&mut Script)| {
        let mut script = Script {
            clients,
            access,
            steps: Vec::new(),
        };
        write(&mut script);
        let steps = script.steps;
        checks.push(Check { rule, steps });
    };
    let last = clients - 1;
    let stranger = clients;
    for (rule, write) in SESSIONS {
        add(*rule, access, &|script| write(script, last));
    }
    let no_common_method = Command::Auth.unit(&NO_METHOD.to_be_bytes());
    for (rule, greeting) in [
        (Rule::AuthFirst, Script::rank(0)),
        (Rule::AuthNoCommon, no_common_method),
    ] {
        add(rule, access, &|script| {
            script.steps.push(Step::Open(stranger));
            script.send(stranger, greeting.clone());
            script.steps.push(Step::Closed(stranger));
            script.session();
        });
    }
    if access.none {
        let open = Access {
            key: None,
            ..access
        };
        add(Rule::AuthNone, open, &Script::session);
    }
    if let Some(key) = access.key {
        add(Rule::AuthKey, access, &Script::session);
        let wrong = Access {
            key: Some(!key),
            ..access
        };
        add(Rule::AuthWrongKey, access, &|script| {
            script.access = wrong;
            script.greet(stranger, &[]);
            script.send(stranger, Script::rank(0));
            script.steps.push(Step::Closed(stranger));
            script.access = access;
            script.session();
        });
    }
    add(Rule::LostReported, access, &|script| {
        script.join();
        script.steps.push(Step::Leave(0));
        script.each(Step::Leave);
    });
    checks
}

type Write = fn(&mut Script, usize);

/// Sessions that end in order; the second argument is the last client.
const SESSIONS: &[(Rule, Write)] = &[
    (Rule::UnknownCommand, |script, _| {
        script.join();
        script.send(0, Command::Unknown(0x5748_4154).unit(&[0x43; 100]));
        script.rest();
    }),
    (Rule::Pieces, |script, _| {
        script.session();
        for step in &mut script.steps {
            if let Step::Send(client, bytes) = step {
                *step = Step::Dribble(*client, std::mem::take(bytes));
            }
        }
    }),
    (Rule::AuthMasks, |script, last| {
        (0..last).for_each(|client| script.greet(client, &[]));
        script.greet(last, &[0, NO_METHOD]);
        script.send_ranks();
        script.rest();
    }),
    (Rule::AuthChoice, |script, last| {
        (0..=last).for_each(|client| script.greet(client, &[NO_METHOD]));
        script.send_ranks();
        script.rest();
    }),
    (Rule::ImpiWaits, |script, last| {
        for client in 0..last {
            script.greet(client, &[]);
            script.send(client, Script::rank(client));
        }
        script.steps.push(Step::Quiet(0));
        script.greet(last, &[]);
        script.send(last, Script::rank(last));
        script.expect_size();
        script.rest();
    }),
    (Rule::ImpiSize, |script, _| script.session()),
    (Rule::CollByRank, |script, _| {
        script.join();
        Label::ALL
            .iter()
            .for_each(|label| script.exchange(*label as i32));
        script.done();
        script.fini();
    }),
    (Rule::CollMask, |script, last| {
        // As in the text's example: one client does not know a label, and goes on with a greater one.
        script.join();
        let (one, two) = (Label::DataLength as i32, Label::TagUpperBound as i32);
        (0..last).for_each(|client| script.send(client, coll(one, &[], &word(client))));
        script.send(last, coll(two, &[], &word(last)));
        let all: Vec<u8> = (0..last).flat_map(word).collect();
        let mask = u32::MAX >> (32 - last);
        script.each(|client| Step::Expect(client, coll(one, &mask.to_be_bytes(), &all)));
        script.each(|client| Step::Send(client, Command::Done.unit(&[])));
        let mask = 1_u32 << last;
        script.each(|client| Step::Expect(client, coll(two, &mask.to_be_bytes(), &word(last))));
        script.each(|client| Step::Expect(client, Command::Done.unit(&[])));
        script.fini();
    }),
    (Rule::CollComplete, |script, last| {
        script.join();
        let label = Label::Hosts as i32;
        (0..last).for_each(|client| script.send(client, coll(label, &[], &[1])));
        script.steps.push(Step::Quiet(0));
        script.send(last, coll(label, &[], &[1]));
        let mask = u32::MAX >> (31 - last);
        let all = vec![1; last + 1];
        script.each(|client| Step::Expect(client, coll(label, &mask.to_be_bytes(), &all)));
        script.done();
        script.fini();
    }),
    (Rule::CollAtOnce, |script, _| script.session()),
    (Rule::CollToAll, |script, last| {
        // Only client 0 has the label.
        script.join();
        script.send(0, coll(Label::Hosts as i32, &[], &[7]));
        (1..=last).for_each(|client| script.send(client, Command::Done.unit(&[])));
        script.each(|client| Step::Expect(client, coll(Label::Hosts as i32, &word(1), &[7])));
        script.send(0, Command::Done.unit(&[]));
        script.each(|client| Step::Expect(client, Command::Done.unit(&[])));
        script.fini();
    }),
    (Rule::CollOpaque, |script, _| {
        // A version that is none, and a label of a later version.
        script.join();
        script.exchange(Label::Version as i32);
        script.exchange(0x4000_0001);
        script.done();
        script.fini();
    }),
    (Rule::DoneEmpty, |script, _| script.session()),
    (Rule::DoneWaits, |script, last| {
        script.join();
        (0..last).for_each(|client| script.send(client, Command::Done.unit(&[])));
        script.steps.push(Step::Quiet(0));
        script.send(last, Command::Done.unit(&[]));
        script.each(|client| Step::Expect(client, Command::Done.unit(&[])));
        script.fini();
    }),
    (Rule::FiniNoReply, |script, last| {
        script.join();
        script.done();
        (0..last).for_each(|client| script.send(client, Command::Fini.unit(&[])));
        script.steps.push(Step::Quiet(0));
        script.send(last, Command::Fini.unit(&[]));
        script.steps.push(Step::Quiet(last));
    }),
    (Rule::ServerExits, |script, last| {
        // Late, so that a server that did not wait is gone.
        script.join();
        script.done();
        (0..last).for_each(|client| script.send(client, Command::Fini.unit(&[])));
        script.steps.push(Step::Quiet(last));
        script.send(last, Command::Fini.unit(&[]));
    }),
];

//! Daemons that forward the PMI-2 messages of several ranks over one connection to `wireup serve`.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use wireup_core::pmi::challenge::AuthKey;

use crate::common::{Output, Run, Running, wireup};

/// Time limit of a reply.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A launch whose processes the test stands for.
pub(crate) struct Pmi2Launch {
    pub(crate) running: Running,
    /// Variables of each rank.
    ranks: Vec<Value>,
}

impl Pmi2Launch {
    pub(crate) fn new(ranks: usize, options: &str) -> Self {
        let line =
            format!("serve -n {ranks} --json {options} --pmi pmi2 --no-config --oversubscribe");
        let words = line.split_whitespace().map(OsString::from);
        let running = Run::command(std::iter::once(wireup().into()).chain(words)).start();
        running.wait_for_many(Output::Stdout, "PMI_PORT", ranks);
        let text = String::from_utf8(running.so_far(Output::Stdout)).unwrap();
        let lines = text.lines().map(serde_json::from_str::<Value>);
        let mut ranks: Vec<Value> = lines.map(Result::unwrap).collect();
        ranks.sort_by_key(|line| line["rank"].as_u64());
        Self { running, ranks }
    }

    pub(crate) fn variable(&self, rank: usize, name: &str) -> String {
        self.ranks[rank]["env"][name].as_str().unwrap().to_owned()
    }
}

/// A connection with the port of a rank.
struct Daemon<'a> {
    launch: &'a Pmi2Launch,
    stream: TcpStream,
    /// Replies that were read before they were asked for.
    early: Vec<String>,
}

impl<'a> Daemon<'a> {
    fn new(launch: &'a Pmi2Launch, rank: usize) -> Self {
        let stream = TcpStream::connect(launch.variable(rank, "PMI_PORT")).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut daemon = Self {
            launch,
            stream,
            early: Vec::new(),
        };
        let init = b"cmd=init pmi_version=2 pmi_subversion=0\n";
        daemon.stream.write_all(init).unwrap();
        let mut reply = vec![0; 57];
        daemon.stream.read_exact(&mut reply).unwrap();
        let expected = b"cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n";
        assert_eq!(reply, expected);
        daemon
    }

    fn send(&mut self, text: &str) {
        let frame = format!("{:6}{text}", text.len());
        self.stream.write_all(frame.as_bytes()).unwrap();
    }

    /// Returns the next reply to a client.
    fn reply(&mut self, client: usize) -> String {
        let address = format!(";client_id={client};");
        loop {
            let found = self.early.iter().position(|reply| reply.contains(&address));
            if let Some(found) = found {
                return self.early.remove(found).replace(&address, ";");
            }
            let mut length = [0; 6];
            self.stream.read_exact(&mut length).unwrap();
            let length = str::from_utf8(&length).unwrap().trim().parse().unwrap();
            let mut text = vec![0; length];
            self.stream.read_exact(&mut text).unwrap();
            self.early.push(String::from_utf8(text).unwrap());
        }
    }

    fn request(&mut self, client: usize, text: &str) -> String {
        self.send(&format!("{text}client_id={client};"));
        self.reply(client)
    }

    /// Answers the challenge of a rank's port with this key.
    fn authenticate(&mut self, client: usize, key: &str) -> String {
        let asks = format!("cmd=fullinit;pmirank={client};authtype=challenge-hmac-sha256;");
        let challenge = self.request(client, &asks);
        let text = challenge.strip_prefix("cmd=auth-response;authinfo=");
        let text = text.and_then(|text| text.strip_suffix(';'));
        let text = text.unwrap_or_else(|| panic!("{challenge}"));
        let proof = AuthKey::from_text(key).answer(text.as_bytes());
        self.request(
            client,
            &format!("cmd=auth-response-complete;authinfo={proof};"),
        )
    }

    fn admit(&mut self, client: usize) {
        let key = self.launch.variable(client, "PMI_AUTH_KEY");
        let reply = self.authenticate(client, &key);
        let start = "cmd=fullinit-response;rc=0;";
        assert!(reply.starts_with(start), "{reply}");
        assert!(reply.contains(&format!(";rank={client};")), "{reply}");
    }
}

#[test]
fn connection_carries_ranks_of_its_node() {
    let launch = Pmi2Launch::new(4, "--virtual-nodes 2 --pmi-port-auth challenge");
    let mut first = Daemon::new(&launch, 0);
    first.admit(0);
    // Each client needs its own key, and a port on this node.
    let key = launch.variable(0, "PMI_AUTH_KEY");
    let refused = first.authenticate(1, &key);
    let reason = "rc=14;errmsg=authentication failed: wrong key;";
    assert!(refused.contains(reason), "{refused}");
    let refused = first.request(1, "cmd=kvs-fence;thrid=5;");
    let expected = "cmd=kvs-fence-response;thrid=5;rc=14;errmsg=client_id without fullinit;";
    assert_eq!(refused, expected);
    let refused = first.request(2, "cmd=fullinit;pmirank=2;");
    let reason = "rc=14;errmsg=no port of rank 2 on this node: Connection refused;";
    assert!(refused.contains(reason), "{refused}");
    first.admit(1);
    let repeated = first.request(1, "cmd=fullinit;pmirank=1;");
    assert!(
        repeated.contains("rc=14;errmsg=client_id has sent"),
        "{repeated}"
    );
    let mut second = Daemon::new(&launch, 3);
    second.admit(3);
    second.admit(2);
    let mut daemons = [first, second];
    let of_rank = [0, 0, 1, 1];
    for rank in 0..4 {
        let put = format!("cmd=kvs-put;key=k{rank};value=a;;b{rank};");
        let reply = daemons[of_rank[rank]].request(rank, &put);
        assert_eq!(reply, "cmd=kvs-put-response;rc=0;");
        // The fence of each rank is open while the others send requests.
        daemons[of_rank[rank]].send(&format!("cmd=kvs-fence;client_id={rank};"));
    }
    for rank in 0..4 {
        let daemon = &mut daemons[of_rank[rank]];
        assert_eq!(daemon.reply(rank), "cmd=kvs-fence-response;rc=0;");
        let other = 3 - rank;
        let got = daemon.request(rank, &format!("cmd=kvs-get;key=k{other};"));
        let expected = format!("cmd=kvs-get-response;rc=0;found=TRUE;value=a;;b{other};");
        assert_eq!(got, expected);
    }
    for rank in 0..4 {
        let reply = daemons[of_rank[rank]].request(rank, "cmd=finalize;");
        assert_eq!(reply, "cmd=finalize-response;rc=0;");
    }
    drop(daemons);
    launch.running.finish().expect(0);
}

#[test]
fn lost_connection_of_daemon_is_loss_of_each_rank() {
    let launch = Pmi2Launch::new(3, "--on-failure continue");
    let mut daemon = Daemon::new(&launch, 1);
    for rank in [1, 2] {
        let reply = daemon.request(rank, &format!("cmd=fullinit;pmirank={rank};"));
        assert!(reply.contains(";rc=0;"), "{reply}");
    }
    let mut other = Daemon::new(&launch, 0);
    assert!(
        other
            .request(0, "cmd=fullinit;pmirank=0;")
            .contains(";rc=0;")
    );
    drop(daemon);
    for rank in [1, 2] {
        let lost = format!("rank {rank} (");
        launch.running.wait_for(Output::Stderr, &lost);
    }
    // The rank of the other connection is served.
    let reply = other.request(0, "cmd=job-getid;");
    assert!(reply.contains(";rc=0;"), "{reply}");
    launch.running.signal(Signal::TERM);
    launch.running.finish();
}

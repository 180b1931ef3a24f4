use proptest::prelude::*;

use super::*;
use crate::pmi::challenge::AuthKey;

const KEY: &str = "secret";

/// The challenge of these handshakes, as text and as the draft's number.
const TEXT: &str = "01000000000000000000000000000000";
const NUMBER: &str = "1";

fn gate(required: bool) -> TcpHandshake {
    gate_of(None, required)
}

fn gate_of(job: Option<Nspace>, required: bool) -> TcpHandshake {
    let proof = ClientAuth {
        key: AuthKey::from_text(KEY),
        required,
        has_draft_type: false,
    };
    TcpHandshake::new(Rank(1), 4, job, proof, 1_u128.to_le_bytes())
}

/// All replies, and the last verdict.
fn fed(gate: &mut TcpHandshake, pieces: &[&[u8]]) -> (String, HandshakeOutcome) {
    let mut replies = Vec::new();
    for piece in pieces {
        let passage = gate.receive(piece);
        replies.extend(passage.reply);
        if passage.verdict != HandshakeOutcome::Open {
            return (String::from_utf8(replies).unwrap(), passage.verdict);
        }
    }
    (String::from_utf8(replies).unwrap(), HandshakeOutcome::Open)
}

fn refusal(required: bool, text: &[u8]) -> TcpHandshakeError {
    match fed(&mut gate(required), &[text]).1 {
        HandshakeOutcome::Refused(error) => error,
        other => panic!("{other:?}"),
    }
}

fn admitted(received: Vec<u8>, greeted: bool) -> HandshakeOutcome {
    HandshakeOutcome::Admitted {
        received,
        greeted,
        is_multiplexed: false,
    }
}

const INIT_2: &str = "cmd=init pmi_version=2 pmi_subversion=0\n";

/// A frame in the form of MPICH 5.
fn frame(text: &str) -> String {
    format!("{:>6}{text}", text.len())
}

#[test]
fn pmi1_client_gets_its_rank_and_later_input_goes_to_server() {
    // As MPICH 5.0.2 and Hydra were seen to do it.
    let (reply, verdict) = fed(
        &mut gate(false),
        &[
            b"cmd=initack pmiid=1\n",
            b"cmd=init pmi_version=1 pmi_subversion=1\n",
        ],
    );
    assert_eq!(
        reply,
        "cmd=initack rc=0\ncmd=set size=4\ncmd=set rank=1\ncmd=set debug=0\n"
    );
    let received = Vec::new();
    let greeted = false;
    assert_eq!(verdict, admitted(received, greeted));
}

#[test]
fn pmi2_fullinit_identifies_client_and_is_passed_to_server() {
    let fullinits: [&[u8]; 3] = [
        // MPICH 4.0.2, Slurm, MPICH 5: as captured.
        b"62    cmd=fullinit;pmijobid=job0.433;pmirank=1;threaded=FALSE;\0\0\0\0\0\0",
        b"54    cmd=fullinit;pmijobid=job0.496;srcid=1;threaded=FALSE;",
        b"    23cmd=fullinit;pmirank=1;",
    ];
    for fullinit in fullinits {
        let (reply, verdict) = fed(&mut gate(false), &[INIT_2.as_bytes(), fullinit]);
        assert_eq!(
            reply,
            "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n"
        );
        let received = [INIT_2.as_bytes(), fullinit].concat();
        let greeted = true;
        assert_eq!(verdict, admitted(received, greeted));
    }
}

#[test]
fn gate_refuses_client_of_other_job() {
    for (claimed, is_admitted) in [
        ("pmijobid=job.1;", true),
        ("pmijobid=;", true),
        ("", true),
        ("pmijobid=job.2;", false),
    ] {
        let fullinit = frame(&format!("cmd=fullinit;{claimed}pmirank=1;"));
        let mut gate = gate_of(Nspace::new("job.1").ok(), false);
        let (reply, verdict) = fed(&mut gate, &[INIT_2.as_bytes(), fullinit.as_bytes()]);
        if is_admitted {
            assert!(
                matches!(verdict, HandshakeOutcome::Admitted { .. }),
                "{claimed}"
            );
            continue;
        }
        let reason =
            "wrong job: the client claims job `job.2` (PMI_JOBID), this port serves job job.1";
        assert!(
            reply.ends_with(&format!("rc=14;errmsg={reason};")),
            "{reply}"
        );
        assert!(matches!(
            verdict,
            HandshakeOutcome::Refused(TcpHandshakeError::WrongJob { .. })
        ));
    }
}

#[test]
fn authenticated_client_is_admitted_and_proof_is_consumed() {
    for required in [false, true] {
        let fullinit = frame("cmd=fullinit;pmirank=1;authtype=challenge-hmac-sha256;");
        let proof = AuthKey::from_text(KEY).answer(TEXT.as_bytes());
        let proof = frame(&format!("cmd=auth-response-complete;authinfo={proof};"));
        let next = frame("cmd=job-getid;");
        let all = [&fullinit, &proof, &next]
            .map(|text| text.as_bytes())
            .concat();
        let (reply, verdict) = fed(&mut gate(required), &[INIT_2.as_bytes(), &all]);
        assert!(
            reply.ends_with(&format!("cmd=auth-response;authinfo={TEXT};")),
            "{reply}"
        );
        let received = [INIT_2, &fullinit, &next].concat().into_bytes();
        let greeted = true;
        assert_eq!(verdict, admitted(received, greeted));
    }
}

#[test]
fn first_client_of_several_is_authenticated_by_its_id() {
    let asks = "cmd=fullinit;client_id=1;pmirank=1;authtype=challenge-hmac-sha256;";
    let answer = AuthKey::from_text(KEY).answer(TEXT.as_bytes());
    let proof = |id: u32| format!("cmd=auth-response-complete;client_id={id};authinfo={answer};");
    let next = frame("cmd=fullinit;client_id=2;pmirank=2;");
    let all = [INIT_2, &frame(asks), &frame(&proof(1)), &next].concat();
    let (reply, verdict) = fed(&mut gate(true), &[all.as_bytes()]);
    let challenge = frame(&format!("cmd=auth-response;authinfo={TEXT};client_id=1;"));
    assert!(reply.ends_with(&challenge), "{reply}");
    let received = [INIT_2, &frame(asks), &next].concat().into_bytes();
    let admitted = HandshakeOutcome::Admitted {
        received,
        greeted: true,
        is_multiplexed: true,
    };
    assert_eq!(verdict, admitted);
    // No other client is admitted in its place.
    let other = [INIT_2, &frame(asks), &frame(&proof(2))].concat();
    let (reply, verdict) = fed(&mut gate(true), &[other.as_bytes()]);
    assert!(reply.ends_with(";client_id=1;"), "{reply}");
    assert_eq!(
        verdict,
        HandshakeOutcome::Refused(TcpHandshakeError::EarlyClient)
    );
    let wrong = [INIT_2, &next].concat();
    assert!(matches!(
        refusal(false, wrong.as_bytes()),
        TcpHandshakeError::WrongRank { claimed: 2, .. }
    ));
}

#[test]
fn draft_type_is_offered_on_request() {
    let asks = frame("cmd=fullinit;pmirank=1;authtype=challenge-sha256;");
    let start = [INIT_2.as_bytes(), asks.as_bytes()];
    let refused = fed(&mut gate(true), &start).1;
    let unknown = TcpHandshakeError::UnknownProof("challenge-sha256".to_owned());
    assert_eq!(refused, HandshakeOutcome::Refused(unknown));
    let hash = AuthKey::from_text(KEY).hash(NUMBER.as_bytes());
    for (answer, is_admitted) in [
        (hash.as_str(), true),
        (&hash.to_uppercase(), true),
        (&hash[1..], false),
        ("", false),
    ] {
        let mut gate = gate(true);
        gate.proof.has_draft_type = true;
        let proof = frame(&format!("cmd=auth-response-complete;authinfo={answer};"));
        let (reply, verdict) = fed(&mut gate, &[start[0], start[1], proof.as_bytes()]);
        let challenge = format!("cmd=auth-response;authinfo={NUMBER};");
        assert!(reply.contains(&challenge), "{reply}");
        let admitted = matches!(verdict, HandshakeOutcome::Admitted { .. });
        assert_eq!(admitted, is_admitted, "{answer}: {verdict:?}");
    }
}

/// A type that asks twice, and accepts the repetition of its last text.
#[derive(Debug)]
struct TwoRounds(u32);

impl Authentication for TwoRounds {
    fn take(&mut self, message: &[u8]) -> AuthRound {
        self.0 += 1;
        match (self.0, message) {
            (1 | 2, _) => AuthRound::Send(self.0.to_string()),
            (3, b"2") => AuthRound::Accepted,
            _ => AuthRound::Refused,
        }
    }
}

#[test]
fn authentication_may_take_several_rounds() {
    let exchange = |names: [&str; 2]| {
        let mut gate = gate(true);
        let mut authentication = Box::new(TwoRounds(0));
        assert_eq!(authentication.take(b""), AuthRound::Send("1".to_owned()));
        gate.authentication = Some(authentication);
        gate.received = INIT_2.into();
        gate.state = HandshakeState::Challenged(INIT_2.len());
        let [first, second] = names;
        let first = frame(&format!("cmd={first};authinfo=1;"));
        let second = frame(&format!("cmd={second};authinfo=2;"));
        fed(&mut gate, &[first.as_bytes(), second.as_bytes()])
    };
    let (reply, verdict) = exchange(["auth-response", "auth-response-complete"]);
    assert_eq!(reply, frame("cmd=auth-response;authinfo=2;"));
    let received = INIT_2.into();
    let greeted = true;
    assert_eq!(verdict, admitted(received, greeted));
    // The client may not end the exchange early, nor continue it after its end.
    for names in [
        ["auth-response-complete", "auth-response-complete"],
        ["auth-response", "auth-response"],
    ] {
        let wrong = HandshakeOutcome::Refused(TcpHandshakeError::WrongKey);
        assert_eq!(exchange(names).1, wrong, "{names:?}");
    }
}

#[test]
fn foreign_client_is_refused_with_reason() {
    let full = |text: &str| [INIT_2, &frame(text)].concat().into_bytes();
    assert_eq!(
        refusal(false, b"cmd=initack pmiid=2\n"),
        TcpHandshakeError::WrongRank {
            claimed: 2,
            expected: 1
        }
    );
    assert_eq!(refusal(false, b"cmd=initack\n"), TcpHandshakeError::NoRank);
    assert_eq!(
        refusal(false, &full("cmd=fullinit;")),
        TcpHandshakeError::NoRank
    );
    assert_eq!(
        refusal(false, b"cmd=init pmi_version=3 pmi_subversion=0\n"),
        TcpHandshakeError::Version(3)
    );
    assert!(matches!(
        refusal(false, b"cmd=init pmi_version=1 pmi_subversion=1\n"),
        TcpHandshakeError::NotAStart(_)
    ));
    assert!(matches!(
        refusal(false, &full("cmd=job-getid;")),
        TcpHandshakeError::NotAStart(_)
    ));
    assert!(matches!(
        refusal(false, b"GET / HTTP/1.1\r\n"),
        TcpHandshakeError::Protocol(_)
    ));
    assert_eq!(
        refusal(false, &[b'x'; START_MAX + 1]),
        TcpHandshakeError::TooLong
    );
    assert_eq!(
        refusal(false, &[INIT_2.as_bytes(), b"999999cmd=spawn;"].concat()),
        TcpHandshakeError::TooLong
    );
}

#[test]
fn client_without_required_key_is_refused() {
    let full = |text: &str| [INIT_2, &frame(text)].concat().into_bytes();
    for text in [
        b"cmd=initack pmiid=1\n".to_vec(),
        b"cmd=init_oob signal=SIGUSR1 pmi_version=2\n".to_vec(),
        full("cmd=fullinit;pmirank=1;"),
        full("cmd=fullinit;pmirank=1;authtype=none;"),
    ] {
        assert_eq!(refusal(true, &text), TcpHandshakeError::ProofRequired);
    }
    let asks = "cmd=fullinit;pmirank=1;authtype=challenge-hmac-sha256;";
    for wrong in [
        "",
        &AuthKey::from_text("other").answer(TEXT.as_bytes()),
        "zz",
    ] {
        let proof = format!("cmd=auth-response-complete;authinfo={wrong};");
        let text = [full(asks), frame(&proof).into_bytes()].concat();
        assert_eq!(refusal(true, &text), TcpHandshakeError::WrongKey);
    }
    assert!(matches!(
        refusal(false, &full("cmd=fullinit;pmirank=1;authtype=kerberos;")),
        TcpHandshakeError::UnknownProof(_)
    ));
}

#[test]
fn notice_connection_names_its_signal_or_none() {
    for (text, expected) in [("SIGUSR2", Some(b"SIGUSR2".to_vec())), ("NONE", None)] {
        let line = format!("cmd=init_oob signal={text} pmi_version=2 pmi_subversion=0\n");
        let (reply, verdict) = fed(&mut gate(false), &[line.as_bytes()]);
        assert_eq!(
            (reply.as_str(), verdict),
            ("", HandshakeOutcome::Aside { signal: expected })
        );
    }
}

proptest! {
    /// The pieces in which a start arrives change nothing, and what reaches the server is what was sent for it.
    #[test]
    fn pieces_do_not_matter(cuts in prop::collection::vec(1_usize..40, 0..12), second in any::<bool>()) {
        let after = "more for the server";
        let sent = match second {
            true => [INIT_2, &frame("cmd=fullinit;pmirank=1;"), after].concat(),
            false => ["cmd=initack pmiid=1\n", after].concat(),
        };
        let mut gate = gate(false);
        let (mut rest, mut cuts) = (sent.as_bytes(), cuts.into_iter());
        let mut passed = None;
        while !rest.is_empty() {
            let (piece, tail) = rest.split_at(cuts.next().unwrap_or(rest.len()).min(rest.len()));
            rest = tail;
            if let HandshakeOutcome::Admitted { received, .. } = gate.receive(piece).verdict {
                passed = Some([&received[..], rest].concat());
                break;
            }
        }
        let expected = sent.strip_prefix("cmd=initack pmiid=1\n").unwrap_or(&sent);
        prop_assert_eq!(passed.as_deref(), Some(expected.as_bytes()));
    }
}

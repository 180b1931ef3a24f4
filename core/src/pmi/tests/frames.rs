//! PMI-2 frames: what is printed is parsed, garbage and raw semicolons do no harm.

use std::borrow::Cow;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::pmi::command::PmiCommand;
use crate::pmi::request::PmiRequest;
use crate::pmi::request_v2;
use crate::pmi::spawn::{PmiSpawn, SpawnCommand};
use crate::pmi::wire_v2::{FrameBuilder, Message, Pmi2Frame, Pmi2Framer};

fn pairs(frame: &str) -> Vec<(String, String)> {
    let frame = Pmi2Frame::parse(frame.as_bytes()).unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    frame.pairs().map(|(k, v)| (text(k), text(v))).collect()
}

fn expected(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let pairs = pairs.iter();
    pairs.map(|(k, v)| ((*k).into(), (*v).into())).collect()
}

#[test]
fn values_are_unescaped_and_raw_semicolons_cut_one_value() {
    let table: [(&str, &[(&str, &str)]); 9] = [
        ("cmd=x;", &[]),
        ("cmd=x;a=;b=1;", &[("a", ""), ("b", "1")]),
        ("cmd=x;a=1;;2;;=3;b=4;", &[("a", "1;2;=3"), ("b", "4")]),
        ("cmd=x;a=1;;;b=2;", &[("a", "1;"), ("b", "2")]),
        ("cmd=x;a=1=2;", &[("a", "1=2")]),
        // MPICH 5 sends the values `addr;0;=x y`, `a;b` and `x;` like this.
        ("cmd=x;a=addr;0;=x y;", &[("a", "addr")]),
        ("cmd=x;name=a;b;port=p;", &[("name", "a"), ("port", "p")]),
        ("cmd=x;a=x;;", &[("a", "x;")]),
        // What has no end is no pair.
        ("cmd=x;a=1;b=2", &[("a", "1")]),
    ];
    for (text, pairs_of) in table {
        assert_eq!(pairs(text), expected(pairs_of), "{text}");
    }
}

#[test]
fn first_of_two_values_counts() {
    let frame = Pmi2Frame::parse(b"cmd=kvs-get;key=k;key=other;").unwrap();
    assert_eq!(frame.get("key"), Some(&b"k"[..]));
}

#[test]
fn six_bytes_of_garbage_are_never_part_of_request() {
    let garbage = [
        "\0\0\0\0\0\0",
        "\0;valu",
        "=0;\0\0\0",
        "#vm$if",
        ";;;;;;",
        ";a=bc;",
        ";x;yz;",
        "\0  cmd",
        "=1;x=1",
        ";;a=1;",
    ];
    for first in garbage {
        for later in garbage {
            let mut job = Job::new(1);
            job.feed(0, INIT_2.as_bytes());
            job.effects.clear();
            let fullinit = format!("cmd=fullinit;pmirank=0;threaded=FALSE;{first}");
            let reply = job.framed_reply(0, &fullinit);
            assert!(
                reply.starts_with("cmd=fullinit-response;rc=0;"),
                "{first:?}"
            );
            let put = format!("cmd=kvs-put;key=k;value=a;;b;{later}");
            assert_eq!(job.framed_reply(0, &put), "cmd=kvs-put-response;rc=0;");
            assert_eq!(
                job.framed_reply(0, &format!("cmd=kvs-get;key=k;{later}")),
                "cmd=kvs-get-response;rc=0;found=TRUE;value=a;;b;",
                "{first:?} {later:?}"
            );
        }
    }
}

#[test]
fn short_keys_at_end_of_first_frame_are_not_garbage() {
    let mut job = Job::new(1);
    job.feed(0, INIT_2.as_bytes());
    job.frame(0, "cmd=fullinit;x=123;");
    job.frame(0, "cmd=kvs-put;key=k;value=one;x=123;");
    assert_eq!(
        job.framed_reply(0, "cmd=kvs-put;key=k;value=1;"),
        "cmd=kvs-put-response;rc=0;"
    );
    assert_eq!(
        job.framed_reply(0, "cmd=kvs-get;srcid=-1;key=k;"),
        "cmd=kvs-get-response;rc=0;found=TRUE;value=1;"
    );
}

#[test]
fn captured_spawn_is_parsed_completely() {
    // MPICH 4.0.2; program names shortened.
    let text = "cmd=spawn;ncmds=2;preputcount=1;ppkey0=PARENT_ROOT_PORT_NAME;ppval0=tag#0$;\
        subcmd=/path/app;maxprocs=1;argc=2;argv0=child A;argv1=a=b;;c;infokeycount=1;infokey0=wdir;\
        infoval0=/tmp;subcmd=/path/app;maxprocs=2;argc=1;argv0=;infokeycount=0;";
    let frame = Pmi2Frame::parse(text.as_bytes()).unwrap();
    let command = |nprocs, args: &[&str], info| SpawnCommand {
        nprocs,
        program: b"/path/app".to_vec(),
        args: args.iter().map(|arg| arg.as_bytes().to_vec()).collect(),
        info,
    };
    let expected = PmiSpawn {
        commands: vec![
            command(
                1,
                &["child A", "a=b;c"],
                vec![(b"wdir".into(), b"/tmp".into())],
            ),
            command(2, &[""], Vec::new()),
        ],
        preputs: vec![(b"PARENT_ROOT_PORT_NAME".into(), b"tag#0$".into())],
        limit: None,
    };
    assert_eq!(
        request_v2::parse(PmiCommand::Spawn, &frame),
        Ok(PmiRequest::Spawn(expected))
    );
}

#[test]
fn builder_omits_empty_values_and_cleans_message_texts() {
    let frame = FrameBuilder::response(b"x")
        .number("rc", -1)
        .field("value", b"")
        .field("port", b"a;b")
        .text("errmsg", "two; words\n\u{e9} of a;b")
        .end();
    assert_eq!(
        escape(&frame),
        "    60cmd=x-response;rc=-1;port=a;;b;errmsg=two, words_\\xc3\\xa9 of a;;b;"
    );
}

proptest! {
    #[test]
    fn built_frame_is_parsed(
        fields in vec(("[-_A-Za-z0-9]{1,12}", "[ -~\n]{1,24}"), 0..8),
    ) {
        let mut builder = FrameBuilder::response(b"name");
        for (key, value) in &fields {
            builder = builder.field(key, value.as_bytes());
        }
        let text = builder.end();
        let mut framer = Pmi2Framer::default();
        let mut input = &text[..];
        let Some(Message::Frame(frame)) = framer.next(&mut input).unwrap() else {
            return Err(TestCaseError::fail("no frame"));
        };
        let frame = Pmi2Frame::parse(frame).unwrap();
        prop_assert_eq!(frame.name, b"name-response");
        let parsed: Vec<(&[u8], Cow<'_, [u8]>)> =
            frame.pairs().map(|(key, value)| (key, value.into())).collect();
        let printed: Vec<(&[u8], Cow<'_, [u8]>)> =
            fields.iter().map(|(k, v)| (k.as_bytes(), v.as_bytes().into())).collect();
        prop_assert_eq!(parsed, printed);
    }

    #[test]
    fn messages_are_independent_of_chunking(
        messages in vec((any::<bool>(), "[ -~]{1,40}"), 0..8),
        sizes in vec(1_usize..16, 1..8),
    ) {
        let mut all = Vec::new();
        for (line, text) in &messages {
            match line {
                true => all.extend_from_slice(format!("cmd={text}\n").as_bytes()),
                false => all.extend_from_slice(format!("{:<6}{text}x", text.len() + 1).as_bytes()),
            }
        }
        let (mut framer, mut found, mut rest) = (Pmi2Framer::default(), Vec::new(), &all[..]);
        for size in sizes.iter().cycle() {
            let (mut piece, after) = rest.split_at((*size).min(rest.len()));
            while let Some(message) = framer.next(&mut piece).unwrap() {
                found.push(match message {
                    Message::Line(text) => (true, text[4..].to_vec()),
                    Message::Frame(text) => (false, text[..text.len() - 1].to_vec()),
                });
            }
            if after.is_empty() {
                break;
            }
            rest = after;
        }
        let sent: Vec<_> = messages.iter().map(|(l, t)| (*l, t.as_bytes().to_vec())).collect();
        prop_assert_eq!(found, sent);
        prop_assert_eq!(framer.unfinished(), 0);
    }
}

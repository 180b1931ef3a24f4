//! Text: what is printed is parsed, and captured requests mean what they meant to their servers.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::pmi::limits::REQUEST_LINE_MAX;
use crate::pmi::request::PmiRequest;
use crate::pmi::request_v1;
use crate::pmi::spawn::{PmiSpawn, SpawnCommand};
use crate::pmi::spawn_v1::SpawnLines;
use crate::pmi::wire_v1::{LineBuilder, LineFramer, Pmi1Line, ProtocolError};

fn owned(pairs: &[(&str, &str)]) -> Vec<(Vec<u8>, Vec<u8>)> {
    pairs
        .iter()
        .map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect()
}

fn spawn(text: &str) -> PmiSpawn {
    let mut lines = SpawnLines::default();
    let mut complete = false;
    for line in text.lines() {
        assert!(!complete, "complete before {line}");
        complete = lines.push(line.as_bytes()).unwrap();
    }
    assert!(complete);
    lines.parse().unwrap()
}

#[test]
fn captured_spawn_multiple_is_parsed_completely() {
    // MPICH 5.0.2; program names shortened.
    let text = "mcmd=spawn\nnprocs=1\nexecname=/path/app\ntotspawns=2\nspawnssofar=1\nargcnt=2\n\
        arg1=child A\narg2=a=b;c\npreput_num=1\npreput_key_0=PARENT_ROOT_PORT_NAME\n\
        preput_val_0=tag#0$connentry#766D$\ninfo_num=1\ninfo_key_0=wdir\ninfo_val_0=/tmp\nendcmd\n\
        mcmd=spawn\nnprocs=2\nexecname=/path/app\ntotspawns=2\nspawnssofar=2\nargcnt=1\n\
        arg1=childB\ninfo_num=0\nendcmd\n";
    let command = |nprocs, args: &[&str], info| SpawnCommand {
        nprocs,
        program: b"/path/app".to_vec(),
        args: args.iter().map(|arg| arg.as_bytes().to_vec()).collect(),
        info,
    };
    assert_eq!(
        spawn(text),
        PmiSpawn {
            commands: vec![
                command(1, &["child A", "a=b;c"], owned(&[("wdir", "/tmp")])),
                command(2, &["childB"], Vec::new()),
            ],
            preputs: owned(&[("PARENT_ROOT_PORT_NAME", "tag#0$connentry#766D$")]),
            limit: None,
        }
    );
}

#[test]
fn spawn_block_may_have_any_order_and_empty_arguments() {
    // Intel MPI 2021.19 sends argcnt behind the arguments.
    let text = "mcmd=spawn\nnprocs=2\nexecname=/path/app\ntotspawns=1\nspawnssofar=1\n\
        arg1=\narg2=x\ty\nargcnt=2\nendcmd\n";
    let spawn = spawn(text);
    assert_eq!(spawn.preputs, []);
    assert_eq!(spawn.commands[0].args, [&b""[..], b"x\ty"]);
}

#[test]
fn fields_may_come_in_any_order_with_any_number_of_blanks() {
    let line = Pmi1Line::parse(b"cmd=init  pmi_subversion=1   rc=0 pmi_version=1  ").unwrap();
    let expected = PmiRequest::Init {
        version: 1,
        subversion: 1,
    };
    let (_, request) = request_v1::parse(&line).unwrap();
    assert_eq!(request, Ok(expected));
}

#[test]
fn abort_is_parsed_in_every_observed_spelling() {
    let table = [
        ("cmd=abort exitcode=42", 42, ""),
        ("cmd=abort exitcode=42 message=abort", 42, "abort"),
        (
            "cmd=abort exitcode=-1 message=two words = 2",
            -1,
            "two words = 2",
        ),
        ("cmd=abort exit_code=3 error_msg=of flux", 3, "of flux"),
    ];
    for (text, code, message) in table {
        let line = Pmi1Line::parse(text.as_bytes()).unwrap();
        let message = message.as_bytes();
        let (_, request) = request_v1::parse(&line).unwrap();
        assert_eq!(request, Ok(PmiRequest::Abort { code, message }));
    }
}

#[test]
fn framer_shrinks_its_buffer_after_long_line() {
    let mut framer = LineFramer::default();
    let long = vec![b'x'; REQUEST_LINE_MAX];
    assert_eq!(framer.next(&mut &long[..]), Ok(None));
    assert_eq!(framer.unfinished(), REQUEST_LINE_MAX);
    assert_eq!(framer.next(&mut &b"\n"[..]), Ok(Some(&long[..])));
    assert_eq!(framer.unfinished(), 0);
    assert_eq!(framer.next(&mut &b"a\n"[..]), Ok(Some(&b"a"[..])));
}

#[test]
fn overlong_line_is_found_in_one_read() {
    let mut framer = LineFramer::default();
    let long = vec![b'x'; REQUEST_LINE_MAX + 1];
    assert_eq!(framer.next(&mut &long[..]), Err(ProtocolError::LineTooLong));
}

#[test]
fn builder_omits_empty_values_and_makes_words() {
    let line = LineBuilder::new(b"x_result")
        .number("rc", -1)
        .field("value", b"")
        .word("msg", "two words\n\u{e9}=")
        .end();
    assert_eq!(escape(&line), "cmd=x_result rc=-1 msg=two_words___=\\n");
}

proptest! {
    #[test]
    fn built_line_is_parsed(
        name in "[!-~]{1,64}",
        fields in vec(("[!-<>-~]{1,12}", "[!-~]{1,24}"), 0..8),
    ) {
        let mut builder = LineBuilder::new(name.as_bytes());
        for (key, value) in &fields {
            builder = builder.field(key, value.as_bytes());
        }
        let text = builder.end();
        let mut input = &text[..];
        let mut framer = LineFramer::default();
        let line = Pmi1Line::parse(framer.next(&mut input).unwrap().unwrap()).unwrap();
        prop_assert_eq!(line.name, name.as_bytes());
        let parsed: Vec<_> = line.fields().map(Result::unwrap).collect();
        let printed: Vec<_> = fields.iter().map(|(k, v)| (k.as_bytes(), v.as_bytes())).collect();
        prop_assert_eq!(parsed, printed);
    }

    #[test]
    fn lines_are_independent_of_chunking(
        lines in vec(vec(1_u8..=255, 0..40), 0..8),
        sizes in vec(1_usize..16, 1..8),
    ) {
        let lines: Vec<Vec<u8>> = lines
            .into_iter()
            .map(|line| line.into_iter().filter(|&byte| byte != b'\n').collect())
            .collect();
        let all: Vec<u8> = lines.iter().flat_map(|line| [&line[..], b"\n"].concat()).collect();
        let (mut framer, mut found, mut rest) = (LineFramer::default(), Vec::new(), &all[..]);
        for size in sizes.iter().cycle() {
            let (mut piece, after) = rest.split_at((*size).min(rest.len()));
            while let Some(line) = framer.next(&mut piece).unwrap() {
                found.push(line.to_vec());
            }
            if after.is_empty() {
                break;
            }
            rest = after;
        }
        prop_assert_eq!(found, lines);
        prop_assert_eq!(framer.unfinished(), 0);
    }
}

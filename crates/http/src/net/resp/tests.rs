//! What is a command, and what is none.

use super::*;

/// The commands in `input`, and what it ends with.
fn read_all(input: &[u8]) -> (Vec<Vec<Vec<u8>>>, Result<RequestStep, ProtocolFault>) {
    let (mut reader, mut rest, mut commands) = (CommandReader::default(), input, Vec::new());
    loop {
        match reader.read_command(rest) {
            Ok(RequestStep::Skip(length)) => rest = &rest[length..],
            Ok(RequestStep::Command(length)) => {
                let argument = |index| reader.argument(rest, index).expect("an argument").to_vec();
                commands.push((0..reader.count()).map(argument).collect());
                rest = &rest[length..];
            }
            end => return (commands, end),
        }
    }
}

fn words(text: &str) -> Vec<Vec<u8>> {
    text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

#[test]
fn commands_follow_each_other() {
    let arrays = b"*2\r\n$4\r\nECHO\r\n$3\r\na\nb\r\nPING\r\n";
    let inline = b"*0\r\n\r\n  echo  \"a \\\"\\x00\" '\\'\\n' b\"c\"\n*1\r\n$0\r\n\r\n";
    let input = [&arrays[..], inline].concat();
    let (commands, end) = read_all(&input);
    assert_eq!(end, Ok(RequestStep::Partial));
    assert_eq!(commands[0], [&b"ECHO"[..], b"a\nb"]);
    assert_eq!(commands[1], words("PING"));
    assert_eq!(commands[2], [&b"echo"[..], b"a \"\0", b"'\\n", b"bc"]);
    assert_eq!(commands[3], [b""]);
    assert_eq!(commands.len(), 4);
}

/// A prefix of commands never reads as something else: it holds the first of them, and then a part.
#[test]
fn every_prefix_is_a_part() {
    let input = b"*3\r\n$11\r\nCL.THROTTLE\r\n$2\r\n\r\n\r\n$0\r\n\r\nPING \"a b\" c\r\n*1\r\n$4\r\nQUIT\r\n";
    let (all, _) = read_all(input);
    assert_eq!(all.len(), 3);
    for cut in 0..=input.len() {
        let (commands, end) = read_all(&input[..cut]);
        assert_eq!(end, Ok(RequestStep::Partial), "cut at {cut}");
        assert_eq!(commands, all[..commands.len()], "cut at {cut}");
    }
}

#[test]
fn bounds_hold_before_the_rest_has_come() {
    let fault = |input: &[u8]| read_all(input).1.expect_err("too much").0;
    assert!(fault(b"*1025\r\n").contains("1024 arguments"));
    assert_eq!(fault(b"*1\r\n$65537\r\n"), "invalid bulk length");
    assert_eq!(fault(b"*0000000000000"), "invalid multibulk length");
    assert!(fault(&[b'x'; REQUEST_MAX]).contains("64 KiB"));
    assert_eq!(read_all(b"*1024\r\n$100\r\n").1, Ok(RequestStep::Partial));
    let inline = [&b"a ".repeat(1_025)[..], b"\r\n"].concat();
    assert!(fault(&inline).contains("1024 arguments"));
    let whole = [b"*1\r\n$65520\r\n", &[b'x'; 65_520][..], b"\r\n"].concat();
    assert_eq!(read_all(&whole).0.len(), 1);
}

#[test]
fn replies_are_those_of_the_version() {
    for (version, expected) in [
        (ProtocolVersion::Resp2, "+OK\r\n:-1\r\n$3\r\na\r\n\r\n$-1\r\n*2\r\n*4\r\n-ERR x 'a??'\r\n"),
        (ProtocolVersion::Resp3, "+OK\r\n:-1\r\n$3\r\na\r\n\r\n_\r\n*2\r\n%2\r\n-ERR x 'a??'\r\n"),
    ] {
        let mut out = Vec::new();
        let mut reply = ReplyWriter { out: &mut out, version };
        reply.write_simple("OK");
        reply.write_integer(-1);
        reply.write_bulk(b"a\r\n");
        reply.write_null();
        reply.begin_array(2);
        reply.begin_map(2);
        reply.write_error_about("ERR x", b"a\r\n");
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}

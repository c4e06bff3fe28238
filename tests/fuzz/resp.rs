//! RESP: whatever a Redis client sends, cut anywhere, is read in one way, and no bound is exceeded.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use sluicegate_http::net::resp::{CommandReader, ProtocolFault, REQUEST_MAX, RequestStep};

use crate::fuzz;

/// Commands and parts of them, good and bad.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => select(vec![
            &b"*1\r\n$4\r\nPING\r\n"[..], b"*2\r\n$1\r\na\r\n$0\r\n\r\n", b"PING \"a\\x41\"\r\n", b"*0\r\n", b"\r\n",
            b"*3\r\n", b"$5\r\n", b"$-1\r\n", b"*1025\r\n", b"'", b"\"", b"\\", b"\r", b"\n", b"HTTP/1.1",
        ]).prop_map(<[u8]>::to_vec),
        1 => proptest::collection::vec(any::<u8>(), 0..40),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

/// The commands of `input` and how it ends, when its first `cut` bytes come first.
fn read_in_two(input: &[u8], cut: usize) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolFault>) {
    let (mut reader, mut commands, mut at) = (CommandReader::default(), Vec::new(), 0);
    for end in [cut, input.len()] {
        loop {
            let rest = &input[at..end];
            match reader.read_command(rest) {
                Ok(RequestStep::Partial) => break,
                Ok(RequestStep::Skip(length)) => at += length,
                Ok(RequestStep::Command(length)) => {
                    assert!(length > 0 && length <= rest.len().min(REQUEST_MAX) && reader.count() > 0);
                    let argument = |index| reader.argument(rest, index).expect("an argument").to_vec();
                    commands.push((0..reader.count()).map(argument).collect());
                    at += length;
                }
                Err(fault) => return (commands, Some(fault)),
            }
        }
    }
    (commands, None)
}

#[test]
fn commands_are_read_in_one_way_wherever_they_are_cut() {
    fuzz((pieces(), any::<Index>()), |(input, cut)| {
        let cut = cut.index(input.len() + 1);
        prop_assert_eq!(read_in_two(&input, cut), read_in_two(&input, input.len()));
        Ok(())
    });
}

//! Commands of Redis clients are read in one way wherever they are cut, within the bounds, and again once written anew.

#![no_main]

mod pieces;

use libfuzzer_sys::fuzz_target;
use sluicegate_http::net::resp::{CommandReader, ProtocolFault, REQUEST_MAX, RequestStep};

/// The commands of an input, and how it ends.
type Read = (Vec<Vec<Vec<u8>>>, Option<ProtocolFault>);

/// Reads as a connection does: what is not yet a command stays until more bytes come.
fn read_pieces(pieces: &[&[u8]]) -> Read {
    let (mut reader, mut commands, mut buffer) = (CommandReader::default(), Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let length = match reader.read_command(&buffer) {
                Ok(RequestStep::Partial) => break,
                Ok(RequestStep::Skip(length)) => length,
                Ok(RequestStep::Command(length)) => {
                    assert!(reader.count() > 0);
                    let argument = |index| reader.argument(&buffer, index).expect("an argument").to_vec();
                    commands.push((0..reader.count()).map(argument).collect());
                    length
                }
                Err(fault) => return (commands, Some(fault)),
            };
            assert!(length > 0 && length <= buffer.len().min(REQUEST_MAX));
            buffer.drain(..length);
        }
        assert!(buffer.len() < REQUEST_MAX, "it waits for more than a command may have");
    }
    (commands, None)
}

fn write_array(command: &[Vec<u8>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", command.len()).into_bytes();
    for argument in command {
        out.extend(format!("${}\r\n", argument.len()).bytes());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
    out
}

fuzz_target!(|input: &[u8]| {
    let whole = read_pieces(&[input]);
    for pieces in pieces::cuts(input) {
        assert_eq!(read_pieces(&pieces), whole);
    }
    for command in whole.0 {
        let written = write_array(&command);
        // An inline command may be shorter than its array.
        if written.len() <= REQUEST_MAX {
            assert_eq!(read_pieces(&[&written]), (vec![command], None));
        }
    }
});

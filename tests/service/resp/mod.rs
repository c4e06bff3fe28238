//! Redis clients: `CL.THROTTLE` over RESP, and everything that such a client may send instead.

mod calls;
mod clients;
mod connections;
mod hostile;
mod listeners;
mod model;
mod page;
mod protocol;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use super::*;

/// A gateway that serves Redis clients, with these fields of `service` and these top-level lines.
fn start_resp(fields: &str, lines: &str) -> Gateway {
    Gateway::start(&format!("service: {{ resp: 127.0.0.1:0{fields} }}\n{lines}\nlocations: []\n"))
}

/// A reply, as RESP knows them.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Reply {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(String),
    Null,
    Array(Vec<Reply>),
    Map(Vec<Reply>),
}

/// One connection of a client that knows RESP and nothing else.
struct Peer<S: Read + Write = TcpStream>(BufReader<S>);

impl Peer {
    #[track_caller]
    fn connect(address: SocketAddr) -> Peer {
        let stream = TcpStream::connect_timeout(&address, PATIENCE).expect("the gateway accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Peer(BufReader::new(stream))
    }

    fn close_write(&self) {
        self.0.get_ref().shutdown(Shutdown::Write).expect("a half-close");
    }
}

impl<S: Read + Write> Peer<S> {
    #[track_caller]
    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).expect("the connection takes bytes");
        self.0.get_mut().flush().expect("the connection takes bytes");
    }

    #[track_caller]
    fn ask(&mut self, words: &[&str]) -> Reply {
        self.send(array(words));
        self.reply()
    }

    #[track_caller]
    fn throttle(&mut self, words: &str) -> [i64; 5] {
        let words: Vec<&str> = "CL.THROTTLE".split(' ').chain(words.split(' ')).collect();
        numbers(&self.ask(&words))
    }

    #[track_caller]
    fn reply(&mut self) -> Reply {
        self.try_reply().expect("a reply")
    }

    /// `None` = the connection ended.
    fn try_reply(&mut self) -> Option<Reply> {
        let mut line = String::new();
        self.0.read_line(&mut line).ok().filter(|length| *length > 0)?;
        let line = line.strip_suffix("\r\n").unwrap_or_else(|| panic!("no line end: {line:?}"));
        let (kind, text) = line.split_at(1);
        let count = || text.parse::<usize>().unwrap_or_else(|_| panic!("no number: {line:?}"));
        Some(match kind {
            "+" => Reply::Simple(text.to_owned()),
            "-" => Reply::Error(text.to_owned()),
            ":" => Reply::Integer(text.parse().unwrap_or_else(|_| panic!("no number: {line:?}"))),
            "_" => Reply::Null,
            "$" if text == "-1" => Reply::Null,
            "$" => {
                let mut bytes = vec![0; count() + 2];
                self.0.read_exact(&mut bytes).ok()?;
                Reply::Bulk(String::from_utf8_lossy(&bytes[..count()]).into_owned())
            }
            "*" => Reply::Array((0..count()).map(|_| self.try_reply()).collect::<Option<_>>()?),
            "%" => Reply::Map((0..2 * count()).map(|_| self.try_reply()).collect::<Option<_>>()?),
            _ => panic!("no reply: {line:?}"),
        })
    }

    #[track_caller]
    fn assert_closed(&mut self) {
        let mut rest = Vec::new();
        // A reset ends the connection as well.
        let _ = self.0.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
    }
}

/// A command as client libraries send it.
fn array(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    bytes
}

#[track_caller]
fn numbers(reply: &Reply) -> [i64; 5] {
    let Reply::Array(items) = reply else { panic!("{reply:?}") };
    let number = |item: &Reply| match item {
        Reply::Integer(number) => *number,
        other => panic!("{other:?}"),
    };
    items.iter().map(number).collect::<Vec<_>>().try_into().expect("five numbers")
}

fn ok() -> Reply {
    Reply::Simple("OK".to_owned())
}

/// SplitMix64, so that each seed gives the same bytes.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

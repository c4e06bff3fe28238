//! Responses of upstreams, cut and mangled: the client gets a whole response or one that is visibly cut.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::fuzz;
use crate::support::*;

const WORDS: &[&str] = &[
    "\r\n",
    "\n",
    "\r",
    "\0",
    " ",
    "5\r\nhello\r\n",
    "0\r\n\r\n",
    "Content-Length: 3\r\n",
    "Content-Length: 300\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip\r\n",
    "Connection: close\r\n",
    "Set-Cookie: a=b\r\n",
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "HTTP/1.0",
    ";x=y",
];

/// A response with one clear end, and its body.
fn whole_response() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let body = proptest::collection::vec(any::<u8>(), 1..200);
    let interim =
        select(vec!["", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\n"]);
    (body, interim, proptest::collection::vec(1..60usize, 0..5), any::<bool>()).prop_map(
        |(body, interim, sizes, chunked)| {
            let mut bytes = interim.as_bytes().to_vec();
            if chunked {
                bytes.extend(b"HTTP/1.1 200 OK\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n");
                let mut rest = &body[..];
                for size in sizes.into_iter().chain([body.len()]) {
                    let (chunk, others) = rest.split_at(size.min(rest.len()));
                    rest = others;
                    if !chunk.is_empty() {
                        bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
                        bytes.extend(chunk);
                        bytes.extend(b"\r\n");
                    }
                }
                bytes.extend(b"0\r\n\r\n");
            } else {
                bytes.extend(
                    format!("HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: {}\r\n\r\n", body.len()).bytes(),
                );
                bytes.extend(&body);
            }
            (bytes, body)
        },
    )
}

type Script = Arc<Mutex<Reply>>;

fn start() -> (Script, Upstream, Gateway) {
    let script = Script::new(Mutex::new(Reply::text("ok")));
    let shared = script.clone();
    let upstream = Upstream::new(move |_| shared.lock().unwrap().clone());
    let gateway = forwarding(&upstream, "access_log: { output: none }\n");
    (script, upstream, gateway)
}

/// Sends `bytes` in pieces cut at `cuts`, then closes.
fn in_pieces(bytes: &[u8], cuts: &[Index]) -> Reply {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    let pieces = places.windows(2).filter(|ends| ends[0] < ends[1]);
    let sent = pieces.fold(Reply::default(), |reply, ends| reply.then(&bytes[ends[0]..ends[1]]).pause(ms(1)));
    sent.close()
}

/// Returns the response; `None`: the connection closed without one, because the upstream's broke before it began.
fn ask(gateway: &Gateway) -> Result<Option<Response>, TestCaseError> {
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    match client.response_within(PATIENCE) {
        Ok(response) => Ok(Some(response)),
        Err(End::Closed | End::Reset) => Ok(None),
        Err(end) => Err(TestCaseError::fail(format!("no answer: {end:?}"))),
    }
}

/// Whole responses arrive unchanged, however they are cut into pieces; those that end too early never look whole.
#[test]
fn responses_are_whole_or_visibly_cut() {
    let (script, _upstream, gateway) = start();
    let cuts = proptest::collection::vec(any::<Index>(), 0..6);
    fuzz((whole_response(), cuts, any::<Option<Index>>()), |((bytes, body), cuts, end)| {
        let end = end.map_or(bytes.len(), |end| end.index(bytes.len()));
        *script.lock().unwrap() = in_pieces(&bytes[..end], &cuts);
        match ask(&gateway)? {
            Some(response) if end == bytes.len() => {
                prop_assert_eq!((response.status, response.cut), (200, None));
                prop_assert_eq!(response.body, body);
                prop_assert_eq!(response.headers.all("x-a"), ["b"]);
            }
            Some(response) if response.status != 502 => {
                prop_assert!(response.cut.is_some(), "it looks whole: {:?}", response);
                prop_assert!(body.starts_with(&response.body));
            }
            Some(_) => {}
            None => prop_assert!(end < bytes.len(), "a whole response was lost"),
        }
        Ok(())
    });
}

/// Whatever an upstream sends, the client gets one response with a clean head.
#[test]
fn mangled_responses_make_one_clean_response() {
    let (script, _upstream, gateway) = start();
    let change = (
        any::<Index>(),
        prop_oneof![4 => select(WORDS).prop_map(|word| word.as_bytes().to_vec()), 1 => any::<u8>().prop_map(|byte| vec![byte])],
        0..4usize,
    );
    let changes = proptest::collection::vec(change, 1..5);
    let cuts = proptest::collection::vec(any::<Index>(), 0..4);
    fuzz((whole_response(), changes, cuts), |((mut bytes, _), changes, cuts)| {
        for (at, word, removed) in changes {
            let at = at.index(bytes.len() + 1);
            bytes.splice(at..(at + removed).min(bytes.len()), word);
        }
        *script.lock().unwrap() = in_pieces(&bytes, &cuts);
        let mut client = gateway.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let (answer, end) = client.rest(PATIENCE);
        prop_assert_ne!(end, End::Deadline);
        if answer.is_empty() {
            // The upstream's body broke before anything was sent.
            return Ok(());
        }
        let head = answer.windows(4).position(|w| w == b"\r\n\r\n").map(|at| &answer[..at]);
        let head = head.ok_or_else(|| {
            TestCaseError::fail(format!("no head: {} for {}", answer.escape_ascii(), bytes.escape_ascii()))
        })?;
        prop_assert!(head.starts_with(b"HTTP/1.1 ") && !head.starts_with(b"HTTP/1.1 1"));
        for line in head.split(|&byte| byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let clean = line.iter().all(|&byte| byte == b'\t' || !byte.is_ascii_control());
            prop_assert!(clean, "{}", head.escape_ascii());
        }
        Ok(())
    });
}

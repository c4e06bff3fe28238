//! Requests against the real program: mangled, joined, and cut anywhere. The upstream sees at most one clear request
//! for each of the client's, and the same ones however the bytes were cut, as long as the connection lasts.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::fuzz;
use crate::recorder::{Recorder, Request, Seen, parse};
use crate::support::*;

/// The elements of framing.
const WORDS: &[&str] = &[
    "\r\n",
    "\n",
    "\r",
    "\r\n\r\n",
    " ",
    "\t",
    "\0",
    ":",
    ",",
    ";",
    "0\r\n\r\n",
    "5\r\nhello\r\n",
    "chunked",
    "identity",
    "Content-Length: 5\r\n",
    "Content-Length: 0\r\n",
    "Content-Length: 44\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: x\r\n",
    "Host: b\r\n",
    "Connection: close\r\n",
    "Connection: content-length\r\n",
    "Expect: 100-continue\r\n",
    "Upgrade: h2c\r\n",
    "HTTP/1.1",
    "HTTP/1.0",
    "GET",
    "POST",
    "HEAD",
    "/",
    "*",
    "%2e",
    "\u{7f}",
    "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /s HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
];

fn seeds() -> Vec<Vec<u8>> {
    let tables = [
        include_str!("../corpus/gunicorn.txt"),
        include_str!("../corpus/llhttp.txt"),
        include_str!("../corpus/probe.txt"),
    ];
    let cases = tables.iter().flat_map(|text| crate::table::read(text));
    // Long seeds only cost time here.
    cases.map(|case| case.bytes).filter(|bytes| bytes.len() < 2000).collect()
}

#[derive(Debug, Clone)]
enum Change {
    Remove(Index, Index),
    Insert(Index, &'static str),
    Put(Index, u8),
    Repeat(Index, Index),
}

fn change() -> impl Strategy<Value = Change> {
    let index = any::<Index>;
    prop_oneof![
        1 => (index(), index()).prop_map(|(a, b)| Change::Remove(a, b)),
        3 => (index(), select(WORDS)).prop_map(|(a, word)| Change::Insert(a, word)),
        1 => (index(), any::<u8>()).prop_map(|(a, byte)| Change::Put(a, byte)),
        1 => (index(), index()).prop_map(|(a, b)| Change::Repeat(a, b)),
    ]
}

fn apply(change: &Change, bytes: &mut Vec<u8>) {
    let part = |bytes: &[u8], from: &Index, length: &Index| {
        let start = from.index(bytes.len() + 1);
        (start, (start + length.index(12)).min(bytes.len()))
    };
    match change {
        Change::Remove(from, length) => {
            let (start, end) = part(bytes, from, length);
            bytes.drain(start..end);
        }
        Change::Insert(at, word) => {
            let at = at.index(bytes.len() + 1);
            bytes.splice(at..at, word.bytes());
        }
        Change::Put(at, byte) => {
            let at = at.index(bytes.len() + 1);
            bytes.splice(at..(at + 1).min(bytes.len()), [*byte]);
        }
        Change::Repeat(from, length) => {
            let (start, end) = part(bytes, from, length);
            let repeated = bytes[start..end].to_vec();
            bytes.splice(end..end, repeated);
        }
    }
}

/// The outcome of one connection: final responses, and the requests that the upstream saw.
#[derive(Debug)]
struct Outcome {
    answers: usize,
    seen: Vec<Seen>,
    /// The last response was a rejection that ended the connection.
    left: bool,
}

/// Sends `bytes` cut at `cuts`; the connection is over when it closes or is silent for `quiet`.
fn play(gateway: &Gateway, upstream: &Recorder, bytes: &[u8], cuts: &[Index], quiet: Duration) -> Outcome {
    // Its own address separates this connection's requests from late ones of another.
    static NEXT: AtomicU32 = AtomicU32::new(0x7f01_0000);
    let address = Ipv4Addr::from(NEXT.fetch_add(1, Ordering::Relaxed)).to_string();
    let mut client = Client::connect_from(&address, gateway.addr());
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    for ends in places.windows(2) {
        if ends[0] > 0 && ends[0] < ends[1] {
            std::thread::sleep(ms(2));
        }
        if client.try_send(&bytes[ends[0]..ends[1]]).is_err() {
            break;
        }
    }
    let (received, end) = read_until_quiet(&mut client, quiet);
    drop(client);
    let text = String::from_utf8_lossy(&received);
    // The responses' bodies are `ok` and problems, which do not contain this.
    let starts = text.match_indices("HTTP/1.").map(|(at, _)| &text[at + 8..]);
    let finals: Vec<&str> = starts.filter(|status| !status.starts_with(" 1")).collect();
    let left = end != End::Deadline && finals.last().is_some_and(|status| !status.starts_with(" 2"));
    let mut seen = upstream.take();
    seen.retain(|seen| match seen {
        Seen::Whole(request) => request.all("x-forwarded-for") == [address.as_bytes()],
        Seen::Ambiguous(_) => true,
    });
    Outcome { answers: finals.len(), seen, left }
}

fn read_until_quiet(client: &mut Client, quiet: Duration) -> (Vec<u8>, End) {
    let mut all = Vec::new();
    loop {
        let (bytes, end) = client.rest(quiet);
        let nothing = bytes.is_empty();
        all.extend(bytes);
        if nothing || end != End::Deadline {
            return (all, end);
        }
    }
}

fn whole(outcome: &Outcome) -> Result<Vec<&Request>, TestCaseError> {
    let requests = outcome.seen.iter().map(|seen| match seen {
        Seen::Whole(request) => Ok(request),
        Seen::Ambiguous(what) => Err(TestCaseError::fail(format!("the upstream saw {what}"))),
    });
    requests.collect()
}

fn names(requests: &[&Request]) -> Vec<String> {
    requests.iter().map(|r| format!("{} {} {:?}", r.method, r.target.escape_ascii(), r.body)).collect()
}

/// Whether both saw the same, up to where one of them ended. A rejection ends the connection if the body of its
/// request has not come by then.
fn are_alike(one: (&Outcome, &[String]), other: (&Outcome, &[String])) -> bool {
    one.1 == other.1 || one.0.left && other.1.starts_with(one.1) || other.0.left && one.1.starts_with(other.1)
}

/// The requests that a strict parser finds at the beginning of `bytes`, and whether unclear bytes follow.
fn clear_requests(mut bytes: &[u8]) -> (Vec<Request>, bool) {
    let mut found = Vec::new();
    loop {
        match parse(bytes) {
            Ok(Some((request, length))) => {
                found.push(request);
                bytes = &bytes[length..];
            }
            // A line may end in a bare line feed, behind which the strict parser waits.
            Ok(None) => return (found, has_bare_line_feed(bytes)),
            Err(_) => return (found, true),
        }
    }
}

fn has_bare_line_feed(bytes: &[u8]) -> bool {
    (0..bytes.len()).any(|at| bytes[at] == b'\n' && (at == 0 || bytes[at - 1] != b'\r'))
}

/// Whether `seen` are clear requests in order (some may be rejected), and others come only behind unclear bytes.
fn in_order(seen: &[&Request], clear: &[Request], unclear: bool) -> bool {
    let mut left = clear.iter();
    seen.iter()
        .all(|seen| left.any(|clear| seen.method == clear.method && seen.body == clear.body) || unclear)
}

fn check(gateway: &Gateway, upstream: &Recorder, bytes: &[u8], cuts: &[Index]) -> Result<(), TestCaseError> {
    let mut shown = String::new();
    // A busy machine may need longer than the first timeout.
    for quiet in [ms(40), ms(200), ms(1000)] {
        let at_once = play(gateway, upstream, bytes, &[], quiet);
        let in_parts = play(gateway, upstream, bytes, cuts, quiet);
        let (first, second) = (whole(&at_once)?, whole(&in_parts)?);
        // No response accounts for two requests.
        let fits = first.len() <= at_once.answers && second.len() <= in_parts.answers;
        let (clear, unclear) = clear_requests(bytes);
        let in_order = in_order(&first, &clear, unclear);
        if fits && in_order && are_alike((&at_once, &names(&first)), (&in_parts, &names(&second))) {
            return Ok(());
        }
        shown = format!(
            "at once {} answers {:?}, in parts {} answers {:?}, clear {:?}",
            at_once.answers,
            names(&first),
            in_parts.answers,
            names(&second),
            names(&clear.iter().collect::<Vec<_>>())
        );
    }
    Err(TestCaseError::fail(format!("{}: {shown}", bytes.escape_ascii())))
}

#[test]
fn at_most_one_upstream_request_for_each_of_the_client() {
    let seeds = seeds();
    let upstream = Recorder::new();
    let gateway = Gateway::start(&format!(
        "access_log: {{ output: none }}\nlocations:\n  - {{ path: /, upstream: \"http://{}\" }}\n",
        upstream.addr()
    ));
    let strategy = (
        proptest::collection::vec(any::<Index>(), 1..3),
        proptest::collection::vec(change(), 0..4),
        proptest::collection::vec(any::<Index>(), 1..6),
    );
    fuzz(strategy, |(chosen, changes, cuts)| {
        let mut bytes: Vec<u8> = chosen.iter().flat_map(|seed| seed.get(&seeds).clone()).collect();
        changes.iter().for_each(|change| apply(change, &mut bytes));
        check(&gateway, &upstream, &bytes, &cuts)
    });
    gateway.get("/after").expect(200);
}

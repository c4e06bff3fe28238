//! USR2 while clients keep sending to the old process: the new one knows everything that the old one admitted.

use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::h2_raw::{DATA, END_STREAM, GOAWAY, HEADERS, NO_ERROR, code, request, status_of};
use crate::support::*;

/// Five per hour: none refills during a test.
const FIVE: &str = "limits: { five: { key: global, rate: 5/1h, burst: 5 } }\n";

fn limited() -> String {
    format!("{FIVE}locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: five }}\n")
}

/// Replaces `gateway` by another process; the old one may live on.
fn replace(gateway: &Gateway) -> Successor {
    let old = gateway.pid();
    gateway.signal(Signal::USR2);
    eventually("another process", || gateway.process() != old);
    Successor(gateway.process() as i32)
}

/// How many of ten requests the serving process admits.
fn admitted(gateway: &Gateway) -> usize {
    (0..10).filter(|_| gateway.get("/").status == 200).count()
}

/// A request whose head is half sent when the counters leave is not judged by the old process.
#[test]
fn half_a_head_is_not_judged_by_the_old_process() {
    let mut gateway = Gateway::start(&limited());
    let mut clients: Vec<Client> = (0..10).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send("GET / HT"));
    let _successor = replace(&gateway);
    for client in &mut clients {
        // The connection may be closed already.
        let _ = client.try_send("TP/1.1\r\nHost: gateway.test\r\n\r\n");
        let answer = client.response_within(PATIENCE);
        assert!(answer.is_err(), "the old process answered: {answer:?}");
    }
    assert_eq!(admitted(&gateway), 5);
    assert_eq!(gateway.wait_left(), 0);
}

/// An HTTP/2 client that ignores GOAWAY is refused and may retry with the new process; requests in flight are answered.
#[test]
fn new_streams_are_not_judged_by_the_old_process() {
    let gate = Gate::default();
    let upstream = Upstream::holding("/slow", &gate);
    let mut gateway = Gateway::start(&format!(
        "{FIVE}locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: five }}\n  \
           - {{ path: /slow, upstream: \"{}\" }}\n",
        upstream.url()
    ));
    let mut h2 = H2::open(gateway.addr());
    h2.pongs = false;
    h2.ask(1, &request("GET", "/slow", &[]));
    upstream.wait_for(1);
    let _successor = replace(&gateway);
    for stream in [3, 5, 7] {
        h2.ask(stream, &request("GET", "/", &[]));
    }
    assert_eq!(admitted(&gateway), 5);
    gate.open();
    assert_eq!(h2.outcome(1), Outcome::Answered(200, b"held".to_vec()));
    for stream in [3, 5, 7] {
        // Streams beyond the last one of a GOAWAY may be ignored silently.
        let outcome = h2.outcome_within(stream, ms(200));
        assert!(!matches!(outcome, Outcome::Answered(..)), "{stream}: {outcome:?}");
    }
    drop(h2);
    assert_eq!(gateway.wait_left(), 0);
}

/// An HTTP/2 client that sends until the final GOAWAY gets an answer to each stream up to the last one it names.
#[test]
fn every_stream_up_to_the_last_is_answered() {
    let mut gateway = Gateway::start("locations:\n  - { path: /, respond: { body: ok } }\n");
    let mut h2 = H2::open(gateway.addr());
    let old = gateway.pid();
    gateway.signal(Signal::USR2);
    let (mut sent, mut answered, mut last) = (0, 0, None);
    while last.is_none_or(|last| answered < last) {
        if last.is_none() && sent < answered + 8 {
            sent += 1;
            h2.ask(2 * sent - 1, &request("GET", "/", &[]));
            continue;
        }
        let frame = h2.read(Instant::now() + PATIENCE).expect("a frame, since something is owed");
        match frame.kind {
            HEADERS => assert_eq!(status_of(&frame.payload), 200),
            DATA if frame.flags & END_STREAM != 0 => answered += 1,
            GOAWAY => {
                assert_eq!(code(&frame.payload[4..]), NO_ERROR);
                // The first GOAWAY names no real stream, the second one names one that was sent.
                last = Some(code(&frame.payload).div_ceil(2)).filter(|last| *last <= sent);
            }
            _ => {}
        }
    }
    assert!(answered > 8, "{answered} of {sent} were answered, {last:?} promised");
    eventually("another process", || gateway.process() != old);
    let _successor = Successor(gateway.process() as i32);
    assert_eq!(gateway.wait_left(), 0);
}

/// Begins an upgrade that takes a second and a half, and returns the new process once it waits for the counters.
fn begin(gateway: &Gateway) -> (Client, Successor) {
    let mut slow = gateway.client();
    slow.send("GET / HT");
    gateway.signal(Signal::USR2);
    gateway.wait_stderr("the new process is ready");
    let log = gateway.stderr();
    let line = log.lines().find(|line| line.contains("the new process is ready")).expect("it is there");
    let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
    (slow, Successor(line["pid"].as_i64().expect("a process id") as i32))
}

/// HUP during an upgrade applies to the new process.
#[test]
fn a_reload_during_an_upgrade_is_handed_on() {
    let file = |word: &str| format!("locations:\n  - {{ path: /, respond: {{ body: {word} }} }}\n");
    let mut gateway = Gateway::start(&file("one"));
    let (_slow, _successor) = begin(&gateway);
    gateway.write(&file("two"));
    gateway.signal(Signal::HUP);
    assert_eq!(gateway.wait_left(), 0);
    eventually("the new file", || gateway.get("/").expect(200).text() == "two");
    gateway.wait_stderr("handed on to the new process");
}

/// A new process that hangs while everything waits for it is given up soon.
#[test]
fn a_new_process_that_hangs_is_given_up() {
    let gateway = Gateway::start(&limited());
    gateway.get("/").expect(200);
    let (_slow, successor) = begin(&gateway);
    kill_process(Pid::from_raw(successor.0).expect("a process"), Signal::STOP).expect("it lives");
    gateway.wait_stderr("said nothing for 5 seconds");
    // The old process judges as before.
    assert_eq!(admitted(&gateway), 4);
    let mut h2 = H2::open(gateway.addr());
    assert!(matches!(h2.get(1, "/"), Outcome::Answered(429, _)));
}

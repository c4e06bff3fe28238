//! Connections: who may call, deadlines, peers that do not read, bounds, and the end of a process.

use std::time::{Duration, Instant};

use super::*;

#[test]
fn a_client_needs_one_of_the_tokens() {
    let gateway = start_resp(", token: [first-secret, second-secret]", "log: { level: trace }");
    let mut peer = Peer::connect(service(&gateway));
    let refused = |reply: Reply, code: &str| {
        assert!(matches!(&reply, Reply::Error(text) if text.starts_with(code)), "{reply:?}")
    };
    for words in
        [&["PING"][..], &["CL.THROTTLE", "a", "1", "1", "1"], &["HELLO", "3"], &["CLIENT", "ID"], &["INFO"]]
    {
        refused(peer.ask(words), "NOAUTH");
    }
    for words in [
        &["AUTH", "first-secret2"][..],
        &["AUTH", ""],
        &["AUTH", "other", "first-secret"],
        &["HELLO", "3", "AUTH", "default", "wrong"],
        &["HELLO", "3", "AUTH", "other", "first-secret"],
    ] {
        refused(peer.ask(words), "WRONGPASS");
    }
    refused(peer.ask(&["PING"]), "NOAUTH");
    assert_eq!(peer.ask(&["AUTH", "first-secret"]), ok());
    assert_eq!(peer.ask(&["PING"]), Reply::Simple("PONG".to_owned()));
    refused(peer.ask(&["AUTH", "wrong"]), "WRONGPASS");
    assert_eq!(peer.ask(&["PING"]), Reply::Simple("PONG".to_owned()), "it keeps the access that it has");
    assert_eq!(peer.ask(&["RESET"]), Reply::Simple("RESET".to_owned()));
    refused(peer.ask(&["PING"]), "NOAUTH");
    assert_eq!(peer.ask(&["AUTH", "default", "second-secret"]), ok());
    let mut other = Peer::connect(service(&gateway));
    assert!(matches!(other.ask(&["HELLO", "3", "AUTH", "default", "second-secret"]), Reply::Map(_)));
    assert_eq!(
        gateway.metric("sluicegate_service_calls_total", &["protocol=\"resp\"", "result=\"denied\""]),
        13.0
    );
    for text in [gateway.stderr(), gateway.metrics(), gateway.admin_get("/status").expect(200).text()] {
        assert!(!text.contains("-secret"), "{text}");
    }
}

/// A reload that takes a token away takes it from open connections, too.
#[test]
fn a_token_that_is_taken_away_opens_nothing_any_more() {
    let address = free_addr();
    let file = |token: &str| format!("service: {{ resp: \"{address}\", token: {token} }}\nlocations: []\n");
    let gateway = Gateway::start(&file("[one, two]"));
    let [mut one, mut two] = ["one", "two"].map(|token| {
        let mut peer = Peer::connect(address);
        assert_eq!(peer.ask(&["AUTH", token]), ok());
        peer
    });
    gateway.change(&file("two"));
    assert!(matches!(one.ask(&["PING"]), Reply::Error(text) if text.starts_with("NOAUTH")));
    assert_eq!(two.ask(&["PING"]), Reply::Simple("PONG".to_owned()));
    assert_eq!(one.ask(&["AUTH", "two"]), ok());
    gateway.change("locations: []\n");
    two.assert_closed();
}

#[test]
fn an_idle_client_and_half_a_command_meet_their_deadlines() {
    let gateway = start_resp("", "server: { timeouts: { idle: 1s, header: 300ms } }");
    let mut idle = Peer::connect(service(&gateway));
    assert_eq!(idle.ask(&["PING"]), Reply::Simple("PONG".to_owned()));
    let mut slow = Peer::connect(service(&gateway));
    let started = Instant::now();
    slow.send("*1\r\n$4\r\nPI");
    slow.assert_closed();
    let half = started.elapsed();
    assert!(half >= ms(300), "{half:?}");
    idle.assert_closed();
    assert!(started.elapsed() >= ms(900), "{:?}", started.elapsed());
    assert_eq!(gateway.metric("sluicegate_faults_total", &["cause=\"slow_head\""]), 1.0);
}

/// A client that sends half a command one byte at a time does not renew its deadline.
#[test]
fn a_trickle_does_not_renew_the_deadline() {
    let gateway = start_resp("", "server: { timeouts: { header: 500ms } }");
    let mut slow = Peer::connect(service(&gateway));
    let started = Instant::now();
    let mut is_open = true;
    while is_open && started.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(ms(50));
        is_open = slow.0.get_mut().write_all(b"x").is_ok();
    }
    assert!(!is_open, "it still takes bytes after {:?}", started.elapsed());
}

/// A client that does not read its replies is not read from any more, and is closed after the deadline of writes.
#[test]
fn a_client_that_does_not_read_is_bounded_and_closed() {
    let gateway = start_resp("", "server: { timeouts: { write: 3s } }");
    let mut peer = Peer::connect(service(&gateway));
    let stream = peer.0.get_mut();
    stream.set_write_timeout(Some(ms(500))).expect("a timeout");
    let command = array(&["ECHO", &"x".repeat(16_000)]);
    let (mut sent, started) = (0, Instant::now());
    let blocked = loop {
        match stream.write(&command) {
            Ok(bytes) => sent += bytes,
            Err(error) => break error,
        }
        assert!(sent < 64 << 20, "64 MiB were taken without a reader");
        assert!(started.elapsed() < PATIENCE);
    };
    assert!(
        matches!(blocked.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
        "{blocked}"
    );
    eventually("a closed connection", || {
        gateway.metric("sluicegate_faults_total", &["cause=\"slow_read\""]) == 1.0
    });
}

/// A large pipeline whose replies exceed every buffer is answered completely once the client reads.
#[test]
fn a_pipeline_beyond_the_buffers_is_answered_in_order() {
    let gateway = start_resp("", "");
    let mut peer = Peer::connect(service(&gateway));
    let mut writer = peer.0.get_ref().try_clone().expect("a handle");
    let sending = std::thread::spawn(move || {
        for number in 0..2_000 {
            writer.write_all(&array(&["ECHO", &format!("{number}:{}", "x".repeat(8_000))])).expect("bytes");
        }
    });
    std::thread::sleep(ms(300));
    for number in 0..2_000 {
        let Reply::Bulk(text) = peer.reply() else { panic!("a text") };
        assert!(text.starts_with(&format!("{number}:")) && text.len() > 8_000);
    }
    sending.join().expect("all was sent");
}

#[test]
fn a_client_that_closes_its_side_still_gets_its_replies() {
    let gateway = start_resp("", "");
    let mut peer = Peer::connect(service(&gateway));
    peer.send("PING\r\nECHO a\r\n*1\r\n$4\r\nPI");
    peer.close_write();
    assert_eq!(peer.reply(), Reply::Simple("PONG".to_owned()));
    assert_eq!(peer.reply(), Reply::Bulk("a".to_owned()));
    peer.assert_closed();
}

#[test]
fn connections_are_bounded_per_address() {
    let gateway = start_resp("", "server: { connections_per_ip: 2 }");
    let mut first = Peer::connect(service(&gateway));
    let mut second = Peer::connect(service(&gateway));
    for peer in [&mut first, &mut second] {
        assert_eq!(peer.ask(&["PING"]), Reply::Simple("PONG".to_owned()));
    }
    Peer::connect(service(&gateway)).assert_closed();
    drop(first);
    eventually("room for another", || {
        let mut peer = Peer::connect(service(&gateway));
        let _ = peer.0.get_mut().write_all(b"PING\r\n");
        peer.try_reply().is_some()
    });
}

/// At the end of the process an idle client is closed, and one that goes on calling after its next reply.
#[test]
fn a_stopping_gateway_answers_and_closes() {
    let mut gateway = start_resp("", "server: { timeouts: { shutdown: 20s } }");
    let address = service(&gateway);
    let mut idle = Peer::connect(address);
    assert_eq!(idle.ask(&["PING"]), Reply::Simple("PONG".to_owned()));
    let busy = std::thread::spawn(move || {
        let mut peer = Peer::connect(address);
        let mut answered = 0;
        loop {
            if peer.0.get_mut().write_all(b"PING\r\n").is_err() {
                return answered;
            }
            match peer.try_reply() {
                Some(_) => answered += 1,
                None => return answered,
            }
        }
    });
    std::thread::sleep(ms(100));
    let started = Instant::now();
    gateway.term();
    assert_eq!(gateway.wait_exit(), 0);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert!(busy.join().expect("the client ends") > 0);
    idle.assert_closed();
}

//! Bodies paced by the bandwidth of their key.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::*;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Answers `/N` with N bytes.
fn sizes() -> Upstream {
    Upstream::new(|seen| {
        let size = seen.target.rsplit('/').next().and_then(|size| size.parse().ok()).unwrap_or(0);
        Reply::text(&"x".repeat(size))
    })
}

/// Text without equal neighbours.
fn text(size: usize) -> String {
    (0..size).map(|at| char::from(b'a' + (at % 26 + at / 4096 % 7) as u8 % 26)).collect()
}

fn paced_gateway(upstream: &Upstream, bandwidth: &str) -> Gateway {
    Gateway::start(&format!(
        "server: {{ workers: 2 }}\nlocations:\n  - {{ path: /, upstream: \"{}\", bandwidth: {bandwidth} }}\n",
        upstream.url()
    ))
}

/// Each of `clients` requests its `size` bytes at once; the time until all have them.
fn fetch(gateway: &Gateway, clients: &[&str], size: usize) -> Duration {
    let addr = gateway.addr();
    let began = Instant::now();
    thread::scope(|scope| {
        for ip in clients {
            scope.spawn(move || {
                let answer = Client::connect_from(ip, addr).ask(&get(&format!("/{size}")));
                assert_eq!((answer.status, answer.body.len()), (200, size));
            });
        }
    });
    began.elapsed()
}

#[track_caller]
fn assert_about(took: Duration, wanted: Duration, noise: &Noise) {
    let least = wanted.mul_f64(0.9);
    let most = wanted.mul_f64(1.1) + noise.late();
    assert!((least..=most).contains(&took), "{took:?} instead of {wanted:?}");
}

/// More connections do not make a client faster, and each client has its own rate.
#[test]
fn a_client_has_one_rate_however_many_connections_it_opens() {
    let upstream = sizes();
    let gateway = paced_gateway(&upstream, "{ rate: 1MiB/s, burst: 64KiB, key: ip }");
    let noise = Noise::listen();
    let wanted = Duration::from_millis(1_500);
    let size = MIB + MIB / 2 + 64 * KIB;
    assert_about(fetch(&gateway, &["127.0.0.11"], size), wanted, &noise);
    assert_about(fetch(&gateway, &["127.0.0.12"; 4], size / 4), wanted, &noise);
    let two = ["127.0.0.13", "127.0.0.13", "127.0.0.14", "127.0.0.14"];
    assert_about(fetch(&gateway, &two, size / 2), wanted, &noise);
}

/// The burst leaves at once, and refills at the rate.
#[test]
fn a_burst_leaves_at_once() {
    let upstream = sizes();
    let gateway = paced_gateway(&upstream, "{ rate: 512KiB/s, burst: 1MiB }");
    let noise = Noise::listen();
    let quick = fetch(&gateway, &["127.0.0.1"], MIB);
    assert!(quick < ms(400) + noise.late(), "{quick:?}");
    assert_about(
        fetch(&gateway, &["127.0.0.1"], 512 * KIB),
        Duration::from_secs(1).saturating_sub(quick),
        &noise,
    );
}

/// Ten megabytes arrive whole, by length and in chunks, and the gateway buffers almost nothing of them.
#[test]
fn a_large_body_arrives_intact_and_is_not_collected() {
    let upstream = Upstream::new(|seen| {
        let body = text(10 * MIB);
        match seen.target.as_str() {
            "/chunked" => {
                let chunk = format!("{:x}\r\n{body}\r\n0\r\nX-End: yes\r\n\r\n", body.len());
                Reply::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n")
                    .then(chunk)
            }
            _ => Reply::text(&body),
        }
    });
    let gateway = paced_gateway(&upstream, "{ rate: 8MiB/s, burst: 256KiB, key: uri }");
    gateway.ask(&Ask::new("HEAD", "/head")).expect(200);
    let before = resident_kib(gateway.pid());
    let (chunked, plain) = thread::scope(|scope| {
        let chunked = scope.spawn(|| gateway.ask(&get("/chunked").header("TE", "trailers")));
        let plain = scope.spawn(|| gateway.get("/plain"));
        let crowd: Vec<_> = (0..20).map(|n| (n, gateway.client())).collect();
        for (n, mut client) in crowd {
            client.send(get(&format!("/crowd/{}", n % 4)).bytes());
            client.raw_head(PATIENCE).expect("a head");
            thread::sleep(ms(20));
        }
        let grown = resident_kib(gateway.pid()).saturating_sub(before);
        assert!(grown < 40 * 1024, "{grown} KiB for twenty-two bodies of 10 MiB");
        (chunked.join().expect("an answer"), plain.join().expect("an answer"))
    });
    let whole = text(10 * MIB);
    assert!(plain.body == whole.as_bytes() && plain.cut.is_none());
    assert!(chunked.body == whole.as_bytes() && chunked.cut.is_none());
    assert_eq!(chunked.trailers.get("x-end").as_deref(), Some("yes"));
}

fn resident_kib(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

/// No deadline of client or upstream runs while a body waits for its turn.
#[test]
fn pacing_does_not_count_as_a_stall() {
    let upstream = sizes();
    let gateway = Gateway::start(&format!(
        "server: {{ timeouts: {{ write: 1s, idle: 1s, body: 1s }} }}\n\
         upstreams: {{ app: {{ servers: [\"{}\"], timeouts: {{ body: 1s, response: 1s }} }} }}\n\
         locations:\n  - {{ path: /slow/, upstream: app, bandwidth: {{ rate: 512B/s, burst: 1KiB, key: uri }} }}\n  \
           - {{ path: /late/, upstream: app, timeout: 1s, \
                bandwidth: {{ rate: 512B/s, burst: 1KiB, key: location }} }}\n",
        upstream.addr()
    ));
    let began = Instant::now();
    let slow = gateway.get("/slow/3072").expect(200);
    assert_eq!((slow.body.len(), slow.cut), (3072, None));
    assert!(began.elapsed() > ms(3_900), "{:?}", began.elapsed());
    let late = gateway.get("/late/9000");
    assert!(late.cut.is_some() && late.body.len() < 4096, "the location's own timeout still holds");
}

/// A client that leaves takes nothing from the others, and a slow reader takes only its own turns.
#[test]
fn clients_that_leave_or_do_not_read_free_the_rate_for_others() {
    let upstream = sizes();
    let gateway = paced_gateway(&upstream, "{ rate: 8MiB/s, burst: 256KiB, key: global }");
    let mut gone: Vec<_> = (0..20).map(|_| gateway.client()).collect();
    gone.iter_mut().for_each(|client| client.send(get(&format!("/{}", 10 * MIB)).bytes()));
    let mut idler = Client::connect_narrow(gateway.addr());
    idler.send(get(&format!("/{}", 60 * MIB)).bytes());
    thread::sleep(ms(300));
    gone.into_iter().for_each(Client::reset);
    // At first the idle client's turns go into the buffers of the kernel.
    undisturbed(|| {
        let noise = Noise::listen();
        let took = fetch(&gateway, &["127.0.0.1"], 8 * MIB);
        assert!(took >= ms(900), "{took:?}");
        (took < ms(1_150) + noise.late()).then_some(())
    });
    drop(idler);
}

/// A response without a body does not wait, and a rejection costs no bandwidth.
#[test]
fn responses_without_a_body_and_rejections_do_not_wait() {
    let upstream = Upstream::new(|seen| match seen.method.as_str() {
        "HEAD" => Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"),
        "DELETE" => Reply::raw("HTTP/1.1 204 No Content\r\n\r\n"),
        _ => Reply::text(&text(2 * KIB)),
    });
    let gateway = Gateway::start(&format!(
        "limits: {{ slow: {{ rate: 1/h, key: \"header:x-who\" }} }}\n\
         locations:\n  - {{ path: /, upstream: \"{}\", limits: slow, bandwidth: {{ rate: 100B/s, burst: 2KiB }} }}\n",
        upstream.url()
    ));
    let noise = Noise::listen();
    let began = Instant::now();
    gateway.ask(&get("/").header("X-Who", "first")).expect(200);
    gateway.ask(&Ask::new("HEAD", "/").header("X-Who", "second")).expect(200);
    gateway.ask(&Ask::new("DELETE", "/").header("X-Who", "third")).expect(204);
    gateway.ask(&get("/").header("X-Who", "first")).expect(429);
    assert!(began.elapsed() < ms(500) + noise.late(), "{:?}", began.elapsed());
    let mut waits = gateway.client();
    waits.send(get("/").header("X-Who", "fourth").bytes());
    waits.raw_head(PATIENCE).expect("a head");
    assert_eq!(waits.rest(ms(200)).0, b"", "its body waits");
}

/// A missing part of the key falls back to the ip; a repeated one is rejected.
#[test]
fn a_missing_part_of_the_key_falls_back_to_the_ip() {
    let upstream = sizes();
    let gateway = paced_gateway(&upstream, "{ rate: 100B/s, burst: 2KiB, key: \"header:x-team\" }");
    let takes_all = |ask: Ask, from: &str| {
        let mut client = Client::connect_from(from, gateway.addr());
        client.send(ask.bytes());
        client.raw_head(PATIENCE).expect("a head");
        client.rest(ms(200)).0.len() == 2 * KIB
    };
    let ask = || get(&format!("/{}", 2 * KIB));
    assert!(takes_all(ask().header("X-Team", "red"), "127.0.0.21"));
    assert!(!takes_all(ask().header("X-Team", "red"), "127.0.0.22"), "the team has one bucket");
    assert!(takes_all(ask().header("X-Team", "127.0.0.21"), "127.0.0.22"), "no team is an address");
    assert!(takes_all(ask(), "127.0.0.21"));
    assert!(!takes_all(ask(), "127.0.0.21"), "the address has one, too");
    assert!(takes_all(ask(), "127.0.0.22"));
    gateway.ask(&ask().header("X-Team", "a").header("X-Team", "b")).expect(400);
}

//! `server.timeouts.drain`: the gateway goes on serving while load balancers notice that it will end.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::*;

fn start(drain: &str) -> Gateway {
    Gateway::start(&format!(
        "server: {{ timeouts: {{ drain: {drain} }} }}\nlocations: [{{ path: /, respond: {{ body: ok }} }}]\n"
    ))
}

fn accepts(gateway: &Gateway) -> bool {
    TcpStream::connect_timeout(&gateway.addr(), Duration::from_secs(1)).is_ok()
}

/// TERM: /readyz turns 503, new connections are still served, and only after `drain` none is accepted.
#[test]
fn it_serves_while_it_is_not_ready() {
    let mut gateway = start("2s");
    gateway.admin_get("/readyz").expect(200);
    let mut kept = gateway.client();
    kept.ask(&get("/")).expect(200);
    let start = Instant::now();
    gateway.term();
    eventually("not ready", || gateway.admin_get("/readyz").status == 503);
    gateway.admin_get("/healthz").expect(200);
    gateway.get("/").expect(200);
    assert_eq!(kept.ask(&get("/")).expect(200).header("connection"), None, "the connection stays");
    let refused = gateway.reload();
    assert!(refused.status == 503 && refused.text().contains("shutting down"), "{}", refused.text());
    while start.elapsed() < ms(1500) {
        gateway.get("/").expect(200);
        std::thread::sleep(ms(20));
    }
    assert_eq!(gateway.wait_exit_within(ms(5000)), 0);
    let took = start.elapsed();
    assert!(took >= ms(1950), "it ended after {took:?}");
}

/// Without `drain` it stops accepting at once.
#[test]
fn without_it_nothing_waits() {
    let mut gateway = start("0s");
    gateway.term();
    assert_eq!(gateway.wait_exit_within(ms(2000)), 0);
}

/// A second TERM, more than a second after the first, ends the wait and the process.
#[test]
fn a_second_term_ends_the_wait() {
    let mut gateway = start("60s");
    gateway.term();
    eventually("not ready", || gateway.admin_get("/readyz").status == 503);
    std::thread::sleep(ms(1200));
    assert!(gateway.is_running() && accepts(&gateway));
    gateway.term();
    gateway.wait_exit_within(ms(3000));
}

//! Connections of one worker across reloads, over real sockets.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::upstream::Upstream;
use crate::upstream::tests::{is_open, reloaded, upstream};
use sluicegate_base::clock::{Now, hold_clock};

async fn listening() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn pools(upstream: &Upstream) -> Rc<Pools> {
    Rc::new(Pools::new(Rc::default(), &upstream.servers))
}

fn place(server: &Arc<Server>) -> ServerInFlight {
    server.begin_request().expect("a place")
}

/// A connection to a server, and the server's end of it.
async fn connected(
    pools: &Rc<Pools>,
    server: &Arc<Server>,
    listener: &TcpListener,
) -> (PooledConnection, TcpStream) {
    let pooled = pools.borrow_connection(place(server)).await.unwrap();
    (pooled, listener.accept().await.unwrap().0)
}

/// Whether a request now gets a connection that has served before.
async fn reuses(pools: &Rc<Pools>, server: &Arc<Server>) -> bool {
    pools.borrow_connection(place(server)).await.unwrap().may_be_closing
}

#[tokio::test(flavor = "local")]
async fn idle_connections_go_on_and_those_to_removed_servers_close() {
    let ((stays, a), (goes, b)) = (listening().await, listening().await);
    let old = upstream(&format!("servers: [\"{a}\", \"{b}\"]"));
    let pools = pools(&old);
    let (pooled, mut kept) = connected(&pools, &old.servers[0], &stays).await;
    pooled.finish();
    let (pooled, mut closed) = connected(&pools, &old.servers[1], &goes).await;
    pooled.finish();
    let new = reloaded(&old, &format!("servers: [c:1, \"{a}\"], keepalive: 1"));
    pools.update_servers(&new.servers);
    assert!(!is_open(&mut closed).await && is_open(&mut kept).await);
    pools.sweep_idle();
    assert!(is_open(&mut kept).await);
    assert!(reuses(&pools, &new.servers[1]).await);
    let none = reloaded(&new, &format!("servers: [\"{a}\"], keepalive: 0"));
    let (pooled, mut last) = connected(&pools, &new.servers[1], &stays).await;
    pooled.finish();
    pools.update_servers(&none.servers);
    assert!(!is_open(&mut last).await, "no more are kept than the current gateway allows");
}

#[tokio::test(flavor = "local")]
async fn requests_of_the_gateway_before_leave_their_connections_to_this_one() {
    let ((stays, a), (goes, b)) = (listening().await, listening().await);
    let old = upstream(&format!("servers: [\"{a}\", \"{b}\"]"));
    let pools = pools(&old);
    let (first, mut kept) = connected(&pools, &old.servers[0], &stays).await;
    let (second, mut closed) = connected(&pools, &old.servers[1], &goes).await;
    let new = reloaded(&old, &format!("servers: [c:1, \"{a}\"]"));
    pools.update_servers(&new.servers);
    assert!(is_open(&mut kept).await && is_open(&mut closed).await, "requests on them go on");
    first.finish();
    second.finish();
    assert!(is_open(&mut kept).await && !is_open(&mut closed).await);
    // An older request may still need a connection, too.
    assert!(reuses(&pools, &old.servers[0]).await);
    let (late, mut end) = connected(&pools, &old.servers[1], &goes).await;
    late.finish();
    assert!(!is_open(&mut end).await, "none is kept to a removed server");
}

type TcpHttp2Server = h2::server::Connection<TcpStream, Bytes>;

/// The servers' end of the next HTTP/2 connection.
async fn accepted(listener: &TcpListener) -> TcpHttp2Server {
    h2::server::handshake(listener.accept().await.unwrap().0).await.unwrap()
}

async fn has_ended(connection: &mut TcpHttp2Server) -> bool {
    let ended = tokio::time::timeout(Duration::from_millis(100), connection.accept());
    ended.await.is_ok_and(|next| next.is_none())
}

#[tokio::test(flavor = "local")]
async fn shared_connections_go_on_and_those_to_removed_servers_close_after_their_requests() {
    let ((stays, a), (goes, b)) = (listening().await, listening().await);
    let old = upstream(&format!("servers: [\"a.test:1\", \"{b}\"], protocol: http2"));
    old.servers[0].state.dns_name.as_ref().unwrap().record_addresses(vec![a]);
    let pools = pools(&old);
    let (pooled, mut kept) = tokio::join!(pools.borrow_connection(place(&old.servers[0])), accepted(&stays));
    pooled.unwrap().finish();
    let (pooled, mut closed) = tokio::join!(pools.borrow_connection(place(&old.servers[1])), accepted(&goes));
    let busy = pooled.unwrap();
    let new = reloaded(&old, "servers: [c:1, \"a.test:1\"], protocol: http2");
    pools.update_servers(&new.servers);
    assert!(!has_ended(&mut kept).await && !has_ended(&mut closed).await, "a request is on it");
    drop(busy);
    assert!(has_ended(&mut closed).await);
    // No new connection is accepted here: both gateways share the existing one.
    let limit = Duration::from_secs(1);
    for server in [&new.servers[1], &old.servers[0]] {
        let pooled = tokio::time::timeout(limit, pools.borrow_connection(place(server))).await;
        pooled.expect("no other connection").unwrap().finish();
    }
    // The sweep still reaches it.
    pools.sweep_idle();
    assert!(!has_ended(&mut kept).await);
    new.servers[1]
        .state
        .dns_name
        .as_ref()
        .unwrap()
        .record_addresses(vec![SocketAddr::from(([127, 0, 0, 9], 9))]);
    pools.sweep_idle();
    assert!(has_ended(&mut kept).await);
}

/// The data is in the socket, but the runtime does not know yet: nothing waits between.
#[tokio::test(flavor = "local")]
async fn stray_data_answers_no_request_and_pauses_reuse() {
    let hold_at = |ms: u64| hold_clock(Some(Now(ms * 1_000_000)));
    let (listener, address) = listening().await;
    let upstream = upstream(&format!("servers: [\"{address}\"]"));
    let (pools, server) = (pools(&upstream), &upstream.servers[0]);
    let has_idle = || pools.borrow_idle(place(server)).is_ok();
    hold_at(1_000);
    let (silent, mut silent_end) = connected(&pools, server, &listener).await;
    let (stray, stray_end) = connected(&pools, server, &listener).await;
    silent.finish();
    stray.finish();
    stray_end.try_write(b"HTTP/1.1 200 OK\r\n").unwrap();
    assert!(!has_idle());
    assert!(!is_open(&mut silent_end).await, "the other one may be stray, too");
    for (ms, is_kept) in [(1_000, false), (10_999, false), (11_000, true)] {
        hold_at(ms);
        let (pooled, _end) = connected(&pools, server, &listener).await;
        pooled.finish();
        assert_eq!(has_idle(), is_kept, "{ms}");
    }
    assert_eq!(server.stray_data_count(), 1);
}

#[tokio::test(flavor = "local")]
async fn a_sweep_finds_stray_data_and_an_end_is_none() {
    let (listener, address) = listening().await;
    let upstream = upstream(&format!("servers: [\"{address}\"]"));
    let (pools, server) = (pools(&upstream), &upstream.servers[0]);
    let (pooled, end) = connected(&pools, server, &listener).await;
    pooled.finish();
    drop(end);
    assert!(pools.borrow_idle(place(server)).is_err());
    assert_eq!(server.stray_data_count(), 0);
    let (pooled, end) = connected(&pools, server, &listener).await;
    pooled.finish();
    end.try_write(b"x").unwrap();
    pools.sweep_idle();
    assert_eq!(server.stray_data_count(), 1);
}

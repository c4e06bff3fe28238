//! Servers that fail, come back, are drained, and survive a reload.

use std::time::Duration;

use http::StatusCode;

use super::server_state::DRAINING;
use super::*;
use sluicegate_config as config;
use sluicegate_model::{self as model, UpstreamId};

fn configured(fields: &str, workers: usize) -> Config {
    let text = format!(
        "server: {{ workers: {workers} }}\nupstreams: {{ app: {{ {fields} }} }}\n\
         locations: [{{ path: /, upstream: app }}]\n"
    );
    config::parse(&text, "x").unwrap_or_else(|report| panic!("{report}")).config
}

/// The upstream that these fields describe.
pub(super) fn upstream(fields: &str) -> Upstream {
    let config = configured(fields, 1);
    Upstream::new(&config.upstreams[0], &config, UpstreamId(0), 0, None)
}

/// The successor of `previous` under other fields.
pub(super) fn reloaded(previous: &Upstream, fields: &str) -> Upstream {
    let config = configured(fields, 1);
    let upstream = Upstream::new(&config.upstreams[0], &config, UpstreamId(0), 0, Some(previous));
    upstream.apply_numbers();
    upstream
}

fn fail(upstream: &Upstream, place: usize, times: usize) {
    (0..times).for_each(|_| upstream.record_fault(&upstream.servers[place], ServerFault::Closed));
}

fn ejected(upstream: &Upstream) -> Vec<usize> {
    upstream.servers.iter().filter(|server| server.is_ejected()).map(|server| server.position.0).collect()
}

/// Advances the clock. Every test begins with one second: the process's clock may have started in another test, later
/// than this test's.
pub(super) async fn pass(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn errors_in_a_row_eject_for_a_while() {
    pass(1).await;
    let upstream = upstream("servers: [a:1, b:1]");
    fail(&upstream, 0, 4);
    upstream.record_response(&upstream.servers[0], StatusCode::INTERNAL_SERVER_ERROR, true);
    fail(&upstream, 0, 4);
    assert!(ejected(&upstream).is_empty(), "a response ends the row");
    fail(&upstream, 0, 1);
    assert_eq!(ejected(&upstream), [0]);
    pass(9).await;
    assert_eq!(ejected(&upstream), [0]);
    pass(1).await;
    assert!(ejected(&upstream).is_empty());
    fail(&upstream, 0, 4);
    assert!(ejected(&upstream).is_empty(), "the row begins anew");
    fail(&upstream, 0, 1);
    assert_eq!((ejected(&upstream), upstream.servers[0].ejection_count()), (vec![0], 2));
}

#[tokio::test(start_paused = true)]
async fn only_named_statuses_count() {
    pass(1).await;
    for (eject, counted) in [("{ errors: 3 }", 0), ("{ errors: 3, status: [502, 503-504] }", 1)] {
        let upstream = upstream(&format!("servers: [a:1, b:1], eject: {eject}"));
        for status in [502, 503, 504] {
            assert!(ejected(&upstream).is_empty());
            upstream.record_response(&upstream.servers[1], StatusCode::from_u16(status).unwrap(), true);
        }
        assert_eq!(ejected(&upstream).len(), counted, "{eject}");
    }
}

/// An unfinished request neither adds to a row of errors nor ends it.
#[tokio::test(start_paused = true)]
async fn responses_to_unfinished_requests_do_not_count() {
    pass(1).await;
    let upstream = upstream("servers: [a:1, b:1], eject: { errors: 3, status: 5xx }");
    let ejections_after = |is_complete| {
        upstream.record_response(&upstream.servers[0], StatusCode::SERVICE_UNAVAILABLE, is_complete);
        ejected(&upstream).len()
    };
    let row = [true, true, false, false, false, true].map(ejections_after);
    assert_eq!(row, [0, 0, 0, 0, 0, 1]);
}

#[tokio::test(start_paused = true)]
async fn the_last_usable_server_stays() {
    pass(1).await;
    let alone = upstream("servers: [a:1]");
    fail(&alone, 0, 100);
    assert!(ejected(&alone).is_empty());
    let two = upstream("servers: [a:1, b:1], eject: { max: 100% }");
    fail(&two, 0, 5);
    fail(&two, 1, 100);
    assert_eq!(ejected(&two), [0]);
    let drained = upstream("servers: [a:1, b:1], eject: { max: 100% }");
    drained.servers[1].state.set_flag(DRAINING);
    fail(&drained, 0, 100);
    assert!(ejected(&drained).is_empty());
    let backed = upstream("servers: [a:1, { url: \"http://b:1\", backup: true }]");
    fail(&backed, 0, 5);
    assert_eq!(ejected(&backed), [0], "the backup is there for that");
}

#[tokio::test(start_paused = true)]
async fn no_more_than_the_share_is_ejected_at_once() {
    pass(1).await;
    for (max, most) in [("50%", 2), ("20%", 1), ("10%", 1), ("100%", 4)] {
        let upstream = upstream(&format!("servers: [a:1, b:1, c:1, d:1, e:1], eject: {{ max: {max} }}"));
        (0..5).for_each(|place| fail(&upstream, place, 5));
        assert_eq!(ejected(&upstream).len(), most, "{max}");
        pass(10).await;
        assert!(ejected(&upstream).is_empty());
        fail(&upstream, 4, 5);
        assert_eq!(ejected(&upstream), [4], "{max}: others are back");
    }
}

#[tokio::test(start_paused = true)]
async fn none_is_ejected_where_that_is_off() {
    pass(1).await;
    let upstream = upstream("servers: [a:1, b:1], eject: none");
    fail(&upstream, 0, 100);
    assert!(ejected(&upstream).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_server_comes_back_slowly() {
    pass(1).await;
    let upstream = upstream("servers: [a:1, b:1], slow_start: 10s");
    fail(&upstream, 0, 5);
    pass(10).await;
    assert!(!upstream.servers[0].is_ejected());
    assert_eq!(upstream.servers[0].weight_percent(), 9);
    pass(5).await;
    assert_eq!(upstream.servers[0].weight_percent(), 50);
}

#[tokio::test(start_paused = true)]
async fn draining_stops_short_of_the_last_server() {
    pass(1).await;
    let upstream = upstream("servers: [a:1, b:1, b:1]");
    assert!(matches!(upstream.drain_servers("c:1", true, true), DrainOutcome::NoSuchServer));
    assert!(matches!(upstream.drain_servers("b:1", true, false), DrainOutcome::Done));
    let servers = upstream.status_at(Now::read_clock()).servers;
    assert_eq!(servers.iter().map(|one| one.state).collect::<Vec<_>>(), ["up", "draining", "draining"]);
    assert!(matches!(upstream.drain_servers("a:1", true, false), DrainOutcome::LastServer));
    assert!(matches!(upstream.drain_servers("a:1", true, true), DrainOutcome::Done));
    assert!(matches!(upstream.choose_server(0, &[]), Err(NoServer::Down)));
    assert!(matches!(upstream.drain_servers("b:1", false, false), DrainOutcome::Done));
    assert!(matches!(upstream.choose_server(0, &[]), Ok(server) if &*server.name == "b:1"));
}

#[tokio::test(start_paused = true)]
async fn server_state_survives_a_reload() {
    pass(1).await;
    let old = upstream("servers: [a:1, b:1, c:1], eject: { for: 1m }");
    fail(&old, 0, 5);
    old.servers[2].state.set_flag(DRAINING);
    let in_flight = old.servers[1].begin_request();
    let new = reloaded(&old, "servers: [c:1, d:1, b:1, a:1], slow_start: 10s, max_connections: 1");
    let states: Vec<&str> =
        new.status_at(Now::read_clock()).servers.iter().map(|server| server.state).collect();
    assert_eq!(states, ["draining", "up", "up", "ejected"]);
    let ids = |upstream: &Upstream| upstream.servers.iter().map(|server| server.id).collect::<Vec<_>>();
    let (before, after) = (ids(&old), ids(&new));
    assert_eq!([after[0], after[2], after[3]], [before[2], before[1], before[0]]);
    assert!(!before.contains(&after[1]));
    // Only the new server begins slowly; the new bound counts the requests that were in flight before.
    let shares: Vec<u64> = new.servers.iter().map(|server| server.weight_percent()).collect();
    assert_eq!((shares[1], shares[2], new.servers[2].in_flight()), (9, 100, 1));
    assert!(new.servers[2].begin_request().is_none());
    drop(in_flight);
    assert_eq!(new.servers[2].in_flight(), 0);
    let other = reloaded(&new, "servers: [a:1, b:1], protocol: http2");
    assert!(!ids(&new).contains(&other.servers[0].id), "another protocol is another server");
}

/// No event would ever end the states of a disabled feature; but while a gateway is only being built, nothing changes
/// for the one in force.
#[tokio::test(start_paused = true)]
async fn states_of_disabled_features_end_with_their_tasks() {
    pass(1).await;
    let old = upstream("servers: [a:1, b:1], health: { interval: 1h }, eject: { for: 1m }");
    fail(&old, 0, 5);
    old.servers[1].state.set_flag(DOWN);
    let mut tasks =
        BackgroundTasks::spawn_all(&[Arc::new(reloaded(&old, "servers: [a:1, b:1], health: {}"))]);
    let new = Arc::new(reloaded(&old, "servers: [a:1, b:1], eject: none"));
    assert!(new.servers[0].is_ejected() && !old.servers[1].is_healthy());
    tasks.restart_all(std::slice::from_ref(&new));
    assert!(!new.servers[0].is_ejected() && old.servers[1].is_healthy());
}

/// Other TLS rules need new connections; a draining server goes on draining.
#[test]
fn connections_do_not_outlive_the_rules_they_were_made_by() {
    let config = |tls: &str| {
        let text = format!(
            "upstreams: {{ app: {{ servers: [\"https://a.test:1\"]{tls} }} }}\n\
             locations: [{{ path: /, upstream: app }}]\n"
        );
        config::parse(&text, "../../tests/keys/x.yaml").unwrap_or_else(|report| panic!("{report}")).config
    };
    let ca = ", tls: { ca: tls/ca.pem }";
    let before = config(ca);
    let old = Upstream::new(&before.upstreams[0], &before, UpstreamId(0), 0, None);
    old.servers[0].state.set_flag(DRAINING);
    for (tls, goes_on) in [
        (ca, true),
        (", tls: { ca: tls/ca.pem, server_name: auto }, max_connections: 3", true),
        (", tls: { ca: tls/b.pem }", false),
        (", tls: { verify: false }", false),
        (", tls: { ca: tls/ca.pem, server_name: b.test }", false),
        (", tls: { ca: tls/ca.pem, cert: tls/a.pem, key: tls/a.key.pem }", false),
        (", tls: { ca: tls/ca.pem }, protocol: http1", false),
    ] {
        let after = config(tls);
        let new = Upstream::new(&after.upstreams[0], &after, UpstreamId(0), 0, Some(&old));
        assert_eq!(new.servers[0].id == old.servers[0].id, goes_on, "{tls}");
        assert!(new.servers[0].is_draining(), "{tls}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_budget_survives_a_reload() {
    pass(1).await;
    let old = upstream("servers: [a:1, b:1]");
    (0..100).for_each(|_| old.count_request(0, Now::read_clock()));
    let in_flight: Vec<_> = (0..10).map_while(|_| old.try_retry(model::RetryReason::Connect)).collect();
    let new = reloaded(&old, "servers: [a:1, b:1]");
    let more: Vec<_> = (0..100).map_while(|_| new.try_retry(model::RetryReason::Connect)).collect();
    assert_eq!((in_flight.len(), more.len()), (10, 10));
    assert_eq!((new.retry_count(model::RetryReason::Connect), new.retries_over_budget()), (20, 1));
}

#[tokio::test(flavor = "local")]
async fn connections_to_a_vanished_address_are_closed() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = upstream("servers: [\"a.test:1\"]");
    let server = &upstream.servers[0];
    let name = server.state.dns_name.clone().unwrap();
    name.record_addresses(vec![listener.local_addr().unwrap()]);
    let pools = std::rc::Rc::new(Pools::new(std::rc::Rc::default(), &upstream.servers));
    let (pooled, busy) = (
        pools.borrow_connection(server.begin_request().unwrap()).await.unwrap(),
        pools.borrow_connection(server.begin_request().unwrap()).await.unwrap(),
    );
    let mut ends = [listener.accept().await.unwrap().0, listener.accept().await.unwrap().0];
    pooled.finish();
    pools.sweep_idle();
    assert!(is_open(&mut ends[0]).await, "it is kept while the address is");
    name.record_addresses(vec![std::net::SocketAddr::from(([127, 0, 0, 9], 9))]);
    pools.sweep_idle();
    assert!(!is_open(&mut ends[0]).await);
    assert!(is_open(&mut ends[1]).await, "one in use continues");
    busy.finish();
    assert!(!is_open(&mut ends[1]).await, "and is not kept afterwards");
}

/// Silent addresses of a name leave time for the others, whatever their order.
#[tokio::test(flavor = "local")]
async fn a_silent_address_leaves_time_for_the_next() {
    use socket2::{Domain, Socket, Type};
    let silent = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    silent.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    silent.listen(0).unwrap();
    let silent_address = silent.local_addr().unwrap().as_socket().unwrap();
    let mut filling = Vec::new();
    let limit = Duration::from_millis(100);
    while let Ok(Ok(stream)) =
        tokio::time::timeout(limit, tokio::net::TcpStream::connect(silent_address)).await
    {
        filling.push(stream);
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = upstream("servers: [\"a.test:1\"], timeouts: { connect: 600ms }");
    let server = &upstream.servers[0];
    let name = server.state.dns_name.clone().unwrap();
    let pools = std::rc::Rc::new(Pools::new(std::rc::Rc::default(), &upstream.servers));
    name.record_addresses(vec![silent_address, silent_address, listener.local_addr().unwrap()]);
    for _ in 0..3 {
        assert!(pools.borrow_connection(server.begin_request().unwrap()).await.is_ok());
    }
    name.record_addresses(vec![silent_address, silent_address]);
    assert!(matches!(
        pools.borrow_connection(server.begin_request().unwrap()).await,
        Err(ConnectFault::TimedOut)
    ));
}

/// Whether the connection stays silent for a while instead of ending.
pub(super) async fn is_open(end: &mut tokio::net::TcpStream) -> bool {
    use tokio::io::AsyncReadExt;
    let mut byte = [0];
    tokio::time::timeout(Duration::from_millis(100), end.read(&mut byte)).await.is_err()
}

//! The admin pages over a real socket.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use std::sync::atomic::Ordering::Relaxed;

use super::status::{Reloaded, Status, StatusToken};
use super::*;
use sluicegate_config as config;
use sluicegate_model::{AdminRights, AdminToken, Secret};
use sluicegate_proxy::gateway::heavy_keys::fleet::FleetKeys;
use sluicegate_proxy::gateway::heavy_keys::report::{HeavyBy, HeavyKey, KeyLookupError, RecentRefusal};
use sluicegate_proxy::gateway::{OperatorChange, OperatorFault, OperatorOutcome};
use sluicegate_store::Session;

struct RunningAdmin {
    address: SocketAddr,
    ready: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<io::Result<()>>,
    serving: oneshot::Sender<()>,
}

async fn start(token: Option<&str>) -> RunningAdmin {
    start_with(token, build_gateway()).await
}

async fn start_with(token: Option<&str>, gateway: Gateway) -> RunningAdmin {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let tokens = token.map(|token| AdminToken {
        name: "admin".to_owned(),
        token: Secret(token.to_owned()),
        allow: AdminRights::All,
        names: false,
    });
    let (tokens, hosts) = (tokens.into_iter().collect(), vec!["admin.test".to_owned()]);
    let admin = AdminListener::bind(&model::AdminConfig { listen, tokens, hosts }, None).unwrap();
    let address = admin.local_addr();
    let ready = Arc::new(AtomicBool::new(true));
    let current = Arc::new(ArcSwap::from_pointee(gateway));
    let sampler = TrafficSampler::new(&current.load(), sluicegate_base::clock::Now::read_clock());
    let state = AdminState::new(ready.clone(), current, Rc::new(sampler), StoppedGateway);
    let (serving, leave) = oneshot::channel();
    RunningAdmin { address, ready, task: tokio::task::spawn_local(admin.serve_admin(state, leave)), serving }
}

fn build_gateway() -> Gateway {
    build_from("limits: { a: { rate: 5/s } }\nlocations: [{ path: /, upstream: demo, limits: a }]\n")
}

fn build_from(text: &str) -> Gateway {
    let config = config::parse(text, "x").unwrap_or_else(|report| panic!("{report}")).config;
    crate::operate::explain::build_offline(config).unwrap()
}

/// The actions of a gateway that has ended, but for explanations.
struct StoppedGateway;

impl GatewayActions for StoppedGateway {
    fn show_status(&self, _: StatusToken) -> ActionFuture<Result<Status, AdminError>> {
        Box::pin(async { Err(AdminError::shutting_down()) })
    }

    fn reload(&self) -> ActionFuture<Result<Reloaded, AdminError>> {
        Box::pin(async { Err(AdminError::shutting_down()) })
    }

    /// A gateway of its own explains.
    fn open_session(&self) -> Option<(Arc<Gateway>, Option<Rc<Session>>)> {
        Some((Arc::new(build_gateway()), None))
    }

    fn list_heavy_keys(
        &self,
        _: String,
        _: HeavyBy,
        _: usize,
    ) -> ActionFuture<Result<FleetKeys, KeyLookupError>> {
        Box::pin(async { Err(KeyLookupError::ShuttingDown) })
    }

    fn find_key(&self, _: String, _: String) -> ActionFuture<Result<HeavyKey, KeyLookupError>> {
        Box::pin(async { Err(KeyLookupError::ShuttingDown) })
    }

    fn list_refusals(&self) -> ActionFuture<Vec<RecentRefusal>> {
        Box::pin(async { Vec::new() })
    }

    fn make_change(&self, _: OperatorChange) -> ActionFuture<Result<OperatorOutcome, OperatorFault>> {
        Box::pin(async { Err(OperatorFault::ShuttingDown) })
    }
}

/// The status and the rest of the answer.
async fn send_request(running: &RunningAdmin, line: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let request = format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    (answer[9..12].parse().unwrap(), answer)
}

#[tokio::test(flavor = "local")]
async fn shows_health_readiness_and_metrics() {
    let running = start(None).await;
    let (status, answer) = send_request(&running, "GET /healthz", "").await;
    assert!(status == 200 && answer.ends_with("\r\n\r\nok"), "{answer}");
    assert_eq!(send_request(&running, "GET /readyz", "").await.0, 200);
    let (status, answer) = send_request(&running, "GET /metrics?x=1", "").await;
    assert_eq!(status, 200);
    assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0"), "{answer}");
    assert!(answer.ends_with("# EOF\n"));
    running.ready.store(false, Relaxed);
    assert_eq!(send_request(&running, "GET /readyz", "").await.0, 503);
    assert_eq!(send_request(&running, "GET /healthz", "").await.0, 200);
}

#[tokio::test(flavor = "local")]
async fn unknown_pages_and_methods_are_refused() {
    let running = start(None).await;
    assert_eq!(send_request(&running, "GET /no", "").await.0, 404);
    assert_eq!(send_request(&running, "GET /healthz/", "").await.0, 404);
    let (status, answer) = send_request(&running, "POST /healthz", "Content-Length: 0\r\n").await;
    assert!(status == 405 && answer.contains("allow: GET, HEAD"), "{answer}");
    let (status, answer) = send_request(&running, "HEAD /metrics", "").await;
    assert!(status == 200 && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test(flavor = "local")]
async fn every_page_except_health_requires_the_token() {
    let running = start(Some("s3cret")).await;
    for headers in [
        "",
        "Authorization: Bearer s3creT\r\n",
        "Authorization: Bearer s3cret2\r\n",
        "Authorization: Bearer\r\n",
        "Authorization: Basic s3cret\r\n",
        "Authorization: \r\n",
    ] {
        for line in
            ["GET /metrics", "GET /status", "GET /upstreams", "GET /x", "POST /reload", "POST /explain"]
        {
            let (status, answer) = send_request(&running, line, headers).await;
            assert_eq!(status, 401, "{line} {headers}");
            assert!(answer.contains("www-authenticate: Bearer") && !answer.contains("s3cret"));
        }
        for line in ["GET /healthz", "GET /readyz"] {
            assert_eq!(send_request(&running, line, headers).await.0, 200, "{line} {headers}");
        }
    }
    assert_eq!(send_request(&running, "GET /metrics", "authorization: bearer s3cret\r\n").await.0, 200);
}

/// A page of another site whose name points at this address can read nothing.
#[tokio::test(flavor = "local")]
async fn other_hosts_and_origins_are_refused() {
    let running = start(None).await;
    let status_of = async |line: &str, host: &str, more: &str| {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        let request = format!("{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer[9..12].parse::<u16>().unwrap()
    };
    for line in ["GET /metrics", "GET /status", "GET /upstreams", "POST /reload", "POST /explain", "GET /x"] {
        assert_eq!(status_of(line, "evil.test:9901", "").await, 403, "{line}");
        assert_eq!(status_of(line, "localhost", "Origin: http://evil.test\r\n").await, 403, "{line}");
    }
    for line in ["GET /healthz", "GET /readyz"] {
        assert_eq!(status_of(line, "evil.test", "").await, 200, "{line}");
    }
    for host in ["localhost:1", "127.0.0.1", "[::1]:9901", "admin.test:80"] {
        assert_eq!(status_of("GET /metrics", host, "").await, 200, "{host}");
        assert_eq!(
            status_of("GET /metrics", host, &format!("Origin: http://{host}\r\n")).await,
            200,
            "{host}"
        );
    }
    let guarded = start(Some("s3cret")).await;
    let (status, _) =
        send_request(&guarded, "GET /metrics", "Host: evil.test\r\nAuthorization: Bearer s3cret\r\n").await;
    assert_eq!(status, 200, "the token is proof enough");
}

/// Changes require the content type JSON, which no form of another site can send.
#[tokio::test(flavor = "local")]
async fn changes_require_json() {
    let running = start(None).await;
    for (kind, expected) in [
        ("", 415),
        ("Content-Type: text/plain\r\n", 415),
        ("Content-Type: application/jsonp\r\n", 415),
        ("Content-Type: application/x-www-form-urlencoded\r\n", 415),
        ("Content-Type: application/json\r\n", 503),
        ("Content-Type: Application/JSON; charset=utf-8\r\n", 503),
    ] {
        assert_eq!(send_request(&running, "POST /reload", kind).await.0, expected, "{kind}");
        let expected = if expected == 503 { 404 } else { expected };
        assert_eq!(
            send_request(&running, "POST /upstreams/a/servers/b/drain", kind).await.0,
            expected,
            "{kind}"
        );
    }
}

async fn connect(running: &RunningAdmin, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// The answer so far, and whether the connection is open behind it.
async fn read_response(stream: &mut TcpStream) -> (String, bool) {
    let mut answer = vec![0; 4096];
    let length = stream.read(&mut answer).await.unwrap_or(0);
    let next = tokio::time::timeout(Duration::from_millis(200), stream.read(&mut [0; 1])).await;
    (String::from_utf8_lossy(&answer[..length]).into_owned(), next.is_err())
}

#[tokio::test(flavor = "local")]
async fn rejected_callers_lose_the_connection() {
    let running = start(Some("s3cret")).await;
    let request = |line: &str, more: &str| format!("{line} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n");
    let token = "Authorization: Bearer s3cret\r\n";
    for (line, more, status, stays) in [
        ("GET /metrics", "", "401", false),
        ("GET /x", token, "404", false),
        ("GET /metrics", "Authorization: Bearer s3cret\r\nOrigin: null\r\n", "403", false),
        ("GET /upstreams", token, "200", true),
        ("GET /healthz", "", "200", true),
    ] {
        let mut stream = connect(&running, &request(line, more)).await;
        let (answer, is_open) = read_response(&mut stream).await;
        assert!(answer[9..].starts_with(status), "{line}: {answer}");
        assert_eq!(is_open, stays, "{line}: {answer}");
    }
}

/// Strangers with all connections open lock nobody out: the longest unused one is closed.
#[tokio::test(flavor = "local")]
async fn the_longest_unused_connection_makes_room() {
    let running = start(Some("s3cret")).await;
    let healthz = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut open = Vec::new();
    for turn in 0..CONNECTIONS_MAX {
        // Some send a request, some half of one, some nothing.
        let bytes = [healthz, "GET /hea", ""][turn % 3];
        let mut stream = connect(&running, bytes).await;
        if turn % 3 == 0 {
            assert!(read_response(&mut stream).await.1, "connection {turn}");
        }
        open.push(stream);
    }
    // The first one sends another request; so the second is unused longest.
    open[0].write_all(healthz.as_bytes()).await.unwrap();
    assert!(read_response(&mut open[0]).await.0.contains("200 OK"));
    let (status, _) = send_request(&running, "GET /metrics", "Authorization: Bearer s3cret\r\n").await;
    assert_eq!(status, 200);
    assert_eq!(open[1].read(&mut [0; 1]).await.unwrap_or(0), 0, "the second is closed");
    for kept in [0, 2, CONNECTIONS_MAX - 1] {
        let more = tokio::time::timeout(Duration::from_millis(50), open[kept].read(&mut [0; 1])).await;
        assert!(more.is_err(), "connection {kept} is open");
    }
}

async fn post(running: &RunningAdmin, headers: &str, body: &str) -> (u16, String) {
    let headers = format!("{headers}Content-Length: {}\r\n", body.len());
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let head = format!("POST /explain HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    // A body that is rejected early meets a closed connection.
    let _ = stream.write_all(body.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    (answer[9..12].parse().unwrap(), answer)
}

#[tokio::test(flavor = "local")]
async fn explains_a_posted_request_as_text_or_as_json() {
    let running = start(None).await;
    let query = r#"{"method": "GET", "url": "/x", "headers": ["A: b"]}"#;
    let (status, answer) = post(&running, "", query).await;
    assert!(status == 200 && answer.contains("content-type: text/plain"), "{answer}");
    assert!(answer.contains("\r\n\r\nclient    127.0.0.1: the peer\n"), "{answer}");
    let (status, answer) = post(&running, "Accept: application/json\r\n", query).await;
    assert!(status == 200 && answer.contains("content-type: application/json"), "{answer}");
    assert!(answer.contains("\"outcome\": \"admit\""), "{answer}");
    for (body, status, error) in [
        ("", 400, "post e.g."),
        ("[]", 400, "post e.g."),
        (r#"{"method": "GET", "url": "/", "what": 1}"#, 400, "unknown field `what`"),
        (r#"{"method": "get", "url": "/"}"#, 400, "capitals"),
        (&" ".repeat(64 * 1024 + 1), 413, "64 KiB"),
    ] {
        let (found, answer) = post(&running, "", body).await;
        assert!(found == status && answer.contains(error), "{answer}");
    }
    let (status, answer) = send_request(&running, "GET /explain", "").await;
    assert!(status == 405 && answer.contains("allow: POST"), "{answer}");
    let guarded = start(Some("s3cret")).await;
    assert_eq!(post(&guarded, "", query).await.0, 401);
    assert_eq!(post(&guarded, "Authorization: Bearer s3cret\r\n", query).await.0, 200);
}

#[tokio::test(flavor = "local")]
async fn a_taken_address_is_an_error() {
    let running = start(None).await;
    let config = model::AdminConfig { listen: running.address, tokens: Vec::new(), hosts: Vec::new() };
    let error = AdminListener::bind(&config, None).unwrap_err();
    assert!(error.contains(&running.address.to_string()), "{error}");
}

#[tokio::test(flavor = "local")]
async fn ending_the_listener_ends_its_connections() {
    let running = start(None).await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
    running.task.abort();
    assert_eq!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
}

#[tokio::test(flavor = "local")]
async fn a_request_in_flight_when_the_listener_is_left_is_answered() {
    let running = start(None).await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnec").await.unwrap();
    // A whole request is answered, so the connection before it was accepted as well.
    assert_eq!(send_request(&running, "GET /healthz", "").await.0, 200);
    let RunningAdmin { address, task, serving, .. } = running;
    drop(serving);
    tokio::task::yield_now().await;
    assert!(TcpStream::connect(address).await.is_err(), "it still listens");
    stream.write_all(b"tion: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    task.await.unwrap().unwrap();
}

/// `GET /limits` reads counts that are kept anyway: its time does not depend on the number of keys.
#[tokio::test(flavor = "local")]
async fn a_million_keys_do_not_delay_the_list_of_limits() {
    let gateway = build_from(
        "state: { max_keys: 2000000 }\nlimits: { a: { rate: 5/h } }\n\
         locations: [{ path: /, upstream: demo, limits: a }]\n",
    );
    let now = sluicegate_base::clock::Now::read_clock();
    for id in 0..1_000_000_u128 {
        // Any odd number spreads the keys over the table.
        let id = id.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let key = sluicegate_limit::table::CounterKey::new(id, 0);
        let units = sluicegate_limit::Units::new(key, 1);
        let _ = gateway.limits[0].charge_units(0, &units, now);
    }
    let running = start_with(None, gateway).await;
    let mut shortest = Duration::MAX;
    // A busy machine delays one answer or another; a walk over the keys would delay each.
    for _ in 0..20 {
        let started = tokio::time::Instant::now();
        let (status, answer) = send_request(&running, "GET /limits", "Accept: application/json\r\n").await;
        shortest = shortest.min(started.elapsed());
        let keys = answer.split("\"keys\": ").nth(1);
        let keys = keys.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok());
        assert!(status == 200 && keys.is_some_and(|keys| keys > 950_000), "{answer}");
    }
    assert!(shortest < Duration::from_millis(50), "{shortest:?}");
}

/// The most series there can be, all of a day, within the time that the control thread can spare.
#[tokio::test(flavor = "local")]
async fn a_full_history_is_sent_in_parts() {
    let mut text = "locations:\n".to_owned();
    let limits: String = (0..101).map(|at| format!("  l{at}: {{ rate: 5/s }}\n")).collect();
    (0..101)
        .for_each(|at| text += &format!("  - {{ path: /{at}, respond: {{ body: x }}, limits: l{at} }}\n"));
    let running = start_with(None, build_from(&format!("limits:\n{limits}{text}"))).await;
    let (status, answer) = send_request(&running, "GET /history?span=1d", "").await;
    assert!(status == 200 && answer.contains("transfer-encoding: chunked"), "{status}");
    // Each of 404 rows of limits and 505 of locations has 1,440 values.
    assert_eq!(answer.matches("null").count(), (101 * 4 + 101 * 5) * 1_440 + 2);
    let (status, answer) = send_request(&running, "HEAD /history", "").await;
    assert!(status == 200 && answer.ends_with("\r\n\r\n"), "{answer}");
}

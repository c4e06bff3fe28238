//! Events on the virtual clock by a way to send that only notes its tries, and over sockets of this host.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::*;
use sluicegate_config as config;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

pub(super) fn event(limit: &str) -> StepEvent {
    let data = json!({ "limit": limit, "key": "account=acme", "step": { "at": 80, "then": "warn" },
        "text": format!("acme reached 80 % of {limit}") });
    let Value::Object(data) = data else { panic!("{data}") };
    StepEvent { unix_ms: 1_768_903_200_999, data, masked_key: "account=#00000000000000aa".to_owned() }
}

pub(super) fn receiver_config(url: &str, secret: &str) -> NotifyConfig {
    let text = format!("notify: {{ url: \"{url}\", secret: \"{secret}\" }}\nlocations: []\n");
    let loaded = config::parse(&text, "x.yaml").unwrap_or_else(|report| panic!("{report}"));
    loaded.config.notify.unwrap()
}

/// The tries so far: URL, limit, id and second of each.
type Tries = RefCell<Vec<(String, String, String, u64)>>;

/// How a receiver answers a try of the event of a limit; `None` = never.
type Answer = fn(limit: &str, try_number: usize) -> Option<Result<(), String>>;

thread_local! {
    static TRIES: Tries = const { RefCell::new(Vec::new()) };
    static TRY_COUNTS: RefCell<BTreeMap<String, usize>> = const { RefCell::new(BTreeMap::new()) };
}

fn start_noting(config: &NotifyConfig, answer: Answer) -> (Arc<StepEvents>, NotifyTask) {
    TRIES.take();
    TRY_COUNTS.take();
    let (events, start) = (Arc::new(StepEvents::default()), Instant::now());
    let post = async move |config: &NotifyConfig, id: &str, event: &StepEvent| {
        let limit = event.data["limit"].as_str().unwrap().to_owned();
        let try_number = TRY_COUNTS.with_borrow_mut(|counts| {
            let count = counts.entry(limit.clone()).or_default();
            *count += 1;
            *count
        });
        let second = start.elapsed().as_secs();
        let note = (config.url.target.clone(), limit.clone(), id.to_owned(), second);
        TRIES.with_borrow_mut(|tries| tries.push(note));
        match answer(&limit, try_number) {
            Some(result) => result,
            None => pending().await,
        }
    };
    let task = NotifyTask::start_with(events.clone(), Some(config.clone()), || {}, post);
    (events, task)
}

fn seconds_of(limit: &str) -> Vec<u64> {
    let tries = TRIES.with_borrow(Clone::clone);
    tries.into_iter().filter(|(_, other, ..)| other == limit).map(|(.., second)| second).collect()
}

fn ids_of_tries() -> Vec<String> {
    TRIES.with_borrow(|tries| tries.iter().map(|(_, _, id, _)| id.clone()).collect())
}

fn counts(events: &StepEvents) -> [u64; 3] {
    events.results.each_ref().map(|count| count.load(Relaxed))
}

fn failed() -> Option<Result<(), String>> {
    Some(Err("it answered 500".to_owned()))
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn an_event_is_tried_again_for_an_hour() {
    let config = receiver_config("http://127.0.0.1:1/a", SECRET);
    let (events, _task) = start_noting(&config, |_, _| failed());
    events.record(event("plan"));
    sleep(Duration::from_secs(3599)).await;
    assert_eq!(counts(&events), [0, 1, 0]);
    let mut expected: Vec<u64> = (0..=9).map(|power| (1 << power) - 1).collect();
    expected.extend((1..=10).map(|more| 511 + 300 * more));
    assert_eq!(seconds_of("plan"), expected);
    sleep(Duration::from_secs(3600)).await;
    let ids = ids_of_tries();
    assert!(ids.len() == 20 && ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_try_without_an_answer_ends_after_five_seconds() {
    let config = receiver_config("http://127.0.0.1:1/a", SECRET);
    let (events, _task) = start_noting(&config, |_, number| if number < 3 { None } else { Some(Ok(())) });
    events.record(event("plan"));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(seconds_of("plan"), [0, 6, 13]);
    assert_eq!(counts(&events), [1, 0, 0]);
}

/// Twenty events that never get an answer leave room for others, as soon as their tries end.
#[tokio::test(flavor = "local", start_paused = true)]
async fn events_without_an_answer_do_not_hold_up_later_ones() {
    let config = receiver_config("http://127.0.0.1:1/a", SECRET);
    let (events, _task) = start_noting(&config, |limit, _| (limit == "good").then_some(Ok(())));
    (0..7).for_each(|_| events.record(event("bad")));
    events.record(event("good"));
    sleep(Duration::from_millis(260)).await;
    assert_eq!(seconds_of("good"), [0], "one of eight is free");
    (0..13).for_each(|_| events.record(event("bad")));
    sleep(Duration::from_secs(600)).await;
    events.record(event("good"));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(counts(&events), [2, 0, 0], "{:?}", seconds_of("good"));
    let most = (0..660).map(|second| seconds_of("bad").iter().filter(|at| **at / 5 == second).count()).max();
    assert!(most <= Some(2 * UNDER_WAY_MAX), "{most:?}");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn ten_thousand_wait_and_the_oldest_is_dropped() {
    let config = receiver_config("http://127.0.0.1:1/a", SECRET);
    let (events, _task) =
        start_noting(&config, |_, number| if number == 1 { failed() } else { Some(Ok(())) });
    (0..=WAITING_MAX).for_each(|number| events.record(event(&number.to_string())));
    sleep(Duration::from_secs(30)).await;
    assert_eq!(counts(&events), [WAITING_MAX as u64, 0, 1]);
    assert_eq!((seconds_of("0"), seconds_of("1")), (vec![], vec![0, 1]));
}

/// The oldest one is the oldest although it is due last, and one that is under way is not interrupted.
#[tokio::test(flavor = "local", start_paused = true)]
async fn the_oldest_that_waits_for_another_try_is_dropped() {
    let config = receiver_config("http://127.0.0.1:1/a", SECRET);
    let answer: Answer = |limit, number| match (limit, number) {
        ("0", 1) | ("1", 1) | ("late", _) => None,
        _ if number < 4 => failed(),
        _ => Some(Ok(())),
    };
    let (events, _task) = start_noting(&config, answer);
    (0..WAITING_MAX).for_each(|number| events.record(event(&number.to_string())));
    sleep(Duration::from_millis(3500)).await;
    events.record(event("late"));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(counts(&events), [0; 3], "the first is still under way");
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(counts(&events), [0, 0, 1]);
    events.record(event("new"));
    sleep(Duration::from_millis(300)).await;
    assert_eq!(counts(&events), [0, 0, 2]);
    sleep(Duration::from_secs(60)).await;
    assert_eq!((seconds_of("0"), seconds_of("1")), (vec![0], vec![0]));
    assert_eq!(counts(&events), [WAITING_MAX as u64 - 1, 0, 2]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_stream_of_new_events_does_not_interrupt_those_under_way() {
    let config = receiver_config("http://127.0.0.1:1/a", SECRET);
    let (events, _task) = start_noting(&config, |_, _| None);
    for _ in 0..8 {
        (0..WAITING_MAX).for_each(|_| events.record(event("plan")));
        sleep(Duration::from_millis(500)).await;
    }
    let tried = seconds_of("plan").len();
    assert_eq!(tried, UNDER_WAY_MAX, "each has its five seconds");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn each_event_has_an_id_of_its_own() {
    let config = receiver_config("http://127.0.0.1:1/a", SECRET);
    let (events, _task) = start_noting(&config, |_, _| Some(Ok(())));
    (0..2).for_each(|_| events.record(event("plan")));
    sleep(Duration::from_secs(1)).await;
    let ids = ids_of_tries();
    assert!(ids.len() == 2 && ids[0] != ids[1], "{ids:?}");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_reload_changes_the_receiver_and_keeps_what_waits() {
    let config = receiver_config("http://127.0.0.1:1/a", SECRET);
    let (events, task) = start_noting(&config, |_, number| if number < 4 { failed() } else { Some(Ok(())) });
    events.record(event("plan"));
    sleep(Duration::from_millis(1500)).await;
    task.use_config(Some(&receiver_config("http://127.0.0.1:1/b", SECRET)));
    sleep(Duration::from_secs(60)).await;
    let targets: Vec<String> = TRIES.with_borrow(|tries| tries.iter().map(|(url, ..)| url.clone()).collect());
    assert_eq!(targets, ["/a", "/a", "/b", "/b"]);
    assert_eq!(counts(&events), [1, 0, 0]);
    events.record(event("other"));
    sleep(Duration::from_millis(500)).await;
    task.use_config(None);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(counts(&events), [1, 0, 1], "nobody is there to take it");
    events.record(event("unsent"));
    sleep(Duration::from_secs(60)).await;
    assert_eq!((counts(&events), seconds_of("unsent")), ([1, 0, 1], vec![]));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn the_end_tries_whatever_waits_once_more() {
    let config = receiver_config("http://127.0.0.1:1/a", SECRET);
    let answer: Answer = |_, number| if number == 1 { failed() } else { Some(Ok(())) };
    let (events, task) = start_noting(&config, answer);
    (0..20).for_each(|number| events.record(event(&number.to_string())));
    sleep(Duration::from_millis(300)).await;
    assert_eq!((TRIES.with_borrow(Vec::len), counts(&events)), (20, [0; 3]), "all wait");
    let start = Instant::now();
    task.flush_and_end().await;
    assert_eq!((counts(&events), start.elapsed()), ([20, 0, 0], Duration::ZERO));

    let (events, task) = start_noting(&config, |_, _| None);
    events.record(event("plan"));
    let start = Instant::now();
    task.flush_and_end().await;
    assert_eq!(seconds_of("plan"), [0]);
    assert!((Duration::from_secs(2)..Duration::from_millis(2100)).contains(&start.elapsed()));
}

/// A receiver on this host that answers one connection after the other by `heads`, and returns the requests.
async fn receive(listener: TcpListener, heads: &[&str]) -> Vec<String> {
    let mut requests = Vec::new();
    for head in heads {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = String::new();
        while !request.ends_with("}}") {
            let mut piece = [0; 4096];
            let length = stream.read(&mut piece).await.unwrap();
            assert!(length > 0, "{request}");
            request.push_str(str::from_utf8(&piece[..length]).unwrap());
        }
        requests.push(request);
        stream.write_all(format!("HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n").as_bytes()).await.unwrap();
    }
    requests
}

fn header<'a>(request: &'a str, name: &str) -> &'a str {
    let start = format!("{name}: ");
    let mut lines = request.lines().filter_map(|line| line.strip_prefix(&*start));
    lines.next().unwrap_or_else(|| panic!("no {name} in {request}"))
}

#[tokio::test(flavor = "local")]
async fn a_redirect_and_a_fault_are_tried_again_with_the_same_id_and_body() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let elsewhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook?key=1", listener.local_addr().unwrap());
    let events = Arc::new(StepEvents::default());
    let task = {
        let config = Some(receiver_config(&url, SECRET));
        NotifyTask::start_with(events.clone(), config, || {}, post_event)
    };
    events.record(event("plan"));
    let redirect = format!("307 Elsewhere\r\nLocation: http://{}/", elsewhere.local_addr().unwrap());
    let answers = [redirect.as_str(), "500 Broken", "204 Taken"];
    let received = timeout(Duration::from_secs(30), receive(listener, &answers)).await;
    let requests = received.expect("three tries");
    let followed = timeout(Duration::from_millis(100), elsewhere.accept()).await;
    assert!(followed.is_err(), "the redirect was followed");
    task.flush_and_end().await;
    assert_eq!(counts(&events), [1, 0, 0]);
    let body = |request: &str| request.split_once("\r\n\r\n").unwrap().1.to_owned();
    let first = &requests[0];
    assert!(first.starts_with("POST /hook?key=1 HTTP/1.1\r\n"), "{first}");
    assert_eq!(header(first, "content-type"), "application/json");
    assert!(header(first, "webhook-id").starts_with("msg_") && header(first, "webhook-id").len() == 36);
    for request in &requests {
        assert_eq!(header(request, "webhook-id"), header(first, "webhook-id"));
        assert_eq!(body(request), body(first));
        let at: u64 = header(request, "webhook-timestamp").parse().unwrap();
        assert!(at.abs_diff(sluicegate_base::wall_clock::unix_seconds()) < 60, "{at}");
        assert!(header(request, "webhook-signature").starts_with("v1,"));
    }
    for field in ["webhook-timestamp", "webhook-signature"] {
        assert_ne!(header(&requests[2], field), header(first, field), "it is that of the try");
    }
}

//! `/events`: the traffic once a second, to at most eight readers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::json_schema::find_misfits;
use crate::support::*;

const FILE: &str = "limits: { tight: { rate: 1/h } }\nupstreams: { app: { servers: [127.0.0.1:1, 127.0.0.1:2], queue: {} } }\n\
                    locations:\n  - { path: /, respond: { body: ok }, limits: tight }\n  \
                    - { path: /app, upstream: app }\n";

/// A reader of events.
pub(super) struct EventReader {
    stream: TcpStream,
    text: String,
}

impl EventReader {
    pub(super) fn open(gateway: &Gateway) -> EventReader {
        EventReader::open_with(gateway, "")
    }

    pub(super) fn open_with(gateway: &Gateway, more: &str) -> EventReader {
        let mut stream = TcpStream::connect(gateway.admin()).expect("the admin port accepts");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
        let head =
            format!("GET /events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{more}\r\n");
        stream.write_all(head.as_bytes()).expect("the gateway reads");
        EventReader { stream, text: String::new() }
    }

    /// Reads until the text contains `mark`, and returns the text before it.
    #[track_caller]
    fn read_to(&mut self, mark: &str) -> String {
        loop {
            if let Some(at) = self.text.find(mark) {
                let before = self.text[..at].to_owned();
                self.text.drain(..at + mark.len());
                return before;
            }
            let mut piece = [0; 4096];
            let length = self.stream.read(&mut piece).expect("an event within the timeout");
            assert!(length > 0, "the stream ended: {}", self.text);
            self.text.push_str(std::str::from_utf8(&piece[..length]).expect("text"));
        }
    }

    /// The data of the next event.
    #[track_caller]
    pub(super) fn next_event(&mut self) -> Value {
        self.read_to("data: ");
        let data = self.read_to("\n\n");
        serde_json::from_str(&data).unwrap_or_else(|error| panic!("{error}: {data}"))
    }
}

#[test]
fn an_event_comes_each_second() {
    let gateway = Gateway::start(FILE);
    let mut document = gateway.admin_get("/openapi.json").expect(200).json();
    for schema in document["components"]["schemas"].as_object_mut().expect("schemas").values_mut() {
        schema["additionalProperties"] = json!(false);
    }
    for _ in 0..6 {
        gateway.get("/");
    }
    gateway.get("/app").expect(502);
    let mut reader = EventReader::open(&gateway);
    let head = reader.read_to("\r\n\r\n");
    assert!(head.contains("200 OK") && head.contains("content-type: text/event-stream"), "{head}");
    let start = Instant::now();
    let events: Vec<Value> = (0..4).map(|_| reader.next_event()).collect();
    // The first one comes at once, each further one a second later.
    assert!((ms(1800)..ms(6000)).contains(&start.elapsed()), "{:?}", start.elapsed());
    for event in &events {
        let misfits = find_misfits(&document, &json!({ "$ref": "#/components/schemas/TrafficEvent" }), event);
        assert!(misfits.is_empty(), "{misfits:?} in {event:#}");
    }
    let first = &events[0];
    let refusals = first["refusals"].as_array().expect("refusals");
    assert_eq!(refusals.len(), 5, "{first:#}");
    assert!(refusals[0]["at_ms"].as_u64() >= refusals[4]["at_ms"].as_u64(), "{first:#}");
    for (field, value) in [
        ("limit", json!("tight")),
        ("key", json!("ip=127.0.0.1")),
        ("ip", json!("127.0.0.1")),
        ("location", json!("/")),
        ("status", json!(429)),
        ("cause", json!("rate")),
    ] {
        assert_eq!(refusals[0][field], value, "{field} in {first:#}");
    }
    assert!(first["requests"]["reject"].as_f64() > Some(0.0), "{first:#}");
    assert!(first["requests"]["fault"].as_f64() > Some(0.0), "{first:#}");
    assert_eq!((&first["limits"][0]["limit"], &first["limits"][0]["keys"]), (&"tight".into(), &1.into()));
    assert!(first["limits"][0]["rejected_per_s"].as_f64() > Some(0.0), "{first:#}");
    let upstream = &first["upstreams"][0];
    assert_eq!((&upstream["upstream"], &upstream["draining"]), (&"app".into(), &0.into()), "{first:#}");
    let quiet = &events[3];
    assert_eq!(quiet["limits"][0]["rejected_per_s"], 0.0, "{quiet:#}");
}

/// Another site could take the streams by images, and a browser sends no `Origin` for these.
#[test]
fn pages_of_other_sites_get_no_events() {
    let gateway = Gateway::start(FILE);
    for (site, status) in
        [("cross-site", "403"), ("same-site", "403"), ("same-origin", "200"), ("none", "200")]
    {
        let mut reader = EventReader::open_with(&gateway, &format!("Sec-Fetch-Site: {site}\r\n"));
        let head = reader.read_to("\r\n\r\n");
        assert!(head.contains(status) && head.contains("x-content-type-options: nosniff"), "{site}: {head}");
    }
    for (path, status) in [("/status", 200), ("/nowhere", 404), ("/metrics", 200), ("/", 200)] {
        let answer = gateway.admin_get(path).expect(status);
        assert_eq!(answer.header("x-content-type-options").as_deref(), Some("nosniff"), "{path}");
    }
}

/// A ninth reader is refused until another one leaves; the other calls go on.
#[test]
fn streams_are_bounded() {
    let gateway = Gateway::start(FILE);
    let mut readers: Vec<EventReader> = (0..8).map(|_| EventReader::open(&gateway)).collect();
    readers.iter_mut().for_each(|reader| drop(reader.next_event()));
    let refused = gateway.admin_get("/events").expect(503);
    assert!(refused.text().contains("8 streams"), "{}", refused.text());
    gateway.admin_get("/status").expect(200);
    readers.pop();
    eventually("room for another reader", || {
        let mut reader = EventReader::open(&gateway);
        let found = reader.read_to("\r\n").contains("200");
        if found {
            readers.push(reader);
        }
        found
    });
    // A HEAD opens no stream.
    let mut client = Client::connect(gateway.admin());
    client.send(Ask::new("HEAD", "/status").host("localhost").bytes());
    client.head_response().expect(200);
}

/// A gateway with a reader ends as fast as one without.
#[test]
fn a_reader_does_not_delay_the_end() {
    let mut gateway = Gateway::start(FILE);
    let mut reader = EventReader::open(&gateway);
    reader.next_event();
    gateway.term();
    assert_eq!(gateway.wait_exit_within(ms(3000)), 0);
}

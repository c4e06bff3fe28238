//! A gRPC client of Envoy's rate limit service, with messages of its own: bytes on the wire, and no code of the gateway.

use ::http::Request;
use bytes::Bytes;
use prost::Message;

use crate::support::client2::Response2;
use crate::*;

pub const OK: i32 = 1;
pub const OVER_LIMIT: i32 = 2;
pub const SECOND: i32 = 1;
pub const MINUTE: i32 = 2;
pub const HOUR: i32 = 3;

pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

#[derive(Clone, PartialEq, Message)]
pub struct Call {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    pub hits: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Pair>,
    #[prost(message, optional, tag = "2")]
    pub limit: Option<Override>,
    #[prost(message, optional, tag = "3")]
    pub hits: Option<Number>,
    #[prost(bool, tag = "4")]
    pub negative: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Pair {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Override {
    #[prost(uint32, tag = "1")]
    pub requests: u32,
    #[prost(int32, tag = "2")]
    pub unit: i32,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Number {
    #[prost(uint64, tag = "1")]
    pub value: u64,
}

#[derive(Clone, PartialEq, Message)]
struct AnswerMessage {
    #[prost(int32, tag = "1")]
    overall: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<StatusMessage>,
    #[prost(message, repeated, tag = "3")]
    headers: Vec<Pair>,
}

#[derive(Clone, PartialEq, Message)]
struct StatusMessage {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(message, optional, tag = "2")]
    limit: Option<LimitMessage>,
    #[prost(uint32, tag = "3")]
    remaining: u32,
    #[prost(message, optional, tag = "4")]
    reset: Option<SpanMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct LimitMessage {
    #[prost(uint32, tag = "1")]
    requests: u32,
    #[prost(int32, tag = "2")]
    unit: i32,
    #[prost(string, tag = "3")]
    name: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct SpanMessage {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// An answer, as far as it came.
#[derive(Debug)]
pub struct Answer {
    pub overall: i32,
    pub statuses: Vec<Status>,
    pub headers: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    pub code: i32,
    /// Name, requests per unit, unit.
    pub limit: Option<(String, u32, i32)>,
    pub remaining: u32,
    pub reset_ms: Option<i64>,
}

/// The end of a call.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub message: String,
    pub body: Vec<u8>,
    pub response: Response2,
}

/// An Envoy with one connection.
pub struct Envoy(Client2);

impl Envoy {
    pub fn connect(gateway: &Gateway) -> Envoy {
        Envoy::connect_to(service(gateway))
    }

    pub fn connect_to(address: SocketAddr) -> Envoy {
        Envoy(Client2::connect(address))
    }

    pub fn ask(&mut self, domain: &str, descriptors: &[&[(&str, &str)]]) -> Ended {
        self.call(&call_of(domain, descriptors))
    }

    pub fn call(&mut self, call: &Call) -> Ended {
        self.send(SHOULD_RATE_LIMIT, &[], &frame(call))
    }

    /// Sends a body as it is.
    pub fn send(&mut self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Ended {
        let mut request = Request::post(format!("http://rls{path}")).header("te", "trailers");
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/grpc");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.0.ask(request.body(()).expect("a request"), body, None).expect("an answer");
        let field = |name: &str| {
            let found =
                response.headers.get(name).or(response.trailers.as_ref().and_then(|all| all.get(name)));
            found.map(|value| value.to_str().expect("text").to_owned())
        };
        let code = field("grpc-status").map_or(-1, |code| code.parse().expect("a code"));
        let message = field("grpc-message").unwrap_or_default();
        Ended { code, message, body: response.body.clone(), response }
    }
}

impl Ended {
    /// The answer to a call that was judged.
    #[track_caller]
    pub fn ok(self) -> Answer {
        assert_eq!(self.code, 0, "{}", self.message);
        let AnswerMessage { overall, statuses, headers } = unframe(&self.body);
        let status = |one: StatusMessage| Status {
            code: one.code,
            limit: one.limit.map(|limit| (limit.name, limit.requests, limit.unit)),
            remaining: one.remaining,
            reset_ms: one.reset.map(|reset| reset.seconds * 1_000 + i64::from(reset.nanos) / 1_000_000),
        };
        Answer {
            overall,
            statuses: statuses.into_iter().map(status).collect(),
            headers: headers.into_iter().map(|pair| (pair.key, pair.value)).collect(),
        }
    }

    /// The message of a call that ended with `code`.
    #[track_caller]
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "{}", self.message);
        assert!(self.body.is_empty());
        self.message
    }
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

pub fn call_of(domain: &str, descriptors: &[&[(&str, &str)]]) -> Call {
    let pair = |(key, value): &(&str, &str)| Pair { key: (*key).to_owned(), value: (*value).to_owned() };
    let descriptor = |entries: &&[(&str, &str)]| Descriptor {
        entries: entries.iter().map(pair).collect(),
        ..Descriptor::default()
    };
    Call { domain: domain.to_owned(), descriptors: descriptors.iter().map(descriptor).collect(), hits: 0 }
}

pub fn frame(message: &impl Message) -> Bytes {
    let mut framed = vec![0];
    framed.extend((message.encoded_len() as u32).to_be_bytes());
    framed.extend(message.encode_to_vec());
    framed.into()
}

#[track_caller]
pub fn unframe<M: Message + Default>(body: &[u8]) -> M {
    assert_eq!(body.first(), Some(&0));
    let length = u32::from_be_bytes(body[1..5].try_into().expect("a length"));
    assert_eq!(length as usize, body.len() - 5);
    M::decode(&body[5..]).expect("a message")
}

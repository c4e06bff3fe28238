//! A collector of spans: an upstream that decodes the exports that it receives.

use std::collections::HashMap;

use super::timing::eventually;
use super::upstream::{Reply, Seen, Upstream};

pub struct Collector(pub Upstream);

/// One span, with its ids in hexadecimal and every attribute as text.
#[derive(Debug, Clone, Default)]
pub struct SpanSeen {
    pub trace_id: String,
    pub span_id: String,
    /// Empty = none.
    pub parent_id: String,
    pub name: String,
    pub kind: u64,
    pub start_ns: u64,
    pub end_ns: u64,
    pub attributes: HashMap<String, String>,
    /// 2 = error.
    pub status: u64,
    pub flags: u64,
}

impl Collector {
    pub fn new() -> Collector {
        Collector(Upstream::ok())
    }

    /// A collector with the answers of `script`.
    pub fn answering(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Collector {
        Collector(Upstream::new(script))
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<SpanSeen> {
        self.0.requests().iter().flat_map(|export| decode_export(&export.body)).collect()
    }

    /// Waits for `count` spans; there must not be more.
    #[track_caller]
    pub fn wait_spans(&self, count: usize) -> Vec<SpanSeen> {
        eventually(&format!("{count} spans"), || self.spans().len() >= count);
        let spans = self.spans();
        assert_eq!(spans.len(), count, "{spans:#?}");
        spans
    }
}

impl SpanSeen {
    /// The text of an attribute; empty = absent.
    pub fn text(&self, key: &str) -> &str {
        self.attributes.get(key).map_or("", String::as_str)
    }

    pub fn number(&self, key: &str) -> f64 {
        self.text(key).parse().unwrap_or(f64::NAN)
    }
}

/// The spans of an `ExportTraceServiceRequest`, each of the service sluicegate.
#[track_caller]
fn decode_export(body: &[u8]) -> Vec<SpanSeen> {
    let mut spans = Vec::new();
    for resource_spans in messages(body, 1) {
        let resource = messages(resource_spans, 1)[0];
        let about: HashMap<_, _> = messages(resource, 1).iter().map(|pair| attribute(pair)).collect();
        assert_eq!(about["service.name"], "sluicegate");
        assert_eq!(about["service.version"], env!("CARGO_PKG_VERSION"));
        for scope_spans in messages(resource_spans, 2) {
            spans.extend(messages(scope_spans, 2).iter().map(|span| decode_span(span)));
        }
    }
    spans
}

fn decode_span(message: &[u8]) -> SpanSeen {
    let mut span = SpanSeen::default();
    for (number, value) in fields(message) {
        match (number, value) {
            (1, Value::Bytes(id)) => span.trace_id = hex(id, 16),
            (2, Value::Bytes(id)) => span.span_id = hex(id, 8),
            (4, Value::Bytes(id)) => span.parent_id = hex(id, 8),
            (5, Value::Bytes(name)) => span.name = text(name),
            (6, Value::Number(kind)) => span.kind = kind,
            (7, Value::Number(ns)) => span.start_ns = ns,
            (8, Value::Number(ns)) => span.end_ns = ns,
            (9, Value::Bytes(pair)) => {
                let (key, value) = attribute(pair);
                assert!(span.attributes.insert(key, value).is_none(), "an attribute occurs once");
            }
            (15, Value::Bytes(status)) => {
                let code = fields(status).into_iter().find(|(number, _)| *number == 3);
                span.status = code.map_or(0, |(_, code)| code.number());
            }
            (16, Value::Number(flags)) => span.flags = flags,
            (number, _) => panic!("unknown field {number} of a span"),
        }
    }
    span
}

/// The key and the value of a `KeyValue`.
fn attribute(pair: &[u8]) -> (String, String) {
    let key = text(messages(pair, 1)[0]);
    let value = match &fields(messages(pair, 2)[0])[..] {
        [(1, Value::Bytes(bytes))] => text(bytes),
        [(3, Value::Number(number))] => number.to_string(),
        [(4, Value::Number(bits))] => f64::from_bits(*bits).to_string(),
        _ => panic!("an odd value of {key}"),
    };
    (key, value)
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl Value<'_> {
    fn number(&self) -> u64 {
        match self {
            Value::Number(number) => *number,
            Value::Bytes(_) => panic!("bytes in place of a number"),
        }
    }
}

/// The fields of a protobuf message with their numbers.
#[track_caller]
fn fields(mut rest: &[u8]) -> Vec<(u64, Value<'_>)> {
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let tag = varint(&mut rest);
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut rest)),
            1 => Value::Number(u64::from_le_bytes(take(&mut rest, 8).try_into().unwrap())),
            2 => {
                let length = varint(&mut rest) as usize;
                Value::Bytes(take(&mut rest, length))
            }
            5 => Value::Number(u32::from_le_bytes(take(&mut rest, 4).try_into().unwrap()).into()),
            kind => panic!("wire type {kind}"),
        };
        fields.push((tag >> 3, value));
    }
    fields
}

/// The bytes of every field with this number.
#[track_caller]
fn messages(message: &[u8], wanted: u64) -> Vec<&[u8]> {
    let bytes = |(number, value)| match value {
        Value::Bytes(bytes) if number == wanted => Some(bytes),
        _ => None,
    };
    fields(message).into_iter().filter_map(bytes).collect()
}

fn varint(rest: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(rest, 1)[0];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return number;
        }
    }
    panic!("a number without an end")
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (taken, after) = rest.split_at_checked(length).expect("a whole field");
    *rest = after;
    taken
}

fn text(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).expect("UTF-8").to_owned()
}

fn hex(bytes: &[u8], length: usize) -> String {
    assert_eq!(bytes.len(), length, "the bytes of an id");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

//! Encodes spans as an `ExportTraceServiceRequest` of OTLP, in the binary form of protobuf.
//!
//! The numbers are those of `opentelemetry/proto/trace/v1/trace.proto` and the files that it imports.

use super::span::SpanRecord;

/// The content type of an encoded batch.
pub const CONTENT_TYPE: &str = "application/x-protobuf";

const KIND_SERVER: u64 = 2;
const STATUS_ERROR: u64 = 2;
/// The bit of `Span.flags` that makes the next one valid.
const KNOWS_REMOTE: u32 = 0x100;
const PARENT_IS_REMOTE: u32 = 0x200;

/// The spans of one export.
pub fn encode_batch(spans: &[SpanRecord]) -> Vec<u8> {
    let mut request = Message::default();
    request.write_message(1, |resource_spans| {
        resource_spans.write_message(1, |resource| {
            resource.write_attribute(1, "service.name", Some(Value::Text("sluicegate")));
            resource.write_attribute(1, "service.version", Some(Value::Text(env!("CARGO_PKG_VERSION"))));
        });
        resource_spans.write_message(2, |scope_spans| {
            scope_spans.write_message(1, |scope| {
                scope.write_bytes(1, b"sluicegate");
                scope.write_bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
            });
            for span in spans {
                scope_spans.write_message(2, |message| write_span(message, span));
            }
        });
    });
    request.0
}

fn write_span(message: &mut Message, span: &SpanRecord) {
    let context = &span.context;
    message.write_bytes(1, &context.trace_id.to_be_bytes());
    message.write_bytes(2, &context.span_id.to_be_bytes());
    let mut flags = u32::from(context.flags) | KNOWS_REMOTE;
    if let Some(parent_id) = context.parent_id {
        message.write_bytes(4, &parent_id.to_be_bytes());
        flags |= PARENT_IS_REMOTE;
    }
    message.write_bytes(5, name_span(span).as_bytes());
    message.write_number(6, KIND_SERVER);
    message.write_fixed(7, span.end_unix_ns.saturating_sub(span.duration_ns).to_le_bytes());
    message.write_fixed(8, span.end_unix_ns.to_le_bytes());
    write_request_attributes(message, span);
    write_limit_attributes(message, span);
    if span.status >= 500 {
        message.write_message(15, |status| status.write_number(3, STATUS_ERROR));
    }
    message.write_fixed(16, flags.to_le_bytes());
}

/// The method and the location. An unusual method is not a part of the name, which is to have few values.
fn name_span(span: &SpanRecord) -> String {
    let method = span.method.as_ref().map_or("HTTP", |method| method.as_str());
    span.location.as_ref().map_or(method.to_owned(), |location| format!("{method} {location}"))
}

/// The field of a span's attributes.
const ATTRIBUTES: u32 = 9;

fn write_request_attributes(message: &mut Message, span: &SpanRecord) {
    let mut write = |key: &str, value: Option<Value<'_>>| message.write_attribute(ATTRIBUTES, key, value);
    let method = span.method.as_ref().map_or("_OTHER", |method| method.as_str());
    let (host, port) = span.host.as_deref().map(split_port).unzip();
    let client = span.client.map(|client| client.to_string());
    let status = span.status.to_string();
    let error = (span.status >= 500).then(|| span.fault.unwrap_or(&status));
    write("http.request.method", Some(Value::Text(method)));
    write("http.request.method_original", span.unusual_method.as_deref().map(Value::Text));
    write("http.response.status_code", Some(Value::Number(u64::from(span.status))));
    write("url.path", Some(Value::Text(&span.path)));
    write("url.scheme", Some(Value::Text(span.scheme)));
    write("server.address", host.map(Value::Text));
    write("server.port", port.flatten().map(|port| Value::Number(port.into())));
    write("client.address", client.as_deref().map(Value::Text));
    write("network.protocol.version", Some(Value::Text(span.version)));
    write("http.route", span.location.as_deref().map(Value::Text));
    write("error.type", error.map(Value::Text));
    write("sluicegate.request_id", Some(Value::Text(&span.request_id)));
    write("sluicegate.upstream", span.server.as_deref().map(Value::Text));
    write("sluicegate.upstream_ms", span.upstream_ns.map(Value::Milliseconds));
}

fn write_limit_attributes(message: &mut Message, span: &SpanRecord) {
    let mut write = |key: &str, value: Option<Value<'_>>| message.write_attribute(ATTRIBUTES, key, value);
    let key_hash = span.key_hash.map(|hash| format!("{hash:016x}"));
    let retry_after_ms = span.retry_after_ns.map(|ns| ns.div_ceil(1_000_000));
    write("ratelimit.verdict", Some(Value::Text(span.verdict)));
    write("ratelimit.wait_ms", Some(Value::Milliseconds(span.wait_ns)));
    write("ratelimit.limit", span.limit.as_deref().map(Value::Text));
    write("ratelimit.key_hash", key_hash.as_deref().map(Value::Text));
    write("ratelimit.retry_after_ms", retry_after_ms.map(Value::Number));
}

/// A host without its port and brackets, and the port.
fn split_port(host: &str) -> (&str, Option<u16>) {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port.parse().ok()),
        _ => (host, None),
    };
    (name.trim_start_matches('[').trim_end_matches(']'), port)
}

enum Value<'a> {
    Text(&'a str),
    Number(u64),
    /// Nanoseconds, written as milliseconds with a fraction.
    Milliseconds(u64),
}

/// The bytes of one protobuf message.
#[derive(Default)]
struct Message(Vec<u8>);

// The types of fields on the wire.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const BYTES: u32 = 2;
const FIXED32: u32 = 5;

impl Message {
    fn write_tag(&mut self, field: u32, wire_type: u32) {
        self.write_varint(u64::from(field << 3 | wire_type));
    }

    fn write_varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn write_number(&mut self, field: u32, number: u64) {
        self.write_tag(field, VARINT);
        self.write_varint(number);
    }

    /// A number of four or eight bytes.
    fn write_fixed<const N: usize>(&mut self, field: u32, number: [u8; N]) {
        self.write_tag(field, if N == 8 { FIXED64 } else { FIXED32 });
        self.0.extend_from_slice(&number);
    }

    fn write_bytes(&mut self, field: u32, bytes: &[u8]) {
        self.write_tag(field, BYTES);
        self.write_varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn write_message(&mut self, field: u32, write: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        write(&mut inner);
        self.write_bytes(field, &inner.0);
    }

    /// A `KeyValue`; nothing without a value.
    fn write_attribute(&mut self, field: u32, key: &str, value: Option<Value<'_>>) {
        let Some(value) = value else { return };
        self.write_message(field, |pair| {
            pair.write_bytes(1, key.as_bytes());
            pair.write_message(2, |any| match value {
                Value::Text(text) => any.write_bytes(1, text.as_bytes()),
                Value::Number(number) => any.write_number(3, number),
                Value::Milliseconds(ns) => any.write_fixed(4, (ns as f64 / 1e6).to_le_bytes()),
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_as_protobuf_requires() {
        let mut message = Message::default();
        message.write_number(1, 150);
        message.write_bytes(2, b"testing");
        message.write_fixed(16, 1_u32.to_le_bytes());
        message.write_message(3, |inner| inner.write_number(1, 1));
        let expected = [
            &[0x08, 0x96, 0x01, 0x12, 0x07][..],
            b"testing",
            &[0x85, 0x01, 1, 0, 0, 0],
            &[0x1a, 0x02, 0x08, 0x01],
        ];
        assert_eq!(message.0, expected.concat());
    }

    #[test]
    fn a_host_is_split_from_its_port() {
        for (host, expected) in [
            ("a.test", ("a.test", None)),
            ("a.test:8080", ("a.test", Some(8080))),
            ("[::1]:80", ("::1", Some(80))),
            ("[::1]", ("::1", None)),
            ("a.test:99999", ("a.test", None)),
            ("", ("", None)),
        ] {
            assert_eq!(split_port(host), expected, "{host}");
        }
    }
}

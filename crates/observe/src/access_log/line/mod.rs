//! The fields of an access-log line, and its format: one JSON object per line, or columns for people.
//!
//! The query is never written, because clients put tokens and passwords there.

mod pretty;

use std::cell::RefCell;
use std::io::Write;
use std::net::IpAddr;
use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderName, HeaderValue};

use sluicegate_base::address::write_address;
use sluicegate_base::escape;
use sluicegate_base::value_hash::ValueHasher;
use sluicegate_model::{Amount, format_millionths};

/// The fields of one request.
#[derive(Debug, Clone, Copy)]
pub struct AccessRecord<'a> {
    /// The arrival of the request, in microseconds since 1970: exact enough to judge the log again.
    pub unix_us: u64,
    /// The id of the request: made by the gateway, or sent by a trusted proxy.
    pub id: &'a str,
    /// `None` for a client on a unix socket.
    pub ip: Option<IpAddr>,
    /// The method as sent, cut to 512 bytes in the line.
    pub method: &'a str,
    /// The protocol of a call of the rate-limit service; `None` = a request.
    pub protocol: Option<&'a str>,
    /// The host as sent; empty where it is absent or not ASCII.
    pub host: &'a str,
    /// The target as sent; the part after a `?` is not written.
    pub path: &'a str,
    /// 499 = the client left before the response.
    pub status: u16,
    /// Bytes of the response body that were passed to the client's connection.
    pub bytes: u64,
    /// Bytes from the client through a tunnel; `None` = no tunnel.
    pub received: Option<u64>,
    /// Nanoseconds from the arrival of the request to its end.
    pub duration_ns: u64,
    /// Time spent in queues.
    pub wait_ns: u64,
    /// The last server that was tried.
    pub upstream: Option<&'a str>,
    /// The reason for a missing or incomplete response.
    pub error: Option<&'a str>,
    /// The name of the location; `None` = no location serves it.
    pub location: Option<&'a str>,
    /// The team that owns the location.
    pub owner: Option<&'a str>,
    /// The account in clear; the line has its hash, unless accounts are written in clear.
    pub account: Option<&'a str>,
    /// The tier of the account; `None` = it has none.
    pub tier: Option<&'a str>,
    /// `admit`, `wait`, `reject`, `missing_key`, `degrade`, `ban`, or the name of a fault.
    pub verdict: &'a str,
    /// The limit that rejected the request or made it wait.
    pub limit: Option<&'a str>,
    /// Its class in the shares of that limit, else in those of the first limit that has some.
    pub class: Option<&'a str>,
    /// The name of its key by that limit.
    pub key: Option<&'a str>,
    /// Nanoseconds until the request would fit; `None` = no wait is known to help.
    pub retry_after_ns: Option<u64>,
    /// The charge of the first limit in the chain that charges by the response.
    pub charge: Option<RecordedCharge>,
    /// The decisions of dry-run limits, e.g. `per-ip=reject`.
    pub dry_run: Option<&'a str>,
    /// The last step of each quota that the caller was told.
    pub step: Option<&'a str>,
    // The fields that the configuration adds; `None` = not configured, or without a value.
    /// The `User-Agent` as sent, cut to 512 bytes in the line.
    pub user_agent: Option<&'a [u8]>,
    /// The value as sent; the part after a `?` or `#` is not written.
    pub referer: Option<&'a [u8]>,
    /// Servers that were tried, with repetitions: 2 = one retry.
    pub tries: Option<u32>,
    /// Nanoseconds from sending the request to the head of the response or the last fault, retries and their waits
    /// included.
    pub upstream_ns: Option<u64>,
    /// The scheme, `http` or `https`, for trusted proxies as they say.
    pub scheme: Option<&'a str>,
    /// The version of HTTP that the client speaks, e.g. `HTTP/2.0`.
    pub proto: Option<&'a str>,
    /// The request header fields that the configuration names.
    pub headers: &'a [(HeaderName, HeaderValue)],
}

/// A call of the rate-limit service that is no request of HTTP: it has no method, path or status.
#[derive(Debug, Clone, Copy)]
pub struct CallRecord<'a> {
    /// Microseconds since 1970, see [`AccessRecord::unix_us`].
    pub unix_us: u64,
    /// `None` for a client on a unix socket.
    pub ip: Option<IpAddr>,
    /// The protocol of the call, e.g. `resp`.
    pub protocol: &'static str,
    /// The name of the call, e.g. `throttle`.
    pub call: &'static str,
    /// `admit`, `reject`, or the name of a fault.
    pub verdict: &'static str,
    /// The key by the name that the caller gave it; hashed like accounts.
    pub key: &'a [u8],
    /// Nanoseconds until the call would fit; `None` = no wait is known to help.
    pub retry_after_ns: Option<u64>,
}

/// The charge of a limit for a response.
#[derive(Debug, Clone, Copy)]
pub struct RecordedCharge {
    /// Units that were charged before the response.
    pub reserved: Amount,
    /// Units that the settled charge has after the response.
    pub charged: Amount,
    /// `usage`, `estimate`, `reserve` or `nothing`.
    pub source: &'static str,
}

/// Formats records; each worker has its own.
#[derive(Debug)]
pub struct LineFormat {
    /// Makes the hash that replaces an account; `None` = accounts are written in clear.
    hasher: Option<ValueHasher>,
    form: LineForm,
    timestamp: RefCell<TimestampCache>,
}

/// The form of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineForm {
    /// One JSON object for each line.
    Json,
    /// The main fields in columns.
    Pretty {
        /// True for a terminal.
        colors: bool,
    },
}

/// The last second, and its text up to the fraction.
#[derive(Debug)]
struct TimestampCache {
    second: u64,
    text: [u8; TIMESTAMP_LEN],
}

/// `2026-11-20T20:22:11`
const TIMESTAMP_LEN: usize = 19;
/// Longer values are cut, so that a hostile client cannot write long lines.
const PATH_MAX: usize = 2048;
const VALUE_MAX: usize = 512;

impl LineFormat {
    /// All workers have the same `hasher`, so that equal accounts have equal hashes.
    pub fn new(hasher: Option<ValueHasher>, form: LineForm) -> LineFormat {
        LineFormat {
            hasher,
            form,
            timestamp: RefCell::new(TimestampCache { second: u64::MAX, text: [b'0'; TIMESTAMP_LEN] }),
        }
    }

    /// Appends one line with its line end.
    pub fn write_line(&self, record: &AccessRecord<'_>, out: &mut Vec<u8>) {
        if let LineForm::Pretty { colors } = self.form {
            return self.write_pretty(record, colors, out);
        }
        out.extend_from_slice(b"{\"ts\":\"");
        self.timestamp.borrow_mut().write_timestamp(record.unix_us, out);
        write_text(out, b"\",\"id\":\"", record.id, VALUE_MAX);
        if let Some(ip) = record.ip {
            out.extend_from_slice(b"\",\"ip\":\"");
            write_address(out, ip);
        }
        write_text(out, b"\",\"method\":\"", record.method, VALUE_MAX);
        write_text(out, b"\",\"host\":\"", record.host, VALUE_MAX);
        let path = record.path.split_once('?').map_or(record.path, |(path, _)| path);
        write_text(out, b"\",\"path\":\"", path, PATH_MAX);
        write_number(out, b"\",\"status\":", u64::from(record.status));
        write_number(out, b",\"bytes\":", record.bytes);
        if let Some(received) = record.received {
            write_number(out, b",\"received\":", received);
        }
        write_milliseconds(out, b",\"dur_ms\":", record.duration_ns);
        write_milliseconds(out, b",\"wait_ms\":", record.wait_ns);
        write_text(out, b",\"verdict\":\"", record.verdict, VALUE_MAX);
        out.push(b'"');
        write_optional(out, b",\"protocol\":\"", record.protocol);
        write_optional(out, b",\"location\":\"", record.location);
        write_optional(out, b",\"owner\":\"", record.owner);
        write_optional(out, b",\"upstream\":\"", record.upstream);
        write_optional(out, b",\"error\":\"", record.error);
        if let Some(account) = record.account {
            self.write_account(out, account);
        }
        write_optional(out, b",\"tier\":\"", record.tier);
        write_optional(out, b",\"limit\":\"", record.limit);
        write_optional(out, b",\"class\":\"", record.class);
        write_optional(out, b",\"key\":\"", record.key);
        write_retry_after(out, record.retry_after_ns);
        if let Some(charge) = &record.charge {
            write_amount(out, b",\"reserved\":", charge.reserved);
            write_amount(out, b",\"charged\":", charge.charged);
            write_text(out, b",\"charged_by\":\"", charge.source, VALUE_MAX);
            out.push(b'"');
        }
        write_optional(out, b",\"dry_run\":\"", record.dry_run);
        write_optional(out, b",\"step\":\"", record.step);
        write_added_fields(out, record);
        write_headers(out, record.headers);
        out.extend_from_slice(b"}\n");
    }

    /// Appends the line of a call with its line end.
    pub fn write_call(&self, record: &CallRecord<'_>, out: &mut Vec<u8>) {
        if let LineForm::Pretty { colors } = self.form {
            return self.write_pretty_call(record, colors, out);
        }
        out.extend_from_slice(b"{\"ts\":\"");
        self.timestamp.borrow_mut().write_timestamp(record.unix_us, out);
        if let Some(ip) = record.ip {
            out.extend_from_slice(b"\",\"ip\":\"");
            write_address(out, ip);
        }
        write_text(out, b"\",\"verdict\":\"", record.verdict, VALUE_MAX);
        write_text(out, b"\",\"protocol\":\"", record.protocol, VALUE_MAX);
        write_text(out, b"\",\"call\":\"", record.call, VALUE_MAX);
        out.extend_from_slice(b"\",\"key\":\"");
        self.write_hashed(out, record.key);
        out.push(b'"');
        write_retry_after(out, record.retry_after_ns);
        out.extend_from_slice(b"}\n");
    }

    /// The account in the form of log lines, for other logs.
    pub fn shown_account(&self, account: &str) -> String {
        let mut out = Vec::new();
        self.write_hashed(&mut out, account.as_bytes());
        String::from_utf8_lossy(&out).into_owned()
    }

    fn write_account(&self, out: &mut Vec<u8>, account: &str) {
        out.extend_from_slice(b",\"account\":\"");
        self.write_hashed(out, account.as_bytes());
        out.push(b'"');
    }

    fn write_hashed(&self, out: &mut Vec<u8>, value: &[u8]) {
        match &self.hasher {
            // Writing into a Vec cannot fail.
            Some(hasher) => drop(write!(out, "{:016x}", hasher.hash_value(value))),
            None => escape::escape_json(out, truncate_value(value, VALUE_MAX)),
        }
    }
}

impl TimestampCache {
    fn write_timestamp(&mut self, unix_us: u64, out: &mut Vec<u8>) {
        let (second, us) = (unix_us / 1_000_000, unix_us % 1_000_000);
        if self.second != second {
            self.second = second;
            // The format ends with the year 9999.
            let time = UNIX_EPOCH + Duration::from_secs(second.min(253_402_300_799));
            let text = humantime::format_rfc3339_seconds(time).to_string();
            if let Some(text) = text.as_bytes().first_chunk() {
                self.text = *text;
            }
        }
        out.extend_from_slice(&self.text);
        write_fraction(out, us / 1_000);
        out.extend_from_slice(&three_digits(us));
        out.push(b'Z');
    }
}

fn write_text(out: &mut Vec<u8>, label: &[u8], value: &str, max: usize) {
    out.extend_from_slice(label);
    escape::escape_json(out, truncate_value(value.as_bytes(), max));
}

fn write_optional(out: &mut Vec<u8>, label: &[u8], value: Option<&str>) {
    if let Some(value) = value {
        write_text(out, label, value, VALUE_MAX);
        out.push(b'"');
    }
}

fn write_amount(out: &mut Vec<u8>, label: &[u8], amount: Amount) {
    match amount.currency {
        None => write_number(out, label, amount.units),
        Some(_) => {
            out.extend_from_slice(label);
            out.extend_from_slice(format_millionths(amount.units.into()).as_bytes());
        }
    }
}

/// Writes the fields that the configuration adds.
fn write_added_fields(out: &mut Vec<u8>, record: &AccessRecord<'_>) {
    let is_query_mark = |byte: &u8| matches!(byte, b'?' | b'#');
    let referer = record.referer.and_then(|referer| referer.split(is_query_mark).next());
    for (label, value) in [(&b",\"user_agent\":\""[..], record.user_agent), (b",\"referer\":\"", referer)] {
        if let Some(value) = value {
            out.extend_from_slice(label);
            escape::escape_json(out, truncate_value(value, VALUE_MAX));
            out.push(b'"');
        }
    }
    if let Some(tries) = record.tries {
        write_number(out, b",\"tries\":", u64::from(tries));
    }
    if let Some(ns) = record.upstream_ns {
        write_milliseconds(out, b",\"upstream_ms\":", ns);
    }
    write_optional(out, b",\"scheme\":\"", record.scheme);
    write_optional(out, b",\"proto\":\"", record.proto);
}

fn write_headers(out: &mut Vec<u8>, headers: &[(HeaderName, HeaderValue)]) {
    if headers.is_empty() {
        return;
    }
    let mut label: &[u8] = b",\"headers\":{\"";
    for (index, (name, value)) in headers.iter().enumerate() {
        // A repeated header is written once, because a JSON object must not repeat a name.
        if headers[..index].iter().any(|(earlier, _)| earlier == name) {
            continue;
        }
        out.extend_from_slice(label);
        label = b",\"";
        escape::escape_json(out, name.as_str().as_bytes());
        out.extend_from_slice(b"\":\"");
        escape::escape_json(out, truncate_value(value.as_bytes(), VALUE_MAX));
        out.push(b'"');
    }
    out.push(b'}');
}

/// The first `max` bytes, never cut inside a character.
fn truncate_value(value: &[u8], max: usize) -> &[u8] {
    if value.len() <= max {
        return value;
    }
    let is_inside = |index: usize| value[index] & 0xc0 == 0x80;
    let end = (max.saturating_sub(3)..=max).rev().find(|index| !is_inside(*index)).unwrap_or(max);
    &value[..end]
}

fn write_number(out: &mut Vec<u8>, label: &[u8], value: u64) {
    out.extend_from_slice(label);
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Seconds, exact to the millisecond, unlike Retry-After.
fn write_retry_after(out: &mut Vec<u8>, retry_after_ns: Option<u64>) {
    if let Some(ns) = retry_after_ns {
        let ms = ns.div_ceil(1_000_000);
        write_number(out, b",\"retry_after\":", ms / 1_000);
        write_fraction(out, ms % 1_000);
    }
}

/// Milliseconds with three decimals.
fn write_milliseconds(out: &mut Vec<u8>, label: &[u8], ns: u64) {
    let us = ns / 1_000;
    write_number(out, label, us / 1_000);
    write_fraction(out, us % 1_000);
}

/// Writes `.` and three digits.
fn write_fraction(out: &mut Vec<u8>, thousandths: u64) {
    out.push(b'.');
    out.extend_from_slice(&three_digits(thousandths));
}

/// The last three digits.
fn three_digits(number: u64) -> [u8; 3] {
    let digit = |n: u64| b'0' + (n % 10) as u8;
    [digit(number / 100), digit(number / 10), digit(number)]
}

#[cfg(test)]
mod tests;

//! Lines for people: the main fields in columns, and colours on a terminal.

use std::io::Write;
use std::net::IpAddr;

use super::{AccessRecord, CallRecord, LineFormat, PATH_MAX, VALUE_MAX, truncate_value};
use sluicegate_base::escape;

// The colours of the program's own log.
const RED: &str = "\x1b[31m";
const YELLOW: &str = "\x1b[33m";
const GREEN: &str = "\x1b[32m";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

impl LineFormat {
    /// Appends the line of a request: time, status, verdict, limit, client, method, path and duration.
    pub(super) fn write_pretty(&self, record: &AccessRecord<'_>, colors: bool, out: &mut Vec<u8>) {
        // Red where a server or the gateway failed, yellow for other errors and wherever a limit acts.
        let color = match (record.status, record.verdict) {
            (500.., _) => RED,
            (..400, "admit") => GREEN,
            _ => YELLOW,
        };
        let path = record.path.split_once('?').map_or(record.path, |(path, _)| path);
        let (path, duration) = (show_text(path.as_bytes(), PATH_MAX), record.duration_ns / 1_000);
        let limit = record.limit.unwrap_or("-");
        let head = [&record.status.to_string(), record.verdict, limit, record.method];
        self.write_columns((record.unix_us, record.ip), head, colors.then_some(color), out);
        let (dim, plain) = if colors { (DIM, PLAIN) } else { ("", "") };
        let (ms, us) = (duration / 1_000, duration % 1_000);
        // Writing into a Vec cannot fail.
        let _ = writeln!(out, "{path:<32} {dim}{ms}.{us:03} ms{plain}");
    }

    /// Appends the line of a call: its name and its key stand for method and path.
    pub(super) fn write_pretty_call(&self, call: &CallRecord<'_>, colors: bool, out: &mut Vec<u8>) {
        let color = if call.verdict == "admit" { GREEN } else { YELLOW };
        let head = ["-", call.verdict, "-", call.call];
        self.write_columns((call.unix_us, call.ip), head, colors.then_some(color), out);
        self.write_hashed(out, call.key);
        out.push(b'\n');
    }

    /// Writes the columns before the path; a longer text moves those behind it.
    fn write_columns(
        &self,
        from: (u64, Option<IpAddr>),
        head: [&str; 4],
        color: Option<&str>,
        out: &mut Vec<u8>,
    ) {
        let (unix_us, ip) = from;
        let [status, verdict, limit, method] = head.map(|text| show_text(text.as_bytes(), VALUE_MAX));
        let (dim, color, plain) = color.map_or(("", "", ""), |color| (DIM, color, PLAIN));
        let ip = ip.map_or_else(|| "-".to_owned(), |ip| ip.to_canonical().to_string());
        out.extend_from_slice(dim.as_bytes());
        self.timestamp.borrow_mut().write_timestamp(unix_us, out);
        let _ =
            write!(out, "{plain} {color}{status:<3} {verdict:<11}{plain} {limit:<14} {ip:<15} {method:<6} ");
    }
}

/// Nothing that a client sends may steer the terminal or end the line.
fn show_text(text: &[u8], max: usize) -> String {
    let mut out = Vec::new();
    escape::escape_json(&mut out, truncate_value(text, max));
    String::from_utf8_lossy(&out).into_owned()
}

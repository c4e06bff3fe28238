//! The lines of foreign logs: whatever they are, reading them neither panics nor reads beyond them.

use proptest::prelude::*;
use sluicegate::simulate::log::LogStream;
use sluicegate::simulate::log::line_format::LogLineFormat;
use sluicegate::simulate::log::record::{HeaderNames, LogRecord};
use sluicegate::simulate::replay::replay_log;
use sluicegate_config as config;

use crate::fuzz;

const FORMATS: [&str; 6] = [
    "json",
    "combined",
    "common",
    "haproxy",
    "$msec $request_time $remote_addr \"$request\" $status $limit_req_status",
    "{\"at\":\"$time_iso8601\",\"uri\":\"$request_uri\",\"a\":\"${http_x_a}\"}",
];

/// Pieces of lines of all formats, so that many lines are nearly right.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let known = vec![
        "{\"ts\":\"2026-01-01T00:00:00.123456Z\"",
        ",\"path\":\"/a\"",
        ",\"ip\":\"192.0.2.1\"",
        ",\"status\":200",
        ",\"dur_ms\":1.5",
        ",\"headers\":{\"x-a\":\"b\"}",
        ",\"dry_run\":\"a=reject,b=wait\"",
        "\\u00e9",
        "\\ud83d\\ude00",
        "\\u",
        "\\",
        "}",
        "[[{",
        "\"",
        ":",
        "192.0.2.1 - - [01/Jan/2026:00:00:00 +0000] ",
        "\"GET /a?b HTTP/1.1\" 200 5",
        " \"-\" \"curl\"",
        "\"\\x16\\x03\" ",
        "\\\"",
        "192.0.2.1:5 [01/Jan/2026:00:00:00.123] in in/a 1/2/3/4/5 200 0 - - ---- ",
        "-1/-1",
        "[",
        "]",
        "1767225600.123 0.001 ",
        "18446744073709551615",
        "99999999999999999.9",
        "PASSED",
        "REJECTED_DRY_RUN",
        "2026-02-30T24:60:61Z",
        " ",
        "\t",
        "\r",
    ];
    prop_oneof![
        6 => proptest::sample::select(known).prop_map(|text| text.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..4),
        1 => any::<u64>().prop_map(|number| number.to_string().into_bytes()),
    ]
}

fn any_line() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(piece(), 0..12).prop_map(|pieces| pieces.concat())
}

#[test]
fn every_line_is_read_or_refused() {
    fuzz(any_line(), |line| {
        let mut record = LogRecord::default();
        for name in FORMATS {
            let format = LogLineFormat::named(name).expect("a format");
            let mut names = HeaderNames::default();
            let is_read = format.parse_line(&line, &mut names, &mut record);
            prop_assert!(!is_read || record.headers().all(|(name, _)| names.get(name).is_some()));
        }
        drop(LogLineFormat::guess(&line));
        drop(LogLineFormat::named(&String::from_utf8_lossy(&line)));
        Ok(())
    });
}

#[test]
fn whole_logs_are_replayed_or_refused() {
    let yaml = "limits: { a: { key: [ip, header:x-a], rate: 1/s, burst: 2, missing_key: shared }, \
                b: { key: uri, algorithm: leaky_bucket, rate: 5/s, queue: 2 }, \
                c: { key: global, algorithm: concurrency, max_concurrent: 1, queue: 1 } }\n\
                locations: [{ path: /, upstream: demo, limits: [a, b, c] }]\n";
    let config = config::parse(yaml, "x").unwrap_or_else(|report| panic!("{report}")).config;
    let logs = (proptest::collection::vec(any_line(), 0..20), proptest::sample::select(FORMATS.to_vec()));
    fuzz(logs, |(lines, name)| {
        let format = LogLineFormat::named(name).expect("a format");
        let Ok(mut stream) = LogStream::from_bytes(lines.join(&b'\n'), Some(&format)) else { return Ok(()) };
        let report =
            replay_log(&mut stream, config.clone(), None, |_, _| {}, |_, _| {}).expect("memory is readable");
        prop_assert_eq!(report.requests, report.admitted + report.rejected + report.faults);
        Ok(())
    });
}

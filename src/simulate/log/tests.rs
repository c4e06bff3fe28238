//! Tests of the order in which requests leave a log.

use super::*;
use sluicegate_base::time_text;

fn stream(lines: &[String], format: &str) -> LogStream {
    let format = LogLineFormat::named(format).unwrap();
    LogStream::from_bytes(lines.join("\n").into_bytes(), Some(&format)).unwrap()
}

/// Each request by its target, with its arrival and its earliest one, in nanoseconds since the first second.
fn drain(stream: &mut LogStream) -> Vec<(String, u64, u64)> {
    let base = 1_000 * time_text::SECOND;
    let mut all = Vec::new();
    while let Some(request) = stream.next_request().unwrap() {
        let target = String::from_utf8_lossy(request.record.text(TextField::Target).unwrap()).into_owned();
        all.push((target, request.arrival_ns - base, request.earliest_ns - base));
    }
    all
}

#[test]
fn requests_come_in_the_order_of_their_arrival() {
    let line = |end: f64, took: f64, target: &str| format!("{end:.3} {took:.3} \"GET {target} HTTP/1.1\"");
    let lines = [
        line(1_000.2, 0.0, "/b"),
        line(1_000.3, 0.1, "/c"),
        line(1_000.5, 0.4, "/a"),
        line(1_000.6, 0.0, "/d"),
    ];
    let all = drain(&mut stream(&lines, "$msec $request_time \"$request\""));
    let ms = 1_000_000;
    assert_eq!(
        all.iter().map(|(target, at, _)| (target.as_str(), at / ms)).collect::<Vec<_>>(),
        [("/a", 100), ("/b", 200), ("/c", 200), ("/d", 600)]
    );
}

#[test]
fn a_request_later_than_the_window_is_counted() {
    let line = |end: u64, took: u64, target: &str| format!("{end}.000 {took}.000 \"GET {target} HTTP/1.1\"");
    let mut lines: Vec<String> = (0..WINDOW as u64 + 10).map(|n| line(5_000 + n, 0, "/")).collect();
    lines.push(line(5_000 + WINDOW as u64 + 10, WINDOW as u64 + 5, "/late"));
    let mut stream = stream(&lines, "$msec $request_time \"$request\"");
    let all = drain(&mut stream);
    assert_eq!(all.len(), lines.len());
    assert!(all.windows(2).all(|pair| pair[0].1 <= pair[1].1), "the clock never goes back");
    assert_eq!(stream.counts.late, 1);
}

#[test]
fn whole_seconds_are_spread_evenly() {
    let line = |second: u64, target: &str| {
        format!(
            "1.2.3.4 - - [01/Jan/1970:00:16:{:02} +0000] \"GET {target} HTTP/1.1\" 200 5 \"-\" \"-\"",
            second + 40
        )
    };
    let lines = [line(0, "/a"), line(1, "/c"), line(0, "/b"), line(1, "/d"), line(1, "/e"), line(1, "/f")];
    let mut stream = stream(&lines, "combined");
    assert!(stream.fields.whole_seconds);
    let ms = 1_000_000;
    let all: Vec<_> = drain(&mut stream).into_iter().map(|(t, at, from)| (t, at / ms, from / ms)).collect();
    let expected = [
        ("/a", 250, 0),
        ("/b", 750, 0),
        ("/c", 1_125, 1_000),
        ("/d", 1_375, 1_000),
        ("/e", 1_625, 1_000),
        ("/f", 1_875, 1_000),
    ];
    assert_eq!(all, expected.map(|(t, at, from)| (t.to_owned(), at, from)));
    assert_eq!(stream.counts.late, 0);
}

#[test]
fn logs_without_a_request_are_errors() {
    let error = |text: &str, format: Option<&str>| {
        let format = format.map(|name| LogLineFormat::named(name).unwrap());
        LogStream::from_bytes(text.as_bytes().to_vec(), format.as_ref()).err().unwrap()
    };
    assert_eq!(error("", None), "the log is empty");
    assert_eq!(error("\n\n", None), "the log is empty");
    assert!(error("hello\nworld\n", None).contains("--format"), "{}", error("hello\n", None));
    let told = error("hello\tyou\nworld\n", Some("json"));
    assert_eq!(told, "none of 2 lines can be read; the first is line 1 of log: hello\\tyou");
}

#[test]
fn unreadable_lines_are_counted_and_the_first_is_kept() {
    let good = r#"{"ts":"2025-11-20T20:22:11.5Z","path":"/","ip":"192.0.2.1"}"#;
    let text = format!("{good}\n# comment\n{good}\n{{\n");
    let mut stream = LogStream::from_bytes(text.into_bytes(), None).unwrap();
    while stream.next_request().unwrap().is_some() {}
    let LogCounts { lines, unreadable, first_unreadable, .. } = stream.counts;
    assert_eq!((lines, unreadable), (4, 2));
    assert_eq!(first_unreadable, Some(("log".to_owned(), 2, "# comment".to_owned())));
}

//! What a scenario that fails says, for people, for programs and for systems of continuous integration.

use serde_json::Value;

use super::{assert_fails, config, run_file, run_in, run_steps, scenario};
use crate::support::Scratch;

const LIMIT: &str = "per-ip: { key: ip, rate: 10/s, burst: 20 }";

const FAILED: &str = "\
limits_test.yaml
  FAILED  it holds (60 requests, 0s)
    step 1, limits_test.yaml:4: 60 times GET /api/ from 203.0.113.7 at 0ms
      admitted     expected 25; seen 20
      rejected     expected 35; seen 40
      retry_after  expected 200ms to 300ms; seen 100ms
      first request that differs: number 21, at 0ms, from 203.0.113.7: rejected by per-ip, 429, retry after 100ms
      explain, before it is sent:
        client    203.0.113.7: the peer
        host      localhost
        path      /api/
        location  / -> demo: the longest prefix, and no regular expression matches
        limits
          per-ip: 10 requests per second per client IP, 20 at once; the 21st is rejected with 429 and told when to return
            counts by client IP 203.0.113.7
            0 of 20 left, one more in 100 ms: reject, it would fit in 100 ms
        verdict   reject with 429 by limit per-ip: rate, Retry-After 1 (in 100 ms)
0 passed, 1 failed
";

const STEP: &str = "send: 60, to: GET /api/, from: 203.0.113.7, expect: { admitted: 25, rejected: 35, \
    retry_after: [200ms, 300ms] }";

#[test]
fn a_failure_shows_expected_and_seen_and_explains_the_first_request_that_differs() {
    let run = run_steps(&config(LIMIT), &[STEP]);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert_eq!(run.stdout, FAILED);
    assert_eq!(run.stderr, "");
}

#[test]
fn the_request_that_differs_is_the_first_one() {
    let config = config("queue: { key: global, algorithm: leaky_bucket, rate: 10/s, queue: 5 }");
    let fails = |expect: &str, says: &str| {
        assert_fails(&config, &[&format!("send: 10, expect: {{ {expect} }}")], says);
    };
    fails("admitted: 3", "number 4, at 0ms, from 127.0.0.1: admitted after 300ms, 200");
    fails("admitted: 8", "number 9, at 0ms, from 127.0.0.1: rejected by queue, 429, retry after 100ms");
    fails("rejected: [5, 9]", "number 6, at 0ms");
    fails("waited: 2", "number 4, at 0ms, from 127.0.0.1: admitted after 300ms");
    fails("waited_max: [0ms, 250ms]", "number 4, at 0ms, from 127.0.0.1: admitted after 300ms");
    fails("by: no_location", "number 7, at 0ms, from 127.0.0.1: rejected by queue");
    fails("status: 503", "number 7, at 0ms");
    fails("status: { 200: 6, 503: 4 }", "number 7, at 0ms");
    fails("status: { 200: 5, 429: [4, 5] }", "number 6, at 0ms, from 127.0.0.1: admitted after 500ms");
    assert_fails(
        &config,
        &["send: 1, expect: { retry_after: 1s }"],
        "retry_after  expected 1s; seen no request was rejected",
    );
    assert_fails(
        &config,
        &["send: 2, from: 10.0.0.0/24, expect: { waited: 0 }"],
        "number 2, at 0ms, from 10.0.0.1: admitted after 100ms",
    );
}

/// Other steps run on, and only the first that fails is explained.
#[test]
fn every_step_that_fails_is_shown() {
    let steps = [
        "send: 5, expect: { admitted: 4 }",
        "at: 1m, send: 5",
        "at: 1h, send: 5, every: 1s, expect: { admitted: 4 }",
    ];
    let run = run_steps(&config(LIMIT), &steps);
    assert_eq!(run.stdout.matches("expected 4; seen 5").count(), 2, "{}", run.stdout);
    assert_eq!(run.stdout.matches("first request that differs: number 5").count(), 1, "{}", run.stdout);
    assert!(run.stdout.contains("step 3, limits_test.yaml:6: 5 times GET / from 127.0.0.1 at 1h, every 1s"));
}

#[test]
fn each_scenario_begins_with_fresh_counters() {
    let config = config(LIMIT);
    let one = "steps: [{ send: 25, expect: { admitted: 20 } }]";
    let file = format!(
        "scenarios:\n  - name: one\n    {one}\n  - name: two\n    {one}\n  - name: three\n    {one}\n"
    );
    let run = run_file(&config, &file, &[]);
    assert_eq!(run.code, Some(0), "{}", run.stdout);
    let chosen = run_file(&config, &file, &["--filter", "two"]);
    assert_eq!(chosen.stdout, "limits_test.yaml\n  ok      two (25 requests, 0s)\n1 passed, 0 failed\n");
}

/// A change can be tried before it takes the place of the file that is served.
#[test]
fn the_option_names_another_configuration() {
    let scratch = Scratch::new();
    scratch.file("gateway.yaml", &config(LIMIT));
    scratch.file("next.yaml", &config("per-ip: { key: ip, rate: 10/s, burst: 40 }"));
    scratch.file("limits_test.yaml", &scenario(&["send: 60, expect: { admitted: 20 }"]));
    assert_eq!(run_in(&scratch, &["limits_test.yaml"]).code, Some(0));
    let next = run_in(&scratch, &["-c", "next.yaml", "limits_test.yaml"]);
    assert_eq!(next.code, Some(1), "{}", next.stderr);
    assert!(next.stdout.contains("admitted     expected 20; seen 40"), "{}", next.stdout);
}

#[test]
fn json_has_the_totals_first() {
    let run = run_file(&config(LIMIT), &scenario(&[STEP]), &["--json"]);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.stdout.starts_with("{\n  \"passed\": 0,\n  \"failed\": 1,\n"), "{}", run.stdout);
    let report: Value = serde_json::from_str(&run.stdout).expect("JSON");
    let scenario = &report["files"][0]["scenarios"][0];
    assert_eq!(report["files"][0]["file"], "limits_test.yaml");
    assert_eq!((&scenario["name"], &scenario["requests"]), (&Value::from("it holds"), &Value::from(60)));
    let failure = &scenario["failures"][0];
    assert_eq!((&failure["step"], &failure["line"]), (&Value::from(1), &Value::from(4)));
    let mismatch = &failure["mismatches"][0];
    assert_eq!(mismatch["field"], "admitted");
    assert_eq!((&mismatch["expected"], &mismatch["seen"]), (&Value::from("25"), &Value::from("20")));
    let first = &failure["first_difference"];
    assert_eq!((&first["number"], &first["from"]), (&Value::from(21), &Value::from("203.0.113.7")));
    assert_eq!(first["explanation"]["verdict"]["limit"], "per-ip");
}

const JUNIT: &str = "\
<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<testsuites name=\"sluicegate test\" tests=\"2\" failures=\"1\">
  <testsuite name=\"limits_test.yaml\" tests=\"2\" failures=\"1\">
    <testcase name=\"&lt;b&gt; &amp; &quot;quotes&quot; \u{fffd}\" classname=\"limits_test.yaml\" file=\"limits_test.yaml\" line=\"2\">
      <failure message=\"admitted: expected 4, seen 5\">";

#[test]
fn junit_is_escaped() {
    let scratch = Scratch::new();
    scratch.file("gateway.yaml", &config(LIMIT));
    let file = "scenarios:\n  - name: \"<b> & \\\"quotes\\\" \\x01\"\n    steps: [{ send: 5, to: \"/?a&b\", \
        expect: { admitted: 4 } }]\n  - name: fine\n    steps: [{ send: 5, expect: { admitted: 5 } }]\n";
    scratch.file("limits_test.yaml", file);
    let run = run_in(&scratch, &["--junit", "report.xml"]);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    let xml = std::fs::read_to_string(scratch.path().join("report.xml")).expect("a report");
    assert!(xml.starts_with(JUNIT), "{xml}");
    assert!(xml.contains("GET /?a&amp;b from 127.0.0.1"), "{xml}");
    let fine =
        "    <testcase name=\"fine\" classname=\"limits_test.yaml\" file=\"limits_test.yaml\" line=\"4\"/>\n";
    assert!(xml.ends_with(&format!("{fine}  </testsuite>\n</testsuites>\n")), "{xml}");
    assert_eq!(open_elements(&xml), Vec::<String>::new());
}

/// The elements of a document that are not closed, or closed in the wrong order; every `&` begins an entity.
fn open_elements(xml: &str) -> Vec<String> {
    for behind in xml.split('&').skip(1) {
        assert!(["amp;", "lt;", "gt;", "quot;"].iter().any(|entity| behind.starts_with(entity)), "&{behind}");
    }
    let mut open = Vec::new();
    for tag in xml.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag ends");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default().to_owned();
        match tag {
            _ if tag.starts_with('?') || tag.ends_with('/') => {}
            _ if tag.starts_with('/') => assert_eq!(open.pop(), Some(name), "{tag}"),
            _ => open.push(name),
        }
    }
    open
}

/// Queues, slots, bans and random clients: two runs print the same to the last byte.
#[test]
fn two_runs_are_equal() {
    let config = "limits:\n  per-ip: { key: ip, rate: 10/s, burst: 20 }\n\
        \x20 fair: { key: global, algorithm: leaky_bucket, rate: 333/s, queue: 300, fair_by: ip }\n\
        \x20 slots: { key: global, algorithm: concurrency, max_concurrent: 7, queue: 5 }\n\
        bans: { after: 5/1m }\n\
        locations: [{ path: /, upstream: demo, limits: [per-ip, fair, slots] }]\n";
    let steps = [
        "send: 500, every: 777us, from: 10.0.0.0/27, hold: 13ms, expect: { admitted: 0 }",
        "at: 3ms, send: 400, from: 10.0.0.0/28, hold: 5ms, expect: { rejected: 0, waited_max: 1ms }",
    ];
    let runs = [0, 1, 2].map(|_| run_steps(config, &steps).stdout);
    assert!(runs[0].contains("FAILED"), "{}", runs[0]);
    assert_eq!(runs[0], runs[1]);
    assert_eq!(runs[0], runs[2]);
}

#[test]
fn too_many_requests_under_way_are_an_error() {
    let run =
        run_steps(&config("a: { key: ip, rate: 1000000/s, burst: 1000000 }"), &["send: 65537, hold: 1h"]);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(
        run.stdout.contains("cannot be run: more than 65536 requests are under way at once"),
        "{}",
        run.stdout
    );
}

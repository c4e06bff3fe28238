//! Wrong scenario files and command lines: each mistake with its place, and nothing runs.

use super::{config, run_file, run_in, run_steps, scenario};
use crate::support::Scratch;

const ONE: &str = "per-ip: { key: ip, rate: 10/s, burst: 20 }";

/// The step is refused with this message and this help, at this place.
#[track_caller]
fn assert_refused(step: &str, place: &str, says: &[&str]) {
    let run = run_steps(&config(ONE), &[step]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(3), ""), "{step}\n{}", run.stderr);
    assert!(run.stderr.contains(&format!("--> limits_test.yaml:{place}")), "{step}\n{}", run.stderr);
    for says in says {
        assert!(run.stderr.contains(says), "{says} is not in\n{}", run.stderr);
    }
}

#[test]
fn an_unknown_field_is_an_error_with_the_nearest_name() {
    assert_refused("sent: 5", "4:11", &["unknown field `sent`", "did you mean `send`?"]);
    assert_refused(
        "expect: { admited: 5 }",
        "4:21",
        &["unknown field `admited`", "did you mean `admitted`?"],
    );
    assert_refused("answer: { stats: 500 }", "4:21", &["unknown field `stats`", "did you mean `status`?"]);
    assert_refused("zebra: 1", "4:11", &["unknown field `zebra`", "the fields here are at, send, every, to"]);
    let wrong = run_file(&config(ONE), "scenario: []\n", &[]);
    assert!(wrong.stderr.contains("did you mean `scenarios`?"), "{}", wrong.stderr);
    let wrong = run_file(&config(ONE), "scenarios: [{ nam: a, steps: [{ send: 1 }] }]\n", &[]);
    assert!(wrong.stderr.contains("did you mean `name`?"), "{}", wrong.stderr);
}

#[test]
fn every_value_is_checked_at_its_place() {
    assert_refused("at: 5", "4:15", &["the duration `5` has no unit", "write 5s"]);
    assert_refused("at: 400d", "4:15", &["`400d` is out of range"]);
    assert_refused("send: 0", "4:17", &["`0` is not a whole number from 1 to 10000000"]);
    assert_refused("send: 2, every: 0s", "4:27", &["`0s` is out of range"]);
    assert_refused("send: 10000000, every: 1h", "4:34", &["later than after 366d"]);
    assert_refused("from: 10.0.0.300", "4:17", &["is not an address or network"]);
    assert_refused("from: []", "4:11", &["`from` is empty"]);
    assert_refused("to: get /", "4:15", &["methods are written in capitals: GET"]);
    assert_refused("to: GETT /", "4:15", &["`GETT` is not a request method", "did you mean `GET`?"]);
    assert_refused(
        "to: BREW /",
        "4:15",
        &["`BREW` is not a registered request method", "name it in `methods`"],
    );
    assert_refused("to: GET api", "4:15", &["is neither a path nor a URL"]);
    assert_refused("headers: { \"a b\": 1 }", "4:22", &["is not a header name"]);
    assert_refused("headers: { Content-Length: 1 }", "4:22", &["the length of a body is written by itself"]);
    assert_refused("headers: [a]", "4:11", &["must be a mapping"]);
    assert_refused("hold: fast", "4:17", &["is not a duration"]);
    assert_refused("answer: 42", "4:19", &["is not a status code"]);
    assert_refused("answer: { status: 999 }", "4:29", &["is not a status"]);
    assert_refused("body: a, json: { a: 1 }", "4:20", &["the body is given twice"]);
    assert_refused("json: nonsense", "4:17", &["the text is not JSON"]);
    assert_refused("account: acme", "4:20", &["has no `account.from`"]);
    assert_refused("listener: inside", "4:21", &["no listener is named `inside`"]);
}

#[test]
fn one_mistake_is_one_problem_and_methods_of_the_file_are_known() {
    let wrong = run_steps(&config(ONE), &["from: 10.0.0.300"]);
    assert_eq!(wrong.stderr.matches("error[").count(), 1, "{}", wrong.stderr);
    let brew = config("per-ip: { key: ip, rate: 10/s, methods: BREW }");
    for (file, step) in [(&brew, "to: BREW /"), (&config(ONE), "to: MKCALENDAR /")] {
        let run = run_steps(file, &[step]);
        assert_eq!(run.code, Some(0), "{step}\n{}", run.stderr);
    }
}

#[test]
fn expectations_that_cannot_be_met_are_errors() {
    assert_refused("expect: 5", "4:11", &["must be a mapping such as { admitted: 20 }"]);
    assert_refused("expect: { admitted: many }", "4:31", &["is not a whole number"]);
    assert_refused("send: 5, expect: { admitted: 6 }", "4:40", &["the step sends only 5"]);
    assert_refused(
        "send: 5, expect: { admitted: 2, rejected: 2 }",
        "4:20",
        &["do not add up to the 5 requests"],
    );
    assert_refused("send: 9, expect: { admitted: [5, 3] }", "4:30", &["its least is above its most"]);
    assert_refused("send: 9, expect: { admitted: [5] }", "4:30", &["a range has two ends, not 1"]);
    assert_refused(
        "expect: { by: per-Ip }",
        "4:25",
        &["no limit is named `per-Ip`", "did you mean `per-ip`?"],
    );
    assert_refused("expect: { by: nothing-near }", "4:25", &["the limits are per-ip"]);
    assert_refused("expect: { retry_after: 100 }", "4:34", &["the duration `100` has no unit"]);
    assert_refused("expect: { status: { abc: 1 } }", "4:31", &["is not a status code"]);
}

#[test]
fn steps_stand_in_the_order_of_time() {
    let run = run_steps(&config(ONE), &["at: 5s", "at: 4s"]);
    assert_eq!(run.code, Some(3), "{}", run.stdout);
    assert!(run.stderr.contains("--> limits_test.yaml:5:15"), "{}", run.stderr);
    assert!(run.stderr.contains("the step before is sent at 5s"), "{}", run.stderr);
}

#[test]
fn all_mistakes_of_a_file_are_reported_at_once() {
    let run = run_steps(&config(ONE), &["send: x", "form: 10.0.0.1", "answer: 1"]);
    assert!(run.stderr.contains("limits_test.yaml: 3 problems"), "{}", run.stderr);
}

#[test]
fn expect_behind_a_step_in_braces_gets_a_hint() {
    let file = "scenarios:\n  - name: a\n    steps:\n      - { send: 5 }\n        expect: { admitted: 5 }\n";
    let run = run_file(&config(ONE), file, &[]);
    assert_eq!(run.code, Some(3));
    assert!(run.stderr.contains("limits_test.yaml:5:9"), "{}", run.stderr);
    assert!(run.stderr.contains("write `expect` inside the braces of its step"), "{}", run.stderr);
}

#[test]
fn a_file_needs_scenarios_names_and_steps() {
    let wrong = |file: &str| {
        let run = run_file(&config(ONE), file, &[]);
        assert_eq!(run.code, Some(3), "{file}\n{}", run.stdout);
        run.stderr
    };
    assert!(wrong("config: gateway.yaml\n").contains("`scenarios` is missing"));
    assert!(wrong("scenarios: []\n").contains("`scenarios` is empty"));
    assert!(wrong("scenarios: [{ name: a, steps: [] }]\n").contains("`steps` is empty"));
    assert!(wrong("scenarios: [{ steps: [{ send: 1 }] }]\n").contains("`name` is missing"));
    assert!(wrong("scenarios: [{ name: \" \", steps: [{ send: 1 }] }]\n").contains("the name is empty"));
    let twice = "scenarios: [{ name: a, steps: [{ send: 1 }] }, { name: a, steps: [{ send: 1 }] }]\n";
    assert!(wrong(twice).contains("has a scenario named `a` as well"));
    let start = format!("start: noon\n{}", scenario(&["send: 1"]));
    assert!(wrong(&start).contains("`noon` is not a time from 2020 to 2200"));
    let early = format!("start: 1999-12-31T23:59:59Z\n{}", scenario(&["send: 1"]));
    assert!(wrong(&early).contains("is not a time from 2020 to 2200"));
    assert!(wrong("\u{1}").contains("limits_test.yaml"));
}

#[test]
fn a_missing_or_wrong_configuration_is_shown() {
    let missing = run_file("", &format!("config: other.yaml\n{}", scenario(&["send: 1"])), &[]);
    assert_eq!(missing.code, Some(3));
    assert!(missing.stderr.contains("--> limits_test.yaml:1:9"), "{}", missing.stderr);
    assert!(
        missing.stderr.contains("the path starts at the folder of the scenario file"),
        "{}",
        missing.stderr
    );
    let wrong = run_file("limit: {}\n", &scenario(&["send: 1"]), &[]);
    assert_eq!(wrong.code, Some(3));
    assert!(wrong.stderr.contains("--> gateway.yaml:1:1"), "{}", wrong.stderr);
}

#[test]
fn nothing_runs_if_one_file_is_wrong() {
    let scratch = Scratch::new();
    scratch.file("gateway.yaml", &config(ONE));
    scratch.file("a_test.yaml", &scenario(&["send: 1"]));
    scratch.file("b_test.yaml", &scenario(&["sned: 1"]));
    let run = run_in(&scratch, &[]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(3), ""));
}

#[test]
fn wrong_command_lines_say_why() {
    let scratch = Scratch::new();
    scratch.file("gateway.yaml", &config(ONE));
    let none = run_in(&scratch, &[]);
    assert_eq!(none.code, Some(2), "{}", none.stderr);
    assert!(none.stderr.contains("no file in `.` ends with _test.yaml"), "{}", none.stderr);
    scratch.file("a_test.yaml", &scenario(&["send: 1"]));
    let filter = run_in(&scratch, &["--filter", "zebra"]);
    assert_eq!(filter.code, Some(2));
    assert!(filter.stderr.contains("no scenario has `zebra` in its name"), "{}", filter.stderr);
    let missing = run_in(&scratch, &["b_test.yaml"]);
    assert_eq!(missing.code, Some(3));
    assert!(missing.stderr.contains("the file `b_test.yaml` does not exist"), "{}", missing.stderr);
    let folder = run_in(&scratch, &["-c", "absent/gateway.yaml"]);
    assert_eq!(folder.code, Some(2));
    assert!(folder.stderr.contains("cannot list the folder `absent`"), "{}", folder.stderr);
    let junit = run_in(&scratch, &["--junit", "absent/report.xml"]);
    assert_eq!(junit.code, Some(1));
    assert!(junit.stderr.contains("cannot write `absent/report.xml`"), "{}", junit.stderr);
}

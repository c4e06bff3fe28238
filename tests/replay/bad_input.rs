//! The commands on logs that are not what they should be, and their outputs.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use crate::support::run::Finished;
use crate::support::*;
use crate::{line, yaml};

fn folder() -> Scratch {
    let scratch = Scratch::new();
    scratch.file("gateway.yaml", &yaml("  per-ip: { key: ip, rate: 1/s, burst: 2 }"));
    scratch.file("good.log", &(0..5).map(|_| line(0, "192.0.2.1", "/", "")).collect::<String>());
    scratch
}

fn run(scratch: &Scratch, args: &[&str]) -> Finished {
    Run::default().args(args).finish(scratch.path())
}

fn packed(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).expect("memory");
    encoder.finish().expect("memory")
}

#[test]
fn logs_that_cannot_be_read_are_errors() {
    let scratch = folder();
    scratch.file("empty.log", "");
    scratch.file("garbage.log", "hello\nworld\n");
    let noise: String = (0..9_000_u64)
        .map(|n| line(n, &format!("192.0.2.{}", n * n % 251), &format!("/{}", n * 7_919 % 10_007), ""))
        .collect();
    let whole = packed(noise.as_bytes());
    std::fs::write(scratch.path().join("cut.log.gz"), &whole[..whole.len() / 2]).expect("a file");
    for verb in ["replay", "recommend"] {
        for (args, code, why) in [
            (&["empty.log"][..], 1, "the log is empty"),
            (&["garbage.log"], 1, "--format"),
            (
                &["garbage.log", "--format", "json"],
                1,
                "none of 2 lines can be read; the first is line 1 of garbage.log: hello",
            ),
            (&["cut.log.gz"], 1, "cut.log.gz cannot be read after line"),
            (&["missing.log"], 1, "missing.log does not exist"),
            (&["."], 1, "is a directory"),
            (&["good.log", "--format", "apache"], 2, "there is no format `apache`"),
            (&["good.log", "--format", "$status"], 2, "no time"),
            (&["-", "-"], 2, "stdin is named twice"),
            (&[], 2, "LOG"),
        ] {
            let all: Vec<&str> = [verb].iter().chain(args).copied().collect();
            let done = run(&scratch, &all);
            assert_eq!(done.code, Some(code), "{all:?}: {}", done.stderr);
            assert!(done.stderr.contains(why), "{all:?}: {}", done.stderr);
            assert_eq!(done.stdout, "", "{all:?}");
        }
    }
}

#[test]
fn wrong_files_and_keys_are_errors() {
    let scratch = folder();
    scratch.file("wrong.yaml", "limits: 5\n");
    for (args, code, why) in [
        (&["replay", "good.log", "-c", "wrong.yaml"][..], 3, "wrong.yaml"),
        (&["replay", "good.log", "--against", "wrong.yaml"], 3, "wrong.yaml"),
        (&["replay", "good.log", "-c", "none.yaml"], 3, "none.yaml"),
        (&["replay", "good.log", "--json", "--csv"], 2, "--csv"),
        (&["replay", "good.log", "--html", "no/such/folder.html"], 1, "cannot be written"),
        (&["recommend", "good.log", "--key", "colour"], 2, "the keys are: ip"),
        (&["recommend", "good.log", "--key", "account"], 1, "the log has no account; its keys are: ip"),
        (&["recommend", "good.log", "--spare", "101%"], 2, "--spare 99.9%"),
        (&["recommend", "good.log", "--period", "soon"], 2, "soon"),
        (&["recommend", "good.log", "--period", "months"], 2, "hour, day, week, month, quarter, year"),
        (&["recommend", "good.log", "--period", "1m,month"], 2, "stands alone: --period month"),
        (&["recommend", "good.log", "--period", "month,day"], 2, "stands alone: --period month"),
        (&["recommend", "good.log", "--zone", "UTC"], 2, "--zone is for windows of the calendar"),
        (&["recommend", "good.log", "--period", "1d", "--zone", "UTC"], 2, "write e.g. --period month"),
        (
            &["recommend", "good.log", "--period", "month", "--zone", "Europe/Berlim"],
            2,
            "--zone: `Europe/Berlim` is not a time zone of the IANA data; did you mean `Europe/Berlin`?",
        ),
        (&["recommend", "good.log", "--period", "month", "--html", "x.html"], 2, "a quota has none"),
        (&["recommend", "good.log", "--period", "day", "--key", "account"], 1, "the log has no account"),
        (&["-c", "gateway.yaml", "recommend", "good.log"], 2, "leave -c out"),
    ] {
        let done = run(&scratch, args);
        assert_eq!(done.code, Some(code), "{args:?}: {}", done.stderr);
        assert!(done.stderr.contains(why), "{args:?}: {}", done.stderr);
    }
}

#[test]
fn every_output_tells_the_same_numbers() {
    let scratch = folder();
    std::fs::write(
        scratch.path().join("good.log.gz"),
        packed(&std::fs::read(scratch.path().join("good.log")).expect("a log")),
    )
    .expect("a file");
    for logs in [&["good.log"][..], &["good.log.gz"]] {
        let with = |more: &[&str]| {
            let args: Vec<&str> = ["replay"].iter().chain(logs).chain(more).copied().collect();
            let done = run(&scratch, &args);
            assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{args:?}");
            done.stdout
        };
        let json: Value = serde_json::from_str(&with(&["--json"])).expect("JSON");
        let counts = ["requests", "admitted", "waited", "rejected"].map(|name| json[name].as_u64());
        assert_eq!(counts, [5, 2, 0, 3].map(Some));
        assert_eq!(json["limits"]["per-ip"]["rejected"], 3);
        assert_eq!(json["keys"][0]["key"], "ip=192.0.2.1");
        assert_eq!(json["keys"][0]["share"], 0.6);
        let csv = with(&["--csv"]);
        assert_eq!(
            csv.lines().collect::<Vec<_>>()[1..],
            ["per-ip,,5,0,3,0.600000", "per-ip,ip=192.0.2.1,5,0,3,0.600000"]
        );
        let text = with(&[]);
        assert!(text.contains("rejected  3 (60.00%)") && text.contains("ip=192.0.2.1"), "{text}");
    }
    let both = run(&scratch, &["replay", "good.log", "good.log.gz", "--json"]);
    let json: Value = serde_json::from_str(&both.stdout).expect("JSON");
    assert_eq!((&json["requests"], &json["rejected"]), (&Value::from(10), &Value::from(8)));
}

#[test]
fn a_log_comes_from_stdin() {
    let scratch = folder();
    let log = std::fs::File::open(scratch.path().join("good.log")).expect("a log");
    let done = Run::default().args(&["replay", "-", "--json"]).stdin(log.into()).finish(scratch.path());
    let json: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {}", done.stderr));
    assert_eq!(json["rejected"], 3);
}

#[test]
fn recommend_prints_the_curve_and_a_limit_that_check_accepts() {
    let scratch = folder();
    let done = run(&scratch, &["recommend", "good.log", "--key", "ip", "--json"]);
    let json: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {}", done.stderr));
    assert_eq!((json["key"].as_str(), json["spare"].as_str()), (Some("ip"), Some("99.9%")));
    assert!(json["curve"].as_array().expect("a curve").len() >= 5);
    assert_eq!(json["suggested"]["burst"], 5);
    scratch.file("pasted.yaml", json["paste"].as_str().expect("a limit"));
    let checked = run(&scratch, &["check", "pasted.yaml"]);
    assert_eq!(checked.code, Some(0), "{}{}", checked.stdout, checked.stderr);
}

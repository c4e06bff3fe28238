//! Tests of the scalar grammars.

use super::*;

#[track_caller]
fn assert_rejected<T: std::fmt::Debug>(result: Parsed<T>, code: &str, fragment: &str) {
    let error = result.expect_err(fragment);
    let all = format!("{} | {}", error.message, error.suggestion.clone().unwrap_or_default());
    assert!(error.code == code && all.contains(fragment), "{}: {all}", error.code);
}

#[test]
fn rates() {
    let read = |text: &str| parse_rate(text).map(|rate| (rate.units.get(), rate.period.as_millis())).unwrap();
    assert_eq!(read("10/s"), (10, 1_000));
    assert_eq!(read("600/m"), (600, 60_000));
    assert_eq!(read("1000/h"), (1000, 3_600_000));
    assert_eq!(read("300/60s"), (300, 60_000));
    assert_eq!(read("100/5s"), (100, 5_000));
    assert_eq!(read("20/1d"), (20, 86_400_000));
    assert_eq!(read("1/250ms"), (1, 250));
    assert_eq!(parse_rate("1000000000/s").unwrap().units.get(), 1_000_000_000);
}

#[test]
fn wrong_rates() {
    for (text, fragment) in [
        ("0/s", "let nothing pass"),
        ("-1/s", "is negative"),
        ("NaN", "has no period"),
        ("NaN/s", "not a whole number"),
        ("1e309/s", "not a whole number"),
        ("1/s/s", "more than one slash"),
        ("18446744073709551616/s", "too large"),
        ("0.5/s", "write 1/2s"),
        ("0.0000001/s", "longer period"),
        ("10", "write 10/s"),
        ("", "has no period"),
        ("10/", "has no period after the slash"),
        ("10/5", "is not a period"),
        ("10/5M", "write 10/5m"),
        ("10/0s", "period of the rate `10/0s` is zero"),
        ("10/99999999999d", "too long"),
        ("1000000001/s", "one per nanosecond"),
        ("10 per second", "has no period"),
    ] {
        assert_rejected(parse_rate(text), codes::RATE, fragment);
    }
}

#[test]
fn durations() {
    assert_eq!(parse_duration("20ms").unwrap(), Duration::from_millis(20));
    assert_eq!(parse_duration("5s").unwrap(), Duration::from_secs(5));
    assert_eq!(parse_duration("10m").unwrap(), Duration::from_secs(600));
    assert_eq!(parse_duration("1h").unwrap(), Duration::from_secs(3600));
    assert_eq!(parse_duration("1d").unwrap(), Duration::from_secs(86_400));
    assert_eq!(parse_duration("0s").unwrap(), Duration::ZERO);
    for (text, fragment) in [
        ("5", "write 5s"),
        ("5M", "write 5m for minutes"),
        ("5sec", "write 5s"),
        ("1h30m", "one number with one unit"),
        ("1.5s", "write 1500ms"),
        ("1.5x", "is not a duration"),
        ("-5s", "is not a duration"),
        ("", "is not a duration"),
        ("s", "is not a duration"),
        ("1w", "in days"),
        ("99999999d", "too long"),
        ("99999999999999999999s", "too long"),
    ] {
        assert_rejected(parse_duration(text), codes::DURATION, fragment);
    }
    assert_rejected(parse_nonzero_duration("0s"), codes::DURATION, "above zero");
}

#[test]
fn sizes() {
    assert_eq!(parse_size("64KiB").unwrap(), 65_536);
    assert_eq!(parse_size("10MB").unwrap(), 10_000_000);
    assert_eq!(parse_size("0B").unwrap(), 0);
    for (text, fragment) in [
        ("65536", "write 65536B"),
        ("64kb", "write 64KB"),
        ("64K", "write 64KiB"),
        ("64XB", "units are"),
        ("1.5MB", "write 1500KB"),
        ("1.3KiB", "e.g. 512KiB for 0.5MiB"),
        ("10 MB", "write 10MB"),
        ("1_000", "write 1000B"),
        ("-1MB", "is not a size"),
        ("MB", "is not a size"),
        ("99999999TiB", "too large"),
    ] {
        assert_rejected(parse_size(text), codes::SIZE, fragment);
    }
}

#[test]
fn percentages() {
    assert_eq!(parse_percent("20%").unwrap(), 20.0);
    assert_eq!(parse_percent("0.5%").unwrap(), 0.5);
    assert_eq!(parse_whole_percent("100%").unwrap(), 100);
    assert_rejected(parse_percent("20"), codes::PERCENT, "percent sign");
    assert_rejected(parse_percent("0.4"), codes::PERCENT, "percent sign: 40%");
    assert_rejected(parse_percent("101%"), codes::PERCENT, "more than 100%");
    assert_rejected(parse_percent("-1%"), codes::PERCENT, "not a percentage");
    assert_rejected(parse_percent("1e1%"), codes::PERCENT, "not a percentage");
    assert_rejected(parse_percent("%"), codes::PERCENT, "not a percentage");
    assert_rejected(parse_percent("NaN%"), codes::PERCENT, "not a percentage");
    assert_rejected(parse_whole_percent("0.5%"), codes::PERCENT, "fraction");
}

#[test]
fn numbers_and_booleans() {
    assert_eq!(parse_number("7", 1, 10).unwrap(), 7);
    assert_rejected(parse_number("0", 1, 10), codes::NUMBER, "from 1 to 10");
    assert_rejected(parse_number("11", 1, 10), codes::NUMBER, "from 1 to 10");
    assert_rejected(parse_duration("5 s"), codes::DURATION, "write 5s");
    assert_rejected(parse_number("-1", 1, 10), codes::NUMBER, "not a whole number");
    assert_rejected(parse_number("1.5", 1, 10), codes::NUMBER, "not a whole number");
    assert_rejected(parse_number("1_000", 1, 10_000), codes::NUMBER, "write 1000");
    assert_rejected(parse_number("18446744073709551616", 1, u64::MAX), codes::NUMBER, "from 1");
    assert!(parse_bool("true").unwrap() && !parse_bool("false").unwrap());
    assert_rejected(parse_bool("yes"), codes::WORD, "write true");
    assert_rejected(parse_bool("off"), codes::WORD, "write false");
}

#[test]
fn a_secret_is_never_printed() {
    assert_eq!(format!("{:?}", Secret("hunter2".to_owned())), "MASKED");
}

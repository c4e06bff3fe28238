//! Rates, durations and sizes are read by the plain grammar, and no other text is accepted.

use std::time::Duration;

use proptest::prelude::*;
use sluicegate_config as config;
use sluicegate_model::diagnostics::codes;
use sluicegate_model::{Algorithm, Config};

use crate::fuzz;

const TIMES: [(&str, u128); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

const SIZES: [(&str, u128); 9] = [
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// A century of 365-day years.
const LONGEST_NS: u128 = 36_500 * 86_400_000_000_000;

/// Digits and a unit; the digits as a number, or `empty` for none.
fn amount(text: &str, units: &[(&str, u128)], empty: Option<u128>) -> Option<u128> {
    units.iter().find_map(|(unit, worth)| {
        let digits = text.strip_suffix(unit)?;
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = if digits.is_empty() { empty } else { digits.parse::<u64>().ok().map(u128::from) };
        number.filter(|_| plain)?.checked_mul(*worth)
    })
}

fn span(text: &str) -> Option<Duration> {
    let ns = amount(text, &TIMES, None).filter(|ns| (1..=LONGEST_NS).contains(ns))?;
    Some(Duration::from_nanos(ns as u64))
}

fn rate(text: &str) -> Option<(u64, Duration)> {
    let (count, period) = text.split_once('/')?;
    let plain = !count.trim().is_empty() && count.trim().bytes().all(|byte| byte.is_ascii_digit());
    let units: u64 = count.trim().parse().ok().filter(|_| plain)?;
    let period = amount(period.trim(), &TIMES, Some(1)).filter(|ns| (1..=LONGEST_NS).contains(ns))?;
    (units >= 1 && u128::from(units) <= period).then(|| (units, Duration::from_nanos(period as u64)))
}

/// The value read from the field; `None` if the text itself was rejected, with one of these codes.
fn read<T>(yaml: &str, codes: &[&str], take: impl Fn(&Config) -> T) -> Result<Option<T>, TestCaseError> {
    match config::parse(yaml, "gateway.yaml") {
        Ok(loaded) => Ok(Some(take(&loaded.config))),
        Err(report) => {
            let own = report.problems.iter().any(|problem| codes.contains(&problem.code));
            prop_assert!(own, "{yaml}: {report}");
            Ok(None)
        }
    }
}

/// `text` as a double-quoted scalar of YAML.
fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("text is JSON")
}

fn any_amount() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        (0..100u64).prop_map(|n| n.to_string()),
        any::<u64>().prop_map(|n| n.to_string()),
        any::<u128>().prop_map(|n| n.to_string()),
        Just(String::new()),
        "[0-9_.+-]{0,4}",
        Just("٣".to_owned()),
        Just("００7".to_owned()),
    ];
    let units: Vec<&str> = TIMES.iter().chain(&SIZES).map(|(unit, _)| *unit).collect();
    let unit = prop_oneof![
        6 => proptest::sample::select(units).prop_map(str::to_owned),
        1 => "[a-zA-Z ]{0,3}",
    ];
    (number, unit).prop_map(|(number, unit)| number + &unit)
}

fn any_rate() -> impl Strategy<Value = String> {
    let count = prop_oneof![
        (0..100u64).prop_map(|n| n.to_string()),
        any::<u64>().prop_map(|n| n.to_string()),
        "[ 0-9+.-]{0,3}"
    ];
    let slash = prop_oneof![8 => Just("/"), 1 => Just(" / "), 1 => Just("//"), 1 => Just(""), 1 => Just("/ "), 1 => Just("per")];
    let period = prop_oneof![4 => any_amount(), 1 => "(ns|us|ms|s|m|h|d|M)"];
    (count, slash, period).prop_map(|(count, slash, period)| format!("{count}{slash}{period}"))
}

const PLACE: &str = "locations: [{ path: /, upstream: demo }]\n";

#[test]
fn durations_are_the_plain_grammar() {
    fuzz(any_amount(), |text| {
        let yaml = format!("server: {{ timeouts: {{ header: {} }} }}\n{PLACE}", quoted(&text));
        let found = read(&yaml, &[codes::DURATION], |config| config.server.timeouts.header)?;
        prop_assert_eq!(found, span(&text), "{}", text);
        Ok(())
    });
}

#[test]
fn sizes_are_the_plain_grammar() {
    fuzz(any_amount(), |text| {
        let yaml = format!("server: {{ max_body: {} }}\n{PLACE}", quoted(&text));
        let found = read(&yaml, &[codes::SIZE], |config| config.server.max_body)?;
        let model = amount(&text, &SIZES, None).filter(|bytes| *bytes <= i64::MAX as u128);
        prop_assert_eq!(found, model.map(|bytes| Some(bytes as u64)), "{}", text);
        Ok(())
    });
}

#[test]
fn rates_are_the_plain_grammar() {
    fuzz(any_rate(), |text| {
        let yaml = format!(
            "limits: {{ x: {{ key: ip, algorithm: fixed_window, rate: {} }} }}\n\
             locations: [{{ path: /, upstream: demo, limits: [x] }}]\n",
            quoted(&text)
        );
        let found =
            read(&yaml, &[codes::RATE, codes::LIMIT_NUMBERS], |config| match &config.limits[0].algorithm {
                Algorithm::FixedWindow { rates, .. } => (rates[0].units.get(), rates[0].period),
                other => panic!("{other:?}"),
            })?;
        prop_assert_eq!(found, rate(&text), "{}", text);
        Ok(())
    });
}

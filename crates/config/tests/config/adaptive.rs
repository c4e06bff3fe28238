//! Adaptive slots and bandwidth in valid files.

use sluicegate_config as config;
use sluicegate_model::{self as model, Algorithm};

use super::values::{limit, read, seconds};

#[test]
fn adaptive_slots() {
    let config = read("all_limit_fields");
    let values_of = |name: &str| -> Vec<(Option<u32>, u32)> {
        let slots = |algorithm: &Algorithm| match algorithm {
            Algorithm::Concurrency { min, max, .. } => (*min, *max),
            other => panic!("{other:?}"),
        };
        limit(&config, name).algorithm_variants().map(slots).collect()
    };
    assert_eq!(values_of("adaptive"), [(Some(4), 1000), (Some(3), 3), (None, 2)]);
    assert_eq!(values_of("adaptive-low"), [(Some(2000), 2000)]);
    assert_eq!(values_of("adaptive-between"), [(Some(3), 30)]);
}

/// An invalid value gets the list of words that may replace a number.
#[test]
fn words_instead_of_numbers_are_suggested() {
    let helps = |name: &str| -> Vec<(usize, String)> {
        let report = config::load(format!("tests/config/invalid/{name}.yaml").as_ref()).expect_err(name);
        let help = |problem: model::Problem| Some((problem.line, problem.suggestion?));
        report.problems.into_iter().filter_map(help).collect()
    };
    let (none, slots) = ("or write none", "or write auto, or e.g. { min: 5, max: 200 }");
    for (name, line, help) in [
        ("numbers", 22, "write connections_per_ip: none"),
        ("numbers", 24, none),
        ("numbers", 30, slots),
        ("adaptive", 16, slots),
        ("sizes", 7, "write 512KiB/s"),
    ] {
        assert!(helps(name).contains(&(line, help.to_owned())), "{name}: {:#?}", helps(name));
    }
}

#[test]
fn bandwidth() {
    let config = read("all_location_fields");
    let values_of = |index: usize| {
        let own = config.locations[index].bandwidth.as_ref()?;
        Some((own.rate.units.get(), own.rate.period, own.burst, own.key.len()))
    };
    assert_eq!(values_of(0), Some((10_000_000, seconds(60), 4 << 20, 2)));
    assert_eq!(values_of(2), Some((1 << 20, seconds(1), 1 << 20, 1)), "the units of one second");
    assert_eq!(values_of(3), Some((1, seconds(1), 16 << 10, 1)), "and never less than this");
    assert_eq!((values_of(1), values_of(6)), (None, None));
}

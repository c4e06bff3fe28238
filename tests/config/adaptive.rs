//! What valid files say of slots that adapt and of bandwidth.

use sluicegate::config::{self, Algorithm};

use super::values::{limit, read, seconds};

#[test]
fn adaptive_slots() {
    let config = read("all_limit_fields");
    let told = |name: &str| -> Vec<(Option<u32>, u32)> {
        let slots = |algorithm: &Algorithm| match algorithm {
            Algorithm::Concurrency { min, max } => (*min, *max),
            other => panic!("{other:?}"),
        };
        limit(&config, name).algorithm_variants().map(slots).collect()
    };
    assert_eq!(told("adaptive"), [(Some(4), 1000), (Some(3), 3), (None, 2)]);
    assert_eq!(told("adaptive-low"), [(Some(2000), 2000)]);
    assert_eq!(told("adaptive-between"), [(Some(3), 30)]);
}

/// Whoever writes something else is told of the words that a number could be.
#[test]
fn the_words_beside_numbers_are_told() {
    let helps = |name: &str| -> Vec<(usize, String)> {
        let report = config::load(format!("tests/config/invalid/{name}.yaml").as_ref()).expect_err(name);
        let help = |problem: config::Problem| Some((problem.line, problem.suggestion?));
        report.problems.into_iter().filter_map(help).collect()
    };
    let (none, slots) = ("or write none", "or write auto, or e.g. { min: 5, max: 200 }");
    for (name, line, help) in [
        ("r030_numbers", 22, none),
        ("r030_numbers", 24, none),
        ("r030_numbers", 30, slots),
        ("adaptive", 16, slots),
        ("sizes", 7, "use a smaller unit, e.g. 512KiB for 0.5MiB"),
    ] {
        assert!(helps(name).contains(&(line, help.to_owned())), "{name}: {:#?}", helps(name));
    }
}

#[test]
fn bandwidth() {
    let config = read("all_location_fields");
    let told = |place: usize| {
        let own = config.locations[place].bandwidth.as_ref()?;
        Some((own.rate.units.get(), own.rate.period, own.burst, own.key.len()))
    };
    assert_eq!(told(0), Some((10_000_000, seconds(60), 4 << 20, 2)));
    assert_eq!(told(2), Some((1 << 20, seconds(1), 1 << 20, 1)), "what leaves within a second");
    assert_eq!(told(3), Some((1, seconds(1), 16 << 10, 1)), "and never less than this");
    assert_eq!((told(1), told(6)), (None, None));
}

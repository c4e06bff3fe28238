//! What valid files say of slots that adapt and of bandwidth.

use sluicegate::config::Algorithm;

use super::values::{limit, read, seconds};

#[test]
fn adaptive_slots() {
    let config = read("all_limit_fields");
    let told = |name: &str| -> Vec<(Option<u32>, u32)> {
        let slots = |algorithm: &Algorithm| match algorithm {
            Algorithm::Concurrency { min, max } => (*min, *max),
            other => panic!("{other:?}"),
        };
        limit(&config, name).variants().map(slots).collect()
    };
    assert_eq!(told("adaptive"), [(Some(4), 1000), (Some(3), 3), (None, 2)]);
    assert_eq!(told("adaptive-low"), [(Some(2000), 2000)]);
    assert_eq!(told("adaptive-between"), [(Some(3), 30)]);
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

//! Single steps with expected values.

use super::*;

const BOUNDS: Bounds = Bounds { min: 2, max: 200 };

fn window(mean_us: u64, peak: u64) -> Sample {
    Sample { answers: 100, mean_us, abandoned: 0, abandoned_us: 0, failures: 0, peak, span_us: 100_000 }
}

/// A controller with a minimum of 10 ms and a limit of a hundred.
fn known() -> Gradient {
    Gradient { limit: 100 * ONE, minimum_us: 10_000, ..Gradient::new(BOUNDS) }
}

#[test]
fn latency_near_the_minimum_lets_the_limit_grow_by_its_root() {
    assert_eq!(known().apply_sample(BOUNDS, &window(10_000, 100)).allowed_requests(BOUNDS), 110);
    assert_eq!(known().apply_sample(BOUNDS, &window(14_000, 99)).allowed_requests(BOUNDS), 105);
}

#[test]
fn latency_above_the_tolerance_shrinks_it_by_half_at_most() {
    assert_eq!(known().apply_sample(BOUNDS, &window(20_000, 99)).allowed_requests(BOUNDS), 80);
    assert_eq!(known().apply_sample(BOUNDS, &window(20_000, 100)).allowed_requests(BOUNDS), 73, "it is full");
    assert_eq!(known().apply_sample(BOUNDS, &window(900_000, 100)).allowed_requests(BOUNDS), 55);
}

#[test]
fn failures_shrink_it_at_any_latency_and_even_if_it_is_not_used() {
    let failed = |answers, peak| Sample { answers, failures: 100 - answers, ..window(10_000, peak) };
    assert_eq!(known().apply_sample(BOUNDS, &failed(50, 100)).allowed_requests(BOUNDS), 55);
    assert_eq!(known().apply_sample(BOUNDS, &failed(0, 1)).allowed_requests(BOUNDS), 55);
    assert_eq!(
        known().apply_sample(BOUNDS, &failed(99, 1)).allowed_requests(BOUNDS),
        100,
        "one in a hundred is no sign"
    );
}

#[test]
fn a_limit_of_which_less_than_half_is_used_never_grows() {
    assert_eq!(known().apply_sample(BOUNDS, &window(10_000, 49)).allowed_requests(BOUNDS), 100);
    assert_eq!(known().apply_sample(BOUNDS, &window(14_000, 49)).allowed_requests(BOUNDS), 100);
}

#[test]
fn latency_shrinks_a_limit_that_is_not_used_to_twice_the_peak_but_not_below_the_first() {
    let shrunk = |bounds, peak| {
        let mut gradient = known();
        for _ in 0..15 {
            gradient = gradient.apply_sample(bounds, &window(90_000, peak));
        }
        gradient.allowed_requests(bounds)
    };
    assert_eq!(known().apply_sample(BOUNDS, &window(90_000, 49)).allowed_requests(BOUNDS), 98);
    assert_eq!(shrunk(BOUNDS, 9), 20);
    assert_eq!(shrunk(Bounds { min: 60, max: 200 }, 9), 60);
    assert_eq!(shrunk(BOUNDS, 10), 2, "from there on it is used");
}

#[test]
fn abandoned_requests_count_as_slow_answers_but_never_for_the_minimum() {
    let abandoned =
        |answers| Sample { answers, abandoned: 100, abandoned_us: 900_000, ..window(10_000, 100) };
    assert_eq!(known().apply_sample(BOUNDS, &abandoned(100)).allowed_requests(BOUNDS), 55);
    let mut gradient = known();
    for _ in 0..100 {
        gradient = gradient.apply_sample(BOUNDS, &abandoned(0));
    }
    assert_eq!((gradient.allowed_requests(BOUNDS), gradient.minimum_us()), (2, 10_000));
}

#[test]
fn the_minimum_is_measured_with_half_and_half_of_that_until_latency_falls_no_more() {
    let mut gradient = Gradient { age_us: REMEASURE_US, ..known() };
    gradient = gradient.apply_sample(BOUNDS, &window(19_000, 100));
    let limit = gradient.limit;
    assert!(gradient.is_measuring());
    assert_eq!(gradient.allowed_requests(BOUNDS), 38);
    gradient = gradient.apply_sample(BOUNDS, &window(13_000, 38));
    assert_eq!(gradient.allowed_requests(BOUNDS), 19, "it fell: there was a queue");
    gradient = gradient.apply_sample(BOUNDS, &window(17_000, 19));
    assert_eq!((gradient.minimum_us(), gradient.limit, gradient.is_measuring()), (17_000, limit, false));
}

#[test]
fn a_measurement_that_confirms_the_minimum_goes_no_deeper_and_counts_half() {
    let aged = Gradient { age_us: REMEASURE_US, ..known() };
    let measuring = aged.apply_sample(BOUNDS, &window(16_000, 100));
    let limit = measuring.allowed_requests(BOUNDS);
    let confirmed = measuring.apply_sample(BOUNDS, &window(11_000, limit));
    assert_eq!((confirmed.minimum_us(), confirmed.is_measuring()), (10_500, false));
    // Half of the requests took about half of the time: half of them may wait even now.
    let halved = measuring.apply_sample(BOUNDS, &window(9_900, limit));
    assert!(halved.is_measuring(), "{halved:?}");
}

#[test]
fn a_limit_that_shrinks_in_vain_has_the_minimum_measured_soon() {
    let shrunk = |limit, mean_us| {
        let aged = Gradient { limit: limit * ONE, measured_limit: 100 * ONE, age_us: STRAY_US, ..known() };
        aged.apply_sample(BOUNDS, &window(mean_us, limit)).is_measuring()
    };
    assert_eq!([shrunk(60, 16_000), shrunk(70, 16_000), shrunk(60, 14_000)], [true, false, false]);
}

#[test]
fn a_full_limit_does_not_raise_the_minimum() {
    let after = |mean_us, peak| known().apply_sample(BOUNDS, &window(mean_us, peak)).minimum_us();
    assert_eq!([after(12_000, 99), after(12_000, 100), after(8_000, 100)], [10_250, 10_000, 9_750]);
}

#[test]
fn without_overload_no_request_is_held_back_for_a_measurement() {
    let aged = Gradient { age_us: REMEASURE_US, ..known() };
    assert!(!aged.apply_sample(BOUNDS, &window(16_000, 49)).is_measuring(), "this limit is not the cause");
    assert_eq!(aged.apply_sample(BOUNDS, &window(14_000, 49)).minimum_us(), 14_000);
    assert_eq!(aged.apply_sample(BOUNDS, &window(16_000, 9)).minimum_us(), 16_000);
    assert_eq!(
        aged.apply_sample(BOUNDS, &window(16_000, 49)).minimum_us(),
        10_000,
        "soon it is used, and can be measured"
    );
    assert!(
        aged.apply_sample(BOUNDS, &window(16_000, 50)).is_measuring(),
        "never taken for the minimum unmeasured"
    );
    assert!(!aged.apply_sample(BOUNDS, &window(12_000, 100)).is_measuring(), "nothing queues");
}

#[test]
fn it_keeps_its_bounds_with_any_numbers() {
    let mut gradient = Gradient::new(BOUNDS);
    for mean_us in [u64::MAX >> 8, 1, 0, u64::MAX >> 8] {
        for _ in 0..100 {
            gradient = gradient.apply_sample(BOUNDS, &Sample { span_us: u64::MAX, ..window(mean_us, 200) });
            assert!((2..=200).contains(&gradient.allowed_requests(BOUNDS)), "{gradient:?}");
        }
    }
    let widest = Bounds { min: 1, max: u32::MAX.into() };
    let mut gradient = Gradient::new(widest);
    for _ in 0..300_000 {
        gradient = gradient.apply_sample(widest, &window(10, u32::MAX.into()));
    }
    assert_eq!(gradient.allowed_requests(widest), widest.max);
}

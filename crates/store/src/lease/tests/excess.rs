//! Not one unit too many, and few too few.

use super::super::LeaseCall;
use super::simulation::{Outcome, Random, Setting, WindowSetting};
use super::store_model::StoreModel;

/// A setting that nothing but the seed chooses.
fn any_setting(seed: u64) -> Setting {
    let mut random = Random(seed);
    let rate = [200, 1_000, 3_000][random.below(3) as usize];
    let burst = rate / [1, 2, 5][random.below(3) as usize];
    let load = [0.5, 0.9, 2.0, 6.0][random.below(4) as usize];
    let some =
        |random: &mut Random, most: f64| if random.below(2) == 0 { 0.0 } else { random.fraction() * most };
    Setting {
        load,
        skew: [1.0, 30.0][random.below(2) as usize],
        swings: random.below(3) == 0,
        span_ms: 4_000.min((5e6 / (rate as f64 * load)) as u64),
        round_trip_us: [200, 1_000, 20_000, 80_000, 200_000][random.below(5) as usize],
        jitter: 5.0 * random.fraction(),
        loss: some(&mut random, 0.3),
        repeats: some(&mut random, 0.3),
        deaths: some(&mut random, 10.0),
        stops: some(&mut random, 10.0),
        refunds: some(&mut random, 0.5),
        cost_max: [1, 1, 5][random.below(3) as usize],
        ..Setting::new(seed, 3 + random.below(10) as usize, rate, burst)
    }
}

#[test]
fn nothing_is_admitted_beyond_one_bucket() {
    for seed in 0..1_000 {
        let setting = any_setting(seed);
        let outcome = setting.run();
        assert_eq!(outcome.excess, 0, "{setting:?}: {outcome:?}");
    }
}

/// The same with windows, fixed and sliding.
fn any_windows(seed: u64) -> Setting {
    let mut random = Random(!seed);
    let period_ms = [200, 1_000, 3_000][random.below(3) as usize];
    let buckets = [0, 0, 1, 2, 5][random.below(5) as usize];
    Setting { windows: Some(WindowSetting { period_ms, buckets }), ..any_setting(seed) }
}

#[test]
fn nothing_is_admitted_beyond_the_windows() {
    for seed in 0..400 {
        let setting = any_windows(seed);
        let outcome = setting.run();
        assert_eq!(outcome.excess, 0, "{setting:?}: {outcome:?}");
    }
}

/// Units that were taken in a window before are not given back to the present one.
#[test]
fn refunds_of_passed_windows_are_noticed() {
    let run = |seed| Setting { refunds_late: true, refunds: 0.5, ..any_windows(seed) }.run();
    assert!((0..100).any(|seed| run(seed).excess > 0));
}

#[test]
fn few_units_of_windows_are_lost() {
    for (period_ms, buckets, least) in
        [(1_000, 0, 0.999), (6_000, 0, 0.999), (1_000, 10, 0.96), (6_000, 10, 0.98)]
    {
        for nodes in [3, 10, 50] {
            let windows = Some(WindowSetting { period_ms, buckets });
            let span_ms = 3 * period_ms;
            let setting = Setting { windows, span_ms, ..Setting::new(7, nodes, 2_000, 1) };
            let outcome = setting.run();
            assert!(outcome.utilisation() >= least, "{setting:?}: {outcome:?}");
        }
    }
}

#[test]
fn a_thousand_nodes_share_one_bucket() {
    let outcome = Setting { span_ms: 500, ..Setting::new(1, 1_000, 20_000, 10_000) }.run();
    assert_eq!(outcome.excess, 0, "{outcome:?}");
}

/// A store that forgets everything admits one limit more, and the rates that go on until the next answers.
#[test]
fn a_store_that_forgets_admits_one_limit_more() {
    for seed in 0..50 {
        let setting = Setting { forgets: true, deaths: 0.0, ..any_setting(seed) };
        let (outcome, terms) = (setting.run(), setting.terms());
        let more = terms.depth + terms.rate * (terms.hold + terms.term + setting.round_trip_us);
        assert!(outcome.excess <= more.into(), "{setting:?}: {outcome:?}");
    }
}

impl Outcome {
    fn utilisation(&self) -> f64 {
        self.admitted as f64 / self.ideal as f64
    }
}

#[test]
fn little_is_refused_that_one_bucket_would_admit() {
    let limits = [(1_000, 1_000, 1_000), (20_000, 10_000, 500), (5_000, 5_000, 80_000)];
    // By load, the least part of what one bucket would admit, for each limit.
    for (load, least) in [(0.9, [1.0, 1.0, 0.99]), (2.0, [0.975, 0.975, 0.93]), (10.0, [0.975, 0.975, 0.93])]
    {
        for (nodes, place) in
            [3, 10, 50].into_iter().flat_map(|nodes| (0..3).map(move |place| (nodes, place)))
        {
            let (rate, burst, round_trip_us) = limits[place];
            let setting =
                Setting { load, span_ms: 4_000, round_trip_us, ..Setting::new(7, nodes, rate, burst) };
            let (outcome, terms) = (setting.run(), setting.terms());
            assert!(outcome.utilisation() >= least[place], "{setting:?}: {outcome:?}");
            // Nodes whose part is too small for a rate ask more often, and distant ones ask earlier.
            let part = rate * terms.term / 1_000_000 / nodes as u64;
            let often = if part < 8 {
                27
            } else if round_trip_us > 1_000 {
                22
            } else {
                16
            };
            let terms_of_all = setting.span_ms * 1_000 / terms.term * nodes as u64;
            assert!(outcome.calls * 10 <= terms_of_all * often, "{setting:?}: {outcome:?}");
        }
    }
}

/// A node takes no more in advance than its part of what is asked for.
#[test]
fn a_hot_node_leaves_others_their_part() {
    let terms = Setting::new(1, 2, 1_000, 1_000).terms();
    let mut store = StoreModel::full(&terms, 1);
    let call = |number, demand| {
        let want = terms.depth;
        LeaseCall { number, want, demand, stopped: true, ..LeaseCall::default() }
    };
    let held = [(1, 1_000), (2, 3_000), (1, 1_000)].map(|(node, demand)| {
        let number = store.nodes.get(&node).map_or(1, |_| 2);
        store.answer_call(&terms, 1, node, &call(number, demand)).held / terms.unit
    });
    assert_eq!(held, [200, 0, 50]);
    assert_eq!(store.answer_call(&terms, 1, 2, &call(2, 3_000)).held / terms.unit, 150);
}

/// After a flood the bucket fills again: the next burst is admitted.
#[test]
fn a_bucket_is_full_after_a_flood() {
    let calm = Setting { load: 0.3, ..Setting::new(3, 4, 1_000, 1_000) };
    let (free, held) = calm.after_a_flood();
    assert!(free + held >= 950, "{free} {held}");
}

//! Leases on a virtual clock: slots and reservations come back, whatever becomes of their holders.

use std::collections::HashMap;
use std::time::Duration;

use super::*;
use crate::chain::{Chain, ChainVerdict, Charge, Decisions, LimitDemand, WaitingCap};
use sluicegate_config as config;
use sluicegate_limit::Units;
use sluicegate_limit::table::CounterKey;
use sluicegate_model::{self as model, LEASE_TIME};
use sluicegate_observe::metrics::MetricLabels;

const SLOTS: u64 = 5;
const UNITS: u64 = 1_000_000;
const KEYS: u64 = 3;

/// A chain of slots and of two limits that are settled, and what takes from it.
struct House {
    chain: Chain,
    cap: Arc<WaitingCap>,
    leases: Arc<Leases>,
    metrics: Arc<Metrics>,
}

impl House {
    fn new() -> House {
        let text = format!(
            "limits:\n  slots: {{ algorithm: concurrency, key: account, max_concurrent: {SLOTS} }}\n\
             \x20 tokens: {{ key: account, rate: {UNITS}/1d, charge: {{ reserve: 10, units: header:x-units }} }}\n\
             \x20 pages: {{ algorithm: fixed_window, key: account, rate: {UNITS}/1d, \
             charge: {{ reserve: 2, units: header:x-pages }} }}\n\
             service: {{ listen: 127.0.0.1:0 }}\nlocations: []\n"
        );
        let config = config::parse(&text, "x.yaml").unwrap_or_else(|report| panic!("{report}")).config;
        let limit = |(index, limit)| Arc::new(Limit::new(model::LimitId(index), limit, 1_000));
        let limits: Vec<Arc<Limit>> = config.limits.iter().enumerate().map(limit).collect();
        let labels = MetricLabels {
            workers: 1,
            limits: config.limits.iter().map(|limit| limit.name.clone()).collect(),
            charging: vec![false, true, true],
            ..MetricLabels::default()
        };
        House {
            chain: Chain::new(limits),
            cap: Arc::new(WaitingCap::new(10)),
            leases: Arc::default(),
            metrics: Metrics::new(labels),
        }
    }

    fn units(limit: &Limit, key: u64) -> Units {
        let cost = match &*limit.name {
            "slots" => 1,
            "tokens" => 10,
            _ => 2,
        };
        let key = CounterKey::new(u128::from(key + 1), key);
        Units::new(key, cost)
    }

    fn take(&self, key: u64, span: Duration) -> Option<LeaseId> {
        self.take_at(key, span, Now::read_clock())
    }

    fn take_at(&self, key: u64, span: Duration, now: Now) -> Option<LeaseId> {
        let place = self.leases.reserve_place(0, now).expect("a place");
        let mut decisions = Decisions::new();
        let demand = |limit: &Limit| LimitDemand::Units(House::units(limit, key));
        let verdict = self.chain.judge::<Charge>(now, &self.cap, true, demand, &mut decisions);
        let ChainVerdict::Admit(mut permit) = verdict else { return None };
        permit.keep_charges();
        permit.count_reservations();
        Some(place.hold(permit, self.metrics.clone(), span, now))
    }

    fn limit(&self, name: &str) -> &Limit {
        self.chain.limits().iter().find(|limit| *limit.name == *name).unwrap()
    }

    fn free_slots(&self, key: u64) -> u64 {
        let limit = self.limit("slots");
        limit.peek_slots(0, &House::units(limit, key), Now::read_clock()).free
    }

    fn used(&self, name: &str, key: u64) -> u64 {
        let limit = self.limit(name);
        let units = Units { cost: 1, ..House::units(limit, key) };
        // The bucket refills by 12 units a second, and its burst is one second's.
        limit.max_units(0, 0) - limit.peek_units(0, &units, Now::read_clock()).remaining
    }

    fn settle(&self, id: LeaseId, units: UsedUnits) -> Result<bool, SettleFault> {
        self.leases.settle(id, &units, 0, Now::read_clock()).map(|(_, goes_on)| goes_on)
    }

    fn assert_empty(&self) {
        assert_eq!(self.leases.count(), 0);
        assert_eq!(self.leases.places.load(Relaxed), 0);
        assert_eq!(self.leases.first_end.load(Relaxed), 0);
        assert!(self.leases.held.lock().by_end.is_empty());
        for key in 0..KEYS {
            assert_eq!(self.free_slots(key), SLOTS, "key {key}");
        }
        for name in ["tokens", "pages"] {
            assert_eq!(self.limit(name).reserved_units(), 0, "{name}");
        }
    }
}

/// Numbers that look random (xorshift64, Marsaglia 2003).
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

#[tokio::test(start_paused = true)]
async fn of_100_000_takes_releases_and_deaths_nothing_is_held() {
    for seed in 1..=4_u64 {
        let house = House::new();
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // The leases that should be held, with their keys and ends.
        let mut model: HashMap<LeaseId, (u64, Now)> = HashMap::new();
        for step in 0..25_000 {
            let now = Now::read_clock();
            model.retain(|_, (_, ends)| *ends > now);
            let any = model.keys().min().copied();
            match dice.below(10) {
                0..=4 => {
                    let (key, span) = (dice.below(KEYS), Duration::from_millis(1 + dice.below(400)));
                    let held = model.values().filter(|(other, _)| *other == key).count() as u64;
                    // The sweep is late on purpose: what has ended is free all the same.
                    let taken = house.take(key, span);
                    assert_eq!(taken.is_some(), held < SLOTS, "seed {seed}, step {step}");
                    if let Some(id) = taken {
                        model.insert(id, (key, end_after(now, span)));
                    }
                }
                5 | 6 => {
                    let id = any.or_else(LeaseId::random).unwrap();
                    assert_eq!(
                        house.leases.release(id, 0, now),
                        model.remove(&id).is_some(),
                        "{seed}/{step}"
                    );
                }
                7 => {
                    let id = any.or_else(LeaseId::random).unwrap();
                    let renewed = house.leases.renew(id, Duration::from_millis(300), now);
                    assert_eq!(renewed, model.contains_key(&id), "{seed}/{step}");
                    if let Some((_, ends)) = model.get_mut(&id) {
                        *ends = end_after(now, Duration::from_millis(300));
                    }
                }
                8 => {
                    if let Some(id) = any {
                        let units = UsedUnits::ByLimit(vec![("tokens".to_owned(), dice.below(20))]);
                        // A second settlement of the same limit is refused.
                        let _ = house.settle(id, units);
                    }
                }
                _ => tokio::time::sleep(Duration::from_millis(dice.below(120))).await,
            }
            if step % 97 == 0 {
                house.leases.end_due(0, Now::read_clock());
            }
        }
        // The holders that are left have died.
        tokio::time::sleep(Duration::from_secs(1)).await;
        house.leases.end_due(0, Now::read_clock());
        house.assert_empty();
    }
}

/// The same on several threads, with one clock that each of them moves forward, and sweeps at any time.
#[test]
fn threads_take_release_and_die_at_once_and_nothing_is_held() {
    let house = House::new();
    let begin = Now::read_clock();
    let clock = AtomicU64::new(begin.0);
    let work = &|seed: u64| {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut own: Vec<(LeaseId, Now)> = Vec::new();
        for _ in 0..25_000 {
            let now = Now(clock.fetch_add(dice.below(2_000_000), Relaxed));
            own.retain(|(_, ends)| *ends > now);
            // A thread may rest between reading the clock and acting, and others end what is over by then.
            let may_have_ended = |ends: Now| clock.load(Relaxed) >= ends.0;
            let span = Duration::from_millis(1_500 + dice.below(3_000));
            let picked = (!own.is_empty()).then(|| dice.below(own.len() as u64) as usize);
            match (dice.below(10), picked) {
                (0..=3, _) => {
                    if let Some(id) = house.take_at(dice.below(KEYS), span, now) {
                        own.push((id, end_after(now, span)));
                    }
                }
                (4 | 5, Some(index)) => {
                    let (id, ends) = own.swap_remove(index);
                    assert!(house.leases.release(id, 0, now) || may_have_ended(ends));
                }
                (6, Some(index)) => {
                    let (id, ends) = own.swap_remove(index);
                    if house.leases.renew(id, span, now) {
                        own.push((id, end_after(now, span)));
                    } else {
                        assert!(may_have_ended(ends));
                    }
                }
                (7, Some(index)) => {
                    let units = UsedUnits::ByLimit(vec![("tokens".to_owned(), dice.below(20))]);
                    let (id, ends) = own[index];
                    let settled = house.leases.settle(id, &units, 0, now);
                    assert!(!matches!(settled, Err(SettleFault::Unknown)) || may_have_ended(ends));
                }
                // The holder dies.
                (8, Some(index)) => drop(own.swap_remove(index)),
                _ => house.leases.end_due(0, now),
            }
            for key in 0..KEYS {
                assert!(house.free_slots(key) <= SLOTS);
            }
        }
    };
    std::thread::scope(|scope| {
        (1..=4).for_each(|seed| drop(scope.spawn(move || work(seed))));
    });
    let end = Now(clock.load(Relaxed) + 10_000_000_000);
    while house.leases.count() > 0 {
        house.leases.end_due(0, end);
    }
    house.assert_empty();
}

#[tokio::test(start_paused = true)]
async fn the_slots_of_a_dead_holder_are_free_at_its_end_and_not_before() {
    let house = House::new();
    for _ in 0..SLOTS {
        house.take(0, Duration::from_secs(10)).unwrap();
    }
    tokio::time::sleep(Duration::from_millis(9_999)).await;
    assert_eq!(house.take(0, Duration::from_secs(10)), None);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(house.take(0, Duration::from_secs(10)).is_some());
    assert_eq!(house.leases.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_ended_lease_is_unknown_before_the_sweep_has_seen_it() {
    let house = House::new();
    let id = house.take(0, Duration::from_secs(1)).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let now = Now::read_clock();
    assert_eq!(house.settle(id, UsedUnits::All(1)), Err(SettleFault::Unknown));
    assert!(!house.leases.renew(id, LEASE_TIME, now));
    assert!(!house.leases.release(id, 0, now));
    house.assert_empty();
}

#[tokio::test(start_paused = true)]
async fn several_limits_of_one_lease_are_settled_by_their_names() {
    let house = House::new();
    let id = house.take(0, LEASE_TIME).unwrap();
    assert_eq!((house.used("tokens", 0), house.used("pages", 0)), (10, 2));
    let by_limit = |all: &[(&str, u64)]| {
        UsedUnits::ByLimit(all.iter().map(|(name, units)| ((*name).to_owned(), *units)).collect())
    };
    let unknown = house.settle(id, by_limit(&[("tokens", 1), ("slots", 1)]));
    assert_eq!(unknown, Err(SettleFault::NotReserved("slots".to_owned())));
    assert_eq!(house.used("tokens", 0), 10, "a refused settlement changes nothing");
    assert_eq!(house.settle(id, by_limit(&[("tokens", 3)])), Ok(true));
    assert_eq!((house.used("tokens", 0), house.used("pages", 0)), (3, 2));
    let again = house.settle(id, by_limit(&[("tokens", 4)]));
    assert_eq!(again, Err(SettleFault::NotReserved("tokens".to_owned())));
    assert_eq!(house.settle(id, UsedUnits::All(7)), Ok(true), "the slot is still held");
    assert_eq!((house.used("tokens", 0), house.used("pages", 0)), (3, 7));
    assert_eq!(house.free_slots(0), SLOTS - 1);
    assert!(house.leases.release(id, 0, Now::read_clock()));
    house.assert_empty();
}

#[tokio::test(start_paused = true)]
async fn what_is_not_settled_stays_as_it_was_reserved() {
    let house = House::new();
    let id = house.take(0, LEASE_TIME).unwrap();
    assert_eq!(house.limit("tokens").reserved_units(), 10);
    assert!(house.leases.release(id, 0, Now::read_clock()));
    assert_eq!((house.used("tokens", 0), house.used("pages", 0)), (10, 2));
    house.assert_empty();
}

#[tokio::test(start_paused = true)]
async fn places_are_bounded_and_come_back() {
    let leases: Arc<Leases> = Arc::default();
    let now = Now::read_clock();
    let places: Vec<LeasePlace> =
        (0..LEASES_MAX).map(|_| leases.reserve_place(0, now).map_err(drop).unwrap()).collect();
    assert_eq!(leases.reserve_place(0, now).map(drop), Err(NoLease::Full));
    drop(places);
    assert!(leases.reserve_place(0, now).is_ok());
    assert_eq!(leases.places.load(Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_process_ends_all() {
    let house = House::new();
    let ids: Vec<LeaseId> = (0..KEYS).filter_map(|key| house.take(key, LEASE_TIME)).collect();
    assert_eq!(ids.len(), 3);
    house.leases.end_all(0, Now::read_clock());
    house.assert_empty();
}

#[test]
fn an_id_is_read_as_it_is_written() {
    let [one, other] = [LeaseId::random().unwrap(), LeaseId::random().unwrap()];
    assert_ne!(one, other);
    assert_eq!(LeaseId::parse(&one.to_string()), Some(one));
    assert_eq!(format!("{one:?}"), "LeaseId");
    let text = LeaseId(1).to_string();
    for wrong in
        ["", "1", "+1", &text[1..], &text.replace('1', "A"), &text.replace('1', "g"), &format!("0{text}")]
    {
        assert_eq!(LeaseId::parse(wrong), None, "{wrong}");
    }
}

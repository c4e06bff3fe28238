//! Debts, by arithmetic.

use super::*;
use sluicegate_base::calendar::Anchor;
use sluicegate_config as config;
use sluicegate_model::{LimitId, OnFailure};

const KEY: SharedKey = SharedKey([7; 16]);

const TEXT: &str = "limits: { a: { algorithm: fixed_window, rate: 10/1h } }
locations: [{ path: /, limits: a, respond: { status: 200 } }]";

fn limit() -> Arc<SharedLimit> {
    limit_named("a")
}

fn limit_named(name: &str) -> Arc<SharedLimit> {
    let text =
        TEXT.replace("limits: a,", &format!("limits: {name},")).replace("{ a:", &format!("{{ {name}:"));
    let config = config::parse(&text, "test").unwrap().config;
    Arc::new(SharedLimit::new(LimitId(0), &config.limits[0], OnFailure::Local, 10))
}

fn units(cost: u64) -> Units {
    Units::new(sluicegate_limit::table::CounterKey::new(1, 0), cost)
}

fn hold<'a>(debts: &'a Debts, charges: &[StoreUnits]) -> KeysInFlight<'a, Debts> {
    KeysInFlight::new(debts, charges.iter().map(|charge| charge.key))
}

/// Admits units by the local share, as a forwarded request does.
fn admit(debts: &Debts, limit: &Arc<SharedLimit>, cost: u64, now: Now) {
    assert!(limit.local_share().charge_units(0, &units(cost), now).1.is_some());
    debts.open_debt(limit, 0, KEY, &units(cost));
}

fn charge(debts: &Debts, now: Now, acknowledged: bool) -> Vec<(u64, u64)> {
    let charges = debts.take_due(10, now);
    let mut in_flight = hold(debts, &charges);
    charges.iter().for_each(|one| in_flight.finish_key(&one.key, acknowledged));
    charges.iter().map(|one| (one.mark, one.cost)).collect()
}

#[test]
fn a_charge_is_sent_again_as_it_was_until_it_is_acknowledged() {
    let (debts, limit, now) = (Debts::new(1), limit(), Now::read_clock());
    assert_eq!((debts.key_count(), debts.owed_units(&limit, 0, &KEY, 0, now).0), (0, 0));
    admit(&debts, &limit, 3, now);
    admit(&debts, &limit, 2, now);
    assert_eq!((debts.key_count(), debts.owed_units(&limit, 0, &KEY, 0, now).0), (1, 5));
    assert_eq!(charge(&debts, now, false), [(1, 5)]);
    admit(&debts, &limit, 1, now);
    assert_eq!(debts.owed_units(&limit, 0, &KEY, 0, now).0, 6);
    assert_eq!(charge(&debts, now, false), [(1, 5)], "the store may have made that charge");
    assert_eq!(charge(&debts, now, true), [(1, 5)]);
    assert_eq!(charge(&debts, now, true), [(2, 1)]);
    assert_eq!((debts.key_count(), debts.owed_units(&limit, 0, &KEY, 0, now).0), (0, 0));
}

/// A charge that was not sent is corrected by responses; one that the store may have made is not.
#[test]
fn responses_correct_debts_that_are_not_sent() {
    let (debts, limit, now) = (Debts::new(1), limit(), Now::read_clock());
    admit(&debts, &limit, 3, now);
    let cancel = || {
        let charges = debts.take_due(10, now);
        let mut in_flight = hold(&debts, &charges);
        charges.iter().for_each(|one| in_flight.cancel_key(&one.key));
    };
    cancel();
    assert_eq!(debts.settle_debt(&limit, 0, KEY, &units(3), (3, 1)), 0);
    assert_eq!(debts.owed_units(&limit, 0, &KEY, 0, now).0, 1);
    assert_eq!(charge(&debts, now, false), [(2, 1)]);
    cancel();
    assert_eq!(debts.settle_debt(&limit, 0, KEY, &units(1), (1, 0)), 0);
    assert_eq!((charge(&debts, now, true), limit.lost_count()), (vec![(2, 1)], 1), "it may have been made");
    assert_eq!(debts.key_count(), 0);
}

/// A response that ends while its units are on their way corrects them, unless they arrive.
#[test]
fn responses_correct_a_charge_that_is_not_made() {
    for arrives in [false, true] {
        let (debts, limit, now) = (Debts::new(7), settled_limit(), Now::read_clock());
        admit(&debts, &limit, 4, now);
        admit(&debts, &limit, 2, now);
        let charges = debts.take_due(10, now);
        let mut in_flight = hold(&debts, &charges);
        assert_eq!(debts.settle_debt(&limit, 0, KEY, &units(1), (4, 1)), 0);
        match arrives {
            true => in_flight.finish_key(&KEY, true),
            false => in_flight.cancel_key(&KEY),
        }
        assert_eq!(limit.lost_count(), u64::from(arrives));
        let other = Debts::new(8);
        other.restore_state(&debts.export_state(), &[&limit]);
        let (charged, excess) = if arrives { (vec![], 3) } else { (vec![(2, 1)], 5) };
        assert_eq!(charge(&other, now, true), charged, "the open units stay with this process");
        assert_eq!(debts.settle_debt(&limit, 0, KEY, &units(1), (2, 5)), excess);
    }
}

#[test]
fn units_that_left_their_window_are_not_owed() {
    let (debts, limit, now) = (Debts::new(1), limit(), Now::read_clock());
    admit(&debts, &limit, 3, now);
    let later = Now(now.0 + 3_600_000_000_000);
    assert_eq!(debts.owed_units(&limit, 0, &KEY, 0, later).0, 0);
    assert_eq!((charge(&debts, later, true), charge(&debts, later, true)), (vec![], vec![]));
    assert_eq!(debts.key_count(), 0);
    admit(&debts, &limit, 2, later);
    debts.forget_units(9, later);
    assert_eq!((debts.key_count(), debts.owed_units(&limit, 0, &KEY, 0, later).0), (1, 2));
    let last = Now(later.0 + 3_600_000_000_000);
    (0..2).for_each(|_| debts.forget_units(9, last));
    assert_eq!(debts.key_count(), 0);
}

/// The first limit has forgotten its unit before the store acknowledged it.
#[test]
fn a_key_of_two_limits_is_charged_for_both() {
    let (debts, one, other, now) = (Debts::new(1), limit(), limit_named("b"), Now::read_clock());
    admit(&debts, &one, 3, now);
    assert_eq!(charge(&debts, now, false), [(1, 3)]);
    let later = Now(now.0 + 3_600_000_000_000);
    admit(&debts, &other, 2, later);
    assert_eq!(charge(&debts, later, true), [(1, 3)]);
    assert_eq!(charge(&debts, later, true), [(2, 2)]);
    assert_eq!((charge(&debts, later, true), debts.key_count()), (vec![], 0));
}

/// A reload raises the limit while something is owed.
#[test]
fn debts_follow_a_limit_whose_numbers_change() {
    let (debts, before, now) = (Debts::new(1), limit(), Now::read_clock());
    admit(&debts, &before, 3, now);
    let text = TEXT.replace("10/1h", "300/1h");
    let config = config::parse(&text, "test").unwrap().config;
    let after = SharedLimit::adopt_from(Some(&before), LimitId(0), &config.limits[0], OnFailure::Local, 10);
    after.apply_numbers(&Now::read_clock);
    let after = Arc::new(after);
    debts.follow_limits(&[&after]);
    assert_eq!(debts.owed_units(&after, 0, &KEY, 0, now).0, 3);
    assert_eq!(charge(&debts, now, true), [(1, 3)]);
}

/// The task that sends charges may end at any moment.
#[test]
fn a_charge_that_is_dropped_is_made_later() {
    let (debts, limit, now) = (Debts::new(1), limit(), Now::read_clock());
    admit(&debts, &limit, 3, now);
    let charges = debts.take_due(10, now);
    assert!(charges.len() == 1 && debts.take_due(10, now).is_empty(), "one charge of a key at a time");
    drop(hold(&debts, &charges));
    assert_eq!(charge(&debts, now, true), [(1, 3)]);
}

#[test]
fn another_process_takes_the_debts_over() {
    let (debts, limit, now) = (Debts::new(7), limit(), Now::read_clock());
    admit(&debts, &limit, 3, now);
    assert_eq!(charge(&debts, now, false), [(1, 3)]);
    let json = serde_json::to_string(&debts.export_state()).unwrap();
    let other = Debts::new(8);
    other.restore_state(&serde_json::from_str(&json).unwrap(), &[&limit]);
    assert_eq!((other.node(), other.owed_units(&limit, 0, &KEY, 0, now).0), (7, 3));
    assert_eq!(charge(&other, now, true), [(1, 3)], "the same charge of the same name");
}

#[test]
fn a_reset_key_owes_nothing_to_that_limit_any_more() {
    let (debts, one, other, now) = (Debts::new(1), limit(), limit_named("b"), Now::read_clock());
    for limit in [&one, &other] {
        admit(&debts, limit, 3, now);
    }
    // A charge on its way for both.
    assert_eq!(charge(&debts, now, false), [(1, 3), (1, 3)]);
    debts.forget_key(&one, 0..1, &KEY);
    assert_eq!(
        (debts.owed_units(&one, 0, &KEY, 0, now).0, debts.owed_units(&other, 0, &KEY, 0, now).0),
        (0, 3)
    );
    assert_eq!(charge(&debts, now, true), [(1, 3)]);
    admit(&debts, &one, 1, now);
    debts.forget_key(&one, 0..1, &KEY);
    assert_eq!((charge(&debts, now, true), debts.key_count()), (vec![], 0));
    admit(&debts, &one, 1, now);
    assert_eq!(charge(&debts, now, true), [(2, 1)], "later units are owed again");
}

/// A limit whose charges are settled by responses.
fn settled_limit() -> Arc<SharedLimit> {
    let text = TEXT.replace("rate: 10/1h", "rate: 10/1h, charge: { units: \"header:x-cost\" }");
    let config = config::parse(&text, "test").unwrap().config;
    Arc::new(SharedLimit::new(LimitId(0), &config.limits[0], OnFailure::Local, 10))
}

#[test]
fn open_units_stay_with_the_process_that_settles_them() {
    let (debts, limit, now) = (Debts::new(7), settled_limit(), Now::read_clock());
    let settle = |corrected| debts.settle_debt(&limit, 0, KEY, &units(1), corrected);
    admit(&debts, &limit, 2, now);
    assert_eq!(settle((2, 2)), 0);
    admit(&debts, &limit, 3, now);
    let other = Debts::new(8);
    other.restore_state(&debts.export_state(), &[&limit]);
    assert_eq!(charge(&other, now, true), [(1, 2)], "the open ones are not exported");
    assert_eq!(charge(&debts, now, true), [], "nothing is charged twice");
    debts.open_debt(&limit, 0, KEY, &units(4));
    assert_eq!((settle((3, 1)), settle((4, 9))), (1, 9), "the callers charge what was used");
}

#[test]
fn a_process_that_keeps_its_debts_charges_them_all() {
    let (debts, limit, now) = (Debts::new(7), settled_limit(), Now::read_clock());
    admit(&debts, &limit, 3, now);
    debts.export_state();
    admit(&debts, &limit, 2, now);
    assert_eq!(debts.settle_debt(&limit, 0, KEY, &units(1), (2, 1)), 1);
    debts.serve_store(1);
    assert_eq!(debts.settle_debt(&limit, 0, KEY, &units(1), (3, 2)), 0);
    assert_eq!(charge(&debts, now, true), [(1, 2)]);
}

#[test]
fn units_that_are_charged_already_are_not_kept() {
    let (debts, limit, now) = (Debts::new(7), settled_limit(), Now::read_clock());
    admit(&debts, &limit, 3, now);
    assert_eq!(charge(&debts, now, false), [(1, 3)]);
    let other = Debts::new(8);
    other.restore_state(&debts.export_state(), &[&limit]);
    assert_eq!(charge(&other, now, true), [(1, 3)]);
    assert_eq!(debts.settle_debt(&limit, 0, KEY, &units(1), (3, 5)), 2, "only the excess");
}

#[test]
fn a_debt_keeps_the_date_of_its_account() {
    let (debts, limit, now) = (Debts::new(1), limit(), Now::read_clock());
    let date = |text: &str| Anchor::parse(text.as_bytes());
    let dated = |anchor| Units { anchor, ..units(2) };
    for anchor in [date("2024-01-31"), date("2024-02-29")] {
        assert!(limit.local_share().charge_units(0, &dated(anchor), now).1.is_some());
        debts.open_debt(&limit, 0, KEY, &dated(anchor));
    }
    let successor = Debts::new(2);
    successor.restore_state(&debts.export_state(), &[&limit]);
    let charges = successor.take_due(10, now);
    assert_eq!(
        charges.iter().map(|one| (one.cost, one.anchor)).collect::<Vec<_>>(),
        [(4, date("2024-02-29"))]
    );
    assert_eq!(charges[0].to_item().anchor, date("2024-02-29"));
}

/// Each class owes its own units, and one charge of the key has them all; an upgrade takes the classes over.
#[test]
fn classes_owe_and_are_charged_apart() {
    let shares = "shares: { by: tier, classes: { gold: { least: 50% } } }";
    let text = format!("account: {{ from: header:x-account, tier: {{ from: header:x-tier }} }}\n{TEXT}")
        .replace("10/1h", &format!("10/1h, {shares}"));
    let config = config::parse(&text, "test").unwrap().config;
    let limit = Arc::new(SharedLimit::new(LimitId(0), &config.limits[0], OnFailure::Local, 10));
    let (debts, now) = (Debts::new(1), Now::read_clock());
    let of = |class, cost| {
        let key = sluicegate_limit::table::CounterKey { class, ..units(1).key };
        Units { key, ..units(cost) }
    };
    for (class, cost) in [(0, 2), (1, 3), (0, 1)] {
        assert!(limit.local_share().charge_units(0, &of(class, cost), now).1.is_some());
        debts.open_debt(&limit, 0, KEY, &of(class, cost));
    }
    let owed = |debts: &Debts, class| debts.owed_units(&limit, 0, &KEY, class, now);
    assert_eq!((owed(&debts, 0), owed(&debts, 1)), ((3, 3), (3, 3)));
    let other = Debts::new(2);
    other.restore_state(&debts.export_state(), &[&limit]);
    let charges: Vec<(u8, u64)> =
        other.take_due(10, now).iter().map(|charge| (charge.class, charge.cost)).collect();
    assert_eq!(charges, [(0, 3), (1, 3)]);
}

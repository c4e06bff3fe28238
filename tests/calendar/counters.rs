//! Counters of windows of the calendar beside a ledger of every window.

use sluicegate_base::calendar::Calendar;
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{ChargeRecord, Limit, LimitOutcome, Units};
use sluicegate_model::{LimitConfig, LimitId};
use sluicegate_testkit::Dice;
use std::collections::HashMap;

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400;
/// 2026-01-20 in UTC.
const START: u64 = 1_768_867_200;

pub fn config(fields: &str) -> LimitConfig {
    let text = format!(
        "locations: [{{ path: /, limits: {{ key: account, {fields} }}, respond: {{ status: 200 }} }}]"
    );
    let loaded = sluicegate_config::parse(&text, "test").unwrap_or_else(|report| panic!("{report}"));
    loaded.config.limits.into_iter().next().unwrap()
}

fn limit(fields: &str) -> Limit {
    Limit::new(LimitId(0), &config(fields), 1_000)
}

fn units(id: u128, cost: u64) -> Units {
    Units::new(CounterKey::new(id, 0), cost)
}

/// The moment that many seconds after 1970: the time of day is not set in this process.
fn at(seconds: u64) -> Now {
    Now(seconds * SECOND)
}

fn remaining(limit: &Limit, seconds: u64) -> u64 {
    limit.peek_units(0, &units(1, 1), at(seconds)).remaining
}

fn charge(limit: &Limit, cost: u64, seconds: u64) -> Option<ChargeRecord> {
    limit.charge_units(0, &units(1, cost), at(seconds)).1
}

#[test]
fn nothing_crosses_a_border() {
    let limit = limit("rate: 10/month, begins: { month: 15 }, zone: Europe/Berlin, charge: { units: bytes }");
    let border = 1_771_110_000; // 2026-02-15T00:00+01:00
    let key = units(1, 1).key;
    let open = charge(&limit, 8, border - 2).unwrap();
    assert_eq!(remaining(&limit, border - 1), 2);
    let (decision, _) = limit.charge_units(0, &units(1, 3), at(border - 1));
    assert_eq!((decision.outcome, decision.retry_after_ns), (LimitOutcome::Reject, SECOND));
    let late = charge(&limit, 1, border - 1).unwrap();
    assert_eq!(remaining(&limit, border), 10);
    // The excess belongs to the window of the reservation, and so does what comes back.
    assert_eq!(limit.settle_charge(0, &key, (8, 100), &open, at(border + 5)), 0);
    assert_eq!(limit.settle_charge(0, &key, (1, 0), &late, at(border + 5)), 0);
    assert_eq!(remaining(&limit, border + 5), 10);
    // A month later the reservation is older than the window before.
    let old = charge(&limit, 2, border + 6).unwrap();
    charge(&limit, 1, border + 40 * DAY);
    charge(&limit, 1, border + 65 * DAY);
    limit.settle_charge(0, &key, (2, 5), &old, at(border + 65 * DAY));
    assert_eq!(remaining(&limit, border + 65 * DAY), 6);
}

#[test]
fn a_clock_that_is_set_back_forgets_nothing() {
    let limit = limit("rate: 10/day");
    charge(&limit, 4, START + 10);
    assert_eq!(remaining(&limit, START - 30), 6, "a request of another clock counts in the newest window");
    assert_eq!(remaining(&limit, START + DAY - 1), 6);
    assert_eq!(remaining(&limit, START - 2 * DAY), 6, "the window is renumbered");
    assert_eq!(remaining(&limit, START - DAY), 10, "and ends with its day");
}

#[test]
fn a_reload_of_its_begin_gives_at_most_one_more_window() {
    let before = limit("rate: 10/month, begins: { month: 15 }");
    charge(&before, 9, START);
    let after = Limit::continue_from(Some(&before), LimitId(0), &config("rate: 20/month"), 1_000);
    after.apply_numbers(&|| at(START + 1));
    assert_eq!(remaining(&after, START + 1), 11, "the window of the 15th goes on");
    let february = 1_769_904_000;
    assert_eq!((remaining(&after, february - 1), remaining(&after, february)), (11, 20));
}

#[test]
fn a_reload_keeps_windows_that_begin_with_their_first_request() {
    let (hourly, daily) = (config("rate: [10/1h, 500/month]"), config("rate: [20/1d, 500/month]"));
    let before = Limit::new(LimitId(0), &hourly, 1_000);
    charge(&before, 9, START);
    let same = Limit::continue_from(Some(&before), LimitId(0), &hourly, 1_000);
    same.apply_numbers(&|| at(START + 5));
    assert_eq!((remaining(&same, START + 3_599), remaining(&same, START + 3_600)), (1, 10));
    charge(&same, 7, START + 3_600);
    let longer = Limit::continue_from(Some(&same), LimitId(0), &daily, 1_000);
    longer.apply_numbers(&|| at(START + 3_700));
    assert_eq!((remaining(&longer, START + DAY), remaining(&longer, START + DAY + 3_600)), (13, 20));
}

#[test]
fn a_key_has_one_counter_whatever_its_tier() {
    let limit = limit("rate: 10/month, tiers: { gold: { rate: 100/month } }");
    charge(&limit, 10, START);
    let gold = Units { variant: 1, ..units(1, 50) };
    let (decision, _) = limit.charge_units(1, &gold, at(START + 5));
    assert_eq!((decision.outcome, decision.remaining), (LimitOutcome::Admit, 40));
    assert_eq!(remaining(&limit, START + 6), 0);
    assert_eq!(limit.reset_key(1..2, &gold.key, at(START + 7)).unwrap().counters, 1);
    assert_eq!(remaining(&limit, START + 8), 10);
}

/// Every window of one key and rate, by its beginning.
#[derive(Default)]
struct Ledger {
    used: HashMap<u64, u64>,
    newest: u64,
    before: u64,
}

impl Ledger {
    /// The units of the window that counts at a moment.
    fn advance(&mut self, begins: u64, seconds: u64) -> &mut u64 {
        if begins > self.newest {
            (self.before, self.newest) = (self.newest, begins);
        } else if self.newest > seconds + 60 {
            let moved = self.used.remove(&self.newest).unwrap_or(0);
            self.newest = begins;
            self.used.insert(begins, moved);
        }
        self.used.entry(self.newest).or_default()
    }

    /// Of an older window only the excess counts, in the newest.
    fn settle(&mut self, window: u64, reserved: u64, actual: u64) {
        let is_known = window == self.newest || window == self.before;
        let (window, reserved) =
            if is_known { (window, reserved) } else { (self.newest, reserved.min(actual)) };
        let actual = if is_known { actual } else { actual.max(reserved) };
        let used = self.used.entry(window).or_default();
        *used = (*used + actual).saturating_sub(reserved);
    }
}

struct OpenCharge {
    id: u128,
    rate: usize,
    reserved: u64,
    record: ChargeRecord,
    window: u64,
}

const FILES: [&str; 3] = [
    "rate: [40/day, 400/month], begins: { day: \"02:30\", month: 31 }, zone: America/New_York",
    "rate: [60/day, 300/month], begins: { month: 15 }, zone: Australia/Lord_Howe",
    "rate: [30/day, 900/month], zone: Pacific/Apia",
];
const CALLS: usize = 100_000;

#[test]
fn counters_agree_with_a_ledger_of_every_window() {
    let mut dice = Dice(33);
    let mut below = |end: u64| dice.roll() % end;
    let file = |index: usize| config(&format!("{}, charge: {{ units: bytes }}", FILES[index]));
    let mut limit = Limit::new(LimitId(0), &file(0), 1_000);
    let mut ledgers: HashMap<(u128, usize), Ledger> = HashMap::new();
    let mut open: Vec<OpenCharge> = Vec::new();
    let (mut now, mut refused, mut invoices) = (START, 0, 0);
    for call in 0..CALLS {
        now += match below(1_000) {
            0 => 20 * DAY,
            1..10 => below(2 * DAY),
            10..30 => below(3_600),
            _ => below(60),
        };
        // The clock of another gateway is behind.
        let seconds = now - if below(20) == 0 { below(60) } else { 0 };
        if call % 5_000 == 4_999 {
            let next = Limit::continue_from(Some(&limit), LimitId(0), &file(below(3) as usize), 1_000);
            next.apply_numbers(&|| at(seconds));
            limit = next;
            let calendar = limit.config.calendar.clone().unwrap();
            for ((_, rate), ledger) in &mut ledgers {
                let begins = window_begin(&limit, &calendar, *rate, seconds);
                ledger.advance(begins, seconds);
            }
        }
        let calendar = limit.config.calendar.clone().unwrap();
        let (id, rate) = (u128::from(1 + below(5)), below(2) as usize);
        let begins = window_begin(&limit, &calendar, rate, seconds);
        let ledger = ledgers.entry((id, rate)).or_default();
        let quota = limit.max_units(rate, 0);
        let cost = 1 + below(5);
        let (decision, record) = limit.charge_units(rate, &units(id, cost), at(seconds));
        let used = ledger.advance(begins, seconds);
        let fits = cost <= quota.saturating_sub(*used);
        let is_admitted = decision.outcome == LimitOutcome::Admit;
        assert_eq!(is_admitted, fits, "call {call} {decision:?} used {used} of {quota}");
        *used += if fits { cost } else { 0 };
        assert_eq!(decision.remaining, quota.saturating_sub(*used), "call {call}");
        refused += usize::from(!fits);
        let (used, window) = (*used, ledger.newest);
        open.extend(record.map(|record| OpenCharge { id, rate, reserved: cost, record, window }));
        let own = open.iter().filter(|own| (own.id, own.rate, own.window) == (id, rate, window));
        let reserved = own.map(|own| own.reserved).sum::<u64>().min(used);
        invoices +=
            check_usage(&limit, (id, rate), at(seconds), (quota, used, reserved), &ledgers[&(id, rate)]);
        while !open.is_empty() && below(3) > 0 {
            let charge = open.swap_remove(below(open.len() as u64) as usize);
            let actual = below(2 * charge.reserved + 1);
            let key = units(charge.id, 1).key;
            assert_eq!(
                limit.settle_charge(
                    charge.rate,
                    &key,
                    (charge.reserved, actual),
                    &charge.record,
                    at(seconds)
                ),
                0
            );
            let ledger = ledgers.get_mut(&(charge.id, charge.rate)).unwrap();
            ledger.advance(window_begin(&limit, &calendar, charge.rate, seconds), seconds);
            ledger.settle(charge.window, charge.reserved, actual);
        }
    }
    assert!(refused > CALLS / 50 && refused < CALLS / 2, "{refused} refused");
    assert!(invoices > CALLS / 10, "{invoices} invoices");
}

/// Compares the usage of a key with the ledger, and its invoice of the window before; returns whether there was one.
fn check_usage(
    limit: &Limit,
    (id, rate): (u128, usize),
    now: Now,
    expected: (u64, u64, u64),
    ledger: &Ledger,
) -> usize {
    let name = format!("account={id}");
    limit.note_steps(rate, &units(id, 1), Some(&name), false);
    let usage = limit.window_usage(rate, &units(id, 1), now).unwrap();
    assert_eq!((usage.quota, usage.used, usage.reserved), expected, "at {now:?}");
    let mut invoice = None;
    limit.each_window(rate, true, now, &mut |own, usage| {
        invoice = invoice.or((own == name).then_some(usage));
    });
    // A window that a reload began with nothing used is begun anew by the next charge.
    let invoice = invoice.filter(|usage| usage.begins == ledger.before);
    assert!(invoice.is_none_or(|usage| ledger.used.get(&usage.begins) == Some(&usage.used)), "at {now:?}");
    invoice.iter().count()
}

fn window_begin(limit: &Limit, calendar: &Calendar, rate: usize, seconds: u64) -> u64 {
    let (rate, _) = limit.config.algorithm.rate_quotas()[rate];
    calendar.window_at(rate.calendar.unwrap(), seconds, None).begins
}

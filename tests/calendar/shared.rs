//! Windows of the calendar in Redis: gateways with different clocks, beside a ledger of every window by Redis's time.

use std::collections::HashMap;

use sluicegate_base::calendar::CalendarUnit;
use sluicegate_model::LimitConfig;
use sluicegate_store::{
    CallItem, LuaScript, PackedCall, RateRule, ScriptOp, ScriptReply, SettleItem, SettledKey, SharedKey,
};
use sluicegate_testkit::{Dice, Redis};

use crate::counters::config;

const US: u64 = 1_000_000;
/// A minute before 2026-03-29 in Berlin, the day on which the clocks go forward.
const START: u64 = 1_774_738_740;
const CALLS: usize = 20_000;

pub struct Server {
    connection: redis::Connection,
    _redis: Redis,
}

impl Server {
    pub fn start() -> Server {
        let redis = Redis::start();
        let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
        let code = LuaScript::counter_script().code;
        redis::cmd("SCRIPT").arg("LOAD").arg(code).exec(&mut connection).unwrap();
        Server { connection, _redis: redis }
    }

    /// Runs a call while the server's clock shows `now`, in seconds.
    pub fn send(&mut self, packed: &PackedCall, now: u64) -> Vec<u8> {
        self.send_us(packed, now * US)
    }

    /// The same with the time in microseconds.
    pub fn send_us(&mut self, packed: &PackedCall, now_us: u64) -> Vec<u8> {
        let mut pipe = redis::pipe();
        pipe.cmd("EVALSHA").arg(&LuaScript::counter_script().sha).arg(packed.keys.len());
        packed.keys.iter().for_each(|key| {
            pipe.arg(key);
        });
        pipe.arg(&packed.body).arg(now_us);
        // The time of the calls is not that of the server, whose keys would expire.
        packed.keys.iter().for_each(|key| {
            pipe.cmd("PERSIST").arg(key).ignore();
        });
        let (bytes,): (Vec<u8>,) = pipe.query(&mut self.connection).unwrap();
        bytes
    }

    /// The values of all strings.
    pub fn values(&mut self) -> Vec<Vec<u8>> {
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut self.connection).unwrap();
        keys.iter().map(|key| redis::cmd("GET").arg(key).query(&mut self.connection).unwrap()).collect()
    }

    /// A call of a gateway that takes the server's time to be `at`.
    pub fn call(&mut self, op: ScriptOp, items: &[CallItem<'_>], at: u64, now: u64) -> Option<ScriptReply> {
        let bytes = self.send(&PackedCall::new(op, "sg", 1, at, items), now);
        match ScriptReply::time_beyond(&bytes) {
            Some(told) => {
                assert_eq!(told, now * US);
                None
            }
            None => Some(ScriptReply::parse_reply(op, items, &bytes).expect("a sound reply")),
        }
    }
}

fn rules(fields: &str) -> (LimitConfig, Vec<RateRule>) {
    let config = config(fields);
    let rules = RateRule::rules_of(&config);
    (config, rules)
}

#[test]
fn a_border_is_that_of_the_server_whatever_the_clocks_of_gateways_show() {
    let (_, rules) = rules("rate: 10/day, zone: Europe/Berlin");
    let mut server = Server::start();
    let item = CallItem::new(&rules[0], SharedKey([1; 16]), 4);
    let border = START + 60;
    let mut take = |at, now| {
        let reply = server.call(ScriptOp::Take, &[item], at, now).expect("within the borders");
        (
            reply.admitted,
            reply.answers[0].decision.remaining,
            reply.answers[0].window_ns.unwrap() / 1_000_000_000,
        )
    };
    assert_eq!(take(border - 40, border - 1), (true, 6, 1));
    assert_eq!(take(border + 39, border - 1), (true, 2, 1), "a gateway that is ahead counts in the old day");
    assert_eq!(take(border + 39, border - 1), (false, 2, 1));
    assert_eq!(
        take(border - 40, border),
        (true, 6, 23 * 3600),
        "one that is behind in the new day, of 23 hours"
    );
}

#[test]
fn a_server_beyond_the_borders_is_asked_again_by_its_own_time() {
    let (_, rules) = rules("rate: 10/hour");
    let mut server = Server::start();
    let item = CallItem::new(&rules[0], SharedKey([1; 16]), 4);
    assert!(server.call(ScriptOp::Take, &[item], START + 86_400, START).is_none());
    let reply = server.call(ScriptOp::Take, &[item], START, START).unwrap();
    assert_eq!(reply.answers[0].decision.remaining, 6, "the call before charged nothing");
}

#[test]
fn a_server_whose_clock_is_set_back_locks_nobody_out() {
    let (_, rules) = rules("rate: 10/day");
    let mut server = Server::start();
    let item = CallItem::new(&rules[0], SharedKey([1; 16]), 10);
    let late = START + 30 * 86_400;
    assert!(server.call(ScriptOp::Take, &[item], late, late).unwrap().admitted);
    assert!(!server.call(ScriptOp::Take, &[item], START, START).unwrap().admitted, "its units stay");
    assert!(server.call(ScriptOp::Take, &[item], START + 86_400, START + 86_400).unwrap().admitted);
}

#[derive(Default)]
struct Ledger {
    used: HashMap<u64, i64>,
    newest: u64,
    before: u64,
}

/// The ledgers by key and rate.
type Ledgers = HashMap<(u8, usize), Ledger>;

impl Ledger {
    fn newest_used(&self) -> i64 {
        self.used.get(&self.newest).copied().unwrap_or(0)
    }

    fn advance(&mut self, begins: u64) {
        if begins > self.newest {
            (self.before, self.newest) = (self.newest, begins);
        }
    }

    fn correct(&mut self, window: u64, change: i64) {
        let is_known = window == self.newest || window == self.before;
        let window = if is_known { window } else { self.newest };
        let used = self.used.entry(window).or_default();
        *used = (*used + if is_known { change } else { change.max(0) }).max(0);
    }
}

/// Settles a charge of two rates in one call, or in two equal ones, of which one is run.
fn settle(
    server: &mut Server,
    rules: &[RateRule],
    call: u64,
    times: (u64, u64),
    charge: &OpenCharge,
    twice: bool,
) {
    let OpenCharge { id, reserved, used, marks } = *charge;
    let item = |rate: usize| SettleItem {
        rule: &rules[rate],
        mark: marks[rate],
        reserved,
        used,
        forgets: false,
        anchor: None,
        class: 0,
    };
    let keys = [SettledKey { key: SharedKey([id; 16]), sequence: call, items: vec![item(0), item(1)] }];
    for _ in 0..1 + u8::from(twice) {
        server.send(&PackedCall::settle("sg", 1, times.0, &keys), times.1);
    }
}

/// Charges units that were admitted without the server.
fn owe(server: &mut Server, rules: &[RateRule], call: u64, times: (u64, u64), key: SharedKey, cost: u64) {
    let items = [0, 1].map(|rate| CallItem { mark: call, ..CallItem::new(&rules[rate], key, cost) });
    server.send(&PackedCall::new(ScriptOp::ChargeDebt, "sg", 1, times.0, &items), times.1);
}

/// Seconds between two calls.
fn pause(below: &mut impl FnMut(u64) -> u64) -> u64 {
    match below(1_000) {
        0 => 20 * 86_400,
        1..10 => below(86_400),
        _ => below(200),
    }
}

struct OpenCharge {
    id: u8,
    reserved: u64,
    used: u64,
    marks: [u64; 2],
}

#[test]
fn two_gateways_agree_with_a_ledger_of_every_window() {
    let (config, rules) = rules(
        "rate: [60/day, 500/month], zone: Europe/Berlin, begins: { month: 31 }, charge: { units: bytes }",
    );
    let calendar = config.calendar.clone().unwrap();
    let units = [CalendarUnit::Day, CalendarUnit::Month];
    let mut server = Server::start();
    let mut dice = Dice(33);
    let mut below = |end: u64| dice.roll() % end;
    let mut ledgers = Ledgers::new();
    let mut open: Vec<OpenCharge> = Vec::new();
    let (mut now, mut refused, mut sequence) = (START, 0, 0);
    for call in 0..CALLS {
        now += pause(&mut below);
        // One gateway is 40 s ahead of the server, the other one behind.
        let at = if below(2) == 0 { now + 40 } else { now - 40 };
        let (id, cost) = (below(4) as u8, 1 + below(5));
        let key = SharedKey([id; 16]);
        let settled = below(open.len().max(1) as u64) as usize;
        let turn = if open.is_empty() { 0 } else { below(10) };
        // A counter sees the windows of its own calls alone.
        let touched = if (6..9).contains(&turn) { open[settled].id } else { id };
        for (rate, unit) in units.iter().enumerate() {
            let begins = calendar.window_at(*unit, now, None).begins;
            ledgers.entry((touched, rate)).or_default().advance(begins);
        }
        match turn {
            0..6 => {
                let items = [0, 1].map(|rate| CallItem::new(&rules[rate], key, cost));
                let reply = server.call(ScriptOp::Take, &items, at, now).expect("within the borders");
                let used = |rate: usize, ledgers: &Ledgers| ledgers[&(id, rate)].newest_used();
                let fits =
                    (0..2).all(|rate| used(rate, &ledgers) + cost as i64 <= rules[rate].capacity() as i64);
                assert_eq!(reply.admitted, fits, "call {call}");
                refused += usize::from(!fits);
                let mut marks = [0; 2];
                for (rate, mark) in marks.iter_mut().enumerate() {
                    let ledger = ledgers.get_mut(&(id, rate)).unwrap();
                    *mark = ledger.newest;
                    *ledger.used.entry(*mark).or_default() += if fits { cost as i64 } else { 0 };
                    let left = rules[rate].capacity() as i64 - used(rate, &ledgers);
                    let answer = &reply.answers[rate];
                    assert_eq!(answer.decision.remaining as i64, left.max(0), "call {call}");
                    assert_eq!(answer.mark, if fits { *mark } else { 0 }, "call {call}");
                }
                let used = below(2 * cost + 1);
                open.extend(fits.then_some(OpenCharge { id, reserved: cost, used, marks }));
            }
            6..9 => {
                let charge: OpenCharge = open.swap_remove(settled);
                sequence += 1;
                settle(&mut server, &rules, sequence, (at, now), &charge, below(2) == 0);
                let change = charge.used as i64 - charge.reserved as i64;
                for (rate, mark) in charge.marks.into_iter().enumerate() {
                    ledgers.get_mut(&(charge.id, rate)).unwrap().correct(mark, change);
                }
            }
            _ => {
                sequence += 1;
                owe(&mut server, &rules, sequence, (at, now), key, cost);
                for rate in 0..2 {
                    let ledger = ledgers.get_mut(&(id, rate)).unwrap();
                    ledger.correct(ledger.newest, cost as i64);
                }
            }
        }
    }
    assert!(refused > CALLS / 50 && refused < CALLS / 2, "{refused} refused");
}

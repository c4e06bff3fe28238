//! Windows of accounts that begin by their own dates: counters here and in Redis, and keys.csv of the running program.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sluicegate_base::calendar::{Anchor, Calendar, CalendarUnit, WindowStart};
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{Limit, Units};
use sluicegate_model::api_keys::ApiKeyHash;
use sluicegate_model::{LimitConfig, LimitId};
use sluicegate_store::{CallItem, PackedCall, RateRule, ScriptOp, SettleItem, SettledKey, SharedKey};
use sluicegate_testkit::{Ask, Client, Gateway, Redis, Reply, Response, Scratch, Upstream, get, post};

use crate::counters::config;
use crate::shared::Server;

const DAY: u64 = 86_400;
/// 2026-01-20 in UTC.
const START: u64 = 1_768_867_200;
const FEBRUARY: u64 = 1_769_904_000;

fn by_account(fields: &str) -> LimitConfig {
    let start = WindowStart { by_account: true, ..WindowStart::default() };
    LimitConfig { calendar: Calendar::new("UTC", start).map(Arc::new), ..config(fields) }
}

fn date(text: &str) -> Option<Anchor> {
    Some(Anchor::parse(text.as_bytes()).unwrap())
}

fn units(id: u128, cost: u64, anchor: Option<Anchor>) -> Units {
    Units { key: CounterKey::new(id, 0), cost, variant: 0, fair_hash: 0, unenforced: false, anchor }
}

fn at(seconds: u64) -> Now {
    Now(seconds * 1_000_000_000)
}

fn remaining(limit: &Limit, units: &Units, seconds: u64) -> u64 {
    limit.peek_units(0, units, at(seconds)).remaining
}

#[test]
fn each_account_has_windows_of_its_own() {
    let limit = Limit::new(LimitId(0), &by_account("rate: 10/month"), 1_000);
    for (id, text, border) in [
        (1, "2024-01-31", START + 11 * DAY),
        (2, "2024-02-29", START + 9 * DAY),
        (3, "2023-06-15", START + 26 * DAY),
        (4, "2024-01-01", FEBRUARY),
    ] {
        let units = units(id, 4, date(text));
        let (decision, _) = limit.charge_units(0, &units, at(START));
        assert_eq!((decision.remaining, decision.full_ns), (6, (border - START) * 1_000_000_000), "{text}");
        assert_eq!(decision.anchor, date(text));
        let unknown = Units { anchor: None, ..units };
        assert_eq!(remaining(&limit, &unknown, border - 1), 6, "{text}: the counter knows the date");
        assert_eq!(remaining(&limit, &unknown, border), 10, "{text}");
    }
}

#[test]
fn a_settlement_belongs_to_the_window_of_its_account() {
    let config = LimitConfig {
        charge: config("rate: 1/day, charge: { units: bytes }").charge,
        ..by_account("rate: 10/month")
    };
    let limit = Limit::new(LimitId(0), &config, 1_000);
    let (dated, border) = (units(1, 4, date("2024-02-15")), START + 26 * DAY);
    let before = limit.charge_units(0, &dated, at(START)).1.unwrap();
    // The first of the month is no border of this account.
    assert_eq!(limit.settle_charge(0, &dated.key, (4, 6), &before, at(FEBRUARY + 5)), 0);
    assert_eq!(remaining(&limit, &dated, FEBRUARY + 6), 4);
    let late = limit.charge_units(0, &dated, at(border - 1)).1.unwrap();
    assert_eq!(limit.settle_charge(0, &dated.key, (4, 9), &late, at(border + 5)), 0);
    assert_eq!(remaining(&limit, &dated, border + 6), 10);
}

#[test]
fn another_date_gives_at_most_one_more_window() {
    let limit = Limit::new(LimitId(0), &by_account("rate: 10/month"), 1_000);
    let (first, later) = (date("2024-01-15"), date("2024-01-25"));
    limit.charge_units(0, &units(1, 9, first), at(START));
    assert_eq!(remaining(&limit, &units(1, 1, later), START + 1), 1, "the window of the 15th goes on");
    assert_eq!(remaining(&limit, &units(1, 1, later), START + 5 * DAY - 1), 1);
    assert_eq!(remaining(&limit, &units(1, 1, later), START + 5 * DAY), 10);
    limit.charge_units(0, &units(1, 7, later), at(START + 6 * DAY));
    // Back and forth: both count in the window that has begun last.
    for anchor in [first, later, first, later, None] {
        assert_eq!(remaining(&limit, &units(1, 1, anchor), START + 7 * DAY), 3);
    }
}

#[test]
fn usage_is_of_the_windows_of_the_account() {
    let limit = Limit::new(LimitId(0), &by_account("rate: 10/month"), 1_000);
    let (first, later) = (date("2024-01-15"), date("2024-01-25"));
    let window = |anchor, seconds| {
        let usage = limit.window_usage(0, &units(1, 1, anchor), at(seconds)).unwrap();
        (usage.used, usage.begins, usage.ends)
    };
    assert_eq!(window(first, START), (0, START - 5 * DAY, START + 26 * DAY), "of a key without a counter");
    limit.charge_units(0, &units(1, 4, first), at(START));
    limit.note_steps(0, &units(1, 4, first), Some("acme"), false);
    assert_eq!(window(None, START + 1), (4, START - 5 * DAY, START + 26 * DAY));
    // The invoice of the window that another date has cut short.
    assert_eq!(window(later, START + 6 * DAY), (0, START + 5 * DAY, START + 36 * DAY));
    let mut last = Vec::new();
    limit.each_window(0, true, at(START + 6 * DAY), &mut |name, usage| {
        last.push((name.to_owned(), usage.used, usage.begins, usage.ends));
    });
    assert_eq!(last, [("acme".to_owned(), 4, START - 5 * DAY, START + 5 * DAY)]);
}

#[test]
fn a_reload_keeps_the_dates() {
    let config = by_account("rate: 10/month");
    let before = Limit::new(LimitId(0), &config, 1_000);
    before.charge_units(0, &units(1, 9, date("2024-01-15")), at(START));
    let after = Limit::continue_from(Some(&before), LimitId(0), &config, 1_000);
    after.apply_numbers(&|| at(FEBRUARY + 5));
    assert_eq!(remaining(&after, &units(1, 1, None), FEBRUARY + 6), 1);
    // Without `begins: account` the date is nothing.
    let plain = Limit::continue_from(Some(&after), LimitId(0), &self::config("rate: 10/month"), 1_000);
    plain.apply_numbers(&|| at(FEBRUARY + 7));
    assert_eq!(remaining(&plain, &units(1, 1, None), FEBRUARY + 8), 10);
}

#[test]
fn accounts_that_share_a_counter_have_the_default() {
    let limit = Limit::new(LimitId(0), &by_account("rate: 10000/month"), 1);
    let ids = 1..=400;
    for id in ids.clone() {
        limit.charge_units(0, &units(id, 1, date("2024-01-25")), at(START));
    }
    let sharing = |id: &u128| remaining(&limit, &units(*id, 1, date("2024-01-25")), START + 1) < 9_999;
    let shared = ids.clone().find(sharing).expect("the table is full");
    let left = |seconds| remaining(&limit, &units(shared, 1, date("2024-01-25")), seconds);
    assert!(left(START + 10 * DAY) < 9_999, "nobody's 25th is a border of all");
    assert_eq!(left(FEBRUARY), 10_000);
}

#[test]
fn calls_to_redis_carry_the_date() {
    let config = LimitConfig {
        charge: config("rate: 1/day, charge: { units: bytes }").charge,
        ..by_account("rate: 100/month")
    };
    let rules = RateRule::rules_of(&config);
    let (mut server, key, anchor) = (Server::start(), SharedKey([1; 16]), date("2024-02-15"));
    let border = START + 26 * DAY;
    let item = |cost| CallItem { anchor, ..CallItem::new(&rules[0], key, cost) };
    let take = |server: &mut Server, now| {
        let reply = server.call(ScriptOp::Take, &[item(4)], now, now).expect("within the borders");
        (reply.answers[0].decision.remaining, reply.answers[0].mark)
    };
    let (left, mark) = take(&mut server, FEBRUARY - 60);
    assert_eq!(left, 96);
    let settled = |sequence, mark, used| {
        let items =
            vec![SettleItem { rule: &rules[0], mark, reserved: 4, used, forgets: false, anchor, class: 0 }];
        [SettledKey { key, sequence, items }]
    };
    server.send(&PackedCall::settle("sg", 1, FEBRUARY + 60, &settled(1, mark, 6)), FEBRUARY + 60);
    let owed = CallItem { mark: 1, ..item(10) };
    server.send(&PackedCall::new(ScriptOp::ChargeDebt, "sg", 1, FEBRUARY + 61, &[owed]), FEBRUARY + 61);
    let given = CallItem { mark, ..item(1) };
    server.send(&PackedCall::new(ScriptOp::Refund, "sg", 1, FEBRUARY + 62, &[given]), FEBRUARY + 62);
    let (left, mark) = take(&mut server, border - 1);
    assert_eq!(left, 100 - 4 - 2 - 10 + 1 - 4, "nothing began on the first");
    server.send(&PackedCall::settle("sg", 1, border + 60, &settled(2, mark, 50)), border + 60);
    assert_eq!(take(&mut server, border + 61).0, 96, "the excess belongs to the window before");
}

/// The day that is so many days from now, in UTC.
fn day_from_now(days: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let utc = Calendar::new("UTC", WindowStart::default()).unwrap();
    utc.show_moment(now.saturating_add_signed(days * DAY as i64)).1[..10].to_owned()
}

/// A file with a key for each line; a line has an account and a date.
fn write_keys(scratch: &Scratch, lines: &[(&str, &str)]) -> PathBuf {
    let mut text = "sha256,account,anchor\n".to_owned();
    for (number, (account, anchor)) in lines.iter().enumerate() {
        let hash = ApiKeyHash::of_key(format!("{account}-{number}").as_bytes());
        writeln!(text, "{hash},{account},{anchor}").unwrap();
    }
    let file = scratch.path().join("keys.csv");
    std::fs::write(scratch.path().join("new.csv"), text).unwrap();
    std::fs::rename(scratch.path().join("new.csv"), &file).unwrap();
    file
}

/// Asks until it is refused: how many requests are admitted, and the days until the next one is.
fn spend(gateway: &Gateway, ask: &Ask) -> (usize, u64) {
    for admitted in 0..20 {
        let answer = gateway.ask(ask);
        if answer.status == 429 {
            let retry: u64 = answer.header("retry-after").unwrap().parse().unwrap();
            return (admitted, retry / DAY);
        }
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    panic!("20 are admitted")
}

fn with_key(key: &str) -> Ask {
    get("/").header("X-Api-Key", key)
}

fn explained(gateway: &Gateway, key: &str) -> Value {
    let query = json!({ "method": "GET", "url": "/", "headers": [format!("X-Api-Key: {key}")] }).to_string();
    let ask = post("/explain", query.as_bytes()).header("Accept", "application/json");
    let counters: Response = gateway.ask_admin(&ask).expect(200);
    counters.json()["limits"][0]["counters"][0].clone()
}

/// HS256 of `{"sub":"bolt","exp":4102444800}`.
const TOKEN_OF_BOLT: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJib2x0IiwiZXhwIjo0MTAyNDQ0ODAwfQ.\
                             UMs6hsF2fdWTStRZvhMVnLeaPdyf3PIJmrZ3npUWWBM";

#[test]
fn the_dates_of_a_file_hold_for_keys_tokens_and_calls() {
    let (scratch, soon, passed) = (Scratch::new(), day_from_now(2), day_from_now(-2));
    let keys = write_keys(
        &scratch,
        &[("acme", ""), ("acme", &soon), ("acme", &passed), ("bolt", &passed), ("zeta", "")],
    );
    let yaml = format!(
        "account: {{ from: jwt:sub, jwt: {{ secret: 0123456789abcdef0123456789abcdef }}, keys: {{ file: {} }} }}\n\
         service: {{ listen: 127.0.0.1:0 }}\nstate: {{ snapshot: {} }}\n\
         limits: {{ plan: {{ key: account, rate: 3/year, begins: account }} }}\n\
         locations: [{{ path: /, respond: {{ body: ok }}, limits: plan }}]\n",
        keys.display(),
        scratch.path().join("counters").display()
    );
    let mut gateway = Gateway::start(&yaml);
    gateway.wait_stderr("has another anchor for an account in line 4 than in an earlier line, which counts");
    assert_eq!(spend(&gateway, &with_key("acme-0")), (3, 1), "the date is that of the account");
    let token = get("/").header("Authorization", format!("Bearer {TOKEN_OF_BOLT}"));
    let (admitted, days) = spend(&gateway, &token);
    assert!(admitted == 3 && (362..=363).contains(&days), "{admitted}, {days} days");
    let counter = explained(&gateway, "bolt-3");
    assert!(counter["begins"].as_str().unwrap().starts_with(&passed), "{counter}");
    assert!(explained(&gateway, "acme-2")["ends"].as_str().unwrap().starts_with(&soon));
    assert!(explained(&gateway, "zeta-4")["begins"].as_str().unwrap().ends_with("-01-01T00:00:00+00:00"));
    let call = json!({ "limits": "plan", "key": { "account": "acme" } }).to_string();
    let answer = Client::connect(*gateway.addrs().last().unwrap()).ask(&post("/check", call.as_bytes()));
    let retry: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert_eq!((answer.status, retry / DAY), (429, 1));
    let show = get("/limits/plan/keys/account=acme").header("Accept", "application/json");
    let key = gateway.ask_admin(&show).json();
    assert!((DAY as f64..2.0 * DAY as f64).contains(&key["reset_s"].as_f64().unwrap()), "{key}");
    gateway.term();
    gateway.wait_exit();
    let gateway = Gateway::start(&yaml);
    assert_eq!(spend(&gateway, &with_key("acme-1")), (0, 1), "after a restart");
    // The window of the new date has begun meanwhile, and that is one more.
    write_keys(&scratch, &[("acme", &passed), ("bolt", &passed)]);
    gateway.wait_stderr("was read again");
    let (admitted, days) = spend(&gateway, &with_key("acme-0"));
    assert!(admitted == 3 && (362..=363).contains(&days), "{admitted}, {days} days");
    assert_eq!(spend(&gateway, &token).0, 0);
}

#[test]
fn months_of_an_account_have_their_own_length() {
    let start = WindowStart { by_account: true, ..WindowStart::default() };
    let calendar = Calendar::new("Europe/Berlin", start).unwrap();
    let length = |anchor| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let window = calendar.window_at(CalendarUnit::Month, now, anchor);
        window.ends - window.begins
    };
    let dates = (2..=31).map(|day| format!("2024-01-{day:02}"));
    let other = { dates }.find(|text| length(date(text)) != length(None)).expect("months differ");
    let scratch = Scratch::new();
    let keys = write_keys(&scratch, &[("acme", &other), ("bolt", "")]);
    let gateway = Gateway::start(&format!(
        "account: {{ keys: {{ file: {} }} }}\n\
         limits: {{ plan: {{ key: account, rate: 3/month, begins: account, zone: Europe/Berlin }} }}\n\
         locations: [{{ path: /, respond: {{ body: ok }}, limits: plan }}]\n",
        keys.display()
    ));
    for (key, anchor) in [("acme-0", date(&other)), ("bolt-1", None), ("acme-0", date(&other))] {
        let answer = gateway.ask(&with_key(key)).expect(200);
        let policy = format!("\"plan\";q=3;w={}", length(anchor));
        assert_eq!(answer.header("ratelimit-policy"), Some(policy), "{key}");
    }
}

#[test]
fn responses_settle_in_redis_by_the_date_of_the_account() {
    let (scratch, redis, soon) = (Scratch::new(), Redis::start(), day_from_now(2));
    let keys = write_keys(&scratch, &[("acme", &soon)]);
    let upstream = Upstream::new(|_| Reply::with(200, &[("X-Cost", "3")], "ok"));
    let yaml = format!(
        "account: {{ keys: {{ file: {} }} }}\n\
         state: {{ store: redis, redis: {{ url: \"{}\", timeout: 200ms }} }}\n\
         limits:\n  plan: {{ key: account, rate: 10/year, begins: account, charge: {{ units: header:X-Cost }} }}\n\
         locations: [{{ path: /, upstream: \"{}\", limits: plan }}]\n",
        keys.display(),
        redis.url(),
        upstream.url()
    );
    let [one, other] = [(); 2].map(|()| Gateway::start(&yaml));
    let ask = with_key("acme-0");
    assert_eq!(one.ask(&ask).status, 200);
    // The window began last year, before that of accounts without a date.
    assert_eq!(spend(&one, &ask), (3, 1), "12 units are used");
    let counter = explained(&other, "acme-0");
    assert!(counter["ends"].as_str().unwrap().starts_with(&soon), "{counter}");
    assert_eq!(spend(&other, &ask), (0, 1));
}

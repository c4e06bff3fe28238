//! Quotas that `recommend` finds by windows of the calendar, beside a count of its own and beside `replay`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sluicegate::simulate::recommend::quota::{QuotaTask, RecommendedQuota, recommend_quota};
use sluicegate::simulate::recommend::recommended_key::RecommendedKey;
use sluicegate_base::calendar::{Calendar, CalendarUnit, WindowStart};

use crate::brute_force::Dice;
use crate::support::*;
use crate::{load, replay, stream};

const DAY_S: i64 = 86_400;
/// 2026-01-01T00:00:00Z.
const YEAR_2026: i64 = 1_767_225_600;
/// The time in which Berlin has summer time before March 2027: 2026-03-29T01:00:00Z to 2026-10-25T01:00:00Z.
const SUMMER: std::ops::Range<i64> = 1_774_746_000..1_792_890_000;

/// Year, month and day of a day of 2026 or 2027.
fn date(day: i64) -> (i64, i64, i64) {
    let day_of = day - YEAR_2026 / DAY_S;
    let (year, mut left) = (2026 + day_of.div_euclid(365), day_of.rem_euclid(365));
    for (month, days) in (1..).zip([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]) {
        if left < days {
            return (year, month, left + 1);
        }
        left -= days;
    }
    unreachable!("a year has 365 days")
}

fn write_log(requests: &[(i64, String)]) -> String {
    let write = |(at, ip): &(i64, String)| {
        let ((year, month, day), second) = (date(at.div_euclid(DAY_S)), at.rem_euclid(DAY_S));
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        format!(
            "{{\"ts\":\"{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.000000Z\",\"id\":\"x\",\
             \"ip\":\"{ip}\",\"method\":\"GET\",\"host\":\"a.test\",\"path\":\"/\",\"status\":200,\"bytes\":0,\
             \"dur_ms\":0.000,\"wait_ms\":0.000}}\n"
        )
    };
    requests.iter().map(write).collect()
}

/// Requests at these seconds of 2026 by one client.
fn by_one_client(seconds: &[i64]) -> String {
    let requests: Vec<_> =
        seconds.iter().map(|second| (YEAR_2026 + second, "192.0.2.1".to_owned())).collect();
    write_log(&requests)
}

fn recommend(log: &str, spare: f64, unit: CalendarUnit, zone: &str) -> RecommendedQuota {
    let calendar = Calendar::new(zone, WindowStart::default()).expect("a zone");
    let task = QuotaTask { key: RecommendedKey::Ip, spare, unit, calendar };
    recommend_quota(&mut stream(log, None), &task, |_, _| {}).expect("a quota")
}

/// A number for each window.
fn number_window(at: i64, unit: CalendarUnit, zone: &str) -> i64 {
    let offset = match zone {
        "Europe/Berlin" if SUMMER.contains(&at) => 7_200,
        "Europe/Berlin" => 3_600,
        _ => 0,
    };
    let day = (at + offset).div_euclid(DAY_S);
    let (year, month, _) = date(day);
    match unit {
        // Both offsets are whole hours.
        CalendarUnit::Hour => at / 3_600,
        CalendarUnit::Day => day,
        // 1970-01-01 was a Thursday.
        CalendarUnit::Week => (day + 3) / 7,
        CalendarUnit::Month => year * 12 + month,
        CalendarUnit::Quarter => year * 4 + (month - 1) / 3,
        CalendarUnit::Year => year,
    }
}

fn random_requests(seed: u64) -> Vec<(i64, String)> {
    let mut dice = Dice(seed);
    let clients = 1 + dice.roll(30);
    let days = [2, 20, 90, 400][dice.roll(4) as usize];
    let mut all = Vec::new();
    for _ in 0..20 + dice.roll(200) {
        let at = YEAR_2026 + (dice.roll(days * 86_400) as i64);
        // Half of them at the hour, so that windows begin and end with requests.
        let at = if dice.roll(2) == 0 { at - at % 3_600 - dice.roll(2) as i64 } else { at };
        let client = dice.roll(clients) * dice.roll(clients) / clients;
        all.extend((0..1 + dice.roll(4)).map(|_| (at.max(YEAR_2026), format!("192.0.2.{client}"))));
    }
    all.sort();
    all
}

#[test]
fn the_quota_is_that_of_a_count_by_hand() {
    for seed in 0..120 {
        let requests = random_requests(seed);
        let log = write_log(&requests);
        let spare_per_mille = [1_000, 999, 900, 500][seed as usize % 4];
        for (unit, zone) in
            CalendarUnit::ALL.iter().flat_map(|unit| [(*unit, "UTC"), (*unit, "Europe/Berlin")])
        {
            let mut counts: BTreeMap<&str, BTreeMap<i64, u64>> = BTreeMap::new();
            for (at, ip) in &requests {
                *counts.entry(ip).or_default().entry(number_window(*at, unit, zone)).or_default() += 1;
            }
            // The smallest number of which so many keys are never above it.
            let spared = |quota: u64| {
                counts.values().filter(|windows| windows.values().all(|count| *count <= quota)).count()
            };
            let quota = (1..).find(|quota| spared(*quota) * 1_000 >= counts.len() * spare_per_mille);
            let windows: BTreeSet<_> = counts.values().flat_map(|windows| windows.keys()).collect();
            let found = recommend(&log, spare_per_mille as f64 / 1_000.0, unit, zone);
            let expected = format!("{}/{}", quota.expect("a number"), unit.as_str());
            assert_eq!(found.rate, expected, "log {seed} {zone} sparing {spare_per_mille}");
            assert_eq!(found.windows, windows.len() as u64, "log {seed} {zone} {unit:?}");
        }
    }
}

#[test]
fn the_gateway_passes_everybody_with_the_quota_and_rejects_somebody_with_one_less() {
    let mut tight = 0;
    for seed in 0..20 {
        let log = write_log(&random_requests(2_000 + seed));
        for unit in CalendarUnit::ALL {
            let RecommendedQuota { rate, paste, .. } = recommend(&log, 1.0, unit, "Europe/Berlin");
            assert!(paste.contains("zone: Europe/Berlin"), "{paste}");
            assert_eq!(replay(&log, &paste).rejected, 0, "log {seed}, {rate}");
            let quota: u64 = rate.split_once('/').and_then(|(units, _)| units.parse().ok()).expect("a rate");
            if quota > 1 {
                let less = paste.replace(&rate, &format!("{}/{}", quota - 1, unit.as_str()));
                assert!(replay(&log, &less).rejected > 0, "log {seed}, {rate}");
                tight += 1;
            }
        }
    }
    assert!(tight > 60, "{tight}");
}

#[test]
fn a_window_begins_at_midnight_of_the_zone() {
    // February begins in Berlin at 2026-01-31T23:00:00Z.
    let border = 31 * DAY_S - 3_600;
    let log = by_one_client(&[border - 2, border - 1, border, border + 1, border + 2]);
    let found = |zone| recommend(&log, 1.0, CalendarUnit::Month, zone);
    let utc = found("UTC");
    assert_eq!((utc.rate.as_str(), utc.windows), ("5/month", 1));
    assert!(!utc.paste.contains("zone"), "{}", utc.paste);
    let berlin = found("Europe/Berlin");
    assert_eq!((berlin.rate.as_str(), berlin.windows), ("3/month", 2));
    assert_eq!(berlin.from, "2026-01-31T23:59:58+01:00");
    assert_eq!(found("America/New_York").rate, "5/month");
    // 2026-03-29 has 23 hours in Berlin.
    let summer = SUMMER.start - YEAR_2026;
    let log = by_one_client(&[summer - 7_201, summer - 7_200, summer + 21 * 3_600 - 1, summer + 21 * 3_600]);
    assert_eq!(recommend(&log, 1.0, CalendarUnit::Day, "Europe/Berlin").windows, 3);
}

#[test]
fn a_log_with_a_part_of_a_window_says_so() {
    let month = |days: &[i64]| {
        let seconds: Vec<_> = days.iter().map(|day| day * DAY_S).collect();
        recommend(&by_one_client(&seconds), 1.0, CalendarUnit::Month, "UTC")
    };
    let part = |found: &RecommendedQuota| found.notes.iter().any(|note| note.contains("in part"));
    // The last two of January, three in February, one in March.
    let found = month(&[20, 25, 32, 33, 34, 60]);
    assert_eq!((found.rate.as_str(), found.windows, found.whole_windows), ("3/month", 3, 1));
    assert!(!part(&found), "{:?}", found.notes);
    // Most in January, or in March.
    for days in [&[20, 21, 22, 32, 60][..], &[20, 32, 60, 61, 62]] {
        let found = month(days);
        assert_eq!((found.rate.as_str(), found.whole_windows), ("3/month", 1));
        assert!(part(&found), "{:?}", found.notes);
    }
    let inside = month(&[3, 4]);
    assert_eq!((inside.windows, inside.whole_windows), (1, 0));
    assert!(inside.notes.iter().any(|note| note.contains("no whole month")), "{:?}", inside.notes);
    // From the first second to the last one.
    let log = by_one_client(&[0, 31 * DAY_S - 1]);
    let whole = recommend(&log, 1.0, CalendarUnit::Month, "UTC");
    assert_eq!((whole.windows, whole.whole_windows), (1, 1));
    assert!(!whole.notes.iter().any(|note| note.contains("whole")), "{:?}", whole.notes);
}

#[test]
fn the_heaviest_keys_are_told_apart() {
    let requests: Vec<_> = (0..60_i64)
        .flat_map(|key| {
            let requests = if key < 5 { 100 } else { 2 };
            (0..requests).map(move |n| (YEAR_2026 + n, format!("192.0.2.{key}")))
        })
        .collect();
    let found = recommend(&write_log(&requests), 1.0, CalendarUnit::Year, "UTC");
    assert_eq!((found.rate.as_str(), found.without_heaviest.as_deref()), ("100/year", Some("2/year")));
    let text = found.to_string();
    assert!(text.contains("one key makes 16 % of all requests; without the 5 heaviest: 2/year"), "{text}");
}

#[test]
fn the_command_prints_a_quota_that_check_accepts() {
    let scratch = Scratch::new();
    scratch
        .file("a.log", &by_one_client(&[0, 5, 40 * DAY_S]).replace("\"id\"", "\"account\":\"acme\",\"id\""));
    for (key, more) in
        [("ip", &[][..]), ("account", &["--zone", "Europe/Berlin"]), ("global", &["--zone", "utc"])]
    {
        let args = [&["recommend", "a.log", "--key", key, "--period", "month"], more].concat();
        let done = Run::default().args(&[&args[..], &["--json"]].concat()).finish(scratch.path());
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{args:?}");
        let json: Value = serde_json::from_str(&done.stdout).expect("JSON");
        let zone = if key == "account" { "Europe/Berlin" } else { "UTC" };
        assert_eq!((&json["rate"], &json["zone"]), (&Value::from("2/month"), &Value::from(zone)), "{args:?}");
        assert_eq!(
            (&json["windows"], &json["whole_windows"]),
            (&Value::from(2), &Value::from(u8::from(key != "account")))
        );
        let paste = json["paste"].as_str().expect("a limit");
        assert_eq!(load(paste).limits.len(), 1);
        scratch.file("pasted.yaml", paste);
        let checked = Run::default().args(&["check", "pasted.yaml"]).finish(scratch.path());
        assert_eq!(checked.code, Some(0), "{}{}", checked.stdout, checked.stderr);
        let text = Run::default().args(&args).finish(scratch.path()).stdout;
        assert!(text.contains(&format!("quota     2/month ({zone})")) && text.contains(paste), "{text}");
    }
}

#[test]
fn the_documentation_shows_what_the_command_prints() {
    let scratch = Scratch::new();
    let at = |day: i64, half_hours: i64, ip: &str| {
        (YEAR_2026 + day * DAY_S + half_hours * 1_800, format!("192.0.2.{ip}"))
    };
    // Days count from January the first: 31 is the first of February.
    let requests =
        [(19, 16, "1"), (31, 1, "1"), (40, 1, "1"), (41, 2, "2"), (50, 3, "1"), (60, 1, "2"), (62, 19, "1")]
            .map(|(day, half_hours, ip)| at(day, half_hours, ip));
    scratch.file("access.log", &write_log(&requests));
    let page = include_str!("../../docs/replay.md");
    let (_, shown) =
        page.split_once("$ sluicegate recommend access.log --period month ").expect("an example");
    let (more, shown) = shown.split_once('\n').expect("an output");
    let (shown, _) = shown.split_once("```").expect("an end");
    let args = ["recommend", "access.log", "--period", "month"];
    let args: Vec<&str> = args.into_iter().chain(more.split(' ')).collect();
    assert_eq!(Run::default().args(&args).finish(scratch.path()).stdout, shown);
}

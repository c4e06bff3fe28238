//! Windows of the calendar beside those of Python's zoneinfo, over 400 years.

mod anchors;
mod counters;
mod file;
mod program;
mod shared;
mod steps;
mod webhooks;

use std::process::Command;

use sluicegate_base::calendar::{Anchor, Calendar, CalendarUnit, CalendarWindow, WEEKDAYS, WindowStart};
use sluicegate_base::calendar::{parse_time, parse_year_day};

#[test]
fn borders_are_those_of_zoneinfo() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/calendar/borders.py");
    let output = Command::new("python3").arg(script).output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.lines().count() > 4_000, "{} lines", table.lines().count());
    for line in table.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [zone, unit, day, week, month, year, anchor, at, begins, ends] = fields[..] else {
            panic!("{line}")
        };
        let start = WindowStart {
            day: parse_time(day).unwrap(),
            week: WEEKDAYS[week.parse::<usize>().unwrap()].1,
            month: month.parse().unwrap(),
            year: parse_year_day(year).unwrap(),
            by_account: anchor != "-",
        };
        let calendar = Calendar::new(zone, start).unwrap();
        let anchor = Anchor::parse(anchor.as_bytes());
        assert_eq!(Anchor::from_bits(Anchor::to_bits(anchor)), anchor, "{line}");
        let unit = CalendarUnit::from_word(unit).unwrap();
        let window = calendar.window_at(unit, at.parse().unwrap(), anchor);
        let expected = CalendarWindow { begins: begins.parse().unwrap(), ends: ends.parse().unwrap() };
        assert_eq!(window, expected, "{line}");
    }
}

#[test]
fn an_anchor_is_a_date_and_nothing_else() {
    for text in ["2024-01-31", "2024-02-29", "0001-12-31", "2100-02-28"] {
        assert!(Anchor::parse(text.as_bytes()).is_some(), "{text}");
    }
    let wrong = "2023-02-29 2024-13-01 2024-00-10 2024-01-32 2024-1-31 24-01-31 2024-01-31T00:00:00Z +024-01-31 \
                 2024/01/31 31.01.2024 20240131 account -";
    for text in wrong.split_whitespace().chain(["", " 2024-01-31", "2024-01-31\u{e9}"]) {
        assert_eq!(Anchor::parse(text.as_bytes()), None, "{text}");
    }
    assert_eq!(Anchor::parse(b"\xff024-01-31"), None);
    assert_eq!(Anchor::parse(b"2024-01-01"), Some(Anchor::DEFAULT), "a Monday");
    let known =
        |bits: &u16| Anchor::from_bits(*bits).is_some_and(|anchor| Anchor::to_bits(Some(anchor)) == *bits);
    // 366 days, and eight numbers for the seven days of the week.
    assert_eq!((0..=u16::MAX).filter(known).count(), 366 * 8);
}

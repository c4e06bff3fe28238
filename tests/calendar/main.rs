//! Windows of the calendar beside those of Python's zoneinfo, over 400 years.

mod counters;
mod file;
mod program;
mod shared;
mod steps;

use std::process::Command;

use sluicegate_base::calendar::{Calendar, CalendarUnit, CalendarWindow, WEEKDAYS, WindowStart};
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
        let [zone, unit, day, week, month, year, at, begins, ends] = fields[..] else { panic!("{line}") };
        let start = WindowStart {
            day: parse_time(day).unwrap(),
            week: WEEKDAYS[week.parse::<usize>().unwrap()].1,
            month: month.parse().unwrap(),
            year: parse_year_day(year).unwrap(),
        };
        let calendar = Calendar::new(zone, start).unwrap();
        let window = calendar.window_at(CalendarUnit::from_word(unit).unwrap(), at.parse().unwrap());
        let expected = CalendarWindow { begins: begins.parse().unwrap(), ends: ends.parse().unwrap() };
        assert_eq!(window, expected, "{line}");
    }
}

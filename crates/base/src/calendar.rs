//! Windows of a calendar: hours, days, weeks, months, quarters and years in a time zone.
//!
//! A border is a local time of day. One that the zone skips is read by the offset before it, and of one that it has
//! twice the first counts (RFC 5545, section 3.3.5), so a day has 23, 24 or 25 hours. Hours go by the offset in force.

use std::fmt;
use std::num::NonZeroU16;
use std::time::Duration;

use jiff::civil::Date;
pub use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::labelled::labelled_enum;

labelled_enum! {
    /// The units of windows.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum CalendarUnit: as_str -> &'static str {
        /// 60 minutes.
        Hour = "hour",
        /// From a time of day to the same on the next day.
        Day = "day",
        /// Seven days.
        Week = "week",
        /// From a day of the month to the same in the next one.
        Month = "month",
        /// Three months.
        Quarter = "quarter",
        /// Twelve months.
        Year = "year",
    }
}

/// The days of the week.
pub const WEEKDAYS: [(&str, Weekday); 7] = [
    ("monday", Weekday::Monday),
    ("tuesday", Weekday::Tuesday),
    ("wednesday", Weekday::Wednesday),
    ("thursday", Weekday::Thursday),
    ("friday", Weekday::Friday),
    ("saturday", Weekday::Saturday),
    ("sunday", Weekday::Sunday),
];

/// A time of day in the form `HH:MM`.
pub fn parse_time(text: &str) -> Option<Time> {
    let (hour, minute) = two_digits(text, ':')?;
    Time::new(hour, minute, 0, 0).ok()
}

/// A month and a day of some year in the form `MM-DD`.
pub fn parse_year_day(text: &str) -> Option<(i8, i8)> {
    let (month, day) = two_digits(text, '-')?;
    // A leap year has all days.
    Date::new(2000, month, day).ok().map(|_| (month, day))
}

/// Two numbers of two digits each.
fn two_digits(text: &str, between: char) -> Option<(i8, i8)> {
    let (first, second) = text.split_once(between)?;
    let number = |text: &str| {
        text.parse().ok().filter(|_| text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit()))
    };
    Some((number(first)?, number(second)?))
}

/// The moments at which windows begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowStart {
    /// The time of days and of all longer units.
    pub day: Time,
    /// The first day of weeks.
    pub week: Weekday,
    /// The first day of months, 1 to 31; the last one where a month is shorter.
    pub month: i8,
    /// The first month and day of years; quarters begin then, and three, six and nine months later.
    pub year: (i8, i8),
    /// The [`Anchor`] of an account goes over `week`, `month` and `year`.
    pub by_account: bool,
}

/// The date of an account, as far as its windows begin by it: the month, the day, and the day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor(NonZeroU16);

/// A time zone, and the moments at which windows begin there.
#[derive(Clone, PartialEq, Eq)]
pub struct Calendar {
    zone: TimeZone,
    /// See [`WindowStart`].
    pub start: WindowStart,
}

/// One window, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalendarWindow {
    /// The first second.
    pub begins: u64,
    /// The first second of the next window.
    pub ends: u64,
}

const HOUR_S: i64 = 3_600;
/// Later moments count as this one, the year 9000: a calendar ends with the year 9999.
const LATEST_S: i64 = 221_845_392_000;

// === impl CalendarUnit ===

impl CalendarUnit {
    /// The unit that a word of the file names.
    pub fn from_word(word: &str) -> Option<CalendarUnit> {
        Self::ALL.into_iter().find(|unit| unit.as_str() == word)
    }

    /// The longest window of the unit by the clock; a change of the offset may add to it.
    pub fn longest(self) -> Duration {
        let hours = match self {
            CalendarUnit::Hour => 1,
            CalendarUnit::Day => 24,
            CalendarUnit::Week => 7 * 24,
            CalendarUnit::Month => 31 * 24,
            CalendarUnit::Quarter => 92 * 24,
            CalendarUnit::Year => 366 * 24,
        };
        Duration::from_secs(hours * 3_600)
    }
}

// === impl WindowStart ===

impl Default for WindowStart {
    /// Midnight, Monday, the first, and January.
    fn default() -> WindowStart {
        let (day, week) = (Time::midnight(), Weekday::Monday);
        WindowStart { day, week, month: 1, year: (1, 1), by_account: false }
    }
}

impl WindowStart {
    /// The moments for an account with this date; without one, or where accounts have none of their own, the same.
    fn for_account(&self, anchor: Option<Anchor>) -> WindowStart {
        match anchor.filter(|_| self.by_account) {
            None => *self,
            Some(anchor) => {
                let (month, day, week) = anchor.parts();
                WindowStart { week, month: day, year: (month, day), ..*self }
            }
        }
    }

    /// The first day of the window with this number; numbers count from 1970, or from the year 0 for months.
    fn first_day(&self, unit: CalendarUnit, number: i64) -> Option<Date> {
        let (step, first, day) = match unit {
            CalendarUnit::Hour | CalendarUnit::Day => return date_of(number),
            CalendarUnit::Week => return date_of(number * 7 + self.week_shift()),
            CalendarUnit::Month => (1, 0, self.month),
            CalendarUnit::Quarter => (3, i64::from(self.year.0) - 1, self.year.1),
            CalendarUnit::Year => (12, i64::from(self.year.0) - 1, self.year.1),
        };
        let month = number * step + first;
        let begin =
            Date::new(month.div_euclid(12).try_into().ok()?, month.rem_euclid(12) as i8 + 1, 1).ok()?;
        Date::new(begin.year(), begin.month(), day.min(begin.days_in_month())).ok()
    }

    /// The number of the window of a day, or of the one after it.
    fn number_near(&self, unit: CalendarUnit, day: Date) -> i64 {
        let months = i64::from(day.year()) * 12 + i64::from(day.month()) - 1;
        match unit {
            CalendarUnit::Hour | CalendarUnit::Day => days_of(day),
            CalendarUnit::Week => (days_of(day) - self.week_shift()).div_euclid(7),
            CalendarUnit::Month => months,
            CalendarUnit::Quarter => (months - i64::from(self.year.0) + 1).div_euclid(3),
            CalendarUnit::Year => (months - i64::from(self.year.0) + 1).div_euclid(12),
        }
    }

    /// Days from 1970-01-01, a Thursday, to the first day of a week.
    fn week_shift(&self) -> i64 {
        i64::from(self.week.to_monday_zero_offset()) - 3
    }
}

// === impl Anchor ===

impl Anchor {
    /// The default beginnings, those of an account without a date: January the first, and Monday.
    pub const DEFAULT: Anchor = Anchor(NonZeroU16::MIN);

    /// The date in the form `2024-01-31`.
    pub fn parse(text: &[u8]) -> Option<Anchor> {
        let (year, day) = str::from_utf8(text).ok()?.split_at_checked(4)?;
        let year = year.parse().ok().filter(|_| year.bytes().all(|b| b.is_ascii_digit()))?;
        let (month, day) = parse_year_day(day.strip_prefix('-')?)?;
        let week = Date::new(year, month, day).ok()?.weekday().to_monday_zero_offset();
        let bits = (month as u16 - 1) << 8 | (day as u16 - 1) << 3 | week as u16;
        Some(Anchor(NonZeroU16::MIN.saturating_add(bits)))
    }

    /// The month, the day, and the day of the week.
    fn parts(self) -> (i8, i8, Weekday) {
        let bits = self.0.get() - 1;
        let (_, week) = WEEKDAYS[usize::from(bits & 7) % WEEKDAYS.len()];
        ((bits >> 8) as i8 + 1, (bits >> 3 & 31) as i8 + 1, week)
    }

    /// A number that [`Anchor::from_bits`] reads; 0 = none.
    pub fn to_bits(anchor: Option<Anchor>) -> u16 {
        anchor.map_or(0, |Anchor(bits)| bits.get())
    }

    /// `None` for 0, and for a number that is no date.
    pub fn from_bits(bits: u16) -> Option<Anchor> {
        let anchor = Anchor(NonZeroU16::new(bits).filter(|bits| bits.get() <= 12 << 8)?);
        let (month, day, _) = anchor.parts();
        // A leap year has all days.
        Date::new(2000, month, day).ok().map(|_| anchor)
    }
}

// === impl Calendar ===

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.zone_name(), self.start)
    }
}

impl Calendar {
    /// The calendar of a zone of the IANA data, by the data of the system, or else by that of this program; `None`:
    /// neither has the zone.
    pub fn new(zone: &str, start: WindowStart) -> Option<Calendar> {
        Some(Calendar { zone: TimeZone::get(zone).ok()?, start })
    }

    /// The names of all zones that are known here.
    pub fn zone_names() -> Vec<String> {
        jiff::tz::db().available().map(|name| name.to_string()).collect()
    }

    /// The name of the zone.
    pub fn zone_name(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// The window of `unit` with the moment `at`, in seconds since 1970, for an account with this date.
    pub fn window_at(&self, unit: CalendarUnit, at: u64, anchor: Option<Anchor>) -> CalendarWindow {
        let at = i64::try_from(at).unwrap_or(LATEST_S).min(LATEST_S);
        let (begins, ends) = match unit {
            CalendarUnit::Hour => self.hour_at(at),
            _ => self.days_at(unit, at, &self.start.for_account(anchor)),
        };
        let (begins, ends) = (begins.max(0) as u64, ends.max(0) as u64);
        CalendarWindow { begins, ends: ends.max(begins + 1) }
    }

    /// The hour by the offset in force, cut where that changes by less than an hour.
    fn hour_at(&self, at: i64) -> (i64, i64) {
        let offset = self.offset_at(at);
        let begins = at - (at + offset).rem_euclid(HOUR_S);
        let ends = begins + HOUR_S;
        let mut hour = (begins, ends);
        if self.offset_at(begins) != offset
            && let Some(change) = self.zone.preceding(timestamp(at + 1)).next()
        {
            hour.0 = begins.max(change.timestamp().as_second());
        }
        if self.offset_at(ends - 1) != offset
            && let Some(change) = self.zone.following(timestamp(at)).next()
        {
            hour.1 = ends.min(change.timestamp().as_second());
        }
        hour
    }

    fn days_at(&self, unit: CalendarUnit, at: i64, start: &WindowStart) -> (i64, i64) {
        let border = |number: i64| start.first_day(unit, number).map_or(LATEST_S, |day| self.moment(day));
        let mut number = start.number_near(unit, self.zone.to_datetime(timestamp(at)).date());
        // A day that the zone skips has no seconds.
        while at < border(number) {
            number -= 1;
        }
        while border(number + 1) <= at {
            number += 1;
        }
        (border(number), border(number + 1))
    }

    /// The moment at which windows begin on a day.
    fn moment(&self, day: Date) -> i64 {
        let local = self.zone.to_ambiguous_timestamp(day.to_datetime(self.start.day));
        local.compatible().map_or(LATEST_S, Timestamp::as_second)
    }

    fn offset_at(&self, at: i64) -> i64 {
        self.zone.to_offset(timestamp(at)).seconds().into()
    }

    /// A moment as people read it, e.g. `15 November 00:00`, and by RFC 3339 with the offset of the zone.
    pub fn show_moment(&self, at: u64) -> (String, String) {
        let at = timestamp(i64::try_from(at).unwrap_or(LATEST_S));
        let exact = at.display_with_offset(self.zone.to_offset(at)).to_string();
        (at.to_zoned(self.zone.clone()).strftime("%-d %B %H:%M").to_string(), exact)
    }
}

/// The moment, which is at most some hours beyond [`LATEST_S`].
fn timestamp(at: i64) -> Timestamp {
    Timestamp::from_second(at).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn days_of(day: Date) -> i64 {
    day.duration_since(Date::constant(1970, 1, 1)).as_hours() / 24
}

fn date_of(days: i64) -> Option<Date> {
    Date::constant(1970, 1, 1).checked_add(SignedDuration::from_hours(days.checked_mul(24)?)).ok()
}

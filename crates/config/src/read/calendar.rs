//! Reads `zone` and `begins` of limits with windows of the calendar.

use std::sync::Arc;

use crate::schema::tables::limits::{begins, limit};
use crate::yaml::field_reader::FieldReader;
use sluicegate_base::calendar::{Calendar, CalendarUnit, WindowStart};
use sluicegate_model::{Algorithm, KeyPart, Mention, codes};

/// The calendar of a limit with these numbers; `None` if no rate has a unit of one.
pub(crate) fn read_calendar(
    fields: &FieldReader<'_>,
    numbers: &Algorithm,
    key: &[KeyPart],
) -> Option<Arc<Calendar>> {
    let units: Vec<CalendarUnit> =
        numbers.rate_quotas().iter().filter_map(|(rate, _)| rate.calendar).collect();
    if units.is_empty() {
        for name in [limit::ZONE.name, limit::BEGINS.name] {
            if let Some(value) = fields.find_by_name(name) {
                let message = format!("`{name}` is for windows of the calendar, and no rate has one");
                value.refuse_name(codes::FOREIGN_FIELD, message, "write e.g. rate: 1000/month, or remove it");
            }
        }
        return None;
    }
    let start = match fields.find(&limit::BEGINS).filter(|value| !value.is_null()) {
        None => WindowStart::default(),
        Some(value) if value.is_word("account") => {
            if !key.contains(&KeyPart::Account) {
                let message = "`begins: account` needs a key with `account`";
                value.refuse(codes::LIMIT_NUMBERS, message, "write e.g. key: account");
            } else if units.iter().all(|unit| matches!(unit, CalendarUnit::Hour | CalendarUnit::Day)) {
                let message = "`begins: account` moves no window of this limit";
                let help = "it needs a rate per week, month, quarter or year; remove it";
                value.refuse(codes::FOREIGN_FIELD, message, help);
            } else {
                value.mention(Mention::Anchor);
            }
            WindowStart { by_account: true, ..WindowStart::default() }
        }
        Some(value) => {
            let begins = value.open_map(&begins::SECTION, "a mapping such as { month: 15 }, or account")?;
            begins.read_all(|fields| read_start(fields, &units))
        }
    };
    Calendar::new(&fields.read(&limit::ZONE), start).map(Arc::new)
}

fn read_start(fields: &FieldReader<'_>, units: &[CalendarUnit]) -> WindowStart {
    use CalendarUnit::{Day, Month, Quarter, Week, Year};
    let moved = [
        (begins::DAY.name, &[Day, Week, Month, Quarter, Year][..]),
        (begins::WEEK.name, &[Week]),
        (begins::MONTH.name, &[Month]),
        (begins::YEAR.name, &[Quarter, Year]),
    ];
    for (name, by) in moved {
        let value = fields.find_by_name(name).filter(|_| !units.iter().any(|unit| by.contains(unit)));
        if let Some(value) = value {
            let message = format!("`{name}` moves no window of this limit");
            let words: Vec<&str> = by.iter().map(|unit| unit.as_str()).collect();
            let help = format!("it needs a rate per {}; remove it", words.join(" or "));
            value.refuse_name(codes::FOREIGN_FIELD, message, help);
        }
    }
    WindowStart {
        day: fields.read(&begins::DAY),
        week: fields.read(&begins::WEEK),
        month: fields.read(&begins::MONTH),
        year: fields.read(&begins::YEAR),
        by_account: false,
    }
}

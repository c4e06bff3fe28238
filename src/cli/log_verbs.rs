//! `replay` and `recommend`: logs of the past against limits of the future.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::args::{RecommendArgs, ReplayArgs};
use super::file_argument::ConfigInput;
use super::progress::ProgressLine;
use super::{CommandFault, CommandResult, failed, print_result, render_json, usage};
use crate::simulate::log::LogStream;
use crate::simulate::log::line_format::LogLineFormat;
use crate::simulate::recommend::quota::{self, QuotaTask};
use crate::simulate::recommend::recommended_key::RecommendedKey;
use crate::simulate::recommend::{self, RecommendTask};
use crate::simulate::{page, replay};
use sluicegate_base::calendar::{Calendar, CalendarUnit};
use sluicegate_config as config;
use sluicegate_config::schema::tables::limits::parse_calendar;
use sluicegate_model as model;

/// The most periods of one recommendation.
const PERIODS_MAX: usize = 4;

/// Judges the requests of logs by the configuration.
pub(super) fn run_replay(input: &ConfigInput, args: &ReplayArgs) -> CommandResult {
    check_stdin(&args.logs, *input == ConfigInput::Stdin)?;
    let format = read_format(args.format.as_deref())?;
    let config = input.load()?.config;
    let against = args.against.as_deref().map(config::load).transpose()?.map(|loaded| loaded.config);
    let report = read_logs(&args.logs, format, |stream, show| {
        replay::replay_log(stream, config, against, |_, _| {}, show)
    })?;
    write_page(args.html.as_deref(), || page::render_replay(&report, &name_files(input, args)))?;
    print_result(&match (args.json, args.csv) {
        (true, _) => render_json(&report),
        (false, true) => report.render_csv(),
        (false, false) => report.to_string(),
    })
}

/// The logs and the configurations that judge them.
fn name_files(input: &ConfigInput, args: &ReplayArgs) -> String {
    let logs: Vec<_> = args.logs.iter().map(|log| log.to_string_lossy()).collect();
    let against = args.against.as_ref().map(|file| format!(", against {}", file.display()));
    format!("{} by {}{}", logs.join(", "), input.display_name(), against.unwrap_or_default())
}

/// Recommends limits by logs.
pub(super) fn run_recommend(args: &RecommendArgs) -> CommandResult {
    check_stdin(&args.logs, false)?;
    let key = RecommendedKey::named(&args.key).map_err(usage)?;
    let spare = read_share(&args.spare).map_err(usage)?;
    if let Some(unit) = CalendarUnit::from_word(args.period.trim()) {
        let task = QuotaTask { key, spare, unit, calendar: read_calendar(args).map_err(usage)? };
        let format = read_format(args.format.as_deref())?;
        let found =
            read_logs(&args.logs, format, |stream, show| quota::recommend_quota(stream, &task, show))?;
        return print_result(&if args.json { render_json(&found) } else { found.to_string() });
    }
    let task = RecommendTask { key, spare, periods: read_periods(&args.period).map_err(usage)? };
    if args.zone.is_some() {
        return Err(usage("--zone is for windows of the calendar; write e.g. --period month"));
    }
    let format = read_format(args.format.as_deref())?;
    let found =
        read_logs(&args.logs, format, |stream, show| recommend::recommend_limit(stream, &task, show))?;
    write_page(args.html.as_deref(), || page::render_recommendation(&found))?;
    print_result(&if args.json { render_json(&found) } else { found.to_string() })
}

/// Opens the logs, and reads them by `read`, which gets what shows the progress.
fn read_logs<T>(
    logs: &[PathBuf],
    format: Option<LogLineFormat>,
    read: impl FnOnce(&mut LogStream, &dyn Fn(u64, &LogStream)) -> Result<T, String>,
) -> Result<T, CommandFault> {
    let progress = ProgressLine::start();
    let mut stream = LogStream::open(logs, format.as_ref()).map_err(failed)?;
    read(&mut stream, &|count, log| progress.show_log(count, log)).map_err(failed)
}

/// The calendar of `--zone`, with the default beginnings.
fn read_calendar(args: &RecommendArgs) -> Result<Calendar, String> {
    if args.html.is_some() {
        return Err("--html draws bursts by rate, and a quota has none; leave it out".to_owned());
    }
    let zone = args.zone.as_deref().unwrap_or("UTC").escape_debug().to_string();
    parse_calendar(&zone)
        .map_err(|error| format!("--zone: {}; {}", error.message, error.suggestion.unwrap_or_default()))
}

/// Stdin can be read once.
fn check_stdin(logs: &[PathBuf], is_taken: bool) -> Result<(), CommandFault> {
    let named = logs.iter().filter(|path| path.as_path() == Path::new("-")).count();
    match named + usize::from(is_taken) > 1 {
        true => Err(usage("stdin is named twice")),
        false => Ok(()),
    }
}

fn read_format(text: Option<&str>) -> Result<Option<LogLineFormat>, CommandFault> {
    text.map(LogLineFormat::named).transpose().map_err(usage)
}

/// `99.9%` or `99.9`, as a share from 0 to 1.
fn read_share(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    let valid = percent.filter(|percent| (0.0..=100.0).contains(percent) && *percent > 0.0);
    valid.map(|percent| percent / 100.0).ok_or_else(|| {
        format!("`{}` is not a share of the keys; write e.g. --spare 99.9%", text.escape_debug())
    })
}

fn read_periods(text: &str) -> Result<Vec<(String, Duration)>, String> {
    let mut periods: Vec<(String, Duration)> = Vec::new();
    for one in text.split(',').map(str::trim) {
        if CalendarUnit::from_word(one).is_some() {
            return Err(format!("`{one}` is a unit of the calendar, and stands alone: --period {one}"));
        }
        let period = model::read_duration(one)
            .map_err(|error| format!("{error}; for a quota, write one of {}", list_units()))?;
        if period.is_zero() || periods.iter().any(|(_, known)| *known == period) {
            return Err(format!("`{}` is given twice, or is no time", one.escape_debug()));
        }
        periods.push((one.to_owned(), period));
    }
    match periods.len() > PERIODS_MAX {
        true => Err(format!("--period has more than {PERIODS_MAX} periods")),
        false => Ok(periods),
    }
}

fn list_units() -> String {
    CalendarUnit::ALL.map(CalendarUnit::as_str).join(", ")
}

fn write_page(path: Option<&Path>, render: impl FnOnce() -> String) -> Result<(), CommandFault> {
    let Some(path) = path else { return Ok(()) };
    let written = std::fs::write(path, render());
    written.map_err(|error| failed(format!("{} cannot be written: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_periods_are_read_as_written() {
        assert!((read_share("99.9%").unwrap() - 0.999).abs() < 1e-12);
        assert_eq!(read_share("100"), Ok(1.0));
        for wrong in ["", "%", "0", "101%", "-1", "nan", "most"] {
            assert!(read_share(wrong).is_err(), "{wrong}");
        }
        let second = Duration::from_secs(1);
        assert_eq!(
            read_periods("1s, 1m").unwrap(),
            [("1s".to_owned(), second), ("1m".to_owned(), second * 60)]
        );
        for wrong in
            ["", "1", "1s,1s", "1s,1000ms", "0s", "1s,2s,3s,4s,5s", "1m,month", "month,day", "months"]
        {
            assert!(read_periods(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn stdin_is_read_once() {
        let logs = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert!(check_stdin(&logs(&["-", "a"]), false).is_ok());
        assert!(check_stdin(&logs(&["-", "-"]), false).is_err());
        assert!(check_stdin(&logs(&["-"]), true).is_err());
    }
}

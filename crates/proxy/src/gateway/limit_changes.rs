//! Changes of whole limits by operators: pauses, and numbers in place of those of the file. They are part of the
//! configuration in force, as grants are, so a gateway with others is built from the one before as after a reload.

use super::Gateway;
use sluicegate_admission::operator_bans::TEXT_MAX;
use sluicegate_config as config;
use sluicegate_model::{Algorithm, Config, LimitChange, LimitConfig, Problem, WrittenNumbers};

/// The longest pause. A longer one belongs in the file, as a dry run.
const PAUSE_MAX_NS: u64 = 30 * 86_400_000_000_000;
/// The time that numbers hold without an end; Redis keeps no longer one.
pub const FOREVER_NS: u64 = 18_250 * 86_400_000_000_000;
/// The most limits with set numbers.
const SETS_MAX: usize = 1000;

/// Why a limit is not changed; each with its reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitChangeFault {
    /// There is no such limit, or no such change of it.
    #[error("{0}")]
    Missing(String),
    /// The change is not valid.
    #[error("{0}")]
    Invalid(String),
    /// There are [`SETS_MAX`] others.
    #[error("{SETS_MAX} limits have set numbers; write some into the file")]
    TooMany,
}

/// The name of the entry of a change that does not fit the file any more, and the reason.
pub type LostChange = (Vec<u8>, String);

// === impl Gateway ===

impl Gateway {
    /// The configuration in force with `change` made to all limits of these names.
    ///
    /// # Errors
    /// It is not valid.
    pub fn config_with_change(
        &self,
        names: &[String],
        mut change: LimitChange,
    ) -> Result<Config, LimitChangeFault> {
        let (mut config, left_ns) = (self.config.clone(), change.left_ns());
        let longest = if change.numbers.is_some() { FOREVER_NS } else { PAUSE_MAX_NS };
        if !(1..=longest).contains(&left_ns) || change.by.len().max(change.reason.len()) > TEXT_MAX {
            let days = longest / 86_400_000_000_000;
            let why = format!("it lasts at most {days} days, and a reason has at most {TEXT_MAX} bytes");
            return Err(LimitChangeFault::Invalid(why));
        }
        for name in names {
            change.limit.clone_from(name);
            make_change(&change, &mut config)?;
        }
        let sets = config.limits.iter().filter(|limit| limit.set.is_some()).count();
        if sets > SETS_MAX { Err(LimitChangeFault::TooMany) } else { Ok(config) }
    }

    /// The configuration in force without changes of these limits; `is_set`: of their numbers, else their pauses.
    ///
    /// # Errors
    /// A limit has none, unless `skips_ended`.
    pub fn config_without_changes(
        &self,
        names: &[String],
        is_set: bool,
        skips_ended: bool,
    ) -> Result<Config, LimitChangeFault> {
        let mut config = self.config.clone();
        for name in names {
            let own = config.limits.iter_mut().filter(|limit| limit.name == *name);
            if own.filter_map(|limit| limit.end_change(is_set).then_some(())).count() == 0 && !skips_ended {
                return Err(LimitChangeFault::Missing(format!("no limit `{name}` is changed so")));
            }
        }
        Ok(config)
    }

    /// Takes the changes of limits over into the next configuration. Returns those that do not fit it.
    pub fn carry_limit_changes(&self, next: &mut Config) -> Vec<LostChange> {
        let lost = list_changes(&self.config).filter_map(|change| adopt_change(change, next));
        lost.inspect(|(_, why)| tracing::warn!("{why}")).collect()
    }
}

/// The changes in force.
pub(super) fn list_changes(config: &Config) -> impl Iterator<Item = &LimitChange> {
    config.limits.iter().flat_map(LimitConfig::changes).filter(|change| change.left_ns() > 0)
}

/// Ends the changes of a limit that have lasted as long as they should.
pub(super) fn drop_ended_changes(limit: &mut LimitConfig) {
    let ended = |limit: &LimitConfig| limit.changes().find(|own| own.left_ns() == 0).cloned();
    while let Some(change) = ended(limit) {
        limit.end_change(change.numbers.is_some());
    }
}

/// The name of the entry of a change, or its beginning.
pub(super) fn change_entry_name(limit: &str, is_set: bool) -> Vec<u8> {
    format!("{}/{limit}", if is_set { "numbers" } else { "pause" }).into_bytes()
}

/// Makes a change to all limits of its name.
fn make_change(change: &LimitChange, config: &mut Config) -> Result<(), LimitChangeFault> {
    let mut found = Err(LimitChangeFault::Missing(format!("there is no limit `{}`", change.limit)));
    for limit in config.limits.iter_mut().filter(|limit| limit.name == change.limit) {
        let mut change = change.clone();
        let numbers = change.numbers.as_mut().map(|own| read_numbers(limit.in_file(), own)).transpose()?;
        limit.change(change, numbers);
        found = Ok(());
    }
    found
}

/// The numbers of a limit and of its views, as they are `written` in place of those `in_file`.
fn read_numbers(
    in_file: &LimitConfig,
    written: &mut WrittenNumbers,
) -> Result<(Algorithm, Vec<Algorithm>), LimitChangeFault> {
    let invalid = |problems: Vec<_>| LimitChangeFault::Invalid(describe_problem(problems.first()));
    let numbers = config::read_set(in_file, &written.fields).map_err(invalid)?;
    let file_says = config::written_fields(in_file, Some(&written.fields));
    match std::mem::replace(&mut written.file_said, file_says.clone()) {
        said if said.is_empty() || said == file_says => Ok(numbers),
        _ => Err(LimitChangeFault::Invalid(format!("the file says {} now", file_says.trim_end()))),
    }
}

/// Makes a change of before; one that does not fit any more is returned.
pub(super) fn adopt_change(change: &LimitChange, config: &mut Config) -> Option<LostChange> {
    let (fault, is_set) = (make_change(change, config).err()?, change.numbers.is_some());
    let what = if is_set { "the numbers set for" } else { "the pause of" };
    let why = format!("{what} {} ended: {fault}", change.limit);
    Some((change_entry_name(&change.limit, is_set), why))
}

/// The first problem of the numbers, with its help.
pub(super) fn describe_problem(first: Option<&Problem>) -> String {
    match first {
        Some(Problem { message, suggestion: Some(help), .. }) => format!("{message}: {help}"),
        Some(Problem { message, .. }) => message.clone(),
        None => "the numbers are not valid".to_owned(),
    }
}

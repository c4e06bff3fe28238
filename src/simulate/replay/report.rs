//! The result of a replay: the JSON for programs, and the source of the texts and the page.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::simulator::{ReplayedVerdict, Simulator};
use super::tally::{KeyTally, LimitTally};
use super::timeline::{RequestTimeline, WaitClass};
use crate::operate::text_table::quote_csv;
use crate::simulate::log::record::LogRecord;
use crate::simulate::log::{LogCounts, LogStream};
use sluicegate_limit::{Limit, LimitOutcome};
use sluicegate_model::{LimitId, QuotaStep};

/// Keys that are listed.
const TOP_KEYS: usize = 20;

/// The result of a replay.
#[derive(Debug, Clone, Serialize)]
pub struct ReplayReport {
    /// All requests of the log.
    pub requests: u64,
    /// The waiting ones included.
    pub admitted: u64,
    /// Admitted requests that waited in a queue before.
    pub waited: u64,
    /// Rejected by limits that are enforced.
    pub rejected: u64,
    /// Rejected for other reasons than limits.
    pub faults: u64,
    /// The range for arrivals known to the second only: from spread evenly to all at its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<CountRange>,
    /// The counts of each limit by its name, or the reason why it is not judged.
    pub limits: Map<String, Value>,
    /// The keys hit most, of all limits.
    pub keys: Vec<KeyLine>,
    /// The log's own verdicts.
    pub logged: LoggedComparison,
    /// The changes from another configuration to this one; `None` = there is no other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<ConfigChange>,
    /// The unjudged parts of the configuration, and other bounds of the result.
    pub notes: Vec<String>,
    /// The lines that were read.
    pub log: LogCounts,
    /// The requests over the time of the log.
    pub timeline: RequestTimeline,
    /// The waits of admitted requests, by their length.
    pub waits: Vec<WaitClass>,
    /// The longest wait, in milliseconds; 0 = no request waited.
    pub longest_wait_ms: f64,
    /// Keys of all limits by the share of their requests that is rejected.
    pub key_shares: Vec<KeyShareRange>,
    /// The limits in the order of the file, also those that are not judged.
    #[serde(skip)]
    pub limit_lines: Vec<LimitLine>,
    /// Every key, those that are rejected most first.
    #[serde(skip)]
    pub all_keys: Vec<KeyLine>,
}

/// Two numbers of which the truth lies between.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct CountRange {
    /// Admitted requests that waited, the smaller number first.
    pub waited: [u64; 2],
    /// Rejected requests, the smaller number first.
    pub rejected: [u64; 2],
}

/// One limit and its counts.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LimitLine {
    /// The name of the limit.
    #[serde(skip)]
    pub name: String,
    /// The reason why the limit is not judged; `None` = it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_judged: Option<String>,
    /// True if the limit is a dry run, so that its rejections do not act.
    pub dry_run: bool,
    /// The share of its keys on which it acts; `None` = all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforce: Option<String>,
    /// The counts of all its keys together.
    #[serde(flatten)]
    pub counts: KeyTally,
    /// Keys that it counted apart.
    pub keys: usize,
    /// Keys with at least one rejected request.
    pub keys_rejected: usize,
    /// Rejected requests, the smaller number first; `None` = arrivals are known exactly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected_range: Option<[u64; 2]>,
    /// The steps of its quota, and how often a key reached each first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepLine>,
}

/// One step of a quota.
#[derive(Debug, Clone, Serialize)]
pub struct StepLine {
    /// The percentage of the quota.
    pub at: f64,
    /// `warn`, `slow` or `reject`.
    pub then: &'static str,
    /// Each key counts once in a window.
    pub reached: u64,
}

/// One key of a limit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KeyLine {
    /// The name of the limit.
    pub limit: String,
    /// The name of the key, as the admin API shows it.
    pub key: String,
    /// Requests with this key that the limit judged.
    pub requests: u64,
    /// Requests that the limit made wait, and admitted.
    pub waited: u64,
    /// Requests that the limit rejected.
    pub rejected: u64,
    /// The rejected share of its requests, from 0 to 1.
    pub share: f64,
}

/// Keys with a rejected share up to a bound.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct KeyShareRange {
    /// Percent; 0 = nothing of theirs is rejected.
    pub up_to: u8,
    /// Keys up to this bound and beyond that of the class before.
    pub keys: u64,
}

/// The verdicts of the log on its own requests, beside the replay.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LoggedComparison {
    /// Requests that the log calls rejected, or where it tells no verdicts, those that were answered with 429.
    pub rejected: u64,
    /// Requests that the log says to have waited.
    pub waited: u64,
    /// Requests of which the log tells the verdict of judged limits, also by dry runs.
    pub compared: u64,
    /// Requests that the replay judges alike.
    pub agreed: u64,
}

/// The changes from one configuration to another.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ConfigChange {
    /// Requests that only the new configuration rejects.
    pub newly_rejected: u64,
    /// Requests that only the old configuration rejects.
    pub newly_admitted: u64,
    /// Rejected by the limits of the new configuration.
    pub newly_rejected_by: Vec<ChangedKey>,
    /// Admitted by the limits of the new configuration, and rejected by those of the old one.
    pub newly_admitted_by: Vec<ChangedKey>,
}

/// Verdicts of one key that change.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChangedKey {
    /// The name of the limit.
    pub limit: String,
    /// Empty: the whole limit.
    pub key: String,
    /// Requests with a verdict that changes.
    pub requests: u64,
}

impl KeyLine {
    fn new(limit: &str, key: String, tally: &KeyTally) -> KeyLine {
        let KeyTally { requests, waited, rejected, .. } = *tally;
        let share = share_of(rejected, requests);
        KeyLine { limit: limit.to_owned(), key, requests, waited, rejected, share }
    }
}

impl LoggedComparison {
    /// Counts one request: the verdict of its line, and that of the replay beside it.
    pub fn count(&mut self, record: &LogRecord, verdict: &ReplayedVerdict, simulator: &Simulator) {
        let is_refused = match (record.verdict, record.status) {
            (Some(told), _) => told == LimitOutcome::Reject,
            (None, status) => status == Some(429),
        };
        self.rejected += u64::from(is_refused);
        self.waited += u64::from(record.verdict == Some(LimitOutcome::Wait));
        let is_judged = record.deciding_limits().all(|name| !simulator.is_unjudged(name));
        let told = record.verdict.filter(|_| is_judged);
        let (Some(told), Some(replayed)) = (told, verdict.with_dry_runs) else { return };
        self.compared += 1;
        self.agreed += u64::from(told == replayed);
    }
}

impl ConfigChange {
    /// Adds the limits and keys with the most changed verdicts.
    pub fn conclude(self, new: &Simulator, old: &Simulator) -> ConfigChange {
        ConfigChange { newly_rejected_by: list_changed(new), newly_admitted_by: list_changed(old), ..self }
    }
}

fn list_changed(simulator: &Simulator) -> Vec<ChangedKey> {
    let mut changed = Vec::new();
    for (index, limit) in simulator.tally.limits.iter().enumerate() {
        if limit.sum.changed == 0 {
            continue;
        }
        let name = &simulator.gateway.limits[index].name;
        let line = |key: String, tally: &KeyTally| ChangedKey {
            limit: name.to_string(),
            key,
            requests: tally.changed,
        };
        changed.push(line(String::new(), &limit.sum));
        let mut keys: Vec<usize> =
            (0..limit.keys.len()).filter(|key| limit.keys[*key].1.changed > 0).collect();
        keys.sort_by_key(|key| std::cmp::Reverse(limit.keys[*key].1.changed));
        keys.truncate(TOP_KEYS);
        changed.extend(keys.iter().map(|key| line(key_name(simulator, limit, *key), &limit.keys[*key].1)));
    }
    changed
}

fn key_name(simulator: &Simulator, limit: &LimitTally, key: usize) -> String {
    simulator.gateway.key_naming().render_name(&limit.spec, &limit.keys[key].0)
}

impl ReplayReport {
    /// The report of the simulators' counts; `clumped` judged all requests of a second at its start.
    pub fn new(
        stream: &LogStream,
        simulator: &Simulator,
        clumped: Option<&Simulator>,
        logged: LoggedComparison,
        against: Option<ConfigChange>,
    ) -> ReplayReport {
        let tally = &simulator.tally;
        let range = clumped.map(|other| CountRange {
            waited: sorted(tally.waited, other.tally.waited),
            rejected: sorted(tally.rejected, other.tally.rejected),
        });
        let limit_lines = list_limits(simulator, clumped);
        let limits = limit_lines.iter().map(|line| {
            let value = match &line.not_judged {
                Some(reason) => json!({ "not_judged": reason }),
                // Only maps with odd keys fail to serialize, and there are none.
                None => serde_json::to_value(line).unwrap_or_default(),
            };
            (line.name.clone(), value)
        });
        let all_keys = list_keys(simulator);
        let is_hit = |line: &&KeyLine| line.rejected > 0 || line.waited > 0;
        ReplayReport {
            requests: tally.requests,
            admitted: tally.admitted,
            waited: tally.waited,
            rejected: tally.rejected,
            faults: tally.faults,
            range,
            limits: limits.collect(),
            keys: all_keys.iter().filter(is_hit).take(TOP_KEYS).cloned().collect(),
            logged,
            against,
            notes: list_notes(stream, simulator),
            log: stream.counts.clone(),
            timeline: tally.timeline.clone(),
            waits: tally.waits.classes(),
            longest_wait_ms: tally.waits.longest_ns as f64 / 1e6,
            key_shares: classify_shares(&all_keys),
            limit_lines,
            all_keys,
        }
    }

    /// A table of all limits and keys: `limit,key,requests,admitted,waited,rejected,share`; without a key, the limit.
    pub fn render_csv(&self) -> String {
        let mut out = "limit,key,requests,waited,rejected,share\n".to_owned();
        let judged = self.limit_lines.iter().filter(|line| line.not_judged.is_none());
        let limits = judged.map(|line| KeyLine::new(&line.name, String::new(), &line.counts));
        for KeyLine { limit, key, requests, waited, rejected, share } in
            limits.chain(self.all_keys.iter().cloned())
        {
            let [limit, key] = [limit, key].map(|name| quote_csv(&name));
            // Writing into a String cannot fail.
            let _ = writeln!(out, "{limit},{key},{requests},{waited},{rejected},{share:.6}");
        }
        out
    }
}

fn sorted(one: u64, other: u64) -> [u64; 2] {
    [one.min(other), one.max(other)]
}

/// A share from 0 to 1.
pub fn share_of(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl LimitLine {
    /// Why not every verdict of the limit acts.
    pub fn mode(&self) -> Option<String> {
        let share = || self.enforce.as_ref().map(|share| format!("acts on {share} of its keys"));
        if self.dry_run { Some("dry run".to_owned()) } else { share() }
    }
}

fn list_limits(simulator: &Simulator, clumped: Option<&Simulator>) -> Vec<LimitLine> {
    let of_limit = |(index, limit): (usize, &LimitTally)| {
        let config = &simulator.gateway.config.limits[index];
        let unjudged = simulator.not_judged.iter().find(|(limit, _)| *limit == LimitId(index));
        LimitLine {
            name: config.name.clone(),
            not_judged: unjudged.map(|(_, reason)| reason.clone()),
            dry_run: config.dry_run,
            enforce: config.enforce.map(|share| share.to_string()),
            counts: limit.sum,
            keys: limit.keys.len(),
            keys_rejected: limit.keys.iter().filter(|(_, tally)| tally.rejected > 0).count(),
            rejected_range: clumped
                .map(|other| sorted(limit.sum.rejected, other.tally.limits[index].sum.rejected)),
            steps: list_steps(&simulator.gateway.limits[index]),
        }
    };
    simulator.tally.limits.iter().enumerate().map(of_limit).collect()
}

fn list_steps(limit: &Limit) -> Vec<StepLine> {
    let line = |step: &QuotaStep| {
        let reached = limit.step_notes.told_count(step.at);
        StepLine { at: step.percent(), then: step.then.as_str(), reached }
    };
    limit.config.steps.iter().map(line).collect()
}

/// All keys, by their rejected requests, then by their waiting ones.
fn list_keys(simulator: &Simulator) -> Vec<KeyLine> {
    let mut lines = Vec::new();
    for (index, limit) in simulator.tally.limits.iter().enumerate() {
        let name = &simulator.gateway.limits[index].name;
        let tallies = limit.keys.iter().map(|(_, tally)| tally).enumerate();
        lines.extend(tallies.map(|(key, tally)| KeyLine::new(name, key_name(simulator, limit, key), tally)));
    }
    lines.sort_by_key(|line| std::cmp::Reverse((line.rejected, line.waited, line.requests)));
    lines
}

fn classify_shares(keys: &[KeyLine]) -> Vec<KeyShareRange> {
    const BOUNDS: [u8; 8] = [0, 1, 5, 10, 25, 50, 75, 100];
    let mut classes = BOUNDS.map(|up_to| KeyShareRange { up_to, keys: 0 });
    for line in keys {
        let percent = line.share * 100.0;
        if let Some(class) = classes.iter_mut().find(|class| percent <= f64::from(class.up_to)) {
            class.keys += 1;
        }
    }
    classes.to_vec()
}

fn list_notes(stream: &LogStream, simulator: &Simulator) -> Vec<String> {
    let mut notes = simulator.notes.clone();
    if stream.fields.whole_seconds {
        notes.push(
            "the log tells seconds only: requests are spread evenly inside each, and ranges go to all at its start"
                .to_owned(),
        );
    }
    if stream.counts.late > 0 {
        notes.push(format!(
            "{} requests came later than the window of 100,000 lines; they count as arriving when their line was read",
            stream.counts.late
        ));
    }
    let beyond = simulator.tally.limits.iter().map(|limit| limit.beyond.requests).sum::<u64>();
    if beyond > 0 {
        notes.push(format!("{beyond} requests have no key of their own, or one beyond state.max_keys"));
    }
    notes
}

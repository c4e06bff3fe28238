//! `replay`: the requests of a log, judged by a configuration that did not serve them.
//!
//! [`scope`] takes out what the log cannot judge, [`simulator`] calls the function of production for each request, in
//! the order of arrivals, with counters of its own and a held clock; [`waits`] lets waiting requests go when their turn
//! comes. [`tally`] counts, and [`report`] is the result. Where arrivals are known to the second only, a second
//! simulator takes all requests of a second as arriving at its start: the truth is between both.

pub mod report;
mod report_text;
pub mod scope;
pub mod simulator;
pub mod tally;
pub mod timeline;
mod waits;

use crate::simulate::log::LogStream;
use report::{ConfigChange, LoggedComparison, ReplayReport};
use scope::ReplayScope;
use simulator::{ReplayedVerdict, Simulator};
use sluicegate_base::clock;
use sluicegate_limit::LimitOutcome;
use sluicegate_model::Config;

/// Requests between two calls of the progress function.
const PROGRESS_EVERY: u64 = 1 << 12;

/// Lets the clock of this thread run again when it is dropped.
struct ClockGuard;

impl Drop for ClockGuard {
    fn drop(&mut self) {
        clock::hold_clock(None);
    }
}

/// Replays a log with `config`, and with `against` beside it. `observe` sees each request's verdict by the log and by
/// `config`; `progress` is called now and then with the requests so far.
///
/// # Errors
/// A sentence: the log cannot be read to its end, or a gateway of the configuration cannot be built.
pub fn replay_log(
    stream: &mut LogStream,
    config: Config,
    against: Option<Config>,
    mut observe: impl FnMut(Option<LimitOutcome>, &ReplayedVerdict),
    mut progress: impl FnMut(u64, &LogStream),
) -> Result<ReplayReport, String> {
    let _held = ClockGuard;
    let (fields, may_be_sampled) = (stream.fields.clone(), stream.counts.may_be_sampled);
    let build = |config| {
        let simulator = Simulator::new(ReplayScope::new(config, &fields, may_be_sampled));
        simulator.map_err(|error| format!("the configuration cannot be replayed: {error}"))
    };
    // Where only seconds are known: as if all requests of a second came at its start.
    let mut clumped = fields.whole_seconds.then(|| build(config.clone())).transpose()?;
    let mut before = against.map(build).transpose()?;
    let mut simulator = build(config)?;
    let (mut logged, mut change) = (LoggedComparison::default(), ConfigChange::default());
    let is_rejected = |verdict: &ReplayedVerdict| verdict.outcome == Some(LimitOutcome::Reject);
    let mut count = 0_u64;
    while let Some(request) = stream.next_request()? {
        let verdict = simulator.judge_request(&request, request.arrival_ns);
        if let Some(clumped) = &mut clumped {
            clumped.judge_request(&request, request.earliest_ns);
        }
        if let Some(before) = &mut before {
            let old = before.judge_request(&request, request.arrival_ns);
            let (changed, by) = match (is_rejected(&old), is_rejected(&verdict)) {
                (false, true) => {
                    change.newly_rejected += 1;
                    (&mut simulator, verdict.by)
                }
                (true, false) => {
                    change.newly_admitted += 1;
                    (before, old.by)
                }
                _ => (before, None),
            };
            if let Some((limit, key)) = by {
                changed.tally.limits[limit.0].change(key, |tally| tally.changed += 1);
            }
        }
        logged.count(request.record, &verdict, &simulator);
        observe(request.record.verdict, &verdict);
        count += 1;
        if count.is_multiple_of(PROGRESS_EVERY) {
            progress(count, stream);
        }
    }
    for one in [Some(&mut simulator), clumped.as_mut(), before.as_mut()].into_iter().flatten() {
        one.finish();
    }
    let change = before.as_ref().map(|before| change.conclude(&simulator, before));
    Ok(ReplayReport::new(stream, &simulator, clumped.as_ref(), logged, change))
}

//! Runs scenarios: every request passes the pipeline of production, on fresh counters and the virtual clock.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;

use super::account::accept_own_tokens;
use super::compare::{compare, first_difference};
use super::model::{Scenario, ScenarioFile};
use super::report::{DifferingRequest, ScenarioReport, StepFailure, describe_end, describe_step};
use super::tally::{RequestEnd, StepTally};
use super::traffic::{RequestTemplate, ScheduledRequest, StepSchedule};
use super::virtual_clock::{VirtualClock, align_clock, let_others_run, wait_until};
use crate::operate::explain::{self, Explanation, Query};
use sluicegate_base::clock::Now;
use sluicegate_model::value::scalars::show_duration;
use sluicegate_model::{Config, StoreConfig};
use sluicegate_proxy::gateway::Gateway;
use sluicegate_proxy::service::pipeline::{Pipeline, PipelineOutcome};

/// The most requests that may be under way at once; each takes some kilobytes.
const PENDING_MAX: usize = 65_536;
/// No request waits longer after the last one was sent.
const LAST_WAIT: Duration = Duration::from_secs(366 * 86_400);

/// Requests between two calls of the progress function.
const PROGRESS_EVERY: u64 = 1 << 12;

/// Runs scenarios one after the other. A process has one runner, because the time of day follows its clock.
pub struct ScenarioRunner {
    clock: VirtualClock,
    /// Called now and then with the requests of a scenario that are sent.
    progress: Box<dyn Fn(u64)>,
}

/// The record that a run of a scenario keeps, beside the sums of all steps.
#[derive(Debug, Clone, Copy)]
enum RunGoal {
    Sums,
    /// The end of every request of a step.
    Ends(usize),
    /// The explanation of one request, before it is sent; the run ends there.
    Explanation(ScheduledRequest),
}

/// The state of a run, shared by its requests.
struct RunState {
    pipeline: Pipeline,
    tallies: RefCell<Vec<StepTally>>,
    /// The step with kept ends, and the ends by index.
    ends: RefCell<(Option<usize>, Vec<Option<RequestEnd>>)>,
    pending: Cell<usize>,
    all_ended: Notify,
}

struct RunRecord {
    gateway: Arc<Gateway>,
    tallies: Vec<StepTally>,
    ends: Vec<RequestEnd>,
    explanation: Option<Explanation>,
    span: Duration,
}

// === impl ScenarioRunner ===

impl ScenarioRunner {
    /// # Errors
    /// The runtime cannot be made.
    pub fn new(progress: impl Fn(u64) + 'static) -> io::Result<ScenarioRunner> {
        VirtualClock::start().map(|clock| ScenarioRunner { clock, progress: Box::new(progress) })
    }

    /// Runs one scenario of a file, and again where a step failed: for the first request that differs, and for its
    /// explanation. All runs of a scenario are equal.
    pub fn run_scenario(&self, file: &ScenarioFile, scenario: &Scenario) -> ScenarioReport {
        let found = self.find_failures(file, scenario);
        let (failures, span, error) = match found {
            Ok((failures, span)) => (failures, span, None),
            Err(fault) => (Vec::new(), Duration::ZERO, Some(fault)),
        };
        ScenarioReport {
            name: scenario.name.clone(),
            line: scenario.line,
            requests: scenario.steps.iter().map(|step| step.send).sum(),
            virtual_ms: u64::try_from(span.as_millis()).unwrap_or(u64::MAX),
            failures,
            error,
        }
    }

    fn find_failures(
        &self,
        file: &ScenarioFile,
        scenario: &Scenario,
    ) -> Result<(Vec<StepFailure>, Duration), String> {
        let seen = self.run(file, scenario, RunGoal::Sums)?;
        let mut failures = Vec::new();
        for (index, (step, tally)) in scenario.steps.iter().zip(&seen.tallies).enumerate() {
            let mismatches = compare(&step.expect, tally, &seen.gateway);
            if !mismatches.is_empty() {
                failures.push(StepFailure {
                    step: index + 1,
                    line: step.line,
                    sent: describe_step(step),
                    mismatches,
                    first_difference: None,
                });
            }
        }
        if let Some(first) = failures.first_mut() {
            first.first_difference = Some(self.find_difference(file, scenario, first.step - 1)?);
        }
        Ok((failures, seen.span))
    }

    fn find_difference(
        &self,
        file: &ScenarioFile,
        scenario: &Scenario,
        step: usize,
    ) -> Result<DifferingRequest, String> {
        let of = &scenario.steps[step];
        let seen = self.run(file, scenario, RunGoal::Ends(step))?;
        let index = first_difference(&of.expect, &seen.tallies[step], &seen.ends, &seen.gateway);
        let requests = StepSchedule::new(scenario);
        let request = requests.into_iter().find(|one| one.step == step && one.index == index as u64);
        let request = request.ok_or("a request that was sent is not scheduled")?;
        let explained = self.run(file, scenario, RunGoal::Explanation(request))?;
        let explanation = explained.explanation.ok_or("the request to explain was not sent")?;
        let from = RequestTemplate::new(of, &file.config.listen)?.address(request.index).to_string();
        Ok(DifferingRequest {
            number: request.index + 1,
            at: show_duration(Duration::from_nanos(request.at_ns)),
            from,
            outcome: describe_end(&seen.ends[index], &seen.gateway),
            explanation: Box::new(explanation),
        })
    }

    fn run(&self, file: &ScenarioFile, scenario: &Scenario, goal: RunGoal) -> Result<RunRecord, String> {
        self.clock.run_from(file.start, run_once(file, scenario, goal, &self.progress))
    }
}

/// The configuration for one process that reads nothing else: everything counts locally.
fn count_locally(config: &Config) -> Config {
    let mut config = config.clone();
    config.state.store = StoreConfig::Local;
    config.state.redis = None;
    config.state.snapshot = None;
    config.tracing.otlp = None;
    config.account.jwt.iter_mut().for_each(accept_own_tokens);
    for limit in &mut config.limits {
        limit.shared = None;
    }
    config
}

async fn run_once(
    file: &ScenarioFile,
    scenario: &Scenario,
    goal: RunGoal,
    progress: &impl Fn(u64),
) -> Result<RunRecord, String> {
    let start = Now::read_clock();
    let gateway = explain::build_offline(count_locally(&file.config)).map_err(|error| error.to_string())?;
    let gateway = Arc::new(gateway);
    let listen = &file.config.listen;
    let templates: Result<Vec<_>, String> =
        scenario.steps.iter().map(|step| RequestTemplate::new(step, listen)).collect();
    let templates = templates?;
    let state = Rc::new(RunState::new(gateway.clone(), scenario, goal));
    let mut explanation = None;
    for (sent, request) in (0_u64..).zip(StepSchedule::new(scenario)) {
        // Later runs, for a failure, send the same again.
        if sent.is_multiple_of(PROGRESS_EVERY) && matches!(goal, RunGoal::Sums) {
            progress(sent);
        }
        wait_until(start, Now(start.0 + request.at_ns), state.pending.get() > 0).await;
        if let RunGoal::Explanation(wanted) = goal
            && wanted == request
        {
            let ip = templates[request.step].address(request.index).to_string();
            let query = Query { ip, ..scenario.steps[request.step].query.clone() };
            let explained = explain::explain_request(&gateway, None, &query, Now::read_clock()).await;
            explanation = Some(explained?);
            break;
        }
        state.send(&templates[request.step], scenario, request).await?;
    }
    if explanation.is_none() {
        align_clock(start).await;
        state.wait_for_last().await?;
    }
    let span = Duration::from_nanos(Now::read_clock().ns_since(start));
    let ends = state.ends.take().1;
    let ends = ends.into_iter().flatten().collect();
    Ok(RunRecord { gateway, tallies: state.tallies.take(), ends, explanation, span })
}

// === impl RunState ===

impl RunState {
    fn new(gateway: Arc<Gateway>, scenario: &Scenario, goal: RunGoal) -> RunState {
        let kept = match goal {
            RunGoal::Ends(step) => (Some(step), vec![None; scenario.steps[step].send as usize]),
            RunGoal::Sums | RunGoal::Explanation(_) => (None, Vec::new()),
        };
        RunState {
            pipeline: Pipeline::new(gateway),
            tallies: RefCell::new(scenario.steps.iter().map(|_| StepTally::default()).collect()),
            ends: RefCell::new(kept),
            pending: Cell::new(0),
            all_ended: Notify::new(),
        }
    }

    /// Sends a request. One that need not wait ends here; any other gets a task.
    ///
    /// # Errors
    /// Too many requests are under way.
    async fn send(
        self: &Rc<Self>,
        template: &RequestTemplate,
        scenario: &Scenario,
        request: ScheduledRequest,
    ) -> Result<(), String> {
        let step = &scenario.steps[request.step];
        let (sent, arrival) = template.make_request(request.index);
        let answer = step.answer.clone();
        let mut begun = self.pipeline.begin(sent, arrival, step.hold, move || answer.to_response());
        let outcome = std::future::poll_fn(|cx| Poll::Ready(begun.poll_outcome(cx))).await;
        if let Poll::Ready(outcome) = outcome {
            self.count(request, &outcome);
            return Ok(());
        }
        self.pending.set(self.pending.get() + 1);
        if self.pending.get() > PENDING_MAX {
            return Err(format!("more than {PENDING_MAX} requests are under way at once"));
        }
        let state = self.clone();
        tokio::task::spawn_local(async move {
            let outcome = begun.finish(&state.pipeline).await;
            state.count(request, &outcome);
            state.pending.set(state.pending.get() - 1);
            if state.pending.get() == 0 {
                state.all_ended.notify_one();
            }
        });
        Ok(())
    }

    fn count(&self, request: ScheduledRequest, outcome: &PipelineOutcome) {
        let end = RequestEnd::new(outcome);
        self.tallies.borrow_mut()[request.step].count(request.index, &end);
        let (kept, ends) = &mut *self.ends.borrow_mut();
        if *kept == Some(request.step)
            && let Some(place) = usize::try_from(request.index).ok().and_then(|index| ends.get_mut(index))
        {
            *place = Some(end);
        }
    }

    /// Waits for the requests that are still under way.
    ///
    /// # Errors
    /// Some of them never end.
    async fn wait_for_last(&self) -> Result<(), String> {
        let deadline = tokio::time::sleep(LAST_WAIT);
        tokio::pin!(deadline);
        while self.pending.get() > 0 {
            tokio::select! {
                biased;
                () = self.all_ended.notified() => {}
                () = &mut deadline => return Err(format!("{} requests never end", self.pending.get())),
            }
        }
        let_others_run().await;
        Ok(())
    }
}

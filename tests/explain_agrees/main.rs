//! `explain` says what the gateway then does: random configurations and requests through both, on a paused clock.
//!
//! Each request is explained first, which charges nothing, and then served by the pipeline with the same counters.

mod generate;

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use generate::{Arrival, arrival, configuration};
use http::header::CONTENT_LENGTH;
use http::{Method, Request, StatusCode};
use proptest::prelude::*;
use proptest::test_runner::TestError;
use sluicegate::operate::explain::{self, Explanation, Query, VerdictExplanation};
use sluicegate_base::clock::Now;
use sluicegate_http::request::body::RequestBody;
use sluicegate_proxy::gateway::Gateway;
use sluicegate_proxy::judge::request_state::Verdict;
use sluicegate_proxy::service::pipeline::{Pipeline, PipelineOutcome, ScriptedAnswer};

/// Requests of one configuration.
const REQUESTS: usize = 40;
/// Configurations; with [`REQUESTS`] they make 10,000 pairs.
const CONFIGURATIONS: u32 = 250;

/// The request as the parser of HTTP/1 yields it.
fn request(query: &Query) -> Request<RequestBody> {
    let mut request = Request::new(RequestBody::Empty);
    *request.method_mut() = Method::from_bytes(query.method.as_bytes()).unwrap();
    *request.uri_mut() = query.url.parse().unwrap();
    for line in &query.headers {
        let (name, value) = line.split_once(": ").unwrap();
        let name: http::HeaderName = name.parse().unwrap();
        request.headers_mut().append(name, value.parse().unwrap());
    }
    if !request.headers().contains_key("host") {
        request.headers_mut().insert("host", "localhost".parse().unwrap());
    }
    let length =
        request.headers().get(CONTENT_LENGTH).map(|length| length.to_str().unwrap().parse().unwrap());
    if let Some(length) = length.filter(|_| !request.headers().contains_key("transfer-encoding")) {
        *request.body_mut() = RequestBody::Announced(length);
    }
    request
}

/// A request that the pipeline serves.
#[derive(Default)]
struct Served {
    forwarded: Cell<Option<Now>>,
    outcome: RefCell<Option<PipelineOutcome>>,
}

/// A request that `explain` said would wait.
struct ExpectedWait {
    served: Rc<Served>,
    explained: VerdictExplanation,
}

fn serve(pipeline: &Rc<Pipeline>, arrival: &Arrival) -> Rc<Served> {
    let (pipeline, served) = (pipeline.clone(), Rc::new(Served::default()));
    let (kept, request, hold) =
        (served.clone(), request(&arrival.query), Duration::from_millis(arrival.hold_ms));
    let peer: IpAddr = arrival.query.ip.parse().unwrap();
    tokio::task::spawn_local(async move {
        let answer = ScriptedAnswer { status: StatusCode::OK, hold };
        let marked = kept.clone();
        let on_forward = move || marked.forwarded.set(Some(Now::read_clock()));
        let outcome = pipeline.serve(request, peer, answer, on_forward).await;
        *kept.outcome.borrow_mut() = Some(outcome);
    });
    served
}

fn verdict_word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ban | Verdict::MissingKey | Verdict::Fault(_) => "reject",
        other => other.as_str(),
    }
}

/// Compares an explanation with the outcome of a request that need not wait.
fn compare_at_once(
    gateway: &Gateway,
    explained: &VerdictExplanation,
    served: &Served,
    now: Now,
) -> Result<(), String> {
    let outcome = served.outcome.borrow();
    let forwarded_now = served.forwarded.get() == Some(now);
    if explained.outcome == "admit" {
        return match (&*outcome, forwarded_now) {
            (Some(outcome), _) if outcome.verdict == Verdict::Admit => Ok(()),
            (None, true) => Ok(()),
            _ => Err(format!("not admitted: {outcome:?}")),
        };
    }
    if explained.outcome == "degrade" && explained.status.is_none() {
        return if forwarded_now { Ok(()) } else { Err(format!("not degraded: {outcome:?}")) };
    }
    let Some(outcome) = &*outcome else { return Err("no response".to_owned()) };
    let limit = outcome.limit.map(|limit| gateway.limits[limit.0].name.to_string());
    let retry_after_ms = outcome.retry_after_ns.map(|ns| ns.div_ceil(1_000_000));
    let seen = (verdict_word(outcome.verdict), Some(outcome.status.as_u16()), &limit, retry_after_ms);
    let said = (explained.outcome, explained.status, &explained.limit, explained.retry_after_ms);
    if seen == said { Ok(()) } else { Err(format!("explained {said:?}, seen {seen:?}")) }
}

/// Compares the wait that was explained with the one that was seen. Slots are taken after the wait, and a location's
/// timeout may pass, so a later rejection does not contradict the explanation.
fn compare_wait(expected: &ExpectedWait) -> Result<(), String> {
    let outcome = expected.served.outcome.borrow();
    let Some(outcome) = &*outcome else { return Err("a waiting request has no response".to_owned()) };
    let is_rejected = expected.explained.outcome == "reject";
    let is_same = is_rejected && expected.explained.status == Some(outcome.status.as_u16());
    if is_rejected && !is_same && outcome.limit.is_none() {
        return Err(format!("explained {:?}, seen {outcome:?}", expected.explained));
    }
    if outcome.verdict != Verdict::Wait && !is_same {
        return Ok(());
    }
    let (seen, said) = (outcome.wait_ns.div_ceil(1_000_000), expected.explained.wait_ms.unwrap_or_default());
    // A timer is up to a millisecond late; a request behind one that left comes earlier.
    if seen <= said + 2 { Ok(()) } else { Err(format!("explained a wait of {said} ms, seen {seen} ms")) }
}

async fn let_others_run() {
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
}

async fn compare_all(gateway: Arc<Gateway>, arrivals: &[Arrival]) -> Result<[usize; 4], String> {
    let pipeline = Rc::new(Pipeline::new(gateway.clone()));
    let mut waits: Vec<ExpectedWait> = Vec::new();
    let mut counts = [0; 4];
    for (index, arrival) in arrivals.iter().enumerate() {
        tokio::time::sleep(Duration::from_millis(arrival.gap_ms)).await;
        // Requests that end at this very moment end first.
        let_others_run().await;
        let now = Now::read_clock();
        let explanation: Explanation = explain::explain_request(&gateway, None, &arrival.query, now).await?;
        let served = serve(&pipeline, arrival);
        let_others_run().await;
        let verdict = explanation.verdict.clone();
        let outcomes = ["admit", "wait", "reject", "degrade"];
        counts[outcomes.iter().position(|word| *word == verdict.outcome).unwrap()] += 1;
        if verdict.wait_ms.is_some() {
            if served.outcome.borrow().is_some() || served.forwarded.get().is_some() {
                let outcome = served.outcome.borrow();
                return Err(format!("request {index} did not wait: {outcome:?}\n{explanation}"));
            }
            waits.push(ExpectedWait { served, explained: verdict });
        } else if let Err(difference) = compare_at_once(&gateway, &verdict, &served, now) {
            return Err(format!("request {index}, {:?}: {difference}\n{explanation}", arrival.query));
        }
    }
    tokio::time::sleep(Duration::from_secs(120)).await;
    waits.iter().try_for_each(compare_wait)?;
    Ok(counts)
}

/// Compares one configuration; returns how many requests had each of the four outcomes.
fn run_case(file: &str, arrivals: &[Arrival]) -> Result<[usize; 4], String> {
    let loaded =
        sluicegate_config::parse(file, "gateway.yaml").map_err(|report| format!("{report}\n{file}"))?;
    let gateway = Arc::new(explain::build_offline(loaded.config).map_err(|error| error.to_string())?);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let local = tokio::task::LocalSet::new();
    let compared = local.block_on(&runtime, compare_all(gateway, arrivals));
    compared.map_err(|difference| format!("{difference}\n{file}"))
}

#[test]
fn an_explanation_is_what_then_happens() {
    let totals = RefCell::new([0; 4]);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: CONFIGURATIONS,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let arrivals = prop::collection::vec(arrival(), REQUESTS);
    let outcome = runner.run(&(configuration(), arrivals), |(file, arrivals)| {
        let counts = run_case(&file, &arrivals).map_err(TestCaseError::fail)?;
        totals.borrow_mut().iter_mut().zip(counts).for_each(|(total, count)| *total += count);
        Ok(())
    });
    // The reason names the configuration and the request; all arrivals would be hundreds of lines more.
    match outcome {
        Err(TestError::Fail(reason, _)) => panic!("{reason}"),
        other => other.unwrap(),
    }
    let totals = totals.into_inner();
    let [admitted, waited, rejected, degraded] = totals;
    assert!(totals.iter().sum::<usize>() >= 10_000, "{totals:?}");
    assert!(admitted > 1000 && waited > 50 && rejected > 1000 && degraded > 20, "too one-sided: {totals:?}");
}

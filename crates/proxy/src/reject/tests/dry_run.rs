//! The field and the log text of dry-run limits.

use super::*;
use sluicegate_limit::LimitOutcome;
use sluicegate_model::{LimitId, LocationId};

fn dry_decision(outcome: LimitOutcome, wait_ns: u64, retry_after_ns: u64) -> Decision {
    Decision {
        outcome,
        reached: 0,
        remaining: 3,
        reset_ns: 0,
        retry_after_ns,
        wait_ns,
        full_ns: 0,
        anchor: None,
    }
}

fn dry_rejecters() -> Rejecters {
    rejecters(
        "limits:\n  per-ip: { rate: 1/s, dry_run: true }\n  line: { rate: 1/s, dry_run: true }\n  \
           real: { rate: 1/s }\n\
         locations:\n  - { path: /, upstream: demo, limits: [per-ip, line, real, { rate: 1/s, dry_run: true }] }\n  \
           - { path: /b, upstream: demo, limits: real }\n",
    )
    .1
}

fn render_both(decisions: &[(usize, Decision)]) -> (Option<String>, Option<String>) {
    let rejecters = dry_rejecters();
    let mut headers = HeaderMap::new();
    let dry_runs = &rejecters.for_location(Some(LocationId(0))).dry_runs;
    dry_runs
        .write_header(decisions.iter().map(|&(limit, decision)| (LimitId(limit), decision)), &mut headers);
    let field = headers.get("sluicegate-dry-run").map(|value| value.to_str().unwrap().to_owned());
    (field, dry_runs.log_summary(decisions.iter().map(|&(limit, decision)| (LimitId(limit), decision)), None))
}

#[test]
fn each_outcome_has_its_text() {
    let admit = (0, dry_decision(LimitOutcome::Admit, 0, 0));
    assert_eq!(render_both(&[admit]), (Some("\"per-ip\";would=admit".to_owned()), None));
    let wait = (1, dry_decision(LimitOutcome::Wait, 119_000_001, 0));
    let reject = (0, dry_decision(LimitOutcome::Reject, 0, 850_000_000));
    let (field, summary) = render_both(&[reject, wait]);
    assert_eq!(field.unwrap(), "\"per-ip\";would=reject;retry_after_ms=850, \"line\";would=wait;ms=120");
    assert_eq!(summary.unwrap(), "per-ip=reject,line=wait");
}

#[test]
fn a_rejection_without_a_time_has_no_retry_after() {
    let (field, summary) = render_both(&[(3, dry_decision(LimitOutcome::Reject, 0, u64::MAX))]);
    assert_eq!(field.unwrap(), "\"/#1\";would=reject".replace("#1", "#4"));
    assert_eq!(summary.unwrap(), "/#4=reject");
    let longest = render_both(&[(0, dry_decision(LimitOutcome::Wait, u64::MAX, 0))]).0.unwrap();
    let ms = longest.rsplit('=').next().unwrap();
    assert!(ms.len() <= 15, "{longest}");
}

#[test]
fn enforced_limits_write_no_dry_run_field() {
    assert_eq!(render_both(&[]), (None, None));
    assert_eq!(render_both(&[(2, dry_decision(LimitOutcome::Reject, 0, 1))]), (None, None));
    let rejecters = dry_rejecters();
    let has_dry_runs = |location| !rejecters.for_location(location).dry_runs.is_empty();
    assert!(has_dry_runs(Some(LocationId(0))));
    assert!(!has_dry_runs(Some(LocationId(1))) && !has_dry_runs(None));
}

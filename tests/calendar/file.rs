//! The steps of a file, and those that it refuses.

use sluicegate_model::{QuotaStep, StepAction};

use crate::counters::config;

/// The words of the faults in a limit.
fn faults(fields: &str) -> String {
    let text = format!(
        "locations: [{{ path: /, limits: {{ key: account, {fields} }}, respond: {{ status: 200 }} }}]"
    );
    match sluicegate_config::parse(&text, "test") {
        Ok(_) => String::new(),
        Err(report) => report.to_string(),
    }
}

#[test]
fn a_warning_alone_is_followed_by_the_rejection_at_the_whole() {
    let limit = config("rate: 10/month, steps: [{ at: 80.25%, then: warn }]");
    let expected = [
        QuotaStep { at: 802_500, then: StepAction::Warn },
        QuotaStep { at: 1_000_000, then: StepAction::Reject },
    ];
    assert_eq!(limit.steps, expected);
    let limit = config("rate: [100/s, 10/month], steps: [{ at: 120%, then: reject }]");
    let of_rate = |index: usize| {
        let rate = limit.algorithm.rate_quotas()[index].0;
        limit.steps_of(&rate).len()
    };
    assert_eq!((of_rate(0), of_rate(1)), (0, 1), "a rate beside one of the calendar has no steps");
}

#[test]
fn steps_that_cannot_be_are_refused_with_the_reason() {
    let steps = |steps: &str| faults(&format!("rate: 10/month, steps: {steps}"));
    for (written, reason) in [
        ("[]", "steps"),
        ("[{ at: 80%, then: warn }, { at: 80%, then: reject }]", "80% is not above the step before, 80%"),
        ("[{ at: 90%, then: warn }, { at: 80%, then: reject }]", "80% is not above the step before, 90%"),
        ("[{ at: 100%, then: reject }, { at: 120%, then: warn }]", "is never reached"),
        ("[{ at: 100%, then: warn }]", "the last step neither slows nor rejects"),
        ("[{ at: 100%, then: slow }]", "rate"),
        ("[{ at: 100%, then: warn, rate: 1/s }]", "`rate` is for steps that slow"),
        ("[{ at: 100%, then: slow, rate: 1/month }]", "only limits have those"),
        ("[{ at: 0%, then: reject }]", "is no part of a quota"),
        ("[{ at: -5%, then: reject }]", "is negative"),
        ("[{ at: 80, then: reject }]", "is not a percentage"),
        ("[{ at: 80.0001%, then: reject }]", "more than three decimals"),
        ("[{ at: 1001%, then: reject }]", "more than ten times"),
        ("[{ at: 80%, then: block }]", "block"),
        ("[{ then: reject }]", "at"),
    ] {
        let told = steps(written);
        assert!(told.contains(reason), "{written}: {told}");
    }
    let cut = "charge: { units: bytes, over: cut }, steps: [{ at: 100%, then: slow, rate: 1/s }]";
    assert!(faults(&format!("rate: 10/month, {cut}")).contains("cannot pace the parts of a response"));
    let many: Vec<String> = (1..9).map(|at| format!("{{ at: {at}%, then: warn }}")).collect();
    assert!(steps(&format!("[{}]", many.join(", "))).contains("at most 8 steps"));
    let fixed = "algorithm: fixed_window, steps: [{ at: 90%, then: warn }]";
    assert_eq!(faults(&format!("rate: 10/60s, {fixed}")), "");
    assert!(faults("rate: 10/60s, steps: [{ at: 90%, then: warn }]").contains("for fixed windows"));
    assert!(faults(&format!("rate: 10/100ms, {fixed}")).contains("whole seconds"));
    assert!(faults(&format!("rate: 10/60s, align: clock, {fixed}")).contains("calendar and steps"));
}

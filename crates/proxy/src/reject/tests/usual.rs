//! The kept head of the most frequent rejections.

use super::*;
use sluicegate_limit::LimitOutcome;

fn rejecting(remaining: u64, reset_ns: u64) -> Decision {
    Decision {
        outcome: LimitOutcome::Reject,
        reached: 0,
        remaining,
        reset_ns,
        retry_after_ns: reset_ns,
        wait_ns: 0,
        full_ns: 0,
        anchor: None,
    }
}

fn rate_rejection(retry_after_ns: Option<u64>) -> LimitRejection {
    let (limit, cause) = (LimitId(0), LimitCause::Rate);
    LimitRejection { limit, rate: 0, class: 0, cause, retry_after_ns, is_turn: false }
}

/// The response from the kept head, and the one that is rendered field by field.
fn render_both(
    rejecters: &Rejecters,
    rejection: LimitRejection,
    decision: Decision,
) -> (Option<Response<Bytes>>, Response<Bytes>) {
    let rejecter = rejecters.for_location(Some(LocationId(0)));
    let mut rendered = rejecter.render_rejection(&Rejection::Limit(rejection), &context(), false);
    rejecter
        .rate_limit_fields
        .write_fields([(rejection.limit, rejection.rate, decision)], rendered.headers_mut());
    let find_usual = || rejecter.find_usual(&rejection, &decision, ID.as_bytes());
    // Asked for twice: the first renders the head.
    find_usual();
    (find_usual().map(|usual| usual.build_response(ID.as_bytes(), context)), rendered)
}

#[test]
fn a_kept_head_is_the_rendered_one() {
    for (on_reject, is_kept) in [
        ("{}", true),
        ("{ ratelimit_headers: legacy }", true),
        ("{ ratelimit_headers: none, body: envelope }", true),
        ("{ status: 503, headers: { Retry-After: never, X-Why: slow } }", true),
        ("{ body: none }", true),
        ("{ body: { template: \"${client_ip} ${host} ${request_id} ${retry_after_ms}\" } }", true),
        ("{ retry_jitter: 100% }", false),
    ] {
        let rejecters = with_on_reject(on_reject);
        let mut kept_heads = 0;
        for ns in [0, 1, 1_000_000_000, 1_000_000_001, 2_000_000_000, 8_000_000_000, 8_000_000_001, u64::MAX]
        {
            for decision in [rejecting(0, ns), rejecting(1, ns), rejecting(0, 3_000_000_000)] {
                let (usual, rendered) = render_both(&rejecters, rate_rejection(Some(ns)), decision);
                let Some(usual) = usual else { continue };
                kept_heads += 1;
                assert_eq!(usual.status(), rendered.status());
                assert_eq!(usual.headers(), rendered.headers(), "{on_reject} {decision:?}");
                assert_eq!(text(&usual), text(&rendered));
            }
        }
        assert!(!is_kept || kept_heads == 6, "{on_reject}: {kept_heads}");
    }
}

#[test]
fn a_head_with_variables_is_not_kept() {
    let rejecters =
        with_on_reject("{ headers: { X-Id: \"<${request_id}>\", X-Host: \"${host}\", X-Why: slow } }");
    let (usual, rendered) =
        render_both(&rejecters, rate_rejection(Some(1_000_000_000)), rejecting(0, 1_000_000_000));
    assert!(usual.is_none());
    let fields = ["x-id", "x-host", "x-why"].map(|name| header(&rendered, name));
    assert_eq!(fields, [&format!("<{ID}>"), "", "slow"]);
    assert!(!rendered.headers().contains_key("x-host"), "an empty value is not sent");
    assert!(rejecters.for_location(Some(LocationId(0))).uses_target);
}

#[test]
fn other_rejections_have_no_kept_head() {
    let rejecters = with_on_reject("{}");
    let rejecter = rejecters.for_location(Some(LocationId(0)));
    let is_usual = |rejection: LimitRejection, decision: Decision| {
        rejecter.find_usual(&rejection, &decision, ID.as_bytes()).is_some()
    };
    let (rate, second) = (rate_rejection(Some(1_000_000_000)), 1_000_000_000);
    assert!(is_usual(rate, rejecting(0, second)));
    assert!(!is_usual(rate, rejecting(1, second)), "units remain");
    assert!(!is_usual(rate, rejecting(0, second + 1)), "another time");
    assert!(!is_usual(rate_rejection(Some(9 * second)), rejecting(0, 9 * second)), "too far away");
    assert!(!is_usual(LimitRejection { cause: LimitCause::TooCostly, ..rate }, rejecting(0, second)));
    assert!(!is_usual(LimitRejection { limit: LimitId(9), ..rate }, rejecting(0, second)));
    let degraded = with_on_reject("{ degrade: { status: 200, body: sorry } }");
    let rejecter = degraded.for_location(Some(LocationId(0)));
    assert!(rejecter.find_usual(&rate, &rejecting(0, second), ID.as_bytes()).is_none());
    // The length of a month is in its fields.
    let yaml = "limits: { plan: 9/month }\nlocations: [{ path: /, upstream: demo, limits: plan }]";
    let (_, monthly) = super::rejecters(yaml);
    let rejecter = monthly.for_location(Some(LocationId(0)));
    assert!(rejecter.find_usual(&rate, &rejecting(0, second), ID.as_bytes()).is_none());
}

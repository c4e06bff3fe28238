//! Substitutes for rejections.

use super::*;
use sluicegate_model::{LimitId, LocationId, UpstreamId};

const SOLD_OUT: &str =
    "{ degrade: { body: \"${limit} ${rate}: ${status} ${title}. ${message} ${retry_after_ms}\" } }";

#[test]
fn a_canned_response_uses_the_values_of_the_rejection() {
    let rejecters = with_on_reject(SOLD_OUT);
    let rejection = limit_rejection(0, LimitCause::Rate, Some(1_500_000_000));
    let response = render_http(&rejecters, &rejection);
    assert_eq!(response.status(), 200);
    assert_eq!(text(&response), "per-ip 10/s: 200 OK. Too many requests, try again in 2 s 1500");
    assert_eq!(header(&response, "content-type"), "text/plain");
    assert_eq!(header(&response, "sluicegate-degraded"), "\"per-ip\"");
    assert!(response.headers().get(RETRY_AFTER).is_none(), "a success is not to be sent again");
}

#[test]
fn only_rejections_by_limits_are_degraded() {
    let rejecters = with_on_reject("{ headers: { X-Why: sale }, degrade: { status: 203, body: later } }");
    for rejection in every_rejection() {
        let response = render_http(&rejecters, &rejection);
        let is_degraded = response.headers().contains_key("sluicegate-degraded");
        let Rejection::Limit(rejection) = &rejection else {
            assert!(!is_degraded && response.status() != 203, "{rejection:?}");
            continue;
        };
        assert!(is_degraded && response.status() == 203, "{rejection:?}");
        assert_eq!((text(&response), header(&response, "x-why")), ("later", "sale"));
        assert_eq!(
            rejecters.for_location(Some(LocationId(0))).degraded_to(rejection, false),
            Some(DegradedTo::Canned)
        );
        assert_eq!(
            rejecters.for_location(None).degraded_to(rejection, false),
            None,
            "no location, nothing to stand in for"
        );
    }
}

#[test]
fn a_canned_error_says_when_to_come_back() {
    let rejecters = with_on_reject(
        "{ degrade: { status: 503, body: '{\"l\":\"${limit}\"}', content_type: application/json } }",
    );
    let response = render_http(&rejecters, &limit_rejection(1, LimitCause::Queue, Some(2_000_000_000)));
    assert_eq!((response.status().as_u16(), header(&response, RETRY_AFTER.as_str())), (503, "2"));
    assert_eq!(text(&response), "{\"l\":\"line\"}");
    assert_eq!(header(&response, CONTENT_TYPE.as_str()), "application/json");
}

#[test]
fn grpc_callers_get_their_status_instead_of_a_canned_answer() {
    let rejecters = with_on_reject(SOLD_OUT);
    let Rejection::Limit(rejection) = limit_rejection(0, LimitCause::Rate, Some(1)) else { unreachable!() };
    let rejecter = rejecters.for_location(Some(LocationId(0)));
    assert_eq!(rejecter.degraded_to(&rejection, true), None);
    let response = rejecter.render_rejection(&Rejection::Limit(rejection), &context(), true);
    assert_eq!((header(&response, "grpc-status"), header(&response, "sluicegate-degraded")), ("8", ""));
    assert_eq!(header(&response, RETRY_AFTER.as_str()), "1");
    let to_upstream = with_on_reject("{ degrade: demo }");
    assert_eq!(
        to_upstream.for_location(Some(LocationId(0))).degraded_to(&rejection, true),
        Some(DegradedTo::Upstream(UpstreamId(0)))
    );
}

#[test]
fn the_nearest_section_decides() {
    let (config, rejecters) = rejecters(
        "on_reject: { degrade: demo }\n\
         limits:\n  plain: { rate: 1/s }\n  own: { rate: 1/s, on_reject: { degrade: { body: own } } }\n  \
           off: { rate: 1/s, on_reject: { degrade: none } }\n\
         locations:\n  - { path: /a, upstream: demo, limits: [plain, own, off] }\n  \
           - { path: /b, upstream: demo, limits: [plain, own, off], on_reject: { degrade: none } }\n  \
           - { path: /c, upstream: demo, limits: [plain, own, off], on_reject: { degrade: { body: c } } }\n",
    );
    let demo = config
        .upstreams
        .iter()
        .position(|upstream| upstream.name == "demo")
        .map(|index| DegradedTo::Upstream(UpstreamId(index)));
    let degraded_to = |location| {
        [0, 1, 2].map(|limit| {
            let rejection = LimitRejection {
                limit: LimitId(limit),
                rate: 0,
                class: 0,
                cause: LimitCause::Rate,
                retry_after_ns: None,
                is_turn: false,
            };
            rejecters.for_location(Some(location)).degraded_to(&rejection, false)
        })
    };
    assert_eq!(degraded_to(LocationId(0)), [demo, Some(DegradedTo::Canned), None]);
    assert_eq!(degraded_to(LocationId(1)), [None; 3]);
    assert_eq!(degraded_to(LocationId(2)), [Some(DegradedTo::Canned); 3]);
}

#[test]
fn any_name_makes_a_valid_mark() {
    let (_, rejecters) = rejecters(
        "locations:\n  - { path: '~ ^/\"ü\\\\', upstream: demo, limits: 1/s, on_reject: { degrade: demo } }\n",
    );
    let mut headers = HeaderMap::new();
    rejecters.for_location(Some(LocationId(0))).mark_degraded(LimitId(0), &mut headers);
    assert_eq!(headers["sluicegate-degraded"], "\"~ ^/\\\"%C3%BC\\\\\\\\#1\"");
    rejecters.for_location(Some(LocationId(0))).mark_degraded(LimitId(7), &mut headers);
}

//! The units of responses: each kind of summand, what is missing, and ways to hang up early.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::*;
use sluicegate_model::{OverrunAction, Reserve, ResponseSet, StatusRanges};

const COST: HeaderName = HeaderName::from_static("x-cost");

fn statuses(ranges: &[(u16, u16)]) -> ResponseSet {
    ResponseSet { statuses: StatusRanges(ranges.to_vec()), grpc_codes: Vec::new() }
}

fn charge(units: Vec<ChargedUnits>) -> ChargeConfig {
    ChargeConfig {
        when: None,
        clear: ResponseSet::default(),
        units,
        reserve: Reserve::Cost,
        missing: MissingUnits::Estimate,
        over: OverrunAction::Finish,
        counts_kib: false,
        pricing: None,
    }
}

fn limit(charge: ChargeConfig, cost: u64) -> LimitConfig {
    let text = "limits: { x: { rate: 100/s } }\nlocations: [{ path: /, upstream: demo, limits: x }]\n";
    let mut limits = sluicegate_config::parse(text, "test").unwrap().config.limits;
    LimitConfig { charge: Some(charge), cost: Cost::Units(cost), ..limits.remove(0) }
}

fn reading(limit: &LimitConfig, is_grpc: bool) -> ResponseReading {
    let plan = ReadingPlan::for_limits([limit].into_iter()).expect("a limit that listens");
    ResponseReading::new(plan, is_grpc, Vec::new())
}

fn headers(cost: &[&'static str]) -> HeaderMap {
    cost.iter().map(|value| (COST, HeaderValue::from_static(value))).collect()
}

/// The units and their source after a response with this status, cost header and length.
fn settled(limit: &LimitConfig, status: u16, cost: &[&'static str], bytes: u64) -> (u64, &'static str) {
    let mut reading = reading(limit, false);
    reading.begin_attempt();
    reading.read_head(&headers(cost));
    reading.set_status(StatusCode::from_u16(status).unwrap());
    reading.mark_complete();
    let (units, source) =
        compute_charge(limit, limit.charge.as_ref().unwrap(), limit_cost(limit), &reading, bytes);
    (units, source.as_str())
}

fn limit_cost(limit: &LimitConfig) -> u64 {
    match limit.cost {
        Cost::Units(units) => units,
        Cost::Header { .. } | Cost::Json { .. } | Cost::JsonRpc { .. } => 1,
    }
}

#[test]
fn only_chosen_responses_are_charged() {
    let when = Some(statuses(&[(401, 401), (403, 403)]));
    let limit = limit(ChargeConfig { when, ..charge(vec![ChargedUnits::Request]) }, 3);
    assert_eq!(settled(&limit, 401, &[], 0), (3, "request"));
    assert_eq!(settled(&limit, 403, &[], 0), (3, "request"));
    assert_eq!(settled(&limit, 200, &[], 0), (0, "nothing"));
    assert_eq!(settled(&limit, 500, &[], 0), (0, "nothing"));
}

/// A client that hangs up before the status must not have a free attempt.
#[test]
fn without_a_final_status_the_response_is_charged() {
    let when = Some(statuses(&[(401, 401)]));
    let limit = limit(ChargeConfig { when, ..charge(vec![ChargedUnits::Request]) }, 1);
    let compute =
        |reading: &ResponseReading| compute_charge(&limit, limit.charge.as_ref().unwrap(), 1, reading, 0);
    let unsent = reading(&limit, false);
    assert_eq!(compute(&unsent), (0, ChargeSource::Nothing));
    let before = unsent.begin_attempt();
    assert_eq!(compute(&unsent), (1, ChargeSource::Request));
    unsent.cancel_attempt(before);
    assert_eq!(compute(&unsent), (0, ChargeSource::Nothing), "the connection was dead");
}

#[test]
fn a_number_of_an_attempt_that_was_repeated_does_not_count() {
    let limit = limit(charge(vec![ChargedUnits::Header(COST)]), 1);
    let reading = reading(&limit, false);
    reading.begin_attempt();
    reading.read_head(&headers(&["50"]));
    reading.begin_attempt();
    let units = compute_charge(&limit, limit.charge.as_ref().unwrap(), 7, &reading, 0);
    assert_eq!(units, (7, ChargeSource::Reserve));
}

#[test]
fn units_are_summed_and_rounded_up_once() {
    let units = vec![ChargedUnits::Header(COST), ChargedUnits::Request, ChargedUnits::Bytes];
    let limit = limit(charge(units), 2);
    assert_eq!(settled(&limit, 200, &["0.4"], 10), (13, "usage"));
    let header_alone = limit_of_header(MissingUnits::Estimate);
    assert_eq!(settled(&header_alone, 200, &["12"], 10), (12, "usage"));
    assert_eq!(settled(&header_alone, 200, &["0"], 10), (0, "usage"));
}

#[test]
fn sizes_count_in_whole_kib() {
    let bytes = limit(ChargeConfig { counts_kib: true, ..charge(vec![ChargedUnits::Bytes]) }, 1);
    for (delivered, units) in [(0, 0), (1, 1), (1_024, 1), (1_025, 2)] {
        assert_eq!(settled(&bytes, 200, &[], delivered), (units, "usage"));
    }
}

fn limit_of_header(missing: MissingUnits) -> LimitConfig {
    limit(ChargeConfig { missing, ..charge(vec![ChargedUnits::Header(COST)]) }, 9)
}

#[test]
fn a_header_that_says_no_number_is_missing() {
    for wrong in [&[][..], &["many"], &["1", "2"], &["-1"], &["99999999999999999999"]] {
        assert_eq!(settled(&limit_of_header(MissingUnits::Estimate), 200, wrong, 0), (9, "reserve"));
        assert_eq!(settled(&limit_of_header(MissingUnits::Reserved), 200, wrong, 0), (9, "reserve"));
        assert_eq!(settled(&limit_of_header(MissingUnits::Nothing), 200, wrong, 0), (0, "nothing"));
    }
}

#[test]
fn a_known_part_may_exceed_the_reservation() {
    let units = vec![ChargedUnits::Header(COST), ChargedUnits::Bytes];
    let limit = limit(charge(units), 5);
    assert_eq!(settled(&limit, 200, &[], 400), (400, "usage"));
    assert_eq!(settled(&limit, 200, &[], 4), (5, "reserve"));
}

#[test]
fn codes_of_grpc_count_like_statuses() {
    let when = Some(ResponseSet { grpc_codes: vec![16], ..ResponseSet::default() });
    let limit = limit(ChargeConfig { when, ..charge(vec![ChargedUnits::Request]) }, 1);
    let compute = |code: Option<&'static str>| {
        let mut reading = reading(&limit, true);
        reading.begin_attempt();
        reading.read_head(&HeaderMap::new());
        reading.set_status(StatusCode::OK);
        let trailers =
            code.map(|code| (HeaderName::from_static("grpc-status"), HeaderValue::from_static(code)));
        reading.read_grpc_code(&trailers.into_iter().collect());
        compute_charge(&limit, limit.charge.as_ref().unwrap(), 1, &reading, 0).0
    };
    assert_eq!((compute(Some("16")), compute(Some("0"))), (1, 0));
    assert_eq!(compute(None), 1, "cut before its code");
}

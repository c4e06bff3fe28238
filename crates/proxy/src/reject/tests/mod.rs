//! Rejections and faults, byte for byte as clients see them.

use std::collections::HashSet;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde_json::Value;

use super::*;
use sluicegate_base::clock::Now;
use sluicegate_config as config;
use sluicegate_model::{self as model, LimitId, LocationId};

mod degrade;
mod dialects;
mod dry_run;
mod fields;
mod fields_oracle;
mod missing_key;
mod usual;

const ID: &str = "01JD3Z0V7Q";

fn rejecters(yaml: &str) -> (Config, Rejecters) {
    let loaded = config::parse(yaml, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
    let rejecters = Rejecters::new(&loaded.config);
    (loaded.config, rejecters)
}

/// One location under this `on_reject`, with a limit of each kind.
fn with_on_reject(on_reject: &str) -> Rejecters {
    rejecters(&format!(
        "on_reject: {on_reject}\n\
         limits:\n  per-ip: {{ rate: 10/s, burst: 20 }}\n  \
           line: {{ algorithm: leaky_bucket, rate: 5/s, queue: 20 }}\n  \
           slots: {{ algorithm: concurrency, max_concurrent: 3 }}\n\
         locations:\n  - {{ path: /, upstream: demo, limits: [per-ip, line, slots] }}\n"
    ))
    .1
}

fn limit_rejection(limit: usize, cause: LimitCause, retry_after_ns: Option<u64>) -> Rejection {
    let (limit, rate, class, is_turn) = (LimitId(limit), 0, 0, false);
    Rejection::Limit(LimitRejection { limit, rate, class, cause, retry_after_ns, is_turn })
}

fn context<'a>() -> RejectContext<'a> {
    RejectContext { request_id: ID.as_bytes(), ..RejectContext::default() }
}

fn render_http(rejecters: &Rejecters, rejection: &Rejection) -> Response<Bytes> {
    rejecters.for_location(Some(LocationId(0))).render_rejection(rejection, &context(), false)
}

fn header<'a>(response: &'a Response<Bytes>, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

fn text(response: &Response<Bytes>) -> &str {
    std::str::from_utf8(response.body()).unwrap()
}

fn every_rejection() -> Vec<Rejection> {
    let causes = [
        LimitCause::Rate,
        LimitCause::Queue,
        LimitCause::Concurrency,
        LimitCause::TooCostly,
        LimitCause::MissingKey,
        LimitCause::QueuedTooLong,
    ];
    let limits =
        (0..3).flat_map(|limit| causes.map(|cause| limit_rejection(limit, cause, Some(1_500_000_000))));
    let allow = Rejection::MethodNotAllowed { allow: HeaderValue::from_static("GET, POST") };
    limits.chain(Fault::ALL.map(Rejection::Fault)).chain([allow, banned(false), banned(true)]).collect()
}

fn banned(by_operator: bool) -> Rejection {
    Rejection::Banned { by_operator, left_ns: 59_000_000_001 }
}

#[test]
fn a_ban_response_contains_its_remaining_time() {
    let response = render_http(&with_on_reject("{}"), &banned(false));
    assert_eq!((response.status().as_u16(), header(&response, "retry-after")), (429, "60"));
    let expected = concat!(
        r#"{"type":"https://iana.org/assignments/http-problem-types#abnormal-usage-detected","#,
        r#""title":"Too Many Requests","status":429,"#,
        r#""detail":"banned for repeated rejections","retry_after_ms":59001,"request_id":"01JD3Z0V7Q"}"#
    );
    assert_eq!(text(&response), expected);
    let template = "{ status: 403, body: { template: \"${message} [${limit}] ${retry_after_ms}\" } }";
    let response = render_http(&with_on_reject(template), &banned(false));
    assert_eq!(response.status(), 403);
    assert_eq!(text(&response), "Banned for repeated rejections, try again in 60 s [] 59001");
    let response = render_http(&with_on_reject(template), &banned(true));
    assert_eq!(text(&response), "Banned by an operator, try again in 60 s [] 59001");
    let grpc = with_on_reject("{}").for_location(None).render_rejection(&banned(false), &context(), true);
    assert_eq!((header(&grpc, "grpc-status"), header(&grpc, "retry-after")), ("8", "60"));
}

#[test]
fn a_rejection_is_a_problem_body_with_its_limit() {
    let response =
        render_http(&with_on_reject("{}"), &limit_rejection(0, LimitCause::Rate, Some(100_000_000)));
    assert_eq!(response.status(), 429);
    assert_eq!(header(&response, "retry-after"), "1");
    assert_eq!(header(&response, "content-type"), "application/problem+json");
    let expected = concat!(
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
        r#""title":"Too Many Requests","status":429,"#,
        r#""detail":"limit per-ip: 10 requests per second, burst 20","limit":"per-ip","#,
        r#""retry_after_ms":100,"violated-policies":["per-ip"],"request_id":"01JD3Z0V7Q"}"#
    );
    assert_eq!(text(&response), expected);
}

#[test]
fn each_cause_has_its_problem_type() {
    let (_, rejecters) = rejecters(
        "upstreams: { app: { servers: [127.0.0.1:1], obey: {} } }\n\
         limits:\n  rate: { rate: 10/s }\n  slots: { algorithm: concurrency, max_concurrent: 3 }\n  \
           adapts: { algorithm: concurrency, max_concurrent: auto }\n\
         locations:\n  - { path: /, upstream: app, limits: [rate, slots, adapts] }\n",
    );
    let pause = PauseRejection {
        upstream: UpstreamId(0),
        status: StatusCode::TOO_MANY_REQUESTS,
        until: Now(1),
        retry_after_ns: 1,
    };
    let (quota, capacity) = ("quota-exceeded", "temporary-reduced-capacity");
    for (rejection, kind, policy) in [
        (limit_rejection(0, LimitCause::Rate, Some(1)), quota, "rate"),
        (limit_rejection(0, LimitCause::TooCostly, None), quota, "rate"),
        (limit_rejection(1, LimitCause::Concurrency, None), quota, "slots"),
        (limit_rejection(2, LimitCause::Concurrency, None), capacity, "adapts"),
        (Rejection::Paused(pause), capacity, ""),
        (Fault::NoServer.into(), capacity, ""),
        (Fault::ServerQueueTimeout.into(), capacity, ""),
        (Fault::TooManyWaiting.into(), capacity, ""),
        (Fault::TooManyInFlight.into(), capacity, ""),
        (banned(false), "abnormal-usage-detected", ""),
        (banned(true), "abnormal-usage-detected", ""),
        (Fault::ServersDown.into(), "", ""),
        (Fault::NoLocation.into(), "", ""),
        (limit_rejection(0, LimitCause::MissingKey, None), "", ""),
    ] {
        let body: Value = serde_json::from_slice(render_http(&rejecters, &rejection).body()).unwrap();
        let expected = match kind {
            "" => "about:blank".to_owned(),
            kind => format!("https://iana.org/assignments/http-problem-types#{kind}"),
        };
        assert_eq!(body["type"], expected, "{rejection:?}");
        let violated = body.get("violated-policies").map(|names| names[0].as_str().unwrap().to_owned());
        assert_eq!(violated.unwrap_or_default(), policy, "{rejection:?}");
    }
}

#[test]
fn an_envelope_is_three_fields() {
    let rejecters = with_on_reject("{ body: envelope }");
    let response = render_http(&rejecters, &limit_rejection(0, LimitCause::Rate, Some(100_000_000)));
    assert_eq!(
        text(&response),
        r#"{"resp_code":-1,"resp_msg":"Too many requests, try again in 1 s","datas":{}}"#
    );
    assert_eq!(header(&response, "content-type"), "application/json");
    let fault = render_http(&rejecters, &Fault::Unreachable.into());
    assert_eq!(text(&fault), r#"{"resp_code":-1,"resp_msg":"The upstream cannot be reached","datas":{}}"#);
}

#[test]
fn every_rejection_is_valid_json_in_every_format() {
    for on_reject in ["{}", "{ body: envelope }"] {
        let rejecters = with_on_reject(on_reject);
        for rejection in every_rejection().into_iter().filter(|known| *known != Fault::HeaderMismatch.into())
        {
            let response = render_http(&rejecters, &rejection);
            let body: Value = serde_json::from_slice(response.body())
                .unwrap_or_else(|error| panic!("{error}: {rejection:?} {}", text(&response)));
            if on_reject == "{}" {
                assert_eq!(body["status"], response.status().as_u16(), "{rejection:?}");
                assert_eq!(body["request_id"], ID);
                assert!(body["detail"].is_string() && body["title"].is_string());
            }
        }
    }
}

#[test]
fn each_cause_has_its_status_and_time() {
    let rejecters = with_on_reject("{}");
    let ns = Some(1_000_000_001);
    for (rejection, status, retry_after) in [
        (limit_rejection(0, LimitCause::Rate, ns), 429, "2"),
        (limit_rejection(1, LimitCause::Queue, ns), 429, "2"),
        (limit_rejection(1, LimitCause::Queue, None), 429, "1"),
        (limit_rejection(2, LimitCause::Concurrency, None), 503, "1"),
        (limit_rejection(0, LimitCause::TooCostly, None), 413, ""),
        (limit_rejection(0, LimitCause::MissingKey, None), 403, ""),
        (limit_rejection(1, LimitCause::QueuedTooLong, None), 503, "1"),
        (Fault::TooManyWaiting.into(), 503, "1"),
        (Fault::TooManyInFlight.into(), 503, "1"),
        (Fault::NoServer.into(), 503, "1"),
        (Fault::NoLocation.into(), 404, ""),
        (Fault::Unreachable.into(), 502, ""),
        (Fault::UpstreamTimeout.into(), 504, ""),
        (Fault::BodyTooLarge.into(), 413, ""),
        (Fault::SlowBody.into(), 408, ""),
    ] {
        let response = render_http(&rejecters, &rejection);
        let body: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!((response.status().as_u16(), header(&response, "retry-after")), (status, retry_after));
        let exact = rejection == limit_rejection(0, LimitCause::Rate, ns)
            || rejection == limit_rejection(1, LimitCause::Queue, ns);
        let rendered = body.get("retry_after_ms").and_then(Value::as_u64);
        match rejection {
            Rejection::Limit(LimitRejection { cause: LimitCause::Rate | LimitCause::Queue, .. }) if exact => {
                assert_eq!(rendered, Some(1_001));
            }
            Rejection::Limit(LimitRejection { cause: LimitCause::Queue, .. }) => {}
            _ => assert_eq!(rendered, None, "{rejection:?}"),
        }
    }
}

#[test]
fn an_explicit_status_applies_to_rejections_and_overload_only() {
    let rejecters = with_on_reject("{ status: 420 }");
    for (rejection, status) in [
        (limit_rejection(0, LimitCause::Rate, Some(1)), 420),
        (limit_rejection(2, LimitCause::Concurrency, None), 420),
        (Fault::TooManyWaiting.into(), 420),
        (limit_rejection(0, LimitCause::TooCostly, None), 413),
        (limit_rejection(0, LimitCause::MissingKey, None), 403),
        (Fault::NoServer.into(), 503),
        (Fault::NoLocation.into(), 404),
    ] {
        let response = render_http(&rejecters, &rejection);
        assert_eq!(response.status().as_u16(), status, "{rejection:?}");
    }
    let odd = render_http(&rejecters, &limit_rejection(0, LimitCause::Rate, Some(1)));
    assert_eq!(serde_json::from_slice::<Value>(odd.body()).unwrap()["title"], "Rejected");
}

#[test]
fn times_are_rounded_up() {
    let rejecters = with_on_reject("{}");
    for (ns, seconds, ms) in [
        (1, "1", 1),
        (999_999, "1", 1),
        (1_000_000, "1", 1),
        (1_000_001, "1", 2),
        (1_000_000_000, "1", 1_000),
        (1_000_000_001, "2", 1_001),
        (121_000_000_000, "121", 121_000),
        (u64::MAX - 1, "18446744074", 18_446_744_073_710_u64),
    ] {
        let response = render_http(&rejecters, &limit_rejection(0, LimitCause::Rate, Some(ns)));
        assert_eq!(header(&response, "retry-after"), seconds, "{ns}");
        let body: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(body["retry_after_ms"], ms, "{ns}");
    }
}

#[test]
fn jitter_only_delays_and_reaches_its_whole_range() {
    let rejecters = with_on_reject("{ retry_jitter: 20% }");
    let rendered = |id: &str, ns: u64| {
        let context = RejectContext { request_id: id.as_bytes(), ..RejectContext::default() };
        let rejection = limit_rejection(0, LimitCause::Rate, Some(ns));
        let response =
            rejecters.for_location(Some(LocationId(0))).render_rejection(&rejection, &context, false);
        let body: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(body["retry_after_ms"].as_u64(), Some(ns / 1_000_000), "the exact time stays exact");
        header(&response, "retry-after").parse::<u64>().unwrap()
    };
    let ids: Vec<String> = (0..500).map(|n| format!("01JD3Z0V7Q{n}")).collect();
    let minute: HashSet<u64> = ids.iter().map(|id| rendered(id, 60_000_000_000)).collect();
    assert_eq!(minute, (60..=72).collect());
    let short: HashSet<u64> = ids.iter().map(|id| rendered(id, 100_000_000)).collect();
    assert_eq!(short, HashSet::from([1, 2]));
}

#[test]
fn turns_have_no_jitter() {
    let rejecters = with_on_reject("{ retry_jitter: 100%, retry_after: turns }");
    let Rejection::Limit(exact) = limit_rejection(0, LimitCause::Rate, Some(9_000_000_000)) else { panic!() };
    let told = |rejection: LimitRejection, id: u8| {
        let context = RejectContext { request_id: &[id], ..RejectContext::default() };
        let rejecter = rejecters.for_location(Some(LocationId(0)));
        header(&rejecter.render_rejection(&Rejection::Limit(rejection), &context, false), "retry-after")
            .to_owned()
    };
    let rejection = LimitRejection { is_turn: true, ..exact };
    assert!((0..50).all(|id| told(rejection, id) == "9"));
    assert!((0..50).any(|id| told(exact, id) != "9"), "who gets no turn is spread");
}

#[test]
fn grpc_callers_read_fields_and_no_body() {
    let rejecters = with_on_reject("{ body: problem, headers: { Content-Type: text/html, X-Why: slow } }");
    for (rejection, status) in [
        (limit_rejection(0, LimitCause::Rate, Some(1)), "8"),
        (limit_rejection(1, LimitCause::Queue, Some(1)), "8"),
        (limit_rejection(2, LimitCause::Concurrency, None), "14"),
        (Fault::TooManyWaiting.into(), "14"),
        (Fault::NoLocation.into(), "12"),
    ] {
        let response =
            rejecters.for_location(Some(LocationId(0))).render_rejection(&rejection, &context(), true);
        assert_eq!(response.status(), 200);
        assert_eq!(header(&response, "content-type"), "application/grpc");
        assert_eq!(header(&response, "grpc-status"), status, "{rejection:?}");
        assert_eq!(header(&response, "x-why"), "slow");
        assert!(response.body().is_empty());
    }
    let rejection = limit_rejection(0, LimitCause::Rate, Some(1));
    let response = rejecters.for_location(Some(LocationId(0))).render_rejection(&rejection, &context(), true);
    assert_eq!(header(&response, "grpc-message"), "Too many requests, try again in 1 s");
}

#[test]
fn a_rejection_names_the_class_of_a_limit_with_shares() {
    let rendered = |on_reject: &str, cause: LimitCause| {
        let rejecters = rejecters(&format!(
            "on_reject: {on_reject}\nlimits: {{ backend: {{ key: global, rate: 100/s, \
             shares: {{ by: tier, classes: {{ gold: {{ least: 50% }} }} }} }} }}\n\
             locations: [{{ path: /, upstream: demo, limits: backend }}]\n"
        ))
        .1;
        let context = RejectContext { class: "gold", ..context() };
        let rejection = limit_rejection(0, cause, Some(1));
        let response =
            rejecters.for_location(Some(LocationId(0))).render_rejection(&rejection, &context, false);
        text(&response).to_owned()
    };
    for cause in [LimitCause::Rate, LimitCause::TooCostly] {
        let body = rendered("{}", cause);
        assert!(body.contains(r#""limit":"backend","class":"gold","#), "{body}");
    }
    assert!(!rendered("{}", LimitCause::MissingKey).contains("class"), "no class is looked for");
    assert_eq!(rendered("{ body: { template: \"${limit}/${class}\" } }", LimitCause::Rate), "backend/gold");
    assert!(
        !text(&render_http(&with_on_reject("{}"), &limit_rejection(0, LimitCause::Rate, Some(1))))
            .contains("class")
    );
}

#[test]
fn no_body_is_no_body_and_extra_headers_win() {
    let rejecters = with_on_reject("{ body: none, headers: { X-A: one, Retry-After: never } }");
    let response = render_http(&rejecters, &limit_rejection(0, LimitCause::Rate, Some(1)));
    assert!(response.body().is_empty() && response.headers().get(CONTENT_TYPE).is_none());
    let all = |name: &str| -> Vec<&HeaderValue> { response.headers().get_all(name).iter().collect() };
    assert_eq!(all("x-a"), ["one"]);
    assert_eq!(all(RETRY_AFTER.as_str()), ["never"]);
}

#[test]
fn a_405_lists_the_allowed_methods() {
    let allow = Rejection::MethodNotAllowed { allow: HeaderValue::from_static("GET, POST") };
    let response = render_http(&with_on_reject("{}"), &allow);
    assert_eq!((response.status().as_u16(), header(&response, "allow")), (405, "GET, POST"));
}

const TEMPLATE: &str = "${status}|${title}|${message}|${limit}|${tier}|${rate}|${retry_after}|${retry_after_ms}|\
    ${request_id}|${client_ip}|${account}|${host}|${uri}|${request_uri}|${location}|${path}|${scheme}|${upstream}";

fn hostile<'a>() -> RejectContext<'a> {
    RejectContext {
        key_columns: &[],
        request_id: ID.as_bytes(),
        client_ip: "2001:db8::1".parse().ok(),
        account: "al\"ice\n",
        tier: "gold",
        host: "a<b>&\u{0}",
        uri: "/p/\\x",
        path: b"/p/\\x",
        request_uri: "/p/%5Cx?y='1'",
        scheme: "https",
        location: "~ \"",
        upstream: "http://<app>",
        ..RejectContext::default()
    }
}

#[test]
fn a_template_is_filled_in_as_its_type_needs() {
    let rendered = |content_type: &str| {
        let rejecters = with_on_reject(&format!(
            "{{ body: {{ template: \"{TEMPLATE}\", content_type: {content_type} }} }}"
        ));
        let rejection = limit_rejection(0, LimitCause::Rate, Some(1_500_000_000));
        let response =
            rejecters.for_location(Some(LocationId(0))).render_rejection(&rejection, &hostile(), false);
        assert_eq!(header(&response, "content-type"), content_type);
        text(&response).to_owned()
    };
    let start = "429|Too Many Requests|Too many requests, try again in 2 s|per-ip|gold|10/s|2|1500|\
        01JD3Z0V7Q|2001:db8::1|";
    assert_eq!(
        rendered("text/plain"),
        format!("{start}al\"ice\n|a<b>&\u{0}|/p/\\x|/p/%5Cx?y='1'|~ \"|/p/\\x|https|http://<app>")
    );
    let json = rendered("application/vnd.x+json");
    let read: String = serde_json::from_str(&format!("\"{json}\"")).unwrap();
    assert_eq!(read, rendered("text/plain"));
    assert_eq!(
        rendered("text/html"),
        format!(
            "{start}al&quot;ice\n|a&lt;b&gt;&amp;\u{0}|/p/\\x|/p/%5Cx?y=&#39;1&#39;|~ &quot;|/p/\\x|https|\
             http://&lt;app&gt;"
        )
    );
}

#[test]
fn numbers_that_are_unknown_keep_a_json_template_valid() {
    let template = "'{\"ms\":${retry_after_ms},\"s\":${retry_after},\"l\":\"${limit}\"}'";
    let rejecters =
        with_on_reject(&format!("{{ body: {{ template: {template}, content_type: application/json }} }}"));
    for rejection in every_rejection() {
        let response = render_http(&rejecters, &rejection);
        assert!(serde_json::from_slice::<Value>(response.body()).is_ok(), "{}", text(&response));
    }
}

#[test]
fn hostile_limit_names_stay_inside_their_strings() {
    let (_, rejecters) =
        rejecters("locations:\n  - { path: '~ ^/\"\\d\\\\$', upstream: demo, limits: { rate: 1/s } }\n");
    let response = render_http(&rejecters, &limit_rejection(0, LimitCause::Rate, Some(1)));
    let body: Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!(body["limit"], "~ ^/\"\\d\\\\$#1");
}

#[test]
fn sections_lie_over_each_other() {
    let (_, rejecters) = rejecters(
        "on_reject: { status: 420, body: none, headers: { X-From: top } }\n\
         limits:\n  mine: { rate: 1/s, on_reject: { status: 430, headers: { X-From: limit } } }\n\
         locations:\n  - { path: /plain, upstream: demo, limits: mine }\n  \
           - { path: /own, upstream: demo, limits: mine, on_reject: { status: 440, body: envelope } }\n",
    );
    let rendered = |place: Option<usize>, rejection: &Rejection| {
        let response =
            rejecters.for_location(place.map(LocationId)).render_rejection(rejection, &context(), false);
        let from = header(&response, "x-from").to_owned();
        (response.status().as_u16(), from, response.body().is_empty())
    };
    let rejection = limit_rejection(0, LimitCause::Rate, Some(1));
    assert_eq!(rendered(Some(0), &rejection), (430, "limit".to_owned(), true));
    assert_eq!(rendered(Some(1), &rejection), (440, "limit".to_owned(), false));
    assert_eq!(rendered(Some(1), &Fault::Unreachable.into()), (502, "top".to_owned(), false));
    assert_eq!(rendered(None, &Fault::NoLocation.into()), (404, "top".to_owned(), true));
    // A limit that is not in this chain is a bug, but must not panic.
    assert_eq!(rendered(None, &rejection).0, 500);
}

#[test]
fn faults_are_named_once_and_in_order() {
    let names: HashSet<&str> = Fault::ALL.iter().map(|fault| fault.cause()).collect();
    assert_eq!(names.len(), Fault::ALL.len());
    assert!(Fault::ALL.iter().enumerate().all(|(place, fault)| fault.index() == place));
}

#[test]
fn a_body_is_one_allocation_of_its_size() {
    let rejecters = with_on_reject("{}");
    let rejecter = rejecters.for_location(Some(LocationId(0)));
    let body = rejecter.limits[0].rejected.render_response(&context(), (Some(1), false), false).into_body();
    assert!(body.is_unique() && body.try_into_mut().is_ok_and(|body| body.capacity() == body.len()));
}

#[test]
fn a_template_without_limit_uses_only_the_request() {
    let (config, _) = rejecters(
        "locations:\n  - { path: /, redirect: { to: \"https://${host}${request_uri}\", status: 308 } }\n",
    );
    let model::ActionConfig::Redirect { to, .. } = &config.locations[0].action else { panic!("a redirect") };
    let context = RejectContext { host: "h", request_uri: "/a?b=\"", ..RejectContext::default() };
    assert_eq!(CompiledTemplate::for_url(to).render(&context), b"https://h/a?b=\"");
}

//! `GET /events`: the traffic as server-sent events, one JSON a second.

use std::net::IpAddr;

use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;

use super::answer::{AdminError, Answer};
use super::endpoint::{AdminRequest, Answered};
use super::event_streams::STREAMS_MAX;
use super::state::AdminState;
use crate::operate::traffic::{
    LimitSize, LimitTraffic, LocationTraffic, Quantiles, SAMPLE_INTERVAL, TrafficLook, read_sizes,
};
use sluicegate_base::clock::Now;
use sluicegate_base::json_shape::json_object;
use sluicegate_base::wall_clock::unix_ns;
use sluicegate_http::upstream::{Upstream, UpstreamStatus};
use sluicegate_proxy::gateway::heavy_keys::report::RecentRefusal;
use sluicegate_proxy::gateway::{Gateway, REQUESTS_CLOSED, REQUESTS_OPENED, StepEvent};
use sluicegate_store::Store;

/// The name of the endpoint.
pub(super) const STREAM_EVENTS: &str = "stream_events";
/// The kind of the answer.
pub(super) const EVENT_STREAM: &str = "text/event-stream";

/// Limits, upstreams, locations and refusals in an event; those with most refusals, faults and requests come first.
const ROWS_MAX: usize = 100;
/// A client connects again after this time.
const RETRY: &str = "retry: 2000\n";

json_object! {
    /// The data of one event.
    pub(super) struct TrafficEvent<'a> as "TrafficEvent" {
        at_ms: u64 = "When, in milliseconds since 1970.",
        requests: VerdictRates = "Finished requests per second, by verdict.",
        in_flight: u64 = "Requests in flight.",
        waiting: usize = "Requests in the queues of limits and upstreams.",
        bans: usize = "Clients that are banned.",
        wait: Option<Quantiles> = "The waits in queues, over the last minute.",
        limits: Vec<LimitRates<'a>> = "The busiest limits, at most 100.",
        upstreams: Vec<UpstreamRates<'a>> = "The busiest upstreams, at most 100.",
        locations: Vec<LocationRates<'a>> = "The locations, at most 100, those with most 5xx of servers first.",
        refusals: Vec<RefusalStatus> = "The last refusals, at most 100, the newest first.",
        steps: Vec<StepStatus> = "The last steps of quotas that keys reached, at most 100, the newest first.",
        redis: Option<RedisState> = "Null without Redis.",
    }

    struct VerdictRates as "VerdictRates" {
        admit: f64 = "Admitted at once.",
        wait: f64 = "Admitted after a wait.",
        reject: f64 = "Rejected by a limit.",
        missing_key: f64 = "Rejected because they lack a key.",
        degrade: f64 = "Answered otherwise instead of a rejection.",
        ban: f64 = "Rejected because of a ban.",
        fault: f64 = "Answered by the gateway because something broke.",
    }

    struct RedisState as "RedisState" {
        reachable: bool = "Whether every server answers.",
        outages: u64 = "Outages since the start, with the present one.",
        nodes: u64 = "Gateways that use it, as last counted.",
    }

    struct RefusalStatus as "Refusal" {
        at_ms: u64 = "When, in milliseconds since 1970.",
        limit: String = "The limit that refused the request.",
        key: Option<String> = "Its key, as `GET /limits/{limit}/keys/{key}` takes it; null if unknown.",
        ip: Option<IpAddr> = "The address of the client; null on a unix socket.",
        location: Option<String> = "The location; null if the request had none.",
        status: Option<u16> = "The status of the answer; null if an upstream answered instead.",
        cause: &'static str = "Why, as in the access log, e.g. `rate`.",
        retry_after_ms: Option<u64> = "When the same request would pass; null if unknown.",
    }

    struct StepStatus as "StepEvent" {
        at_ms: u64 = "When, in milliseconds since 1970.",
        limit: String = "The limit.",
        key: String = "The key that reached the step.",
        data: Value = "The member `data` of the message to the receiver of `notify`.",
    }

    struct LimitRates<'a> as "LimitRates" {
        limit: &'a str = "Its name.",
        admitted_per_s: f64 = "Admitted at once, per second.",
        waited_per_s: f64 = "Made to wait, per second.",
        rejected_per_s: f64 = "Rejected, per second.",
        would_reject_per_s: f64 = "What a dry run or a limit that spares a key would reject, per second.",
        keys: Option<usize> = "Keys with counters; null if only the store knows them.",
        waiting: usize = "Requests in its queues.",
    }

    struct UpstreamRates<'a> as "UpstreamRates" {
        upstream: &'a str = "Its name.",
        up: usize = "Servers that get requests.",
        down: usize = "Servers whose health checks fail.",
        ejected: usize = "Servers left out after errors.",
        draining: usize = "Servers that get no new requests.",
        in_flight: u64 = "Requests in flight.",
        waiting: Option<usize> = "Requests in the queue in front of its servers; null without one.",
        stopped_s: f64 = "Seconds left of a stop that it asked for.",
        response: Option<Quantiles> = "The times to the head of a response, over the last minute.",
        responses: ResponseRates = "Responses of its servers, without those that were tried again.",
    }

    struct LocationRates<'a> as "LocationRates" {
        location: &'a str = "Its name; `none` for requests without a location.",
        owner: Option<&'a str> = maybe "The team whose file defines it; absent without one.",
        responses: ResponseRates = "Responses of servers.",
        own: OwnRates = "Answers in place of a server's.",
    }

    struct ResponseRates as "ResponseRates" {
        class_2xx: f64 = "Successes, per second." as "2xx",
        class_3xx: f64 = "Redirections, per second." as "3xx",
        class_4xx: f64 = "Errors of clients, per second." as "4xx",
        class_5xx: f64 = "Errors of servers, per second." as "5xx",
    }

    struct OwnRates as "OwnRates" {
        limit: f64 = "Rejected by a limit at once, per second.",
        ban: f64 = "Rejected because of a ban, per second.",
        queue: f64 = "Rejected after a wait in a queue, per second.",
        server: f64 = "No server took or answered the request, per second.",
        fault: f64 = "Any other fault, of the client or of the gateway, per second.",
    }
}

impl From<[f64; 5]> for ResponseRates {
    fn from([_, class_2xx, class_3xx, class_4xx, class_5xx]: [f64; 5]) -> ResponseRates {
        ResponseRates { class_2xx, class_3xx, class_4xx, class_5xx }
    }
}

impl From<&Store> for RedisState {
    fn from(store: &Store) -> RedisState {
        let outages = store.outages();
        RedisState { reachable: outages.since.is_none(), outages: outages.count, nodes: store.nodes() }
    }
}

impl RefusalStatus {
    fn new(refusal: RecentRefusal, sees_accounts: bool) -> RefusalStatus {
        let RecentRefusal {
            unix_ms: at_ms,
            limit,
            key,
            account_key,
            ip,
            location,
            status,
            retry_after_ms,
            cause,
        } = refusal;
        let key = account_key.filter(|_| sees_accounts).or(key);
        RefusalStatus { at_ms, limit, key, ip, location, status, cause, retry_after_ms }
    }
}

impl StepStatus {
    fn new(event: &StepEvent, sees_accounts: bool) -> StepStatus {
        let mut data = event.data.clone();
        if !sees_accounts {
            data.shift_remove("text");
            data.insert("key".to_owned(), event.masked_key.as_str().into());
        }
        let text = |name| data.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        StepStatus { at_ms: event.unix_ms, limit: text("limit"), key: text("key"), data: data.into() }
    }
}

pub(super) async fn stream_events(request: AdminRequest) -> Answered {
    let sees_accounts = request.caller.sees_accounts;
    let first = format!("{RETRY}{}", render_event(&request.state, sees_accounts).await);
    let opened = request.state.events.open_stream(&request.connection, sees_accounts, Bytes::from(first));
    let body = opened.ok_or_else(|| {
        let why = format!("{STREAMS_MAX} streams of events are open, which is the most");
        AdminError::new(StatusCode::SERVICE_UNAVAILABLE, &why)
    })?;
    Ok(Answer::fixed(EVENT_STREAM, body))
}

impl AdminState {
    /// Samples the traffic each second, and sends it to the readers of events.
    pub async fn watch_traffic(self) {
        let mut interval = tokio::time::interval(SAMPLE_INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        interval.tick().await;
        loop {
            interval.tick().await;
            self.traffic.take_sample(&self.gateway(), Now::read_clock());
            for sees_accounts in [false, true] {
                if self.events.has_readers(sees_accounts) {
                    let event = Bytes::from(render_event(&self, sees_accounts).await);
                    self.events.send_event(sees_accounts, &event);
                }
            }
        }
    }
}

/// One event, as its lines.
async fn render_event(state: &AdminState, sees_accounts: bool) -> String {
    let refusals = state.actions.list_refusals().await;
    let (gateway, now) = (state.gateway(), Now::read_clock());
    let look = state.traffic.look_at(&gateway, now);
    let closed = gateway.load.request_counts.sum(REQUESTS_CLOSED);
    let [admit, wait, reject, missing_key, degrade, ban, fault] = look.verdicts.map(|traffic| traffic.per_s);
    let shown = refusals.into_iter().map(|refusal| RefusalStatus::new(refusal, sees_accounts));
    let steps = gateway.step_events.list_recent();
    let event = TrafficEvent {
        at_ms: unix_ns() / 1_000_000,
        requests: VerdictRates { admit, wait, reject, missing_key, degrade, ban, fault },
        in_flight: gateway.load.request_counts.sum(REQUESTS_OPENED).saturating_sub(closed),
        waiting: count_all_waiting(&gateway),
        bans: gateway.active_bans(now),
        wait: look.waits,
        limits: busiest_limits(&gateway, &look),
        upstreams: busiest_upstreams(&gateway, &look, now),
        locations: failing_locations(&gateway, &look),
        refusals: shown.take(ROWS_MAX).collect(),
        steps: steps.iter().map(|step| StepStatus::new(step, sees_accounts)).collect(),
        redis: gateway.store.as_deref().map(RedisState::from),
    };
    // Only maps with odd keys fail to serialize, and there are none.
    format!("data: {}\n\n", serde_json::to_string(&event).unwrap_or_default())
}

/// Requests in the queues of limits and of upstreams.
fn count_all_waiting(gateway: &Gateway) -> usize {
    let for_limits = gateway.limits.iter().map(|limit| gateway.count_waiting(limit.id));
    let for_servers = gateway.upstreams.iter().map(|upstream| upstream.waiting_count());
    for_limits.chain(for_servers).sum()
}

fn busiest_limits<'a>(gateway: &'a Gateway, look: &TrafficLook) -> Vec<LimitRates<'a>> {
    let mut limits: Vec<&LimitTraffic> = look.limits.iter().collect();
    let key = |limit: &LimitTraffic| (limit.rejected.per_s, limit.waited.per_s + limit.admitted.per_s);
    limits.sort_by(|a, b| key(b).partial_cmp(&key(a)).unwrap_or(std::cmp::Ordering::Equal));
    limits.truncate(ROWS_MAX);
    let size_of = read_sizes(gateway);
    let rates = limits.into_iter().map(|found| {
        let LimitSize { keys, waiting } = size_of(found.limit);
        LimitRates {
            limit: &gateway.limits[found.limit.0].name,
            admitted_per_s: found.admitted.per_s,
            waited_per_s: found.waited.per_s,
            rejected_per_s: found.rejected.per_s,
            would_reject_per_s: found.dry_run_rejected.per_s,
            keys,
            waiting,
        }
    });
    rates.collect()
}

fn busiest_upstreams<'a>(gateway: &'a Gateway, look: &TrafficLook, now: Now) -> Vec<UpstreamRates<'a>> {
    let shown = gateway.upstreams.iter().filter(|upstream| !upstream.is_demo());
    let mut all: Vec<UpstreamRates<'_>> = shown.map(|upstream| count_states(upstream, look, now)).collect();
    all.sort_by_key(|upstream| {
        let errors = (upstream.responses.class_5xx * 1_000.0) as u64;
        std::cmp::Reverse((upstream.ejected + upstream.down, errors, upstream.in_flight))
    });
    all.truncate(ROWS_MAX);
    all
}

fn count_states<'a>(upstream: &'a Upstream, look: &TrafficLook, now: Now) -> UpstreamRates<'a> {
    let UpstreamStatus { servers, stop, queue, .. } = upstream.status_at(now);
    let count = |state: &str| servers.iter().filter(|server| server.state == state).count();
    UpstreamRates {
        upstream: &upstream.name,
        up: count("up"),
        down: count("down"),
        ejected: count("ejected"),
        draining: count("draining"),
        in_flight: servers.iter().map(|server| u64::from(server.in_flight)).sum(),
        waiting: queue.map(|queue| queue.waiting),
        stopped_s: stop.map_or(0.0, |stop| stop.stopped_s),
        response: look.upstream_times.get(upstream.id.0).copied().flatten(),
        responses: look.upstream_responses.get(upstream.id.0).copied().unwrap_or_default().into(),
    }
}

fn failing_locations<'a>(gateway: &'a Gateway, look: &'a TrafficLook) -> Vec<LocationRates<'a>> {
    let mut all: Vec<&LocationTraffic> = look.locations.iter().collect();
    let key = |one: &LocationTraffic| (one.responses[4], one.own.iter().chain(&one.responses).sum::<f64>());
    all.sort_by(|a, b| key(b).partial_cmp(&key(a)).unwrap_or(std::cmp::Ordering::Equal));
    all.truncate(ROWS_MAX);
    let rates = all.into_iter().map(|one| {
        let [limit, ban, queue, server, fault] = one.own;
        let own = OwnRates { limit, ban, queue, server, fault };
        let found = gateway.config.locations.iter().find(|location| *location.name == *one.location);
        let owner = found.and_then(|location| location.owner.as_deref());
        LocationRates { location: &one.location, owner, responses: one.responses.into(), own }
    });
    rates.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_step_shows_names_only_to_those_who_may_see_them() {
        let data = json!({ "limit": "plan", "key": "account=acme", "used": 80, "text": "acme reached 80 % of plan" });
        let Value::Object(data) = data else { panic!("{data}") };
        let event = StepEvent { unix_ms: 7, data, masked_key: "account=#00000000000000aa".to_owned() };
        let shown = |sees_accounts| serde_json::to_value(StepStatus::new(&event, sees_accounts)).unwrap();
        let expected = json!({ "at_ms": 7, "limit": "plan", "key": "account=acme", "data": { "limit": "plan",
            "key": "account=acme", "used": 80, "text": "acme reached 80 % of plan" } });
        assert_eq!(shown(true), expected);
        assert!(!shown(false).to_string().contains("acme"), "{}", shown(false));
        let without = r#"{"limit":"plan","key":"account=#00000000000000aa","used":80}"#;
        assert_eq!(
            (shown(false)["data"].to_string(), &shown(false)["key"]),
            (without.to_owned(), &json!(event.masked_key))
        );
    }
}

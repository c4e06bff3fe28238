//! `GET /events`: the traffic as server-sent events, one JSON a second.

use std::net::IpAddr;

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;

use super::answer::Answer;
use super::call::{AnswerFuture, CallRequest};
use super::event_streams::STREAMS_MAX;
use super::state::AdminState;
use crate::base::clock::Now;
use crate::base::wall_clock::unix_ns;
use crate::observe::metrics::VERDICT_NAMES;
use crate::operate::traffic::{LimitSize, LimitSizes, LimitTraffic, Quantiles, SAMPLE_INTERVAL, TrafficLook};
use crate::proxy::gateway::{Gateway, REQUESTS_CLOSED, REQUESTS_OPENED};
use crate::proxy::heavy_keys::report::RecentRefusal;
use crate::shared::Store;
use crate::upstream::{Upstream, UpstreamStatus};

/// The kind of the answer.
/// The name of the call.
pub(super) const STREAM_EVENTS: &str = "stream_events";
pub(super) const EVENT_STREAM: &str = "text/event-stream";

/// Limits, upstreams and refusals in an event; those with most refusals and requests come first.
const ROWS_MAX: usize = 100;
/// A client connects again after this time.
const RETRY: &str = "retry: 2000\n";

/// The data of one event.
#[derive(Serialize)]
struct TrafficEvent<'a> {
    /// Milliseconds since 1970.
    at_ms: u64,
    requests: serde_json::Map<String, serde_json::Value>,
    in_flight: u64,
    waiting: usize,
    bans: usize,
    wait: Option<Quantiles>,
    limits: Vec<LimitRates<'a>>,
    upstreams: Vec<UpstreamRates<'a>>,
    /// The last refusals, the newest first.
    refusals: Vec<RefusalStatus>,
    /// `None` = no limit is counted in Redis.
    redis: Option<RedisState>,
}

#[derive(Serialize)]
struct RedisState {
    reachable: bool,
    outages: u64,
    nodes: u64,
}

impl From<&Store> for RedisState {
    fn from(store: &Store) -> RedisState {
        let outages = store.outages();
        RedisState { reachable: outages.since.is_none(), outages: outages.count, nodes: store.nodes() }
    }
}

#[derive(Serialize)]
struct RefusalStatus {
    at_ms: u64,
    limit: String,
    key: Option<String>,
    ip: Option<IpAddr>,
    location: Option<String>,
    status: Option<u16>,
    cause: &'static str,
    retry_after_ms: Option<u64>,
}

impl From<RecentRefusal> for RefusalStatus {
    fn from(refusal: RecentRefusal) -> RefusalStatus {
        let RecentRefusal { unix_ms: at_ms, limit, key, ip, location, status, retry_after_ms, cause } =
            refusal;
        RefusalStatus { at_ms, limit, key, ip, location, status, cause, retry_after_ms }
    }
}

#[derive(Serialize)]
struct LimitRates<'a> {
    limit: &'a str,
    admitted_per_s: f64,
    waited_per_s: f64,
    rejected_per_s: f64,
    keys: Option<usize>,
    waiting: usize,
}

#[derive(Serialize)]
struct UpstreamRates<'a> {
    upstream: &'a str,
    up: usize,
    down: usize,
    ejected: usize,
    draining: usize,
    in_flight: u64,
    /// `None` = it has no queue.
    waiting: Option<usize>,
    stopped_s: f64,
    response: Option<Quantiles>,
}

pub(super) fn stream_events(request: CallRequest) -> AnswerFuture {
    Box::pin(async move { open_stream(&request).await })
}

async fn open_stream(request: &CallRequest) -> Answer {
    let first = format!("{RETRY}{}", render_event(&request.state).await);
    match request.state.events().open_stream(&request.connection, Bytes::from(first)) {
        Some(body) => Answer::fixed(EVENT_STREAM, body),
        None => {
            let why = format!("{STREAMS_MAX} streams of events are open, which is the most");
            Answer::error(StatusCode::SERVICE_UNAVAILABLE, &why)
        }
    }
}

impl AdminState {
    /// Samples the traffic each second, and sends it to the readers of events.
    pub async fn watch_traffic(self) {
        let mut interval = tokio::time::interval(SAMPLE_INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        interval.tick().await;
        loop {
            interval.tick().await;
            self.traffic().take_sample(&self.gateway(), Now::read_clock());
            if self.events().has_readers() {
                self.events().send_event(&Bytes::from(render_event(&self).await));
            }
        }
    }
}

/// One event, as its lines.
async fn render_event(state: &AdminState) -> String {
    let refusals = state.operator().list_refusals().await;
    let (gateway, now) = (state.gateway(), Now::read_clock());
    let look = state.traffic().look_at(&gateway, now);
    let closed = gateway.request_counts.sum(REQUESTS_CLOSED);
    let event = TrafficEvent {
        at_ms: unix_ns() / 1_000_000,
        requests: VERDICT_NAMES
            .iter()
            .zip(&look.verdicts)
            .map(|(name, traffic)| ((*name).to_owned(), traffic.per_s.into()))
            .collect(),
        in_flight: gateway.request_counts.sum(REQUESTS_OPENED).saturating_sub(closed),
        waiting: count_all_waiting(&gateway),
        bans: gateway.active_bans(now),
        wait: look.waits,
        limits: busiest_limits(&gateway, &look),
        upstreams: busiest_upstreams(&gateway, &look, now),
        refusals: refusals.into_iter().take(ROWS_MAX).map(RefusalStatus::from).collect(),
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
    let sizes = LimitSizes::read(gateway);
    let rates = limits.into_iter().map(|found| {
        let LimitSize { keys, waiting } = sizes.of_limit(found.limit);
        LimitRates {
            limit: &gateway.limits[found.limit.0].name,
            admitted_per_s: found.admitted.per_s,
            waited_per_s: found.waited.per_s,
            rejected_per_s: found.rejected.per_s,
            keys,
            waiting,
        }
    });
    rates.collect()
}

fn busiest_upstreams<'a>(gateway: &'a Gateway, look: &TrafficLook, now: Now) -> Vec<UpstreamRates<'a>> {
    let shown = gateway.upstreams.iter().enumerate().filter(|(_, upstream)| !upstream.is_demo());
    let mut all: Vec<UpstreamRates<'_>> = shown
        .map(|(at, upstream)| {
            let response = look.upstream_times.get(at).copied().flatten();
            UpstreamRates { response, ..count_states(upstream, now) }
        })
        .collect();
    all.sort_by_key(|upstream| std::cmp::Reverse((upstream.ejected + upstream.down, upstream.in_flight)));
    all.truncate(ROWS_MAX);
    all
}

fn count_states(upstream: &Upstream, now: Now) -> UpstreamRates<'_> {
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
        response: None,
    }
}

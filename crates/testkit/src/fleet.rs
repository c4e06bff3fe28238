//! Several gateways on one file, with one recording upstream behind them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::PATIENCE;
use super::client::{Ask, Client};
use super::gateway::Gateway;
use super::http::Headers;
use super::redis::Redis;
use super::timing::eventually;
use super::upstream::Upstream;

/// Counts the decisions made without Redis.
pub const DEGRADED: &str = "sluicegate_degraded_decisions_total";

/// Running gateways; dropping them kills them.
pub struct Fleet {
    pub gateways: Vec<Gateway>,
    pub upstream: Upstream,
}

/// The end of each client of [`Fleet::fire`].
#[derive(Debug, Clone, Copy)]
pub enum Until<'a> {
    /// The client stops after so many requests.
    Count(usize),
    /// The client stops after this span.
    Span(Duration),
    /// The client stops when this flag is set.
    Over(&'a AtomicBool),
}

/// One request of [`Fleet::fire`].
#[derive(Debug)]
pub struct Fired {
    pub gateway: usize,
    pub client: usize,
    pub sent: Instant,
    /// When the head of the answer arrived, or its absence was certain.
    pub answered: Instant,
    /// 0 = no answer.
    pub status: u16,
    pub headers: Headers,
}

// === impl Fleet ===

impl Fleet {
    /// `yaml` builds the file of a gateway from its index and the URL of the upstream.
    #[track_caller]
    pub fn start(count: usize, yaml: impl Fn(usize, &str) -> String) -> Fleet {
        Fleet::before(Upstream::ok(), count, yaml)
    }

    #[track_caller]
    pub fn before(upstream: Upstream, count: usize, yaml: impl Fn(usize, &str) -> String) -> Fleet {
        let url = upstream.url();
        let gateways = (0..count).map(|place| Gateway::start(&yaml(place, &url))).collect();
        Fleet { gateways, upstream }
    }

    /// Waits until every gateway uses Redis as usual.
    #[track_caller]
    pub fn wait_enforcing(&self) {
        for gateway in &self.gateways {
            eventually("a gateway that uses Redis", || !is_degraded(gateway));
        }
    }

    /// Waits until every gateway decides without a part of its Redis.
    #[track_caller]
    pub fn wait_degraded(&self) {
        for gateway in &self.gateways {
            eventually("a gateway without Redis", || is_degraded(gateway));
        }
    }

    /// Waits until every gateway counts `count` live gateways.
    #[track_caller]
    pub fn wait_nodes(&self, count: usize) {
        for gateway in &self.gateways {
            let nodes = || gateway.metric("sluicegate_redis_nodes", &[]);
            eventually(&format!("{count} gateways that live"), || nodes() == count as f64);
        }
    }

    /// `clients` connections to each gateway send the requests that `ask` builds from gateway, client and turn, one
    /// after the other, all connections at once. Returns the requests in the order of their answers.
    pub fn fire<A>(&self, clients: usize, until: Until<'_>, ask: A) -> Vec<Fired>
    where
        A: Fn(usize, usize, usize) -> Ask + Sync,
    {
        let start = Instant::now();
        let enough = |turn| match until {
            Until::Count(count) => turn >= count,
            Until::Span(span) => start.elapsed() >= span,
            Until::Over(over) => over.load(Ordering::SeqCst),
        };
        let one = |place: usize, client: usize| {
            let mut client_of = None;
            let turns = (0..).take_while(|&turn| !enough(turn));
            turns
                .map(|turn| self.shoot([place, client], &mut client_of, &ask(place, client, turn)))
                .collect::<Vec<_>>()
        };
        let mut fired: Vec<Fired> = thread::scope(|scope| {
            let places = (0..self.gateways.len()).flat_map(|place| (0..clients).map(move |n| (place, n)));
            let threads: Vec<_> = places.map(|(place, n)| scope.spawn(move || one(place, n))).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("a client finishes")).collect()
        });
        fired.sort_by_key(|fired| fired.answered);
        fired
    }

    fn shoot(&self, [gateway, client]: [usize; 2], kept: &mut Option<Client>, ask: &Ask) -> Fired {
        let connection = kept.get_or_insert_with(|| self.gateways[gateway].client());
        let sent = Instant::now();
        let response = match connection.try_send(ask.bytes()) {
            Ok(()) => connection.response_within(PATIENCE).ok(),
            Err(_) => None,
        };
        let closed =
            response.as_ref().is_none_or(|r| r.headers.all("connection").contains(&"close".to_owned()));
        if closed {
            *kept = None;
        }
        let answered = response.as_ref().map_or_else(Instant::now, |r| r.at);
        let (status, headers) = response.map_or_else(Default::default, |r| (r.status, r.headers));
        Fired { gateway, client, sent, answered, status, headers }
    }

    /// The sum of [`Gateway::metric`] over all gateways.
    #[track_caller]
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        self.gateways.iter().map(|gateway| gateway.metric(name, labels)).sum()
    }

    /// The moments at which requests reached the upstream, in order.
    pub fn arrivals(&self) -> Vec<Instant> {
        let mut arrivals: Vec<_> = self.upstream.requests().iter().map(|seen| seen.at).collect();
        arrivals.sort();
        arrivals
    }
}

/// The head of a file with limits that count on `url`, a text or a list of them; the test is a trusted proxy, so that
/// answers have more detail.
pub fn counting_on(url: &str, timeout: &str) -> String {
    let url = if url.starts_with('[') { url.to_owned() } else { format!("\"{url}\"") };
    format!(
        "server: {{ trusted_proxies: 127.0.0.0/8 }}\n\
         state: {{ store: redis, redis: {{ url: {url}, timeout: {timeout} }} }}\n"
    )
}

/// The rest of a file with limits, given by name and fields, that each apply to a location of their name.
pub fn by_name(upstream: &str, limits: &[(&str, &str)]) -> String {
    let line = |(name, fields): &(&str, &str)| format!("  {name}: {{ {fields} }}\n");
    let location = |(name, _): &(&str, &str)| {
        format!("  - {{ path: /{name}, upstream: \"{upstream}\", limits: {name} }}\n")
    };
    let (lines, locations): (String, String) =
        (limits.iter().map(line).collect(), limits.iter().map(location).collect());
    format!("limits:\n{lines}locations:\n{locations}")
}

/// Three gateways that share one limit, in front of an upstream that answers at once.
pub fn three(redis: &Redis, limit: &str) -> Fleet {
    let head = counting_on(&redis.url(), "200ms");
    let fleet = Fleet::start(3, |_, upstream| {
        format!(
            "{head}limits: {{ all: {{ key: global, {limit} }} }}\n\
             locations:\n  - {{ path: /, upstream: \"{upstream}\", limits: all }}\n"
        )
    });
    fleet.wait_enforcing();
    fleet
}

/// A target of its own for each request.
pub fn numbered(gateway: usize, client: usize, turn: usize) -> Ask {
    super::get(&format!("/{gateway}/{client}/{turn}"))
}

/// The Redis line of the readiness page.
#[track_caller]
pub fn is_degraded(gateway: &Gateway) -> bool {
    gateway.admin_get("/readyz").expect(200).text().lines().any(|line| line == "degraded: redis")
}

/// The number of requests with this status; 0 = no answer.
pub fn with_status(fired: &[Fired], status: u16) -> usize {
    fired.iter().filter(|fired| fired.status == status).count()
}

/// The time from the first of these requests to the answer to the last.
pub fn span<'a>(fired: impl Iterator<Item = &'a Fired> + Clone) -> Duration {
    let first = fired.clone().map(|one| one.sent).min();
    let last = fired.map(|one| one.answered).max();
    first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first)
}

/// The refill of a rate per second in this span, rounded up.
pub fn refill(rate: u64, span: Duration) -> u64 {
    (span.as_micros() as u64 * rate).div_ceil(1_000_000)
}

/// The remaining units, the first value of a RateLimit field.
pub fn remaining(headers: &Headers) -> Option<u64> {
    let field = headers.get("ratelimit")?;
    let digits = field.split("r=").nth(1)?.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

//! A provider with its own token bucket behind a leaky bucket and `obey`, on a virtual clock.

use std::cell::{Cell, RefCell};

use http::header::RETRY_AFTER;
use http::{HeaderValue, Method};

use sluicegate_base::clock::Now;

use super::*;

/// A provider that refuses what its bucket of one second does not hold, with `Retry-After` in whole seconds.
struct Provider {
    start: Now,
    /// Where each phase ends, in seconds, and its rate.
    phases: [(u64, u64); 3],
    bucket: RefCell<(f64, Now)>,
    /// Accepted and refused, by phase.
    counts: [[Cell<u64>; 2]; 3],
}

impl Provider {
    fn new(phases: [(u64, u64); 3]) -> Rc<Provider> {
        let start = Now::read_clock();
        let bucket = RefCell::new((phases[0].1 as f64, start));
        Rc::new(Provider { start, phases, bucket, counts: Default::default() })
    }

    fn respond(&self) -> Response<Bytes> {
        let now = Now::read_clock();
        let second = now.ns_since(self.start) / 1_000_000_000;
        let phase = self.phases.iter().position(|(end, _)| second < *end).unwrap_or(2);
        let rate = self.phases[phase].1 as f64;
        let (tokens, at) = &mut *self.bucket.borrow_mut();
        *tokens = (*tokens + now.ns_since(*at) as f64 * rate / 1e9).min(rate);
        *at = now;
        let is_refused = *tokens < 1.0;
        let count = &self.counts[phase][usize::from(is_refused)];
        count.set(count.get() + 1);
        let mut head = Response::new(Bytes::new());
        if is_refused {
            *head.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            head.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        } else {
            *tokens -= 1.0;
        }
        head
    }

    /// Percent of the phase's capacity that it accepted, and percent that it refused.
    fn shares(&self, phase: usize) -> (f64, f64) {
        let begin = phase.checked_sub(1).map_or(0, |before| self.phases[before].0);
        let (end, rate) = self.phases[phase];
        let [accepted, refused] = [0, 1].map(|index| self.counts[phase][index].get() as f64);
        (100.0 * accepted / (rate * (end - begin)) as f64, 100.0 * refused / (accepted + refused))
    }
}

fn get_request() -> Request<RequestBody> {
    let mut request = Request::new(RequestBody::Empty);
    *request.method_mut() = Method::GET;
    *request.uri_mut() = "/".parse().unwrap();
    request.headers_mut().insert("host", HeaderValue::from_static("a.test"));
    request
}

fn pipeline(obey: &str) -> Rc<Pipeline> {
    let text = format!(
        "upstreams: {{ provider: {{ servers: \"127.0.0.1:9\"{obey} }} }}\n\
         limits: {{ pace: {{ key: global, algorithm: leaky_bucket, rate: 400/s, queue: 400, max_wait: 600ms }} }}\n\
         locations: [{{ path: /, upstream: provider, limits: pace }}]\n\
         access_log: {{ output: none }}\n"
    );
    let config = sluicegate_config::parse(&text, "x").unwrap_or_else(|report| panic!("{report}")).config;
    Rc::new(Pipeline::new(Arc::new(Gateway::build(&config, None).unwrap())))
}

/// Serves a request every 2.5 ms until the provider's last phase ends.
async fn offer_load(pipeline: &Rc<Pipeline>, provider: &Rc<Provider>, seconds: u64, round_trip: Duration) {
    for index in 1..=seconds * 400 {
        let (pipeline, own) = (pipeline.clone(), provider.clone());
        tokio::task::spawn_local(async move {
            let own = own.clone();
            let peer = IpAddr::from([192, 0, 2, 1]);
            pipeline.serve_from(get_request(), peer, round_trip, move || own.respond()).await
        });
        let due = provider.start.0 + index * 2_500_000;
        tokio::time::sleep_until(Now(due).to_instant()).await;
    }
}

/// Settled by the contract: refusals below 0.1 %, throughput of at least 97 %, also while the limit of the provider is
/// half as high, and when it is whole again.
#[tokio::test(start_paused = true)]
async fn a_provider_that_is_obeyed_refuses_little_and_gets_nearly_all_it_takes() {
    let phases = [(20, 400), (50, 200), (110, 400)];
    let local = tokio::task::LocalSet::new();
    let (pipeline, provider) = (pipeline(", obey: {}"), Provider::new(phases));
    local.run_until(offer_load(&pipeline, &provider, 110, Duration::from_millis(2))).await;
    let shares = [0, 1, 2].map(|phase| provider.shares(phase));
    for (throughput, refused) in shares {
        assert!(throughput >= 97.0 && refused < 0.1, "{shares:?}");
    }
}

/// The same load without `obey`, so that the numbers above mean something.
#[tokio::test(start_paused = true)]
async fn a_provider_that_is_not_obeyed_refuses_half_of_what_is_too_much() {
    let local = tokio::task::LocalSet::new();
    let (pipeline, provider) = (pipeline(""), Provider::new([(2, 400), (12, 200), (12, 400)]));
    local.run_until(offer_load(&pipeline, &provider, 12, Duration::from_millis(2))).await;
    let (_, refused) = provider.shares(1);
    assert!(refused > 40.0, "{refused}");
}

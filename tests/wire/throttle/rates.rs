//! token_bucket, keys and costs: admissions, and rejections that cost nothing.

use std::thread;
use std::time::Instant;

use crate::support::volley::count;
use crate::support::*;

fn limited_gateway(limit: &str) -> Gateway {
    Gateway::start(&format!(
        "server: {{ trusted_proxies: 127.0.0.1 }}\n\
         locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: {{ {limit} }} }}\n"
    ))
}

/// The contract's vector: 10/s with a burst of 20 passes 20 of 25, and one more 100 ms after the first.
#[test]
fn a_bucket_passes_its_burst_then_one_per_interval() {
    let gateway = limited_gateway("rate: 10/s, burst: 20");
    let noise = Noise::listen();
    let start = Instant::now();
    let shots = volley(gateway.addr(), (0..25).map(|_| get("/")));
    assert_eq!((count(&shots, 200), count(&shots, 429)), (20, 5));
    for shot in shots.iter().filter(|s| s.response.status == 429) {
        let free_at = shot.answered + ms(shot.response.retry_after_ms());
        assert!(free_at + ms(5) >= ms(100) && free_at <= ms(105) + noise.late(), "free at {free_at:?}");
    }
    let mut client = gateway.client();
    let rejected = loop {
        let response = client.ask(&get("/"));
        if response.status == 200 {
            break start.elapsed();
        }
        thread::sleep(ms(response.retry_after_ms()));
    };
    assert!(rejected >= ms(100), "the 21st passed after {rejected:?}");
}

/// `retry_after_ms` is exact: a request sent then is admitted, one sent well before is not.
#[test]
fn a_rejected_client_that_waits_as_told_is_admitted() {
    let gateway = limited_gateway("rate: 2/s, burst: 1");
    let mut client = gateway.client();
    client.ask(&get("/")).expect(200);
    for _ in 0..3 {
        let wait = client.ask(&get("/")).expect(429).retry_after_ms();
        assert!((1..=500).contains(&wait), "retry_after_ms {wait}");
        thread::sleep(ms(wait / 2));
        client.ask(&get("/")).expect(429);
        thread::sleep(ms(wait - wait / 2));
        client.ask(&get("/")).expect(200);
    }
}

/// 10/s with a burst of 6: six of twenty at once, and exactly three 350 ms later.
#[test]
fn a_bucket_refills_evenly() {
    let gateway = limited_gateway("rate: 10/s, burst: 6");
    let plan = (0..40).map(|n| (ms(if n < 20 { 0 } else { 350 }), get("/")));
    let shots = volley_at(gateway.addr(), plan);
    assert_eq!(count(&shots[..20], 200), 6);
    assert_eq!(count(&shots[20..], 200), 3);
}

/// Two locations share a named limit, each rejects in its own format, and rejections are not charged.
#[test]
fn a_named_limit_is_one_set_of_counters() {
    undisturbed(|| {
        let gateway = Gateway::start(
            "limits:\n  shared: { rate: 2/s, burst: 2 }\n\
         locations:\n  - { path: /a, respond: { body: a }, limits: shared }\n  \
           - { path: /b, respond: { body: b }, limits: shared, on_reject: { status: 501 } }\n",
        );
        let start = Instant::now();
        let first: Vec<_> = (0..3).map(|_| gateway.get("/a").status).collect();
        let other = gateway.get("/b").status;
        if start.elapsed() > ms(450) {
            return None;
        }
        assert_eq!((first, other), (vec![200, 200, 429], 501));
        thread::sleep(ms(600).saturating_sub(start.elapsed()));
        gateway.get("/a").expect(200);
        Some(())
    });
}

/// A fast limit that was idle has room for one, not less than none.
#[test]
fn an_idle_limit_has_no_debt() {
    let upstream = Upstream::ok();
    for limit in ["burst: 1", "algorithm: leaky_bucket, queue: 1"] {
        let gateway = Gateway::start(&format!(
            "locations:\n  - {{ path: /, upstream: \"{}\", limits: {{ rate: 1000/s, {limit} }} }}\n",
            upstream.url()
        ));
        gateway.get("/").expect(200);
        thread::sleep(ms(100));
        gateway.get("/").expect(200);
    }
}

/// A chain of a fast and a slow limit by different keys; with `missing_key: skip` an absent key is
/// skipped.
#[test]
fn a_chain_judges_each_limit_by_its_own_key() {
    let upstream = Upstream::ok();
    for fast in ["algorithm: leaky_bucket, queue: 5", "burst: 6"] {
        let gateway = Gateway::start(&format!(
            "limits:\n  fast: {{ key: query:b, missing_key: skip, rate: 1000/s, {fast} }}\n  \
               slow: {{ key: query:a, missing_key: skip, rate: 1/m, burst: 1 }}\n\
             locations:\n  - {{ path: /, upstream: \"{}\", limits: [fast, slow] }}\n",
            upstream.url()
        ));
        let twice = |target: &str| [gateway.get(target).status, gateway.get(target).status];
        assert_eq!(twice("/?b=1"), [200, 200]);
        assert_eq!(twice("/?a=1"), [200, 429]);
        assert_eq!(twice("/?a=2&b=2"), [200, 429]);
        assert_eq!(twice("/"), [200, 200]);
    }
}

/// The first rejection comes after exactly `burst` requests.
#[test]
fn the_burst_is_exact() {
    for burst in 1..=3 {
        let gateway = limited_gateway(&format!("rate: 1/m, burst: {burst}"));
        let mut client = gateway.client();
        for _ in 0..burst {
            client.ask(&get("/")).expect(200);
        }
        client.ask(&get("/")).expect(429);
    }
}

/// A trusted header sets the cost of a request; a rejection takes nothing and has the time to wait.
#[test]
fn a_trusted_header_sets_the_cost() {
    undisturbed(|| {
        let gateway = limited_gateway("rate: 4/s, burst: 5, cost: header:x-cost");
        let mut client = gateway.client();
        let mut cost = |units: u32| client.ask(&get("/").header("X-Cost", units));
        let left = |response: &Response| {
            let field = response.header("ratelimit").expect("a RateLimit field");
            let r = field.split("r=").nth(1).expect("r=").split(';').next().expect("a number").to_owned();
            r.parse::<u32>().expect("a number")
        };
        let too_much = cost(6).expect(413);
        assert_eq!(too_much.header("retry-after"), None);
        let start = Instant::now();
        let singles: Vec<Response> = (0..6).map(|_| cost(1)).collect();
        if start.elapsed() > ms(100) {
            return None;
        }
        assert_eq!(singles[..5].iter().map(left).collect::<Vec<_>>(), [4, 3, 2, 1, 0]);
        let wait = singles[5].retry_after_ms();
        assert!((150..=250).contains(&wait), "retry_after_ms {wait}");
        // By then 3.5 tokens are back.
        thread::sleep(ms(875).saturating_sub(start.elapsed()));
        let (one, two, five, last) = (cost(1), cost(2), cost(5), cost(1));
        if start.elapsed() > ms(995) {
            return None;
        }
        assert_eq!((left(&one), left(&two)), (2, 0));
        // The first token was taken a little after `start`.
        assert!((1000..=1135).contains(&five.retry_after_ms()), "retry_after_ms {}", five.retry_after_ms());
        let wait = last.retry_after_ms();
        assert!((1..=135).contains(&wait), "retry_after_ms {wait}: the rejection before it was charged");
        Some(())
    });
}

/// A number beyond all counters exceeds the bucket; a value that is no number costs one.
#[test]
fn a_cost_beyond_all_numbers_is_too_much() {
    let gateway = limited_gateway("rate: 3/h, cost: header:x-cost");
    let cost = |said: &str| gateway.ask(&get("/").header("X-Cost", said));
    cost(&"9".repeat(40)).expect(413);
    for said in ["-1", "much", "0"] {
        cost(said).expect(200);
    }
    cost("1").expect(429);
}

/// A cost header counts from trusted proxies only; from other peers a request costs one.
#[test]
fn untrusted_peers_do_not_set_the_cost() {
    let gateway = limited_gateway("key: global, rate: 1/m, burst: 5, cost: header:x-cost");
    let mut stranger = Client::connect_from("127.0.0.2", gateway.addr());
    for _ in 0..4 {
        stranger.ask(&get("/").header("X-Cost", 5)).expect(200);
    }
    gateway.ask(&get("/").header("X-Cost", 2)).expect(429);
    gateway.ask(&get("/").header("X-Cost", 1)).expect(200);
}

/// `bypass` networks and other `methods` are not limited; the same client otherwise is.
#[test]
fn bypass_and_methods_narrow_a_limit() {
    let gateway = Gateway::start(
        "locations:\n  - path: /\n    respond: { body: ok }\n    \
           limits: { key: global, rate: 1/m, burst: 1, methods: [POST, PUT], bypass: 127.0.0.9/32 }\n",
    );
    let mut client = gateway.client();
    client.ask(&post("/", b"")).expect(200);
    client.ask(&post("/", b"")).expect(429);
    client.ask(&Ask::new("PUT", "/").header("Content-Length", 0)).expect(429);
    for _ in 0..5 {
        client.ask(&get("/")).expect(200);
        Client::connect_from("127.0.0.9", gateway.addr()).ask(&post("/", b"")).expect(200);
    }
}

/// A limit on GET counts HEAD, which a location serves wherever it serves GET.
#[test]
fn head_does_not_bypass_a_limit_on_get() {
    let gateway = Gateway::start(
        "locations:\n  - path: /\n    respond: { body: ok }\n    \
           limits: { key: global, rate: 1/m, burst: 2, methods: GET }\n",
    );
    let mut client = gateway.client();
    client.ask(&Ask::new("HEAD", "/")).expect(200);
    client.ask(&get("/")).expect(200);
    client.ask(&post("/", b"")).expect(200);
    client.ask(&get("/")).expect(429);
}

/// An absent or empty key falls back to the address, to one shared counter, to a rejection or to
/// nothing.
#[test]
fn a_missing_key_follows_its_setting() {
    let status = |gateway: &Gateway, ip: &str, key: Option<&str>| {
        let ask = key.map_or(get("/"), |key| get("/").header("X-Key", key));
        Client::connect_from(ip, gateway.addr()).ask(&ask).status
    };
    let limit = |missing: &str| limited_gateway(&format!("key: header:x-key, rate: 1/m, burst: 1{missing}"));
    for by_ip in ["", ", missing_key: ip"] {
        let gateway = limit(by_ip);
        let seen = [
            status(&gateway, "127.0.0.2", None),
            status(&gateway, "127.0.0.2", Some("")),
            status(&gateway, "127.0.0.3", None),
            status(&gateway, "127.0.0.3", Some("127.0.0.2")),
        ];
        assert_eq!(seen, [200, 429, 200, 200], "with {by_ip:?}");
    }
    let shared = limit(", missing_key: shared");
    assert_eq!(status(&shared, "127.0.0.2", None), 200);
    assert_eq!(status(&shared, "127.0.0.3", Some("")), 429);
    let reject = limit(", missing_key: reject");
    assert_eq!(status(&reject, "127.0.0.2", None), 403);
    assert_eq!(status(&reject, "127.0.0.2", Some("k")), 200);
    let skip = limit(", missing_key: skip");
    let seen: Vec<_> = (0..3).map(|_| status(&skip, "127.0.0.2", None)).collect();
    assert_eq!(seen, [200, 200, 200]);
}

/// Counters belong to the process, not to a connection.
#[test]
fn a_new_connection_is_no_new_bucket() {
    let gateway = limited_gateway("rate: 1/1000s");
    let mut client = gateway.client();
    client.ask(&get("/")).expect(200);
    client.ask(&get("/")).expect(429);
    for _ in 0..4 {
        gateway.get("/").expect(429);
    }
}

/// When all keys are taken no new key gets a fresh budget: new keys of one network share a counter, and
/// no more keys are held than allowed.
#[test]
fn a_full_table_is_shared_and_never_exceeded() {
    let full = |key: &str| {
        Gateway::start(&format!(
            "server: {{ trusted_proxies: 127.0.0.1 }}\nstate: {{ max_keys: 1 }}\n\
             locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: {{ key: \"{key}\", rate: 1/1000s }} }}\n"
        ))
    };
    let named = full("header:x-forwarded-for");
    let by_ip = full("ip");
    let ask = |gateway: &Gateway, who: &str| {
        let status = gateway.ask(&get("/").header("X-Forwarded-For", who)).status;
        assert_eq!(gateway.metric("sluicegate_keys", &[]), 1.0, "{who}");
        status
    };
    assert_eq!(["foo", "foo", "bar", "bar", "foo"].map(|who| ask(&named, who)), [200, 429, 200, 429, 429]);
    let (first, newcomer) = ("192.0.2.1", "198.51.100.1");
    let neighbours = ["198.51.100.2", "198.51.7.7"];
    assert_eq!([first, first, newcomer, newcomer].map(|who| ask(&by_ip, who)), [200, 429, 200, 429]);
    assert_eq!(neighbours.map(|who| ask(&by_ip, who)), [429, 429]);
    assert_eq!(ask(&by_ip, first), 429);
}

/// Clients on all workers with one key get exactly the content of the bucket.
#[test]
fn workers_share_one_exact_count() {
    let gateway = Gateway::start(
        "server: { workers: 2 }\n\
         locations:\n  - path: /\n    respond: { body: ok }\n    \
           limits: { key: global, rate: 1/h, burst: 500 }\n",
    );
    let addr = gateway.addr();
    let hammers: Vec<_> = (0..8)
        .map(|_| {
            thread::spawn(move || {
                let mut client = Client::connect(addr);
                (0..150).filter(|_| client.ask(&get("/")).status == 200).count()
            })
        })
        .collect();
    let admitted: usize = hammers.into_iter().map(|h| h.join().expect("a client finishes")).sum();
    assert_eq!(admitted, 500);
}

/// A cost that is not one number counts 1, with a metric, or is a bad request: as `invalid_cost` says; in a
/// dry run it counts 1.
#[test]
fn a_cost_that_is_no_number_is_counted_or_rejected() {
    let gateway = Gateway::start(
        "server: { trusted_proxies: 127.0.0.2 }\n\
         limits:\n  lenient: { key: global, rate: 100/h, cost: header:X-Cost }\n  \
           strict: { key: global, rate: 100/h, cost: header:X-Cost, invalid_cost: reject }\n  \
           dry: { key: global, rate: 100/h, cost: header:X-Cost, invalid_cost: reject, dry_run: true }\n\
         locations:\n  - { path: /lenient, respond: { body: ok }, limits: lenient }\n  \
           - { path: /strict, respond: { body: ok }, limits: strict }\n  \
           - { path: /dry, respond: { body: ok }, limits: dry }\n",
    );
    let mut proxy = Client::connect_from("127.0.0.2", gateway.addr());
    let left = |response: &Response| response.header("ratelimit").expect("numbers");
    let invalid = ["", "x", "-1", "1.5", "0x10", "1 2"];
    for cost in invalid {
        let lenient = proxy.ask(&get("/lenient").header("X-Cost", cost)).expect(200);
        assert!(left(&lenient).contains("\"lenient\""), "{}", left(&lenient));
        let problem = proxy.ask(&get("/strict").header("X-Cost", cost)).expect(400).json();
        assert_eq!(problem["detail"], "the cost of this request cannot be read", "{cost}: {problem}");
        proxy.ask(&get("/dry").header("X-Cost", cost)).expect(200);
    }
    proxy.ask(&get("/strict").header("X-Cost", 1).header("X-Cost", 1)).expect(400);
    let count =
        |limit: &str| gateway.metric("sluicegate_invalid_costs_total", &[&format!("limit=\"{limit}\"")]);
    assert_eq!([count("lenient"), count("strict"), count("dry")], [6.0, 7.0, 6.0]);
    assert_eq!(gateway.metric("sluicegate_faults_total", &["cause=\"invalid_cost\""]), 7.0);
    // Six requests cost 1 each, the rejected ones nothing.
    assert!(left(&proxy.ask(&get("/lenient").header("X-Cost", 4)).expect(200)).contains("r=90"));
    assert!(left(&proxy.ask(&get("/strict").header("X-Cost", 4)).expect(200)).contains("r=96"));
    // Without the header, and from untrusted peers, a request costs 1.
    assert!(left(&proxy.ask(&get("/strict")).expect(200)).contains("r=95"));
    assert!(left(&gateway.ask(&get("/strict").header("X-Cost", "x")).expect(200)).contains("r=94"));
    assert_eq!([count("lenient"), count("strict"), count("dry")], [6.0, 7.0, 6.0]);
}

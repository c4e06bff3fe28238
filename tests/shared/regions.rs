//! Regions: gateways lease from the Redis of their region, which leases from its home, and together they admit no more
//! than one bucket, whatever happens on the long way.

use std::thread;
use std::time::{Duration, Instant};

use super::leases::assert_one_bucket;
use crate::support::fleet::{by_name, with_status};
use crate::support::*;

const RATE: f64 = 500.0;
const BURST: f64 = 250.0;
const SPAN: Duration = ms(3_000);
/// The part of the limit that a region has while its home does not answer.
const FLOOR: f64 = 0.2;

struct World {
    _home: Redis,
    /// The ways of the regions to their home, 40 ms each.
    ways: Vec<Proxy>,
    regions: Vec<Redis>,
    fleet: Fleet,
}

// === impl World ===

impl World {
    /// Two regions with two gateways each, and one gateway beside the home.
    fn start() -> World {
        let home = Redis::start();
        let ways: Vec<Proxy> = (0..2).map(|_| Proxy::start(home.addr())).collect();
        let regions: Vec<Redis> = (0..2).map(|_| Redis::start()).collect();
        let state = |place: usize| match place {
            4 => format!("url: \"{}\"", home.url()),
            _ => format!(
                "url: \"{}\", home: {{ url: \"{}\", share: {}% }}",
                regions[place % 2].url(),
                ways[place % 2].url(),
                100.0 * FLOOR
            ),
        };
        let limit = format!("key: global, rate: {RATE}/s, burst: {BURST}, state: leased, on_failure: reject");
        let fleet = Fleet::start(5, |place, upstream| {
            let head = format!(
                "server: {{ trusted_proxies: 127.0.0.0/8 }}\nstate: {{ store: redis, redis: {{ {}, timeout: 200ms }} }}\n",
                state(place)
            );
            format!("{head}{}", by_name(upstream, &[("all", &limit)]))
        });
        fleet.wait_enforcing();
        ways.iter().for_each(|way| way.delay(ms(40)));
        World { _home: home, ways, regions, fleet }
    }

    fn flood(&self, disturb: impl FnOnce() + Send) -> Vec<Fired> {
        thread::scope(|scope| {
            scope.spawn(disturb);
            // Enough clients that those that wait for the home do not keep others from asking.
            self.fleet.fire(8, Until::Span(SPAN), |_, _, _| {
                thread::sleep(ms(4));
                get("/all")
            })
        })
    }
}

#[test]
fn regions_and_home_admit_one_bucket() {
    undisturbed(|| {
        let world = World::start();
        let fired = world.flood(|| ());
        let passed = assert_one_bucket(&fired, BURST);
        // Once the bucket is used up, each region has its part of the rate: two of five gateways are there.
        let late = fired.iter().map(|one| one.sent).min().unwrap() + ms(1_500);
        let of_region = |region: usize| {
            let own = |one: &&Fired| one.status == 200 && one.gateway < 4 && one.gateway % 2 == region;
            fired.iter().filter(own).filter(|one| one.sent > late).count() as f64
        };
        let at_once = fired.iter().filter(|one| one.answered - one.sent < ms(40)).count();
        let least = of_region(0).min(of_region(1));
        println!("{passed} passed, {least} late in a region, {at_once} of {} at once", fired.len());
        let whole = BURST + RATE * SPAN.as_secs_f64();
        (passed >= 0.7 * whole && least >= 0.25 * RATE * 1.5 && at_once * 10 >= fired.len() * 8).then_some(())
    });
}

/// A region that is cut off spends its lease, and then its floor; later it leases again.
#[test]
fn a_region_that_is_cut_off_has_its_floor() {
    undisturbed(|| {
        let world = World::start();
        let begun = Instant::now();
        let (cut, back) = (begun + ms(800), begun + ms(2_400));
        let fired = world.flood(|| {
            thread::sleep(cut - Instant::now());
            world.ways[0].refuse();
            thread::sleep(back - Instant::now());
            world.ways[0].forward();
            world.ways[0].delay(ms(40));
        });
        // The floor is charged later, so that what passes in a long time is as if there were none.
        assert_one_bucket(&fired, BURST + FLOOR * (BURST + RATE * 1.6));
        assert_eq!(
            with_status(&fired, 200) + with_status(&fired, 429) + with_status(&fired, 503),
            fired.len()
        );
        // Its lease lasts 600 ms.
        let on_floor = |one: &&Fired| {
            one.status == 200
                && one.gateway < 4
                && one.gateway.is_multiple_of(2)
                && one.sent > cut + ms(800)
                && one.answered < back
        };
        let passed = fired.iter().filter(on_floor).count() as f64;
        println!("{passed} by the floor");
        let most = FLOOR * (BURST + RATE * 0.8);
        (0.4 * FLOOR * RATE..=most).contains(&passed).then_some(())
    });
}

/// What the Redis of a region forgets is lost, and nothing is admitted twice.
#[test]
fn an_emptied_region_admits_no_more() {
    let world = World::start();
    let fired = world.flood(|| {
        thread::sleep(ms(1_200));
        world.regions[0].command(&["FLUSHALL"]);
    });
    assert_one_bucket(&fired, BURST);
}

/// A home that is added to one gateway of a region after the other is one more limit, not one for each call.
#[test]
fn a_home_is_rolled_out() {
    let (home, region) = (Redis::start(), Redis::start());
    let file = |has_home: bool, upstream: &str| {
        let home = format!(", home: {{ url: \"{}\", share: 20% }}", home.url());
        let limit = format!("key: global, rate: {RATE}/s, burst: {BURST}, state: leased, on_failure: reject");
        format!(
            "server: {{ trusted_proxies: 127.0.0.0/8 }}\n\
             state: {{ store: redis, redis: {{ url: \"{}\", timeout: 200ms{} }} }}\n{}",
            region.url(),
            if has_home { &home } else { "" },
            by_name(upstream, &[("all", &limit)])
        )
    };
    let fleet = Fleet::start(2, |_, upstream| file(false, upstream));
    fleet.wait_enforcing();
    let with_home = file(true, &fleet.upstream.url());
    let fired = thread::scope(|scope| {
        scope.spawn(|| {
            for gateway in &fleet.gateways {
                thread::sleep(ms(1_000));
                gateway.change(&with_home);
            }
        });
        fleet.fire(8, Until::Span(SPAN), |_, _, _| {
            thread::sleep(ms(4));
            get("/all")
        })
    });
    let passed = with_status(&fired, 200);
    let most = 2.0 * (BURST + RATE * SPAN.as_secs_f64());
    assert_eq!(passed + with_status(&fired, 429), fired.len());
    assert!((passed as f64) < most, "{passed} of {most}");
}

/// A reset in a region begins with a full bucket, and a key that is asked for first while the home is away with the floor.
#[test]
fn a_reset_reaches_the_home_and_new_keys_have_a_floor() {
    let (mut home, region) = (Redis::start(), Redis::start());
    let limit = "key: header:x-key, rate: 60/m, burst: 100, state: leased, on_failure: reject";
    let gateway = Gateway::start(&format!(
        "server: {{ trusted_proxies: 127.0.0.0/8 }}\n\
         state: {{ store: redis, redis: {{ url: \"{}\", timeout: 200ms, home: {{ url: \"{}\", share: 40% }} }} }}\n\
         limits: {{ all: {{ {limit} }} }}\nlocations: [{{ path: /, respond: {{ status: 200 }}, limits: [all] }}]\n",
        region.url(),
        home.url(),
    ));
    eventually("a gateway that uses Redis", || gateway.metric("sluicegate_redis_up", &[]) == 1.0);
    let mut client = gateway.client();
    let mut passed = |key: &str, requests: usize| {
        let ask = get("/").header("X-Key", key);
        (0..requests).filter(|_| client.ask(&ask).status == 200).count()
    };
    assert!((100..104).contains(&passed("one", 110)));
    let name = "/limits/all/keys/header:x-key=one/reset";
    gateway.ask_admin(&post(name, b"").header("Content-Type", "application/json")).expect(200);
    assert!(passed("one", 20) == 20);
    home.kill();
    // The first request may wait in vain.
    let floor = passed("another", 60);
    assert!((39..44).contains(&floor), "{floor}");
}

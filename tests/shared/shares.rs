//! Guaranteed shares of a limit that three gateways count together.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::fleet::{DEGRADED, counting_on, numbered, refill, span, three, with_status};
use crate::support::*;

const RATE: u64 = 90;
const SHARES: &str = "rate: 90/s, burst: 60, \
    shares: { by: \"header:x-class\", classes: { gold: { least: 50% }, default: { most: 80% } } }";

/// Gold keeps to its floor, 45/s, and the others ask for all that they can get at every gateway: gold is never refused,
/// no more passes than the envelope, and each question is one call.
#[test]
fn a_class_within_its_floor_is_never_refused_under_a_flood_of_the_others() {
    undisturbed(|| {
        let redis = Redis::start();
        let fleet = three(&redis, SHARES);
        let (over, asked, latest) = (Duration::from_secs(5), Mutex::new(Vec::new()), Mutex::new(ms(0)));
        let before = redis.judgements();
        let start = Instant::now();
        let flood = thread::scope(|scope| {
            scope.spawn(|| {
                let mut clients: Vec<Client> = fleet.gateways.iter().map(Gateway::client).collect();
                for turn in 0.. {
                    // A little slower than its floor, one gateway after the other.
                    let due = start + Duration::from_micros(24_000) * turn as u32;
                    if due >= start + over {
                        return;
                    }
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    let mut latest = latest.lock().unwrap();
                    *latest = due.elapsed().max(*latest);
                    drop(latest);
                    let gold = get(&format!("/gold/{turn}")).header("X-Class", "gold");
                    let status = clients[turn % 3].ask(&gold).status;
                    asked.lock().unwrap().push(status);
                }
            });
            fleet.fire(4, Until::Span(over), |gateway, client, turn| {
                thread::sleep(ms(5));
                numbered(gateway, client, turn)
            })
        });
        // What comes late comes in a crowd, which is more than its floor.
        if fleet.metric(DEGRADED, &[]) > 0.0 || latest.into_inner().unwrap() > ms(200) {
            return None;
        }
        let gold = asked.into_inner().unwrap();
        let envelope = 60 + refill(RATE, span(flood.iter()).max(over)) + 3;
        let passed = fleet.upstream.count() as u64;
        let (others, judged) = (with_status(&flood, 200) as u64, redis.judgements() - before);
        println!("gold {}, others {others} of {}, together {passed} of {envelope}", gold.len(), flood.len());
        assert!(gold.len() > 150 && gold.iter().all(|status| *status == 200), "{gold:?}");
        assert!(passed <= envelope && others + gold.len() as u64 == passed, "{passed} of {envelope}");
        // What gold leaves is used: all but what came while nobody asked.
        assert!(passed * 100 >= (envelope - 60) * 90, "{passed} of {envelope}");
        assert!(judged <= (flood.len() + gold.len()) as u64, "{judged} calls");
        let names: Vec<Vec<u8>> = redis.keys().into_iter().map(|(name, _)| name).collect();
        assert!(names.iter().any(|name| name.windows(3).any(|part| part == b":G:")), "{names:?}");
        Some(())
    });
}

/// Without Redis each gateway has a third of the limit, and of that the same percentages.
#[test]
fn a_local_share_has_the_same_percentages() {
    let mut redis = Redis::start();
    let fleet = three(&redis, SHARES);
    fleet.wait_nodes(3);
    redis.kill();
    fleet.wait_degraded();
    // Its own bucket of 5 and the common one of 15 have 20 of 60; the others have the common one alone.
    thread::sleep(Duration::from_secs(2));
    let ask = |client: &mut Client, class: &str, turn: usize| {
        client.ask(&get(&format!("/{class}/{turn}")).header("X-Class", class)).status
    };
    let mut client = fleet.gateways[0].client();
    let others = (0..60).filter(|turn| ask(&mut client, "others", *turn) == 200).count();
    let gold = (0..4).filter(|turn| ask(&mut client, "gold", *turn) == 200).count();
    assert!((12..40).contains(&others), "{others} of the others");
    assert_eq!(gold, 4, "of its own bucket");
}

const SLOTS: usize = 12;
const WORK: Duration = Duration::from_millis(40);

/// Requests in flight at the upstream, of gold and of all, now and at most.
#[derive(Default)]
struct InFlight {
    gold: AtomicUsize,
    all: AtomicUsize,
    most: AtomicUsize,
}

/// Three gateways with 12 slots, of which gold has a half.
fn with_slots(redis: &Redis, fields: &str) -> (Fleet, Arc<InFlight>) {
    let in_flight = Arc::new(InFlight::default());
    let seen_here = in_flight.clone();
    let upstream = Upstream::new(move |seen| {
        let is_gold = usize::from(seen.target == "/gold");
        seen_here.gold.fetch_add(is_gold, SeqCst);
        seen_here.most.fetch_max(seen_here.all.fetch_add(1, SeqCst) + 1, SeqCst);
        thread::sleep(WORK);
        seen_here.all.fetch_sub(1, SeqCst);
        seen_here.gold.fetch_sub(is_gold, SeqCst);
        Reply::text("ok")
    });
    let head = counting_on(&redis.url(), "200ms");
    let fleet = Fleet::before(upstream, 3, |_, upstream| {
        format!(
            "{head}limits:\n  slots: {{ key: global, algorithm: concurrency, max_concurrent: {SLOTS}, {fields}\
             shares: {{ by: \"header:x-class\", classes: {{ gold: {{ least: 50% }} }} }} }}\n\
             locations:\n  - {{ path: /, upstream: \"{upstream}\", limits: slots }}\n"
        )
    });
    fleet.wait_enforcing();
    fleet.wait_nodes(3);
    (fleet, in_flight)
}

/// Two clients of gold at each gateway, one request after the other; returns when each began, its time and its status.
fn run_gold(fleet: &Fleet, span: Duration) -> Vec<(Instant, Duration, u16)> {
    let (until, asked) = (Instant::now() + span, Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for turn in 0..SLOTS / 2 {
            let (gateway, asked) = (&fleet.gateways[turn % 3], &asked);
            scope.spawn(move || {
                let mut client = gateway.client();
                while Instant::now() < until {
                    let began = Instant::now();
                    let status = client.ask(&get("/gold").header("X-Class", "gold")).status;
                    asked.lock().unwrap().push((began, began.elapsed(), status));
                    thread::sleep(ms(1));
                }
            });
        }
    });
    asked.into_inner().unwrap()
}

/// Twice as many requests of others as there are slots, and gold comes after a second: within a response time and the
/// time of the calls it has its six slots, is never refused again, and no more than twelve are in flight.
#[test]
fn a_class_has_its_slots_within_a_response_time() {
    undisturbed(|| {
        let redis = Redis::start();
        let (fleet, in_flight) = with_slots(&redis, "");
        let (mut found, mut asked) = (None, Vec::new());
        let over = Duration::from_secs(3);
        thread::scope(|scope| {
            let flood = scope.spawn(|| {
                fleet.fire(8, Until::Span(over), |_, _, _| {
                    thread::sleep(ms(3));
                    get("/others")
                })
            });
            thread::sleep(Duration::from_secs(1));
            let start = Instant::now();
            let gold = scope.spawn(|| run_gold(&fleet, Duration::from_millis(1_500)));
            while found.is_none() && start.elapsed() < Duration::from_secs(1) {
                thread::sleep(ms(1));
                found = (in_flight.gold.load(SeqCst) == SLOTS / 2).then(|| start.elapsed());
            }
            asked = gold.join().unwrap();
            let flood = flood.join().unwrap();
            assert!(with_status(&flood, 200) > 0 && with_status(&flood, 503) > 0);
        });
        if fleet.metric(DEGRADED, &[]) > 0.0 {
            return None;
        }
        let most = in_flight.most.load(SeqCst);
        let first = asked.iter().map(|(began, ..)| *began).min().unwrap();
        let late = asked.iter().filter(|(began, ..)| *began >= first + ms(400));
        let refused = late.clone().filter(|(.., status)| *status != 200).count();
        println!("six slots after {found:?}, {most} in flight, {refused} of {} refused later", late.count());
        assert!(most <= SLOTS, "{most} in flight");
        // A response time, four polls, three calls, and the waits of this machine.
        found.filter(|time| *time < ms(400)).and_then(|_| (refused == 0).then_some(()))
    });
}

/// With a queue that others fill, gold has places of its own and waits no longer than for the end of one request.
#[test]
fn a_class_waits_for_its_slots_alone() {
    undisturbed(|| {
        let redis = Redis::start();
        let (fleet, in_flight) = with_slots(&redis, "queue: 8, max_wait: 10s, ");
        let mut asked = Vec::new();
        thread::scope(|scope| {
            let flood =
                scope.spawn(|| fleet.fire(12, Until::Span(Duration::from_secs(3)), |_, _, _| get("/others")));
            thread::sleep(Duration::from_secs(1));
            asked = run_gold(&fleet, Duration::from_millis(1_500));
            assert!(with_status(&flood.join().unwrap(), 200) > 0);
        });
        if fleet.metric(DEGRADED, &[]) > 0.0 {
            return None;
        }
        let (most, count) = (in_flight.most.load(SeqCst), asked.len());
        let refused = asked.iter().filter(|(.., status)| *status != 200).count();
        let mut times: Vec<Duration> = asked.into_iter().map(|(_, time, _)| time).collect();
        times.sort();
        let (middle, longest) = (times[count / 2], times[count - 1]);
        println!("{count} of gold, {refused} refused, {middle:?} and at most {longest:?}; {most} in flight");
        assert!(most <= SLOTS && refused == 0, "{most} in flight, {refused} refused");
        (middle < 2 * WORK && longest < 8 * WORK).then_some(())
    });
}

/// Without Redis each gateway has a third of the slots, and of that the same parts, which it does not lend.
#[test]
fn a_local_share_of_slots_has_the_same_percentages() {
    let mut redis = Redis::start();
    let gate = Gate::default();
    let head = counting_on(&redis.url(), "200ms");
    let fleet = Fleet::before(Upstream::holding("/held", &gate), 3, |_, upstream| {
        format!(
            "{head}limits:\n  slots: {{ key: global, algorithm: concurrency, max_concurrent: {SLOTS}, \
             shares: {{ by: \"header:x-class\", classes: {{ gold: {{ least: 50% }} }} }} }}\n\
             locations:\n  - {{ path: /, upstream: \"{upstream}\", limits: slots }}\n"
        )
    });
    fleet.wait_enforcing();
    fleet.wait_nodes(3);
    redis.kill();
    fleet.wait_degraded();
    let mut clients: Vec<Client> = (0..8).map(|_| fleet.gateways[0].client()).collect();
    let (others, gold) = clients.split_at_mut(4);
    let class = |name| get("/held").header("X-Class", name).bytes();
    others.iter_mut().for_each(|client| client.send(class("others")));
    thread::sleep(ms(300));
    assert_eq!(fleet.upstream.count(), 2, "of four, two are gold's");
    gold.iter_mut().for_each(|client| client.send(class("gold")));
    thread::sleep(ms(300));
    assert_eq!(fleet.upstream.count(), 4, "both of them");
    gate.open();
}

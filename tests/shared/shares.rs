//! Guaranteed shares of a limit that three gateways count together.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::fleet::{DEGRADED, numbered, refill, span, three, with_status};
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
        let (over, asked) = (Duration::from_secs(5), Mutex::new(Vec::new()));
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
        if fleet.metric(DEGRADED, &[]) > 0.0 {
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

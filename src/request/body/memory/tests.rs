//! Room for bodies: its bounds, its order, and that bodies never wait for each other for ever.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn memory(most: u64, longest: u64) -> Arc<BodyMemory> {
    Arc::new(BodyMemory::default().with_bounds(most, longest))
}

fn take(room: &BodyRoom, bytes: u64) -> bool {
    room.poll_take(&mut Context::from_waker(Waker::noop()), bytes).is_ready()
}

fn used(memory: &BodyMemory) -> u64 {
    let rooms = memory.rooms.lock();
    assert_eq!(rooms.by_network.values().sum::<u64>(), rooms.used);
    rooms.used
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_network_holds_a_quarter() {
    let memory = memory(64 * MIB, MIB);
    let slow: Vec<BodyRoom> = (0..16).map(|_| memory.begin_reading(1, MIB)).collect();
    let held = slow.iter().filter(|room| take(room, MIB)).count();
    assert_eq!((held, used(&memory)), (16, 16 * MIB));
    let mut more: Vec<BodyRoom> = (0..1_000).map(|_| memory.begin_reading(1, MIB)).collect();
    assert!(!more.iter().any(|room| take(room, 1)));
    for network in 2..5 {
        let room = memory.begin_reading(network, MIB);
        assert!(take(&room, MIB), "{network}");
        drop(room);
    }
    // A body that leaves gives back what it holds, and a waiting one its place.
    drop(slow);
    assert_eq!(used(&memory), 1_000);
    more.truncate(500);
    assert_eq!(used(&memory), 500);
    drop(more);
    assert_eq!(used(&memory), 0);
    assert!(memory.rooms.lock().readers.is_empty() && memory.rooms.lock().waiting == 0);
}

/// Room is counted by the bytes that were read, and kept as long as they are.
#[test]
fn bytes_keep_their_room() {
    let memory = memory(64 * MIB, 16 * MIB);
    let room = memory.begin_reading(1, 16 * MIB);
    assert!(take(&room, 3) && take(&room, 4));
    assert_eq!(used(&memory), 7);
    let bytes = room.hold(Bytes::from_static(b"seven b"));
    drop(room);
    let (copy, part) = (bytes.clone(), bytes.slice(2..3));
    drop(bytes);
    drop(copy);
    assert_eq!((used(&memory), &part[..]), (7, &b"v"[..]));
    drop(part);
    assert_eq!(used(&memory), 0);
}

/// Waiting bodies get room in the order in which they began.
#[test]
fn the_oldest_is_served_first() {
    let memory = memory(4 * MIB, MIB);
    let wakes: Vec<Arc<Wakes>> = (0..3).map(|_| Arc::default()).collect();
    let first = memory.begin_reading(1, MIB);
    let rooms: Vec<BodyRoom> = wakes.iter().map(|_| memory.begin_reading(1, MIB)).collect();
    assert!(take(&first, MIB));
    for (room, wakes) in rooms.iter().zip(&wakes).rev() {
        let waker = wakes.clone().into();
        assert!(room.poll_take(&mut Context::from_waker(&waker), MIB / 2).is_pending());
        assert!(room.is_waiting());
    }
    drop(first.hold(Bytes::from_static(b"x")));
    let woken: Vec<usize> = wakes.iter().map(|wakes| wakes.0.load(Ordering::Relaxed)).collect();
    assert_eq!(woken, [1, 0, 0], "the second half is kept for the oldest");
    assert!(take(&rooms[0], MIB / 2) && !rooms[0].is_waiting());
    assert!(take(&rooms[0], MIB / 2) && !take(&rooms[1], MIB / 2));
}

/// A body of the given network that takes its pieces one after the other.
#[derive(Debug, Clone)]
struct Plan {
    network: u64,
    pieces: Vec<u64>,
    /// Its length is known.
    is_announced: bool,
}

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let pieces = proptest::collection::vec(1..=64_u64, 1..5);
    let plan = (0..6_u64, pieces, any::<bool>()).prop_map(|(network, pieces, is_announced)| Plan {
        network,
        pieces,
        is_announced,
    });
    proptest::collection::vec(plan, 1..60)
}

proptest! {
    /// Whatever bodies come and however they are read by turns, all of them come to their end, and neither all of
    /// them nor those of a network hold more than they may.
    #[test]
    fn all_bodies_come_to_their_end(plans in plans(), order in proptest::collection::vec(any::<usize>(), 1..400)) {
        const LONGEST: u64 = 256;
        let memory = memory(1_024, LONGEST);
        let mut bodies: Vec<(BodyRoom, Vec<u64>)> = plans
            .iter()
            .map(|plan| {
                let bound = if plan.is_announced { plan.pieces.iter().sum() } else { LONGEST };
                (memory.begin_reading(plan.network, bound), plan.pieces.clone())
            })
            .collect();
        let mut order = order.into_iter().cycle();
        let (mut idle, mut start) = (0, 0);
        while !bodies.is_empty() {
            // Once one has to wait, all are tried in turn, until one goes on.
            if idle == 0 {
                start = order.next().unwrap_or(0) % bodies.len();
            }
            let index = (start + idle) % bodies.len();
            let (room, left) = &mut bodies[index];
            match left.last().copied() {
                Some(piece) if take(room, piece) => {
                    left.pop();
                    idle = 0;
                }
                Some(_) => idle += 1,
                None => {
                    drop(bodies.remove(index).0.hold(Bytes::from_static(b"x")));
                    idle = 0;
                }
            }
            prop_assert!(idle <= 2 * plans.len(), "{:?}", memory);
            let rooms = memory.rooms.lock();
            prop_assert!(rooms.used <= 1_024 && rooms.by_network.values().all(|&used| used <= 256));
        }
        prop_assert_eq!(used(&memory), 0);
    }
}

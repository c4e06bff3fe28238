//! Room for bodies: its bounds, its order, its work, and that bodies never wait for each other for ever.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake};

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn memory(most: u64, longest: u64) -> Arc<BodyMemory> {
    BodyMemory::adopt(None, most, longest, 1 << 30)
}

fn client(network: u64, client: u64) -> CounterKey {
    CounterKey::new(u128::from(network) << 64 | u128::from(client), network)
}

/// A body that is read piece by piece.
struct Body {
    room: Rc<BodyRoom>,
    taking: RefCell<Option<Pin<Box<dyn Future<Output = bool>>>>>,
    wakes: Arc<Wakes>,
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A body of a client in `network`.
fn begin(memory: &BodyMemory, client: (u64, u64), bound: u64) -> Body {
    begin_as(memory, client, bound, false)
}

fn begin_as(memory: &BodyMemory, (network, number): (u64, u64), bound: u64, never_waits: bool) -> Body {
    let mut room = memory.begin_reading(client(network, number), 1, bound).expect("a place");
    room.never_waits = never_waits;
    Body { room: Rc::new(room), taking: RefCell::default(), wakes: Arc::default() }
}

/// Whether the body has room for so many bytes; otherwise it waits, if it does.
fn take(body: &Body, bytes: u64) -> bool {
    let mut taking = body.taking.borrow_mut();
    let room = body.room.clone();
    let future = taking.get_or_insert_with(|| Box::pin(async move { room.take(bytes).await }));
    let taken = future.as_mut().poll(&mut Context::from_waker(&body.wakes.clone().into()));
    assert_eq!(body.room.is_waiting(), taken.is_pending());
    taking.take_if(|_| taken.is_ready());
    taken == Poll::Ready(true)
}

fn hold(body: &Body, bytes: usize) -> Bytes {
    body.room.hold(vec![b'x'; bytes].into())
}

fn wakes(bodies: &[Body]) -> Vec<usize> {
    bodies.iter().map(|body| body.wakes.0.load(Ordering::Relaxed)).collect()
}

/// The largest amounts that are used of the shares of each level.
fn used_by_level(shares: &ClientShares) -> [u64; LEVELS] {
    let mut most = [0; LEVELS];
    for ((level, _), share) in &*shares.shares.lock() {
        most[*level] = most[*level].max(shares.bounds[*level] - share.available_permits() as u64);
    }
    most
}

/// Bytes of all bodies.
fn used(memory: &BodyMemory) -> u64 {
    used_by_level(&memory.room)[2]
}

fn assert_free(memory: &BodyMemory) {
    assert_eq!((used_by_level(&memory.room), used_by_level(&memory.places)), ([0; LEVELS], [0; LEVELS]));
}

#[test]
fn a_network_holds_a_quarter_and_a_client_an_eighth() {
    let memory = memory(64 * MIB, MIB);
    let rooms = |client| (0..20).map(|_| begin(&memory, (1, client), MIB)).collect::<Vec<Body>>();
    let count = |rooms: &[Body]| rooms.iter().filter(|room| take(room, MIB)).count();
    let (first, second, third) = (rooms(1), rooms(2), rooms(3));
    assert_eq!((count(&first), used(&memory)), (8, 8 * MIB));
    assert_eq!((count(&second), count(&third), used(&memory)), (8, 0, 16 * MIB));
    for network in 2..5 {
        assert!(take(&begin(&memory, (network, 1), MIB), MIB), "{network}");
    }
    // Bodies that leave give back what they hold, and waiting ones their places.
    drop(first);
    assert_eq!((count(&third), used(&memory)), (8, 16 * MIB));
    drop((second, third));
    assert_free(&memory);
}

/// Room is counted by the bytes that were read, and kept as long as they are.
#[test]
fn bytes_keep_their_room() {
    let memory = memory(64 * MIB, 4 * MIB);
    let room = begin(&memory, (1, 1), 4 * MIB);
    assert!(take(&room, 3) && take(&room, 8) && take(&room, 8));
    assert_eq!(used(&memory), 8);
    let bytes = hold(&room, 7);
    drop(room);
    let (copy, part) = (bytes.clone(), bytes.slice(2..3));
    drop(bytes);
    drop(copy);
    assert_eq!((used(&memory), &part[..]), (7, &b"x"[..]));
    drop(part);
    assert_eq!(used(&memory), 0);
    // What was taken for a longer body is free again.
    let rooms = [4 * MIB, 4 * MIB, 3 * MIB].map(|bound| begin(&memory, (1, 1), bound));
    assert!(take(&rooms[0], 4 * MIB) && take(&rooms[1], 1) && !take(&rooms[2], 2 * MIB));
    let bytes = hold(&rooms[0], 5);
    assert!(take(&rooms[2], 2 * MIB));
    drop((bytes, rooms));
    assert_eq!(used(&memory), 0);
}

/// Bodies get room in the order in which they had to wait.
#[test]
fn the_first_is_served_first() {
    let memory = memory(8 * MIB, MIB);
    let bodies = [0; 4].map(|_| begin(&memory, (1, 1), MIB));
    assert!(take(&bodies[0], MIB) && !bodies[1..].iter().any(|body| take(body, MIB / 2)));
    drop(hold(&bodies[0], 1));
    assert_eq!(wakes(&bodies), [0, 1, 0, 0], "the room is kept for the rest of the first");
    assert!(take(&bodies[1], MIB / 2) && take(&bodies[1], MIB));
    drop(hold(&bodies[1], 1));
    assert_eq!(wakes(&bodies), [0, 1, 1, 0]);
}

/// Thousands of waiting bodies are not looked at before it is their turn: each is woken once for each of its shares.
#[test]
fn waiting_bodies_are_left_alone() {
    let memory = memory(64 * MIB, MIB);
    let slow: Vec<Body> = (0..16).map(|n| begin(&memory, (1, n), MIB)).collect();
    slow.iter().for_each(|body| assert!(take(body, MIB)));
    let mut waiting: Vec<Body> = (0..2_000).map(|n| begin(&memory, (1, n % 100), MIB)).collect();
    waiting.iter().for_each(|body| assert!(!take(body, 1_000)));
    for client in 0..1_000 {
        let body = begin(&memory, (2, client), MIB);
        assert!(take(&body, MIB));
        drop(hold(&body, 1_000));
    }
    assert!(memory.room.shares.lock().len() < 500, "the shares of clients that left are gone");
    assert_eq!(wakes(&waiting).iter().sum::<usize>(), 0);
    // Some leave, and the others are read one after the other.
    waiting.truncate(1_500);
    drop(slow);
    while !waiting.is_empty() {
        let count = waiting.len();
        waiting.retain(|body| {
            let is_read = take(body, 1_000);
            if is_read {
                drop(hold(body, 1_000));
                assert!(wakes(std::slice::from_ref(body))[0] <= LEVELS);
            }
            !is_read
        });
        assert!(waiting.len() < count, "{count} are stuck");
    }
    assert_free(&memory);
}

/// A body that does not wait takes all that is free, and what it has taken stays with its bytes.
#[test]
fn a_body_that_does_not_wait_is_read_as_far_as_there_is_room() {
    let memory = memory(4 * MIB, MIB);
    let other = begin(&memory, (1, 1), MIB / 2);
    assert!(take(&other, MIB / 2));
    let body = begin_as(&memory, (1, 1), MIB, true);
    assert!(take(&body, MIB / 4) && take(&body, MIB / 2) && !take(&body, MIB / 2 + 1));
    assert!(!body.room.is_waiting() && used(&memory) == MIB);
    let bytes = hold(&body, MIB as usize / 2 + 9);
    drop((other, body));
    assert_eq!(used(&memory), MIB / 2);
    drop(bytes);
    assert_free(&memory);
}

/// A body that leaves while it waits for its network's share gives back that of its client.
#[test]
fn a_body_that_leaves_gives_back_what_it_waited_with() {
    let memory = memory(4 * MIB, MIB);
    let first = begin(&memory, (1, 1), MIB);
    let [second, third] = [begin(&memory, (1, 2), MIB), begin(&memory, (1, 3), MIB)];
    assert!(take(&first, MIB) && !take(&second, 1) && !take(&third, 1));
    assert_eq!(used_by_level(&memory.room), [MIB, MIB, MIB]);
    drop(second);
    assert!(!take(&third, 1));
    drop(first);
    assert!(take(&third, 1));
    drop(third);
    assert_free(&memory);
}

/// The requests of a client take an eighth of the places, those of a network a quarter.
#[test]
fn places_are_shared() {
    let memory = BodyMemory::adopt(None, 64 * MIB, MIB, 400);
    let begin = |network, number, weight| memory.begin_reading(client(network, number), weight, 1);
    let streams = [begin(1, 1, 17), begin(1, 1, 17)];
    assert!(streams.iter().all(Option::is_some));
    assert!(begin(1, 1, 17).is_none() && begin(1, 1, 16).is_some());
    let _neighbours = [begin(1, 2, 50), begin(1, 3, 16)];
    assert!(begin(1, 4, 1).is_none() && begin(2, 1, 1).is_some());
    drop(streams);
    assert!(begin(1, 4, 34).is_some());
    // A request of any weight may be alone.
    assert!(begin(2, 1, 1_000).is_some());
    let tiny = BodyMemory::adopt(None, MIB, 1, 1);
    assert!(tiny.begin_reading(client(1, 1), 1, 1).is_some());
}

/// A body of the given client that takes its pieces one after the other.
#[derive(Debug, Clone)]
struct Plan {
    client: (u64, u64),
    pieces: Vec<u64>,
    /// Its length is known.
    is_announced: bool,
    never_waits: bool,
    /// It leaves when it is found waiting as often.
    patience: Option<usize>,
}

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let pieces = proptest::collection::vec(1..=64_u64, 1..5);
    let patience = proptest::option::weighted(0.3, 1..8_usize);
    let plan = ((0..6_u64, 0..3_u64), pieces, any::<bool>(), proptest::bool::weighted(0.2), patience)
        .prop_map(|(client, pieces, is_announced, never_waits, patience)| Plan {
            client,
            pieces,
            is_announced,
            never_waits,
            patience,
        });
    proptest::collection::vec(plan, 1..90)
}

proptest! {
    /// Whatever bodies come and however they are read by turns, all of them come to their end, and neither all of
    /// them nor those of a network or a client hold more than they may.
    #[test]
    fn all_bodies_come_to_their_end(
        plans in plans(),
        order in proptest::collection::vec(any::<usize>(), 1..400),
        (most, longest) in prop_oneof![Just((1_280, 256)), Just((1_280, 320)), Just((4_096, 256))],
    ) {
        let memory = memory(most, longest);
        let mut bodies: Vec<(Body, u64, Vec<u64>, Option<usize>)> = plans
            .iter()
            .map(|plan| {
                let sum = plan.pieces.iter().sum();
                let bound = if plan.is_announced { sum } else { longest };
                let body = begin_as(&memory, plan.client, bound, plan.never_waits);
                (body, 0, plan.pieces.clone(), plan.patience)
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
            let (room, read, left, patience) = &mut bodies[index];
            match left.last().copied() {
                Some(piece) if take(room, *read + piece) => {
                    *read += piece;
                    left.pop();
                    idle = 0;
                }
                Some(_) if room.room.is_waiting() && *patience != Some(0) => {
                    *patience = patience.map(|patience| patience - 1);
                    idle += 1;
                }
                // It leaves.
                Some(_) if room.room.is_waiting() => {
                    bodies.remove(index);
                    idle = 0;
                }
                _ => {
                    drop(hold(room, *read as usize));
                    bodies.remove(index);
                    idle = 0;
                }
            }
            prop_assert!(idle <= 2 * plans.len(), "{:?}", memory);
            let [client, network, all] = used_by_level(&memory.room);
            prop_assert!(client <= longest.max(most / 8) && network <= most / 4 && all <= most);
        }
        assert_free(&memory);
    }
}

/// A reload goes on with the same room, unless its bounds change.
#[test]
fn a_reload_keeps_the_room() {
    let before = memory(64 * MIB, MIB);
    let same = BodyMemory::adopt(Some(&before), 64 * MIB, MIB, 1 << 30);
    assert!(Arc::ptr_eq(&before, &same));
    for (most, longest, max_waiting) in
        [(65 * MIB, MIB, 1 << 30), (64 * MIB, MIB + 1, 1 << 30), (64 * MIB, MIB, 1)]
    {
        assert!(!Arc::ptr_eq(&before, &BodyMemory::adopt(Some(&before), most, longest, max_waiting)));
    }
}

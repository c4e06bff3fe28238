//! The bound on the fair queues of one key.

use super::*;

#[test]
fn the_number_of_fair_queues_is_bounded() {
    let (mut queues, mut queue) = (ShardQueues::default(), NO_NODE);
    let mut join = |fair_hash| {
        queues.push_waiter(&mut queue, NewWaiter { fair_hash, cost: 1, span: 1, until: None, since: Now(0) });
        (queues.fair_queues(queue).count(), queues.find_fair_queue(queue, fair_hash))
    };
    for fair_hash in 0..u64::from(FAIR_QUEUES_MAX) {
        assert_eq!(join(fair_hash << 32), (fair_hash as usize + 1, fair_hash as u32));
    }
    let full = FAIR_QUEUES_MAX as usize;
    assert_eq!(join(7 << 32 | 1), (full, 7), "the nearest value");
    assert_eq!(join(u64::MAX), (full, FAIR_QUEUES_MAX - 1));
    assert_eq!(queues.forecast_waiter(queue, 7).own, 2);
    let mut wakers = Wakers::new();
    (0..full + 2).for_each(|_| queues.depart_head(&mut queue, Default::default(), &mut wakers));
    assert_eq!((queue, queues.queued_units(queue)), (NO_NODE, 0));
}

//! Deadlines checked on explicit ticks, without time passing.

use super::*;

#[test]
fn a_new_span_clears_the_deadline_of_the_previous_one() {
    let watches = WatchList::default();
    let watch = watches.watch_request(&watches.watch_connection());
    let spans = ClientSpans { header: 9, idle: 9, spare: 99, body: 9, write: 9, handshake: 9 };
    let sweep_at = |tick: u64| {
        watches.ticks.0.set(tick);
        assert_eq!(watch.check_deadlines(&spans), None);
        watch.fired_deadline()
    };
    watch.begin_request();
    watch.set_request_deadline(3);
    let start = watches.ticks.current_tick();
    assert_eq!(sweep_at(start + 3), None);
    assert_eq!(sweep_at(start + 4), Some(GatewayDeadline::Request));
    watch.set_request_deadline(3);
    assert_eq!(watch.fired_deadline(), None);
    assert_eq!(sweep_at(start + 7), None);
    assert_eq!(sweep_at(start + 8), Some(GatewayDeadline::Request));
}

#[test]
fn a_handshake_has_a_deadline_of_its_own() {
    let watches = WatchList::default();
    let watch = watches.watch_connection();
    let spans = ClientSpans { header: 2, idle: 2, spare: 99, body: 2, write: 2, handshake: 9 };
    let start = watches.ticks.current_tick();
    watch.begin_handshake();
    watch.record_read();
    watches.ticks.0.set(start + 9);
    assert_eq!(watch.check_deadlines(&spans), None);
    watches.ticks.0.set(start + 10);
    assert_eq!(watch.check_deadlines(&spans), Some(MissedDeadline::Handshake));
    watch.begin_idle();
    watches.ticks.0.set(start + 13);
    assert_eq!(watch.check_deadlines(&spans), Some(MissedDeadline::Idle));
}

/// A connection is taken back from hyper only where the next byte belongs to a head.
#[test]
fn only_the_end_of_the_last_body_makes_a_connection_unused() {
    let watches = WatchList::default();
    let watch = watches.watch_connection();
    let exchange = |has_body: bool| {
        let body = watch.begin_body(!has_body);
        watch.begin_request();
        watch.end_request();
        body
    };
    assert!(exchange(false).is_none() && watch.is_unused());
    let (first, second) = (exchange(true), exchange(true));
    assert!(!watch.is_unused() && watch.would_reset() && watch.owes_bytes());
    watch.end_body(first.expect("a body"));
    assert!(!watch.is_unused() && watch.would_reset() && watch.owes_bytes());
    watch.end_body(second.expect("a body"));
    assert!(watch.is_unused() && !watch.would_reset() && !watch.owes_bytes());
    // A body that is dropped never ends, and a late end says nothing of a request without a body.
    let _abandoned = exchange(true);
    assert!(!watch.is_unused());
    let late = exchange(true);
    assert!(exchange(false).is_none() && watch.is_unused());
    watch.leave_unread();
    watch.end_body(late.expect("a body"));
    assert!(!watch.is_unused());
}

//! Deadlines by the sweep alone, on its own ticks.

use super::*;

#[test]
fn a_new_span_forgets_that_the_one_before_has_passed() {
    let watches = Watches::default();
    let watch = watches.open_request(&watches.open());
    let spans = ClientSpans { header: 9, idle: 9, spare: 99, body: 9, write: 9, handshake: 9 };
    let sweep_at = |tick: u64| {
        watches.ticks.0.set(tick);
        assert_eq!(watch.sweep(&spans), None);
        watch.fired()
    };
    watch.begins();
    watch.await_request(3);
    let start = watches.ticks.now();
    assert_eq!(sweep_at(start + 3), None);
    assert_eq!(sweep_at(start + 4), Some(Due::Request));
    watch.await_request(3);
    assert_eq!(watch.fired(), None);
    assert_eq!(sweep_at(start + 7), None);
    assert_eq!(sweep_at(start + 8), Some(Due::Request));
}

#[test]
fn what_opens_a_connection_has_a_deadline_of_its_own() {
    let watches = Watches::default();
    let watch = watches.open();
    let spans = ClientSpans { header: 2, idle: 2, spare: 99, body: 2, write: 2, handshake: 9 };
    let start = watches.ticks.now();
    watch.opening_begins();
    watch.bytes_read();
    watches.ticks.0.set(start + 9);
    assert_eq!(watch.sweep(&spans), None);
    watches.ticks.0.set(start + 10);
    assert_eq!(watch.sweep(&spans), Some(Broken::Opening));
    watch.opening_ends();
    watches.ticks.0.set(start + 13);
    assert_eq!(watch.sweep(&spans), Some(Broken::Idle));
}

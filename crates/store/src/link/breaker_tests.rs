//! The breaker of one server. Beside its file, which `tests/interleavings` compiles without these tests.

use super::breaker::*;
use sluicegate_base::clock::Now;

const START: Now = Now(1 << 60);

fn at(ms: u64) -> Now {
    Now(START.0 + ms * MS)
}

fn settled() -> Breaker {
    let breaker = Breaker::default();
    breaker.close(START, false);
    breaker
}

#[test]
fn it_is_open_until_it_is_closed() {
    let breaker = Breaker::default();
    assert!(breaker.is_open() && breaker.admit(START).is_none() && !breaker.is_settled(START));
    breaker.close(START, false);
    assert!(!breaker.is_open() && breaker.admit(START).is_some() && breaker.is_settled(START));
}

#[test]
fn five_failures_in_a_row_open_it_and_one_says_so() {
    let breaker = settled();
    let epoch = breaker.admit(START).unwrap();
    for _ in 0..4 {
        assert!(!breaker.record_call(START, epoch, true));
    }
    assert!(!breaker.record_call(START, epoch, false), "a success between");
    for _ in 0..4 {
        assert!(!breaker.record_call(START, epoch, true));
    }
    assert!(!breaker.is_open());
    assert!(breaker.record_call(START, epoch, true));
    assert!(breaker.is_open() && breaker.epoch() == epoch + 1);
    assert!(!breaker.record_call(START, epoch, true), "only one opened it");
}

#[test]
fn half_of_twenty_calls_in_one_second_open_it() {
    let breaker = settled();
    let epoch = breaker.epoch();
    let alternate = |calls: u64, ms: u64| (0..calls).any(|n| breaker.record_call(at(ms), epoch, n % 2 == 0));
    assert!(!alternate(19, 0), "too few to judge");
    assert!(!alternate(19, 1000), "another second");
    assert!(alternate(1, 1000));
    assert!(breaker.is_open());
}

#[test]
fn fewer_than_half_leave_it_closed() {
    let breaker = settled();
    let epoch = breaker.epoch();
    for n in 0..3000 {
        assert!(!breaker.record_call(at(n / 10), epoch, n % 3 == 2));
    }
}

#[test]
fn results_from_before_an_opening_are_ignored() {
    let breaker = settled();
    let old = breaker.epoch();
    assert!((0..5).any(|_| breaker.record_call(START, old, true)));
    breaker.close(at(500), true);
    for _ in 0..100 {
        assert!(!breaker.record_call(at(500), old, true));
    }
    assert!(!breaker.is_open());
}

#[test]
fn calls_come_back_in_a_ramp() {
    let breaker = Breaker::default();
    breaker.close(START, true);
    let share = |ms| (0..1000).filter(|_| breaker.admit(at(ms)).is_some()).count();
    for (ms, wanted) in [(0, 100), (50, 280), (125, 550), (200, 820), (249, 996)] {
        let got = share(ms);
        assert!(got.abs_diff(wanted) <= 15, "after {ms} ms: {got} of 1000, not about {wanted}");
        assert!(!breaker.is_settled(at(ms)));
    }
    assert_eq!(share(250), 1000);
    assert!(breaker.is_settled(at(250)));
}

#[test]
fn counts_of_a_second_never_spill_over() {
    let mut window = BreakerWindow::from_packed(0, 7);
    for _ in 0..COUNT_MAX + 5 {
        window = window.add_call(true);
    }
    assert_eq!((window.calls(), window.failures()), (COUNT_MAX, COUNT_MAX));
    assert_eq!(BreakerWindow::from_packed(window.0, 8).calls(), 0);
    assert_eq!(BreakerWindow::from_packed(window.0, 7).calls(), COUNT_MAX);
}

//! Gateways learn of the bans that other gateways start.

use std::collections::BTreeSet;

use sluicegate_store::script::bans::{Ban, BanCursor, BanUpdate, StrikeAnswer};

use crate::bans::support::*;

/// A gateway that polls, and the bans that it learned.
#[derive(Default)]
struct Poller {
    known: BanCursor,
    learned: Vec<u64>,
    pages: Vec<usize>,
}

impl Poller {
    /// Polls until it knows all bans.
    fn poll(&mut self, judge: &mut Judge, at_us: u64) {
        loop {
            let BanUpdate { announced, cursor: known, is_more, .. } = judge.ask(&[], self.known, Some(at_us));
            self.known = known;
            self.pages.push(announced.len());
            self.learned.extend(announced.iter().map(|(client, _)| u128::from_le_bytes(client.0) as u64));
            if !is_more {
                return;
            }
        }
    }

    fn take(&mut self) -> Vec<u64> {
        self.pages.clear();
        std::mem::take(&mut self.learned)
    }
}

/// Bans clients by calls of a hundred, all at one moment.
fn ban_all(judge: &mut Judge, clients: std::ops::Range<u64>, at_us: u64) {
    for first in clients.clone().step_by(100) {
        let offences: Vec<_> = (first..clients.end.min(first + 100)).map(|id| offence(id, 3)).collect();
        judge.ask(&offences, BanCursor::default(), Some(at_us));
    }
}

#[test]
fn each_gateway_learns_a_ban_once() {
    let mut judge = Judge::start();
    let (mut one, mut other) = (Poller::default(), Poller::default());
    judge.ban(1, 0);
    judge.ban(2, 0);
    one.poll(&mut judge, 0);
    assert_eq!(one.take(), [1, 2]);
    judge.ban(3, 0);
    one.poll(&mut judge, 0);
    other.poll(&mut judge, 0);
    assert_eq!((one.take(), other.take()), (vec![3], vec![1, 2, 3]));
    one.poll(&mut judge, 1);
    assert_eq!(one.take().len(), 0);
    // A client that is banned again is announced again.
    let end = 10 * MINUTE_US;
    judge.ban(1, end);
    one.poll(&mut judge, end);
    assert_eq!(one.take(), [1]);
}

#[test]
fn a_burst_of_one_moment_is_announced_in_pages() {
    let mut judge = Judge::start();
    let mut poller = Poller::default();
    ban_all(&mut judge, 0..2500, 0);
    poller.poll(&mut judge, 0);
    assert_eq!(poller.pages, [1000, 1000, 500]);
    assert_eq!(poller.take(), (0..2500).collect::<Vec<_>>());
    ban_all(&mut judge, 2500..5000, 0);
    poller.poll(&mut judge, 0);
    assert_eq!(poller.take(), (2500..5000).collect::<Vec<_>>());
}

#[test]
fn a_page_of_the_call_that_struck_leaves_nothing_out() {
    let mut judge = Judge::start();
    ban_all(&mut judge, 0..2500, 0);
    let mut poller = Poller::default();
    let news = judge.ask(&[offence(9000, 3)], BanCursor::default(), Some(0));
    assert!(news.is_more);
    poller.known = news.cursor;
    poller.poll(&mut judge, 0);
    let learned = poller.take();
    assert_eq!((learned.len(), learned.last()), (1501, Some(&9000)));
}

#[test]
fn a_store_that_forgot_is_believed() {
    let mut judge = Judge::start();
    let mut poller = Poller::default();
    ban_all(&mut judge, 0..50, HOUR_US);
    poller.poll(&mut judge, HOUR_US);
    poller.take();
    judge.command::<()>(&["FLUSHALL"]);
    // As many as before, and no poll in between.
    ban_all(&mut judge, 100..150, HOUR_US + 1000);
    poller.poll(&mut judge, HOUR_US + 1000);
    assert_eq!(poller.take(), (100..150).collect::<Vec<_>>());
    // Its clock differs, too.
    judge.command::<()>(&["FLUSHALL"]);
    ban_all(&mut judge, 200..203, 0);
    poller.poll(&mut judge, 0);
    ban_all(&mut judge, 300..303, 1);
    poller.poll(&mut judge, 1);
    assert_eq!(poller.take(), [200, 201, 202, 300, 301, 302]);
}

#[test]
fn a_store_restored_to_an_earlier_state_announces_later_bans() {
    let mut judge = Judge::start();
    let mut poller = Poller::default();
    judge.ban(1, 0);
    for name in ["sg:{bans}", "sg:{bans}:ends", "sg:{bans}:clock"] {
        judge.command::<()>(&["COPY", name, &format!("{name}.then")]);
    }
    ban_all(&mut judge, 10..20, 1);
    poller.poll(&mut judge, 1);
    poller.take();
    for name in ["sg:{bans}", "sg:{bans}:ends", "sg:{bans}:clock"] {
        judge.command::<()>(&["COPY", &format!("{name}.then"), name, "REPLACE"]);
    }
    ban_all(&mut judge, 30..50, 1000);
    poller.poll(&mut judge, 1000);
    let learned: BTreeSet<u64> = poller.take().into_iter().collect();
    assert!(learned.is_superset(&(30..50).collect()), "{learned:?}");
}

#[test]
fn ended_bans_are_neither_announced_nor_kept() {
    let mut judge = Judge::start();
    ban_all(&mut judge, 0..1500, 0);
    judge.ban(2000, MINUTE_US);
    let end = 10 * MINUTE_US;
    assert_eq!(judge.announced(end).len(), 0, "a page of what has ended");
    let mut poller = Poller::default();
    poller.poll(&mut judge, end);
    assert_eq!(poller.take(), [2000]);
    judge.ban(2001, end);
    judge.ban(2002, end);
    for name in ["sg:{bans}", "sg:{bans}:ends"] {
        assert_eq!(judge.command::<u64>(&["ZCARD", name]), 3, "{name}");
    }
}

#[test]
fn announcements_are_bounded() {
    let mut judge = Judge::start();
    ban_all(&mut judge, 0..100_300, 0);
    for name in ["sg:{bans}", "sg:{bans}:ends"] {
        assert_eq!(judge.command::<u64>(&["ZCARD", name]), 100_000, "{name}");
    }
    let mut poller = Poller::default();
    poller.poll(&mut judge, 0);
    assert_eq!(poller.take(), (300..100_300).collect::<Vec<_>>(), "the newest");
}

/// A second ban, twice ten minutes long, with so much left.
fn running(left_us: u64) -> Ban {
    Ban { left_us, lasts_us: 20 * MINUTE_US, repeats: 1 }
}

#[test]
fn a_ban_that_a_gateway_knows_of_is_taken_over_and_announced() {
    let mut judge = Judge::start();
    let mut other = Poller::default();
    other.poll(&mut judge, 0);
    judge.strike(5, 2, 0);
    judge.tell(&[(5, running(3 * MINUTE_US)), (6, running(MINUTE_US))], BanCursor::default(), 0);
    assert_eq!(judge.announced(0), [(5, running(3 * MINUTE_US)), (6, running(MINUTE_US))]);
    other.poll(&mut judge, 0);
    assert_eq!(other.take(), [5, 6]);
    assert!(
        matches!(judge.strike(5, 1, MINUTE_US), StrikeAnswer::Banned(ban) if ban == running(2 * MINUTE_US))
    );
    // Another gateway reports the same ban, and one a longer ban.
    let then = MINUTE_US;
    judge.tell(&[(5, running(2 * MINUTE_US + 500_000))], BanCursor::default(), then);
    judge.tell(&[(5, running(MINUTE_US)), (6, running(0))], BanCursor::default(), then);
    other.poll(&mut judge, then);
    assert_eq!(other.take().len(), 0);
    judge.tell(&[(5, running(2 * MINUTE_US + 2 * SECOND_US))], BanCursor::default(), then);
    other.poll(&mut judge, then);
    assert_eq!(other.take(), [5]);
    // It ends like any other, and the next one lasts longer.
    let end = then + 2 * MINUTE_US + 2 * SECOND_US;
    assert_eq!(judge.announced(end), []);
    assert_eq!(judge.ban(5, end).repeats, 2);
}

#[test]
fn malformed_bans_are_not_taken_over() {
    let mut judge = Judge::start();
    let wrong = [
        Ban { left_us: 2, lasts_us: 1, repeats: 0 },
        Ban { left_us: 1, lasts_us: u64::MAX, repeats: 0 },
        Ban { left_us: u64::MAX, lasts_us: u64::MAX, repeats: 0 },
    ];
    for ban in wrong {
        judge.tell(&[(1, ban)], BanCursor::default(), 0);
        assert_eq!(judge.strike(1, 1, 0), StrikeAnswer::NotBanned, "{ban:?}");
        judge.command::<()>(&["FLUSHALL"]);
    }
    // A ban that lasts longer than this gateway's maximum is announced for as long as it is active.
    judge.tell(
        &[(1, Ban { left_us: 5 * HOUR_US, lasts_us: 6 * HOUR_US, repeats: 0 })],
        BanCursor::default(),
        0,
    );
    for name in ["sg:{bans}", "sg:{bans}:ends"] {
        assert!(judge.command::<u64>(&["PTTL", name]) > 4 * 3_600_000, "{name}");
    }
}

/// The name by which a gateway notices that the store needs all bans again.
#[test]
fn a_store_that_was_emptied_is_another_one() {
    let mut judge = Judge::start();
    let first = judge.ask(&[], BanCursor::default(), Some(0)).cursor;
    judge.ban(1, 5);
    let second = judge.ask(&[], first, Some(10)).cursor;
    assert!(!first.is_lost_in(second));
    // Deleting one ban must not make gateways report all of them.
    judge.command::<()>(&["DEL", &judge.name(1)]);
    assert!(!second.is_lost_in(judge.ask(&[], second, Some(20)).cursor));
    judge.command::<()>(&["FLUSHALL"]);
    judge.ban(2, 30);
    let third = judge.ask(&[], second, Some(40));
    assert!(
        second.is_lost_in(third.cursor)
            && !third.cursor.is_lost_in(judge.ask(&[], third.cursor, Some(41)).cursor)
    );
    assert_eq!(third.announced.len(), 1, "all of the new one");
    // Each key without which announcements are worthless.
    for name in ["sg:{bans}:clock", "sg:{bans}:store"] {
        let known = judge.ask(&[], BanCursor::default(), Some(50)).cursor;
        judge.command::<()>(&["DEL", name]);
        assert!(known.is_lost_in(judge.ask(&[], known, Some(60)).cursor), "{name}");
        judge.command::<()>(&["FLUSHALL"]);
    }
    // A store without memory for its name cannot identify itself.
    judge.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let nameless = judge.ask(&[], BanCursor::default(), Some(70)).cursor;
    assert_eq!(nameless, BanCursor::default());
}

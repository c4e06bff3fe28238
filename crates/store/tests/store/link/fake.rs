//! The link to a scripted server.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use sluicegate_store::StoreFault;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::link::liar::{Fake, Mood};
use crate::link::support::{MARGIN, ask, echo, settled, single, until, with_store};
use crate::support::{PATIENCE, ms};

/// Puts the server into `mood` for a while: calls fail with `wanted` (or are not made), connects are rare, and all is
/// well again soon after.
fn torment(name: &str, mood: Mood, wanted: &[StoreFault]) {
    let fake = Fake::start();
    let mut config = single(fake.addr);
    config.timeout = ms(300);
    with_store(&config, async |store| {
        settled(&store).await;
        assert_eq!(store.nodes(), 3);
        let (link, script) = (store.open_link(), echo());
        fake.is(mood);
        let (before, end) = (fake.connects(), Instant::now() + ms(3000));
        let (mut down, mut seen) = (false, false);
        while Instant::now() < end {
            let fault = ask(&link, &script, "again").await.unwrap_err();
            // A busy machine is late on its own account.
            let other = matches!(fault, StoreFault::Broken | StoreFault::Down | StoreFault::Timeout);
            assert!(other || wanted.contains(&fault), "{name}: {fault:?}");
            down |= fault == StoreFault::Down;
            seen |= wanted.contains(&fault);
            sleep(ms(1)).await;
        }
        assert!(seen, "{name}: no call failed with {wanted:?}");
        assert!(down, "{name}: the breaker never opened");
        assert_eq!(store.nodes(), 3, "{name}: what was counted is remembered");
        let connects = fake.connects() - before;
        assert!((1..=25).contains(&connects), "{name}: {connects} connects in 3 s");
        fake.is(Mood::Good);
        let took = settled(&store).await;
        assert!(took < ms(1000) + MARGIN, "{name}: used again only after {took:?}");
    });
}

#[test]
fn every_error_of_a_server_has_its_class() {
    let error_reply = |text: &str| Mood::Says(format!("-{text}\r\n").into_bytes());
    let cases: Vec<_> = [
        ("LOADING Redis is loading the dataset in memory", StoreFault::Unready),
        ("READONLY You can't write against a read only replica.", StoreFault::Unready),
        ("MASTERDOWN Link with MASTER is down", StoreFault::Unready),
        ("NOREPLICAS Not enough good replicas to write.", StoreFault::Unready),
        ("MISCONF Redis is configured to save RDB snapshots", StoreFault::Unready),
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreFault::Full),
        ("WRONGPASS invalid username-password pair", StoreFault::Unauthorized),
        ("NOAUTH Authentication required.", StoreFault::Unauthorized),
        ("NOPERM this user has no permissions", StoreFault::Unauthorized),
        ("BUSY Redis is busy running a script.", StoreFault::CommandError),
        ("CLUSTERDOWN The cluster is down", StoreFault::Moving),
        ("ERR unknown command", StoreFault::CommandError),
        (
            "ERR ACL failure in script: User x has no permissions to run the 'type' command",
            StoreFault::Unauthorized,
        ),
        ("", StoreFault::CommandError),
    ]
    .into_iter()
    .map(|(text, wanted)| thread::spawn(move || torment(text, error_reply(text), &[wanted])))
    .collect();
    cases.into_iter().for_each(|case| case.join().expect("each case holds"));
}

#[test]
fn bytes_that_are_no_answer_break_nothing() {
    let says = |bytes: &[u8]| Mood::Says(bytes.to_vec());
    let cases: Vec<_> = [
        ("garbage", says(b"\xff\xfe\x00garbage\r\n"), [StoreFault::Garbled, StoreFault::Broken]),
        ("another type", says(b"+OK\r\n"), [StoreFault::Garbled; 2]),
        ("nothing", says(b"$-1\r\n"), [StoreFault::Garbled; 2]),
        // The script ran, so this is no reason to send the call again.
        ("an error in an array", says(b"*1\r\n-NOSCRIPT gone\r\n"), [StoreFault::Garbled; 2]),
        ("a redirect in an array", says(b"*1\r\n-MOVED 1 127.0.0.1:1\r\n"), [StoreFault::Garbled; 2]),
        ("half a reply", says(b"$10\r\nhalf"), [StoreFault::Timeout; 2]),
        ("half a gigabyte", says(b"$536870912\r\nx"), [StoreFault::Timeout; 2]),
        (
            "a length beyond all",
            says(b"$9223372036854775807\r\nx"),
            [StoreFault::Timeout, StoreFault::Garbled],
        ),
        (
            "an array beyond all",
            says(b"*9223372036854775807\r\n$1\r\nx\r\n"),
            [StoreFault::Timeout, StoreFault::Garbled],
        ),
        ("half a gigabyte, sent", Mood::Floods(b"$536870912\r\nx".to_vec()), [StoreFault::Broken; 2]),
        ("a line without end", Mood::Floods(b"+x".to_vec()), [StoreFault::Broken, StoreFault::Timeout]),
        ("arrays in arrays", says(&b"*1\r\n".repeat(10_000)), [StoreFault::Garbled, StoreFault::Timeout]),
        ("the end", Mood::Closes, [StoreFault::Broken; 2]),
    ]
    .into_iter()
    .map(|(name, mood, wanted)| thread::spawn(move || torment(name, mood, &wanted)))
    .collect();
    cases.into_iter().for_each(|case| case.join().expect("each case holds"));
}

#[test]
fn moved_to_nowhere_is_followed_nowhere() {
    let fake = Fake::start();
    with_store(&single(fake.addr), async |store| {
        settled(&store).await;
        let (link, script) = (store.open_link(), echo());
        for text in ["-MOVED 1 127.0.0.1:1\r\n", "-ASK 1 127.0.0.1:1\r\n", "-TRYAGAIN later\r\n"] {
            fake.is(Mood::Says(text.into()));
            assert_eq!(ask(&link, &script, "x").await, Err(StoreFault::Moving), "{text}");
        }
        for text in ["-MOVED\r\n", "-MOVED 1 nowhere\r\n", "-ASK 1 :0\r\n"] {
            fake.is(Mood::Says(text.into()));
            assert_eq!(ask(&link, &script, "x").await, Err(StoreFault::Garbled), "{text}");
        }
        fake.is(Mood::Good);
        until("an answer", || !store.is_degraded()).await;
        ask(&link, &script, "after").await.unwrap();
    });
}

#[test]
fn an_answer_that_comes_late_never_reaches_another_call() {
    let fake = Fake::start();
    let mut config = single(fake.addr);
    config.timeout = ms(60);
    with_store(&config, async |store| {
        settled(&store).await;
        fake.is(Mood::Slow(7, ms(90)));
        let (link, script) = (Rc::new(store.open_link()), Rc::new(echo()));
        let (answered, late) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let end = Instant::now() + ms(3000);
        let mut tasks = JoinSet::new();
        for task in 0..4 {
            let (link, script) = (link.clone(), script.clone());
            let (answered, late) = (answered.clone(), late.clone());
            tasks.spawn_local(async move {
                let mut turn = 0;
                while Instant::now() < end {
                    match ask(&link, &script, &format!("task {task} turn {turn}")).await {
                        Ok(()) => answered.set(answered.get() + 1),
                        Err(StoreFault::Timeout) => late.set(late.get() + 1),
                        Err(_) => sleep(ms(5)).await,
                    }
                    turn += 1;
                }
            });
        }
        tasks.join_all().await;
        assert!(answered.get() > 10 && late.get() > 3, "{answered:?} answered, {late:?} late");
    });
}

#[test]
fn a_connection_on_which_nothing_comes_is_replaced_though_others_work() {
    let fake = Fake::start();
    let mut config = single(fake.addr);
    config.timeout = ms(250);
    with_store(&config, async |store| {
        settled(&store).await;
        let (deaf, fine, script) = (store.open_link(), store.open_link(), echo());
        ask(&deaf, &script, "before").await.unwrap();
        fake.is(Mood::Deaf(fake.connects()));
        let mut late = 0;
        while let Err(fault) = ask(&deaf, &script, "unheard").await {
            assert!(matches!(fault, StoreFault::Timeout | StoreFault::Down));
            late += 1;
            for _ in 0..3 {
                let _ = ask(&fine, &script, "heard").await;
            }
        }
        assert!((1..=8).contains(&late), "{late} calls waited in vain");
    });
}

#[test]
fn a_connect_that_takes_longer_than_a_call_may_is_waited_for() {
    let fake = Fake::start();
    fake.greeting.store(120, Ordering::Relaxed);
    let mut config = single(fake.addr);
    config.timeout = ms(60);
    with_store(&config, async |store| {
        settled(&store).await;
        let (link, script) = (Rc::new(store.open_link()), Rc::new(echo()));
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < PATIENCE, "the connection never comes");
            let mut tasks = JoinSet::new();
            for _ in 0..10 {
                let (link, script) = (link.clone(), script.clone());
                tasks.spawn_local(async move { ask(&link, &script, "early").await });
            }
            let results = tasks.join_all().await;
            if results.iter().all(Result::is_ok) {
                break;
            }
            sleep(ms(1)).await;
        }
    });
}

#[test]
fn a_worker_that_cannot_connect_tries_seldom_and_does_not_speak_for_others() {
    let fake = Fake::start();
    with_store(&single(fake.addr), async |store| {
        settled(&store).await;
        let (fine, script) = (store.open_link(), echo());
        ask(&fine, &script, "before").await.unwrap();
        let before = fake.connects();
        fake.full.store(true, Ordering::Relaxed);
        let alone = store.open_link();
        let end = Instant::now() + ms(1000);
        while Instant::now() < end {
            ask(&alone, &script, "x").await.unwrap_err();
            ask(&fine, &script, "y").await.unwrap();
            sleep(ms(1)).await;
        }
        let connects = fake.connects() - before;
        assert!((3..=25).contains(&connects), "{connects} connects in 1 s");
        assert!(!store.is_degraded());
    });
}

#[test]
fn calls_beyond_the_bound_are_rejected_at_once_and_no_server_is_blamed() {
    let fake = Fake::start();
    let mut config = single(fake.addr);
    config.timeout = ms(3000);
    with_store(&config, async |store| {
        settled(&store).await;
        fake.is(Mood::Slow(1, ms(500)));
        let (link, script) = (Rc::new(store.open_link()), Rc::new(echo()));
        let mut tasks = JoinSet::new();
        for _ in 0..2100 {
            let (link, script) = (link.clone(), script.clone());
            tasks.spawn_local(async move { ask(&link, &script, "many").await });
        }
        let began = Instant::now();
        let mut busy = 0;
        while busy < 52 {
            let result = tasks.join_next().await.unwrap().unwrap();
            busy += usize::from(result == Err(StoreFault::Busy));
        }
        assert!(began.elapsed() < ms(500) + MARGIN, "rejected only after {:?}", began.elapsed());
        assert!(store.reading().calls.contains(&(StoreFault::Busy.label(), 52)));
        assert!(store.reading().servers[0].1, "the breaker is closed");
    });
}

#[test]
fn a_server_that_is_away_is_tried_by_one_and_seldom() {
    let fake = Fake::start();
    fake.is(Mood::Says(b"-LOADING soon\r\n".to_vec()));
    with_store(&single(fake.addr), async |store| {
        let link = store.open_link();
        let links: Vec<_> = (0..8).map(|_| store.open_link()).collect();
        let script = echo();
        let end = Instant::now() + ms(3000);
        while Instant::now() < end {
            for link in links.iter().chain([&link]) {
                assert_eq!(ask(link, &script, "x").await, Err(StoreFault::Down));
            }
            sleep(ms(1)).await;
        }
        // 0, 200, 600, 1100, 1600, 2100, 2600 ms, each a fifth earlier or later.
        assert!((3..=9).contains(&fake.connects()), "{} connects in 3 s", fake.connects());
    });
}

//! The log lines about the store: each change once, and never a secret.

use std::cell::RefCell;
use std::io;
use std::sync::Once;
use std::time::Instant;

use sluicegate_model::{RedisServers, Secret};
use tokio::time::sleep;

use crate::link::support::{RedisProcess, ask, echo, settled, single, with_store};
use crate::support::{free_addr, ms};

thread_local! {
    static LINES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Keeps the log lines of each thread for that thread. There is one for the process, because a subscriber of one
/// thread alone misses events that other threads logged first.
struct Lines;

impl Lines {
    /// The log lines of this thread while `test` runs.
    fn of(test: impl FnOnce()) -> Vec<String> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing_subscriber::fmt().with_writer(|| Lines).with_ansi(false).init());
        LINES.take();
        test();
        let text = String::from_utf8(LINES.take()).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.with_borrow_mut(|lines| lines.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn each_change_is_one_line() {
    let mut redis = RedisProcess::start(&[]);
    let addr = redis.addr;
    let lines = Lines::of(|| {
        with_store(&single(addr), async |store| {
            settled(&store).await;
            let (link, script) = (store.open_link(), echo());
            sleep(ms(1200)).await;
            redis.kill();
            let end = Instant::now() + ms(1500);
            while Instant::now() < end {
                let _ = ask(&link, &script, "x").await;
                sleep(ms(5)).await;
            }
            redis.restart();
            settled(&store).await;
        });
    });
    let parts = ["redis answers", "redis does not answer; limits fall back", "redis answers again"];
    assert_eq!(lines.len(), parts.len(), "{lines:#?}");
    for (line, part) in lines.iter().zip(parts) {
        assert!(line.contains(part) && line.contains(&addr.to_string()), "{line}");
    }
    // A call knows only that its connection broke.
    assert!(lines[1].contains("WARN") && lines[1].contains("connection refused"), "{}", lines[1]);
}

#[test]
fn why_it_does_not_answer_is_said_without_the_password() {
    let redis = RedisProcess::start(&["--requirepass", "right"]);
    let cases = [(redis.addr, "denied"), (free_addr(), "connection refused")];
    for (addr, cause) in cases {
        let mut config = single(addr);
        config.user = Some(Secret("hunter1".into()));
        config.password = Some(Secret("hunter2".into()));
        let lines = Lines::of(|| with_store(&config, async |_store| sleep(ms(1500)).await));
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines[0].contains(cause) && lines[0].contains(&addr.to_string()), "{}", lines[0]);
        assert!(!lines[0].contains("hunter"), "{}", lines[0]);
    }
}

#[test]
fn an_unknown_host_is_logged_as_such() {
    let mut config = single(free_addr());
    // An invalid name, so that no name server is asked for it.
    config.servers = RedisServers::Single("no..name".into(), 6379);
    let lines = Lines::of(|| with_store(&config, async |_store| sleep(ms(700)).await));
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains("host not found") && lines[0].contains("no..name:6379"), "{}", lines[0]);
}

//! What the log says about the store: each change once, and no secret ever.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use sluicegate::config::Secret;
use tokio::time::sleep;
use tracing_subscriber::fmt::MakeWriter;

use crate::link_support::{Tormented, ask, echo, free_addr, settled, single, with_store};
use crate::support::ms;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// What is logged on this thread while `test` runs.
    fn of(test: impl FnOnce()) -> Vec<String> {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt().with_writer(lines.clone()).with_ansi(false).finish();
        tracing::subscriber::with_default(subscriber, test);
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Lines;

    fn make_writer(&self) -> Lines {
        self.clone()
    }
}

#[test]
fn each_change_is_one_line() {
    let mut redis = Tormented::start(&[]);
    let addr = redis.addr;
    let lines = Lines::of(|| {
        with_store(&single(addr), async |store| {
            settled(&store).await;
            let (link, script) = (store.link(), echo());
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
    assert!(lines[1].contains("WARN") && lines[1].contains("cause="), "{}", lines[1]);
}

#[test]
fn why_it_does_not_answer_is_said_without_the_password() {
    let redis = Tormented::start(&["--requirepass", "right"]);
    let cases = [(redis.addr, "denied"), (free_addr(), "connection refused")];
    for (addr, cause) in cases {
        let mut config = single(addr);
        config.user = Some("hunter1".into());
        config.password = Some(Secret("hunter2".into()));
        let lines = Lines::of(|| with_store(&config, async |_store| sleep(ms(1500)).await));
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines[0].contains(cause) && lines[0].contains(&addr.to_string()), "{}", lines[0]);
        assert!(!lines[0].contains("hunter"), "{}", lines[0]);
    }
}

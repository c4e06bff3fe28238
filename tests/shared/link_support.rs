//! What the tests of the link share: a store that is supervised, and calls that echo.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate::config::{self, RedisServers};
use sluicegate::state::{Failure, Group, Link, Packed, Script, Store};

use crate::support::{PATIENCE, ms};

/// Answers its argument, and counts how often it ran.
pub const ECHO: &str = "redis.call('INCR', KEYS[1]) redis.call('PEXPIRE', KEYS[1], 60000) return ARGV[1]";

pub fn config(servers: RedisServers) -> config::Redis {
    config::Redis {
        servers,
        tls: false,
        user: None,
        password: None,
        database: 0,
        prefix: "test".into(),
        timeout: ms(250),
    }
}

pub fn single(addr: std::net::SocketAddr) -> config::Redis {
    config(RedisServers::Single(addr.ip().to_string(), addr.port()))
}

/// Runs `test` on a runtime like a worker's, while the store is supervised beside it.
pub fn with_store<F: Future<Output = ()>>(config: &config::Redis, test: impl FnOnce(Arc<Store>) -> F) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build_local(Default::default()).unwrap();
    let store = Store::new(config);
    runtime.block_on(async {
        let supervisor = tokio::spawn(store.clone().supervise());
        test(store).await;
        assert!(!supervisor.is_finished(), "supervision never ends");
        supervisor.abort();
    });
}

/// Waits until `done`; panics with `what` when it never comes.
pub async fn until(what: &str, mut done: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "never came: {what}");
        tokio::time::sleep(ms(2)).await;
    }
    began.elapsed()
}

pub async fn settled(store: &Store) -> Duration {
    until("a store that is used as usual", || !store.is_degraded()).await
}

pub fn echo() -> Script {
    Script::new(ECHO)
}

pub fn packed(key: &str, body: &str) -> Packed {
    Packed { keys: [key.as_bytes().to_vec()].into_iter().collect(), body: body.as_bytes().to_vec() }
}

/// One call that must echo its own argument, if it is answered.
pub async fn ask(link: &Link, script: &Script, body: &str) -> Result<(), Failure> {
    let answer = link.call(Group(0), script, &packed("k", body)).await?;
    assert_eq!(String::from_utf8_lossy(&answer), body, "an answer to somebody else's call");
    Ok(())
}

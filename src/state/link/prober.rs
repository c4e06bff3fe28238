//! Looks whether a server answers, and tells it that this gateway lives: both by one write.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use super::Store;
use super::connection::{Connection, add_loads};
use super::failure::{Failure, Fault, Said};
use super::pace::Pace;
use super::server::Server;
use crate::clock::Now;

/// How long a gateway counts as living after its last beat, in milliseconds.
const LIFE_MS: u64 = 15_000;
/// Between two lines about one server; what happened between is told by the next.
const LINES: Duration = Duration::from_secs(1);
/// Until another cause of the same outage is told.
const CAUSES: Duration = Duration::from_secs(60);
/// Between two probes, whatever happens.
const BREATH: Duration = Duration::from_millis(20);

struct Prober {
    store: Arc<Store>,
    server: Arc<Server>,
    connection: Option<Connection>,
    pace: Pace,
    told: Option<Told>,
}

/// What was logged last, and when.
struct Told {
    answers: bool,
    cause: String,
    at: Instant,
}

/// Watches `server` for ever.
pub(super) async fn watch(store: Arc<Store>, server: Arc<Server>) {
    let mut prober = Prober::new(store, server);
    loop {
        let wait = prober.probe().await;
        tokio::select! {
            () = sleep_until(wait) => {}
            () = prober.server.opened.notified(), if prober.pace.is_closed() => {}
        }
        if prober.pace.is_closed() && prober.server.breaker.is_open() {
            prober.rest().await;
        }
    }
}

/// Whether `server` takes a beat right now.
pub(super) async fn accepts(store: &Arc<Store>, server: &Arc<Server>) -> bool {
    Prober::new(store.clone(), server.clone()).beat().await.is_ok()
}

// === impl Prober ===

impl Prober {
    fn new(store: Arc<Store>, server: Arc<Server>) -> Prober {
        Prober { store, server, connection: None, pace: Pace::Fresh, told: None }
    }

    /// One probe. The moment of the next.
    async fn probe(&mut self) -> Instant {
        let began = Instant::now();
        let beaten = self.beat().await;
        let breaker = &self.server.breaker;
        if let Err(fault) = &beaten {
            self.connection = None;
            self.store.doubt();
            if self.pace.is_closed() {
                self.server.failed(breaker.epoch(), fault.failure);
            }
        }
        let next = self.pace.probed(beaten.is_ok(), dice());
        if let Some(ramp) = next.close {
            breaker.close(Now::read(), ramp);
        }
        match beaten {
            Ok(nodes) => {
                self.store.count_nodes(&self.server, nodes, self.pace.is_quick());
                self.tell(!breaker.is_open(), "");
            }
            Err(fault) => self.tell(!breaker.is_open(), &fault.word),
        }
        (began + next.wait).max(Instant::now() + BREATH)
    }

    /// Calls opened the breaker: the server is left alone until the first probe.
    async fn rest(&mut self) {
        self.connection = None;
        self.store.doubt();
        self.tell(false, self.server.cause().cause());
        let wait = self.pace.opened(dice());
        sleep(wait).await;
    }

    /// Tells the server that this gateway lives, and hears how many do.
    async fn beat(&mut self) -> Result<u64, Fault> {
        let connection = match self.connection.take() {
            Some(connection) if connection.is_alive() => connection,
            _ => self.store.connect(&self.server.address).await?,
        };
        let answer = timeout(self.store.timeout, self.say(&connection)).await;
        let nodes = match answer.unwrap_or_else(|_| Err(Failure::Timeout.into()))? {
            Value::Int(nodes) => u64::try_from(nodes).map_err(|_| Failure::Garbled)?,
            Value::ServerError(error) => match Said::of(&error) {
                // Only a primary sends away single keys of a slot that is leaving it.
                Said::Ask(_) => self.server.nodes.load(Relaxed),
                _ => return Err(Fault::of_server(&error)),
            },
            _ => return Err(Failure::Garbled.into()),
        };
        self.connection = Some(connection);
        Ok(nodes)
    }

    async fn say(&self, connection: &Connection) -> Result<Value, Fault> {
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&self.store.beat.sha).arg(1);
        command.arg(self.server.nodes_key(&self.store.prefix)).arg(&self.store.node).arg(LIFE_MS);
        let answer = connection.ask(&command).await?;
        match &answer {
            Value::ServerError(error) if matches!(Said::of(error), Said::NoScript) => {}
            _ => return Ok(answer),
        }
        let mut row = Pipeline::new();
        add_loads(&mut row, &self.store.scripts(None));
        row.add_command(command);
        let answers = connection.ask_in_a_row(&row).await?;
        answers.into_iter().next_back().ok_or_else(|| Failure::Garbled.into())
    }

    /// Logs what changed, once.
    fn tell(&mut self, answers: bool, cause: &str) {
        if !self.is_news(answers, cause) {
            return;
        }
        let server = self.server.name.as_str();
        match (answers, &self.told) {
            (false, _) => warn!(server, cause, "redis does not answer; limits fall back"),
            (true, Some(_)) => info!(server, "redis answers again"),
            (true, None) => info!(server, "redis answers"),
        }
        self.told = Some(Told { answers, cause: cause.to_owned(), at: Instant::now() });
    }

    fn is_news(&self, answers: bool, cause: &str) -> bool {
        let Some(told) = &self.told else { return true };
        let age = told.at.elapsed();
        if told.answers == answers { !answers && told.cause != cause && age >= CAUSES } else { age >= LINES }
    }
}

/// Any number.
pub(super) fn dice() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, RedisServers};
    use crate::state::link::failure::Address;

    #[tokio::test(start_paused = true)]
    async fn another_cause_of_the_same_outage_is_told_once_a_minute() {
        let config = config::Redis {
            servers: RedisServers::Single("h".into(), 1),
            tls: false,
            user: None,
            password: None,
            database: 0,
            prefix: "sg".into(),
            timeout: Duration::from_millis(20),
            nodes_at_least: 1,
        };
        let server = Arc::new(Server::new(Address { host: "h".into(), port: 1 }));
        let mut prober = Prober::new(Store::new(&config), server);
        prober.tell(false, "broken");
        for (seconds, cause, is_news) in
            [(59, "denied", false), (1, "broken", false), (0, "denied", true), (600, "denied", false)]
        {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            assert_eq!(prober.is_news(false, cause), is_news, "{cause} after {seconds} s");
            prober.tell(false, cause);
        }
        prober.tell(true, "");
        assert!(!prober.is_news(false, "broken"), "lines are a second apart");
        tokio::time::advance(LINES).await;
        assert!(prober.is_news(false, "broken") && !prober.is_news(true, ""));
    }
}

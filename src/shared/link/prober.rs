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
use super::fault::{Failure, Fault, Said};
use super::probe_schedule::Pace;
use super::server::Server;
use crate::base::clock::Now;
use crate::shared::fleet::{Announced, FleetCount};

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

/// What a server answers to a beat.
pub(super) struct Beat {
    /// Gateways that live.
    pub nodes: u64,
    /// Those that count each limit.
    pub fleets: Vec<(Announced, FleetCount)>,
}

/// What was logged last, and when.
struct Told {
    /// Why the server does not answer; `None` = it answers.
    fault: Option<Fault>,
    /// `None` = so long ago that it does not matter.
    at: Option<Instant>,
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

// === impl Beat ===

impl Beat {
    fn read(answer: &Value, limits: Vec<Announced>) -> Option<Beat> {
        let Value::Array(parts) = answer else { return None };
        let [Value::Int(nodes), Value::BulkString(counts)] = parts.as_slice() else { return None };
        let counts = FleetCount::read(counts, limits.len())?;
        Some(Beat { nodes: u64::try_from(*nodes).ok()?, fleets: limits.into_iter().zip(counts).collect() })
    }
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
            Ok(beat) => {
                self.store.count_nodes(&self.server, beat, self.pace.is_quick());
                // A first success while calls are still held back is no news, and has no cause to tell.
                if !breaker.is_open() {
                    self.tell(None);
                }
            }
            Err(fault) => self.tell(Some(fault).filter(|_| breaker.is_open())),
        }
        (began + next.wait).max(Instant::now() + BREATH)
    }

    /// Calls opened the breaker: the server is left alone until the first probe.
    async fn rest(&mut self) {
        self.connection = None;
        self.store.doubt();
        // Calls know only the kind of failure, and a beat may learn more.
        let fault = self.beat().await.err().unwrap_or_else(|| self.server.cause().into());
        self.tell(Some(fault));
        let wait = self.pace.opened(dice());
        sleep(wait).await;
    }

    /// Tells the server that this gateway lives and what it counts, and hears how many others do.
    async fn beat(&mut self) -> Result<Beat, Fault> {
        let connection = match self.connection.take() {
            Some(connection) if connection.is_alive() => connection,
            _ => self.store.connect(&self.server.address).await?,
        };
        let limits: Vec<Announced> =
            self.store.fleets().iter().map(|fleet| fleet.announced.clone()).collect();
        let answer = timeout(self.store.timeout, self.say(&connection, &limits)).await;
        let beat = match answer.unwrap_or_else(|_| Err(Failure::Timeout.into()))? {
            Value::ServerError(error) => match Said::of(&error) {
                // Only a primary sends away single keys of a slot that is leaving it.
                Said::Ask(_) => {
                    Beat { nodes: self.server.nodes.load(Relaxed), fleets: self.server.fleets.lock().clone() }
                }
                _ => return Err(Fault::of_server(&error)),
            },
            answer => Beat::read(&answer, limits).ok_or(Failure::Garbled)?,
        };
        self.connection = Some(connection);
        Ok(beat)
    }

    async fn say(&self, connection: &Connection, limits: &[Announced]) -> Result<Value, Fault> {
        let mut packed = Vec::with_capacity(16 * limits.len());
        limits.iter().for_each(|limit| limit.pack(&mut packed));
        let (prefix, server) = (&self.store.prefix, &self.server);
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&self.store.beat.sha).arg(2);
        command.arg(server.nodes_key(prefix)).arg(server.limits_key(prefix));
        command.arg(&self.store.node).arg(LIFE_MS).arg(packed);
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

    /// Logs what changed, once: why the server does not answer, or that it does.
    fn tell(&mut self, fault: Option<Fault>) {
        if !self.is_news(fault.as_ref()) {
            return;
        }
        let server = self.server.name.as_str();
        let is_first = self.told.is_none();
        match (&fault, &self.told) {
            (Some(Fault { word, .. }), _) => {
                warn!(server, cause = word, "redis does not answer; limits fall back");
            }
            (None, Some(_)) => info!(server, "redis answers again"),
            (None, None) => info!(server, "redis answers"),
        }
        // The first answer of all does not keep an outage that follows soon from being told.
        let at = if is_first && fault.is_none() { None } else { Some(Instant::now()) };
        self.told = Some(Told { fault, at });
    }

    fn is_news(&self, fault: Option<&Fault>) -> bool {
        let Some(told) = &self.told else { return true };
        let age = told.at.map_or(Duration::MAX, |at| at.elapsed());
        match (&told.fault, fault) {
            (None, None) => false,
            // The true cause is told at once where only its kind was told.
            (Some(told), Some(fault)) => {
                told.word != fault.word && (age >= CAUSES || !told.is_specific() && fault.is_specific())
            }
            _ => age >= LINES,
        }
    }
}

/// Any number.
pub(super) fn dice() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::config::{self, RedisServers};
    use crate::shared::link::fault::Address;

    fn prober(host: &str, port: u16) -> Prober {
        let config = config::Redis {
            servers: RedisServers::Single(host.into(), port),
            tls: false,
            user: None,
            password: None,
            database: 0,
            prefix: "sg".into(),
            timeout: Duration::from_millis(200),
            nodes_at_least: 1,
        };
        let server = Arc::new(Server::new(Address { host: host.into(), port }));
        Prober::new(Store::new(&config, None), server)
    }

    /// Loads every script and counts one gateway.
    async fn serve(listener: TcpListener) {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 64 * 1024];
        while let Ok(read @ 1..) = socket.read(&mut bytes).await {
            let is_beat = bytes[..read].windows(7).any(|word| word == b"EVALSHA");
            socket
                .write_all(if is_beat { &b"*2\r\n:1\r\n$0\r\n\r\n"[..] } else { &b"$1\r\nx\r\n"[..] })
                .await
                .unwrap();
        }
    }

    #[tokio::test]
    async fn a_first_success_during_an_outage_tells_no_cause() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut prober = prober("127.0.0.1", listener.local_addr().unwrap().port());
        let served = tokio::spawn(serve(listener));
        prober.pace = Pace::Open { failures: 9, succeeded: false };
        prober.tell(Some(Failure::Timeout.into()));
        tokio::time::pause();
        tokio::time::advance(CAUSES).await;
        tokio::time::resume();
        prober.probe().await;
        assert_eq!(prober.pace, Pace::Open { failures: 9, succeeded: true }, "the server answered");
        let told = prober.told.as_ref().unwrap();
        assert!(told.at.is_some_and(|at| at.elapsed() >= CAUSES), "{:?}", told.fault);
        prober.probe().await;
        assert!(prober.told.unwrap().fault.is_none() && prober.pace.is_closed());
        served.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_right_after_the_start_is_told() {
        let mut prober = prober("h", 1);
        prober.tell(None);
        let broken = Fault::from(Failure::Broken);
        assert!(prober.is_news(Some(&broken)));
        prober.tell(Some(broken));
        assert!(!prober.is_news(None), "lines are a second apart");
    }

    #[tokio::test(start_paused = true)]
    async fn another_cause_of_the_same_outage_is_told_once_a_minute() {
        let mut prober = prober("h", 1);
        let (broken, denied) = (Fault::from(Failure::Broken), Fault::from(Failure::Denied));
        prober.tell(Some(broken.clone()));
        for (seconds, fault, is_news) in
            [(59, &denied, false), (1, &broken, false), (0, &denied, true), (600, &denied, false)]
        {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            assert_eq!(prober.is_news(Some(fault)), is_news, "{fault:?} after {seconds} s");
            prober.tell(Some(fault.clone()));
        }
        prober.tell(None);
        assert!(!prober.is_news(Some(&broken)), "lines are a second apart");
        tokio::time::advance(LINES).await;
        assert!(prober.is_news(Some(&broken)) && !prober.is_news(None));
        // The true cause does not wait for a minute behind its kind, and is told once.
        prober.tell(Some(broken.clone()));
        assert!(prober.is_news(Some(&Fault::of_name())));
        prober.tell(Some(Fault::of_name()));
        let refused = Fault::from(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
        for fault in [Fault::of_name(), broken, refused] {
            assert!(!prober.is_news(Some(&fault)), "{fault:?}");
        }
    }
}

//! The street side: listening sockets, worker threads, signals, and the way down.

mod accept;
mod connection;
mod crew;
mod door;
mod files;
mod frames;
mod http1;
mod http2;
mod listen;
mod opening;
mod systemd;
mod worker_thread;

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::access_log::AccessLog;
use crate::admin;
use crate::ban;
use crate::banner;
use crate::clock::Now;
use crate::config::Config;
use crate::explain;
use crate::gateway::Gateway;
use crate::key::Keys;
use crate::logging;
use crate::snapshot::{self, Keeper};
use crate::state::Session;
use crate::upstream::Care;
use crate::wall;
use crew::Crew;
use listen::{Bound, Opened, Sockets};
use worker_thread::{Duty, Share};

/// Descriptors kept for upstream connections, logs and the admin listener, as a share of all.
const RESERVED_SHARE: u64 = 3;
const RESERVED_MAX: u64 = 4096;
/// How long the last lines of the access log may take to be written.
const LOG_FLUSH: Duration = Duration::from_secs(2);
/// How long the last snapshot may take.
const LAST_SNAPSHOT: Duration = Duration::from_secs(10);
/// How long the workers may take to drop what is left when the drain is over.
const LAST_STEP: Duration = Duration::from_secs(1);

/// Why the gateway ended otherwise than by a signal.
#[derive(Debug)]
pub enum Fault {
    /// A listening socket could not be had.
    Listen(String),
    Run(String),
}

/// Serves `config` until TERM or INT; a second one ends it at once.
///
/// `source` is where the configuration came from, for the banner.
///
/// # Errors
/// When an address cannot be listened on, or a thread cannot be started.
pub fn run(config: Config, source: &str) -> Result<(), Fault> {
    // Before there are other threads.
    let mut opened = systemd::passed().map_err(Fault::Listen)?;
    wall::tell_clock();
    let max_open = descriptor_bound(config.server.max_connections);
    let workers = config.server.workers;
    let mut gateway = Gateway::build(&config).map_err(|error| Fault::Run(error.to_string()))?;
    if let Some(found) = config.state.snapshot.as_deref().and_then(snapshot::find) {
        gateway.keys = Keys::from_secret(found.secret);
        found.restore(&gateway);
        gateway.restored(Now::read());
    }
    let gateway = Arc::new(gateway);
    let (crew, inboxes) = Crew::new(workers, max_open, config.server.connections_per_ip);
    let counted = crew.clone();
    gateway.metrics.watch_connections(move || counted.open() as u64);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(Default::default())
        .map_err(|error| Fault::Run(format!("cannot start a runtime: {error}")))?;
    let outcome = runtime.block_on(async {
        let bound = bind(&config, workers, &mut opened)?;
        let admin = match &config.admin {
            Some(admin) => Some(admin::Admin::bind(admin).map_err(Fault::Listen)?),
            None => None,
        };
        let shown: Vec<String> = bound.iter().map(|bound| bound.shown.clone()).collect();
        let admin_shown = admin.as_ref().map(|admin| format!("http://{}", admin.local_addr()));
        let signals = Signals::new(gateway.access_log.as_ref().clone())
            .map_err(|error| Fault::Run(format!("cannot watch signals: {error}")))?;
        let keeper = keep_snapshot(&config, &gateway)?;
        let (drain, ended) = start_workers(&gateway, &crew, inboxes, bound)?;
        tokio::spawn(files::follow(config.account.clone()));
        let supervised = gateway.store.clone().map(|store| tokio::spawn(store.supervise()));
        share_bans(&config, &gateway);
        let _care = Care::of(&gateway.upstreams);
        let ready = Arc::new(std::sync::atomic::AtomicBool::new(true));
        if let Some(admin) = admin {
            let metrics = gateway.metrics.clone();
            let explained = gateway.clone();
            // Its own, beside those of the workers.
            let session = gateway.store.as_ref().map(|store| Session::new(store, workers));
            let explain = async move |query| {
                explain::explain(&explained, session.as_deref(), &query, Now::read()).await
            };
            let mut state = admin::AdminState::new(ready.clone(), move || metrics.render(), explain);
            let served = gateway.clone();
            state = state.with_upstreams(move || served.upstreams.clone());
            if let Some(store) = gateway.store.clone() {
                state = state.with_store(move || store.is_degraded());
            }
            tokio::task::spawn_local(admin.run(state));
        }
        tokio::spawn(wall::keep_telling_clock());
        banner::print(&config, source, &shown, admin_shown.as_deref());
        systemd::ready();
        let outcome = until_told(signals, ended, drain, &ready, config.server.timeouts.shutdown).await;
        if let (Some(supervised), Some(store)) = (supervised, &gateway.store) {
            supervised.abort();
            store.farewell().await;
        }
        gateway.access_log.flush(LOG_FLUSH);
        if keeper.is_some_and(|keeper| !keeper.finish(LAST_SNAPSHOT)) {
            tracing::warn!("the last snapshot was not written");
        }
        logging::flush();
        outcome
    });
    // A file that is just being read must not hold up the end.
    runtime.shutdown_background();
    outcome
}

fn bind(config: &Config, workers: usize, opened: &mut Opened) -> Result<Vec<Bound>, Fault> {
    let bound = listen::bind(&config.listen, workers, opened).map_err(Fault::Listen)?;
    for site in opened.left() {
        tracing::warn!("a socket was passed as {site}, and nothing listens on it");
    }
    Ok(bound)
}

/// Shares strikes and bans with other gateways, where there are both.
fn share_bans(config: &Config, gateway: &Gateway) {
    if let (Some(redis), Some(bans), Some(store)) = (&config.state.redis, &gateway.bans, &gateway.store) {
        let (metrics, prefix) = (gateway.metrics.clone(), redis.prefix.clone());
        tokio::task::spawn_local(ban::share(bans.clone(), metrics, store.clone(), prefix));
    }
}

fn keep_snapshot(config: &Config, gateway: &Arc<Gateway>) -> Result<Option<Keeper>, Fault> {
    let Some(path) = config.state.snapshot.clone() else { return Ok(None) };
    Keeper::start(path, gateway.keys.secret(), gateway.clone())
        .map(Some)
        .map_err(|error| Fault::Run(format!("cannot start the snapshot thread: {error}")))
}

/// Raises the descriptor limit as far as allowed, and says how many clients fit in beside everything else.
fn descriptor_bound(max_connections: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    let Some(descriptors) = current else { return max_connections };
    let reserved = (descriptors / RESERVED_SHARE).min(RESERVED_MAX);
    let fit = usize::try_from(descriptors - reserved).unwrap_or(usize::MAX).max(1);
    if fit < max_connections {
        tracing::warn!(descriptors, max_connections = fit, "the descriptor limit allows fewer connections");
    }
    fit.min(max_connections)
}

type Ended = mpsc::UnboundedReceiver<()>;

/// Starts one thread per worker, each with its own listening sockets.
fn start_workers(
    gateway: &Arc<Gateway>,
    crew: &Arc<Crew>,
    inboxes: Vec<crew::Inbox>,
    bound: Vec<Bound>,
) -> Result<(watch::Sender<bool>, Ended), Fault> {
    let (drain, draining) = watch::channel(false);
    let (end, ended) = mpsc::unbounded_channel();
    let mut shares: Vec<Vec<Share>> = inboxes.iter().map(|_| Vec::new()).collect();
    let workers = shares.len();
    for (place, Bound { sockets, door, .. }) in bound.into_iter().enumerate() {
        match sockets {
            Sockets::Tcp(listeners) => {
                for (worker, listener) in listeners.into_iter().enumerate() {
                    shares[(place + worker) % workers].push((Sockets::Tcp(vec![listener]), door.clone()));
                }
            }
            // Who accepts hands over to those with fewer.
            unix @ Sockets::Unix(..) => shares[place % workers].push((unix, door)),
        }
    }
    for (id, (inbox, sockets)) in inboxes.into_iter().zip(shares).enumerate() {
        let duty = Duty {
            id,
            gateway: gateway.clone(),
            crew: crew.clone(),
            inbox,
            sockets,
            drain: draining.clone(),
        };
        let end = end.clone();
        std::thread::Builder::new()
            .name(format!("worker-{id}"))
            .spawn(move || {
                if let Err(error) = worker_thread::work(duty) {
                    tracing::error!(%error, "a worker could not start");
                }
                drop(end);
            })
            .map_err(|error| Fault::Run(format!("cannot start a worker: {error}")))?;
    }
    Ok((drain, ended))
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    user_1: Signal,
    access_log: AccessLog,
}

impl Signals {
    fn new(access_log: AccessLog) -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            user_1: signal(SignalKind::user_defined1())?,
            access_log,
        })
    }

    /// Resolves at TERM or INT; does meanwhile what the others ask for.
    async fn stop(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => tracing::warn!("reload is not supported yet; nothing changed"),
                _ = self.user_1.recv() => self.access_log.reopen(),
            }
        }
    }
}

/// Waits for the first signal, drains, and ends at the deadline or at the second signal.
async fn until_told(
    mut signals: Signals,
    mut ended: Ended,
    drain: watch::Sender<bool>,
    ready: &std::sync::atomic::AtomicBool,
    patience: Duration,
) -> Result<(), Fault> {
    tokio::select! {
        () = signals.stop() => {}
        // No sender is left only when every worker ended by itself.
        _ = ended.recv() => return Err(Fault::Run("every worker ended".to_owned())),
    }
    ready.store(false, std::sync::atomic::Ordering::Relaxed);
    tracing::info!("draining");
    systemd::stopping();
    let _ = drain.send(true);
    tokio::select! {
        _ = ended.recv() => {
            tracing::info!("drained");
            return Ok(());
        }
        () = signals.stop() => tracing::warn!("second signal: ending at once"),
        () = tokio::time::sleep(patience) => {
            tracing::warn!("the shutdown timeout passed; ending with requests in flight");
        }
    }
    drop(drain);
    let _ = tokio::time::timeout(LAST_STEP, ended.recv()).await;
    Ok(())
}

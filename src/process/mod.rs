//! The street side: listening sockets, worker threads, signals, and the way down.

mod bind;
mod config_diff;
mod control;
mod followers;
mod hot_upgrade;
mod listeners;
mod reload;
mod reload_history;
mod signals;
mod systemd;
mod watched_files;
mod worker_thread;
mod workers;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::LocalRuntime;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use crate::base::clock::Now;
use crate::base::wall_clock;
use crate::config::{Config, FileRead, Loaded};
use crate::downstream::connection_limits::Crew;
use crate::limit::snapshot;
use crate::observe::banner;
use crate::observe::logging;
use crate::operate::admin::{Admin, AdminState, Reply};
use crate::operate::explain;
use crate::operate::explain::{Explanation, Query};
use crate::proxy::gateway::Gateway;
use crate::shared::Session;
use bind::{Bound, Opened};
use control::{ASKS, Ask, Control, Desk};
use followers::Followers;
use hot_upgrade::new_process::Inheritance;
use listeners::Listeners;
use reload_history::History;
use signals::{EarlySignals, Relay, Signals};
use workers::{Ended, Workers};

/// Descriptors for listeners, logs, the admin listener and the store, as a share of all and at most.
const RESERVED_SHARE: u64 = 8;
const RESERVED_MAX: u64 = 256;
/// What a client takes: its own connection, and that of its request to a server.
const DESCRIPTORS_EACH: u64 = 2;
/// How long the workers may take to drop what is left when the drain is over.
const LAST_STEP: Duration = Duration::from_secs(1);

/// Why the gateway ended otherwise than by a signal.
#[derive(Debug)]
pub enum Fault {
    /// A listening socket could not be had.
    Listen(String),
    Run(String),
}

/// Where a configuration came from.
pub struct Source {
    /// As it stands in the banner.
    pub shown: String,
    /// What is read again at a reload.
    pub file: Option<PathBuf>,
}

/// A process that has begun to start: none of HUP, USR1 and USR2 ends it any more.
pub struct Startup {
    runtime: LocalRuntime,
    signals: EarlySignals,
}

impl Startup {
    /// Catches signals from now on: the first thing a process does that shall serve.
    ///
    /// # Errors
    /// When there can be no runtime, or a signal cannot be caught.
    pub fn begin() -> Result<Startup, Fault> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build_local(Default::default())
            .map_err(|error| Fault::Run(format!("cannot start a runtime: {error}")))?;
        let signals = EarlySignals::catch(&runtime).map_err(|error| unwatched(&error))?;
        Ok(Startup { runtime, signals })
    }
}

fn unwatched(error: &std::io::Error) -> Fault {
    Fault::Run(format!("cannot watch signals: {error}"))
}

/// Everything that could fail is there; nobody is accepted yet.
struct Start {
    signals: Signals,
    source: Source,
    files: Vec<FileRead>,
    gateway: Arc<Gateway>,
    bound: Vec<Bound>,
    /// Sockets that nobody listens on so far.
    spare: Opened,
    admin: Option<Admin>,
    inheritance: Option<Inheritance>,
}

/// Serves what was loaded from `source` until TERM or INT, and what is loaded from it later; a second signal, a second
/// later or more, ends it at once.
///
/// # Errors
/// When an address cannot be listened on, or a thread cannot be started.
pub fn run(startup: Startup, loaded: Loaded, source: Source) -> Result<(), Fault> {
    let Startup { runtime, signals } = startup;
    let mut inheritance = Inheritance::take().map_err(Fault::Run)?;
    let mut spare = systemd::passed().map_err(Fault::Listen)?;
    wall_clock::tell_clock();
    let Loaded { config, files, .. } = loaded;
    let failed = |error: std::io::Error| Fault::Run(error.to_string());
    let gateway = Gateway::build(&config, None).map_err(failed)?;
    for (site, sockets) in inheritance.iter_mut().flat_map(|inheritance| inheritance.opened.drain()) {
        spare.add(site, sockets);
    }
    let signals = signals.with_end(&runtime).map_err(|error| unwatched(&error))?;
    let bound = bind::bind(&config.listen, config.server.workers, &mut spare).map_err(Fault::Listen)?;
    // The old process had others than the file has now.
    spare.keep_systemds();
    for site in spare.left() {
        tracing::warn!("a socket was passed as {site}, and nothing listens on it");
    }
    let mut inherited = |admin: &crate::config::Admin| inheritance.as_mut()?.admin(admin.listen);
    let admin = config.admin.as_ref().map(|admin| Admin::bind(admin, inherited(admin)));
    let admin = admin.transpose().map_err(Fault::Listen)?;
    let gateway = Arc::new(restored(gateway, &config, inheritance.as_ref()));
    let start = Start { signals, source, files, gateway, bound, spare, admin, inheritance };
    let outcome = runtime.block_on(serve(start));
    // A file that is just being read must not hold up the end.
    runtime.shutdown_background();
    outcome
}

/// The gateway with the counters of the process before, handed over or out of its snapshot, and with what that knew of
/// servers.
fn restored(mut gateway: Gateway, config: &Config, inheritance: Option<&Inheritance>) -> Gateway {
    let (handed, sections) = inheritance.map(Inheritance::counters).unwrap_or_default();
    gateway.meet_store(&sections.store());
    let found = handed.or_else(|| config.state.snapshot.as_deref().and_then(snapshot::find));
    if let Some(found) = found {
        gateway.restore(found, &sections.numbers());
    }
    gateway.meet_servers(&sections.servers());
    gateway
}

async fn serve(start: Start) -> Result<(), Fault> {
    let Start { signals, source, files, gateway, bound, spare, admin, inheritance } = start;
    let failed = |error: std::io::Error| Fault::Run(error.to_string());
    let server = &gateway.config.server;
    let max_open = descriptor_bound(server.max_connections);
    let (crew, inboxes) = Crew::new(server.workers, max_open, server.connections_per_ip);
    let current = Arc::new(ArcSwap::new(gateway.clone()));
    let (asks, asked) = mpsc::channel(ASKS);
    let relay = Relay { asks: asks.clone(), current: current.clone() };
    let (workers, ended) = Workers::start(&gateway, &crew, inboxes)?;
    let listeners = Listeners::new(bound, spare);
    let shown = listeners.shown();
    let admin_shown = admin.as_ref().map(|admin| format!("http://{}", admin.local_addr()));
    let control = Rc::new(Control {
        file: source.file,
        followers: RefCell::new(Some(Followers::start(current.clone()).map_err(failed)?)),
        history: History::new(&gateway),
        listeners: RefCell::new(listeners),
        files: RefCell::new(files),
        desk: RefCell::new(None),
        taken_over: Notify::new(),
        left: Notify::new(),
        current,
        cradle: Arc::default(),
        crew,
        workers,
    });
    control.observe(&gateway.metrics);
    control.accept_all().await.map_err(failed)?;
    let ready = Arc::new(AtomicBool::new(true));
    if let Some(admin) = admin {
        let state = admin_state(&control, ready.clone(), asks.clone());
        *control.desk.borrow_mut() = Some(Desk { admin, state, serving: None });
        control.open_admin();
    }
    tokio::spawn(wall_clock::keep_telling_clock());
    let asked = tokio::task::spawn_local(control.clone().serve(asked));
    let watched = tokio::task::spawn_local(reload::watch(control.clone(), asks));
    banner::print(&gateway.config, &source.shown, &shown, admin_shown.as_deref());
    systemd::ready();
    if let Some(inheritance) = inheritance {
        inheritance.serving();
        control.listeners.borrow_mut().own(inheritance.files);
    }
    drop(gateway);
    let outcome = until_told((signals, relay), ended, &control, &ready, || {
        asked.abort();
        watched.abort();
    })
    .await;
    control.finish().await;
    logging::flush();
    outcome
}

fn admin_state(control: &Rc<Control>, ready: Arc<AtomicBool>, asks: mpsc::Sender<Ask>) -> AdminState {
    let current = control.current.clone();
    let metrics = move || current.load().metrics.render();
    let (current, workers) = (control.current.clone(), control.workers.count());
    // Its own, beside those of the workers.
    let session: RefCell<Option<Rc<Session>>> = RefCell::new(None);
    let explain = async move |query: Query| -> Result<Explanation, String> {
        let gateway = current.load_full();
        let used = session
            .take()
            .filter(|session| gateway.store.as_ref().is_some_and(|store| Arc::ptr_eq(store, &session.store)));
        let used = used.or_else(|| Some(Session::new(gateway.store.as_ref()?, workers)));
        session.replace(used.clone());
        explain::explain(&gateway, used.as_deref(), &query, Now::read()).await
    };
    let degraded = control.current.clone();
    let told = Rc::downgrade(control);
    let status = move || told.upgrade().map_or_else(Reply::ending, |control| control.status());
    let reload = async move || {
        let (answer, answered) = oneshot::channel();
        match asks.send(Ask::Reload(Some(answer))).await {
            Ok(()) => answered.await.unwrap_or_else(|_| Reply::ending()),
            Err(_) => Reply::ending(),
        }
    };
    let served = control.current.clone();
    AdminState::new(ready, metrics, explain)
        .with_upstreams(move || served.load().upstreams.clone())
        .with_store(move || degraded.load().store.as_ref().is_some_and(|store| store.is_degraded()))
        .with_control(status, reload)
}

/// Raises the descriptor limit as far as allowed, and says how many clients fit in beside everything else.
fn descriptor_bound(max_connections: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    let Some(descriptors) = current else { return max_connections };
    let reserved = (descriptors / RESERVED_SHARE).min(RESERVED_MAX);
    let fit = usize::try_from((descriptors - reserved) / DESCRIPTORS_EACH).unwrap_or(usize::MAX).max(1);
    if fit < max_connections {
        tracing::warn!(descriptors, max_connections = fit, "the descriptor limit allows fewer connections");
    }
    fit.min(max_connections)
}

/// Waits for the first signal or until another process serves, drains, and ends at the deadline or at the second
/// signal. `stop_asking` ends what is done for whoever asks.
async fn until_told(
    (mut signals, relay): (Signals, Relay),
    mut ended: Ended,
    control: &Control,
    ready: &AtomicBool,
    stop_asking: impl FnOnce(),
) -> Result<(), Fault> {
    let told = tokio::select! {
        () = signals.stop(&relay) => {
            systemd::stopping();
            Some(Instant::now())
        }
        () = control.left.notified() => None,
        // No sender is left only when every worker ended by itself.
        _ = ended.recv() => return Err(Fault::Run("every worker ended".to_owned())),
    };
    stop_asking();
    control.settle_succession();
    ready.store(false, Ordering::Relaxed);
    tracing::info!("draining");
    control.listeners.borrow_mut().close();
    control.workers.drain();
    let patience = control.current.load().server.timeouts.shutdown;
    tokio::select! {
        _ = ended.recv() => {
            tracing::info!("drained");
            return Ok(());
        }
        () = signals.stop_again(&relay, told) => tracing::warn!("second signal: ending at once"),
        () = tokio::time::sleep(patience) => {
            tracing::warn!("the shutdown timeout passed; ending with requests in flight");
        }
    }
    control.workers.end();
    let _ = tokio::time::timeout(LAST_STEP, ended.recv()).await;
    Ok(())
}

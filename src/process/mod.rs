//! The street side: listening sockets, worker threads, signals, and the way down.

mod bind;
mod config_diff;
mod control;
mod gateway_tasks;
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
use crate::config::{Config, FileFingerprint, LoadedConfig};
use crate::downstream::connection_limits::ConnectionLimits;
use crate::limit::snapshot;
use crate::observe::banner;
use crate::observe::logging;
use crate::operate::admin::{AdminListener, AdminResponse, AdminState};
use crate::operate::explain;
use crate::operate::explain::{Explanation, Query};
use crate::proxy::gateway::Gateway;
use crate::shared::Session;
use bind::{BoundListener, OpenSockets};
use control::{AdminServer, COMMANDS_MAX, ControlCommand, ControlThread};
use gateway_tasks::GatewayTasks;
use hot_upgrade::new_process::ReceivedHandover;
use listeners::Listeners;
use reload_history::ReloadHistory;
use signals::{EarlySignals, SignalRelay, Signals};
use workers::{Workers, WorkersEnded};

/// Descriptors for listeners, logs, the admin listener and the store, as a share of all and at most.
const RESERVED_SHARE: u64 = 8;
const RESERVED_MAX: u64 = 256;
/// What a client takes: its own connection, and that of its request to a server.
const DESCRIPTORS_PER_CLIENT: u64 = 2;
/// How long the workers may take to drop what is left when the drain is over.
const FORCED_END_TIMEOUT: Duration = Duration::from_secs(1);

/// Why the gateway ended otherwise than by a signal.
#[derive(Debug)]
pub enum ProcessFault {
    /// A listening socket could not be had.
    Listen(String),
    Run(String),
}

/// Where a configuration came from.
pub struct ConfigSource {
    /// As it stands in the banner.
    pub display_name: String,
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
    pub fn begin() -> Result<Startup, ProcessFault> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build_local(Default::default())
            .map_err(|error| ProcessFault::Run(format!("cannot start a runtime: {error}")))?;
        let signals = EarlySignals::catch_early(&runtime).map_err(|error| signal_fault(&error))?;
        Ok(Startup { runtime, signals })
    }
}

fn signal_fault(error: &std::io::Error) -> ProcessFault {
    ProcessFault::Run(format!("cannot watch signals: {error}"))
}

/// Everything that could fail is there; nobody is accepted yet.
struct PreparedProcess {
    signals: Signals,
    source: ConfigSource,
    files: Vec<FileFingerprint>,
    gateway: Arc<Gateway>,
    bound: Vec<BoundListener>,
    /// Sockets that nobody listens on so far.
    spare_sockets: OpenSockets,
    admin: Option<AdminListener>,
    handover: Option<ReceivedHandover>,
}

/// Serves what was loaded from `source` until TERM or INT, and what is loaded from it later; a second signal, a second
/// later or more, ends it at once.
///
/// # Errors
/// When an address cannot be listened on, or a thread cannot be started.
pub fn run(startup: Startup, loaded: LoadedConfig, source: ConfigSource) -> Result<(), ProcessFault> {
    let Startup { runtime, signals } = startup;
    let mut inheritance = ReceivedHandover::receive_handover().map_err(ProcessFault::Run)?;
    let mut spare = systemd::take_passed_sockets().map_err(ProcessFault::Listen)?;
    wall_clock::sync_clock();
    let LoadedConfig { config, files, .. } = loaded;
    let failed = |error: std::io::Error| ProcessFault::Run(error.to_string());
    let gateway = Gateway::build(&config, None).map_err(failed)?;
    for (site, sockets) in inheritance.iter_mut().flat_map(|inheritance| inheritance.sockets.drain_all()) {
        spare.add_sockets(site, sockets);
    }
    let signals = signals.with_termination(&runtime).map_err(|error| signal_fault(&error))?;
    let bound = bind::bind_listeners(&config.listen, config.server.workers, &mut spare)
        .map_err(ProcessFault::Listen)?;
    // The old process had others than the file has now.
    spare.retain_systemd();
    for site in spare.unused_targets() {
        tracing::warn!("a socket was passed as {site}, and nothing listens on it");
    }
    let mut inherited = |admin: &crate::config::AdminConfig| inheritance.as_mut()?.take_admin(admin.listen);
    let admin = config.admin.as_ref().map(|admin| AdminListener::bind(admin, inherited(admin)));
    let admin = admin.transpose().map_err(ProcessFault::Listen)?;
    let gateway = Arc::new(restore_state(gateway, &config, inheritance.as_ref()));
    let start = PreparedProcess {
        signals,
        source,
        files,
        gateway,
        bound,
        spare_sockets: spare,
        admin,
        handover: inheritance,
    };
    let outcome = runtime.block_on(serve_until_stopped(start));
    // A file that is just being read must not hold up the end.
    runtime.shutdown_background();
    outcome
}

/// The gateway with the counters of the process before, handed over or out of its snapshot, and with what that knew of
/// servers.
fn restore_state(mut gateway: Gateway, config: &Config, inheritance: Option<&ReceivedHandover>) -> Gateway {
    let (handed, sections) = inheritance.map(ReceivedHandover::receive_counters).unwrap_or_default();
    gateway.restore_store(&sections.store());
    let found = handed.or_else(|| config.state.snapshot.as_deref().and_then(snapshot::find_snapshot));
    if let Some(found) = found {
        gateway.restore_counters(found, &sections.numbers());
    }
    gateway.restore_servers(&sections.servers());
    gateway
}

async fn serve_until_stopped(start: PreparedProcess) -> Result<(), ProcessFault> {
    let PreparedProcess {
        signals,
        source,
        files,
        gateway,
        bound,
        spare_sockets: spare,
        admin,
        handover: inheritance,
    } = start;
    let failed = |error: std::io::Error| ProcessFault::Run(error.to_string());
    let server = &gateway.config.server;
    let max_open = raise_descriptor_limit(server.max_connections);
    let (crew, inboxes) = ConnectionLimits::new(server.workers, max_open, server.connections_per_ip);
    let current = Arc::new(ArcSwap::new(gateway.clone()));
    let (asks, asked) = mpsc::channel(COMMANDS_MAX);
    let relay = SignalRelay { commands: asks.clone(), current: current.clone() };
    let (workers, ended) = Workers::start_threads(&gateway, &crew, inboxes)?;
    let listeners = Listeners::new(bound, spare);
    let shown = listeners.display_addresses();
    let admin_shown = admin.as_ref().map(|admin| format!("http://{}", admin.local_addr()));
    let control = Rc::new(ControlThread {
        file: source.file,
        tasks: RefCell::new(Some(GatewayTasks::start_all(current.clone()).map_err(failed)?)),
        history: ReloadHistory::new(&gateway),
        listeners: RefCell::new(listeners),
        files: RefCell::new(files),
        admin_server: RefCell::new(None),
        reloaded: Notify::new(),
        upgraded: Notify::new(),
        current,
        pending_child: Arc::default(),
        connection_limits: crew,
        workers,
    });
    control.register_metrics(&gateway.metrics);
    control.accept_all().await.map_err(failed)?;
    let ready = Arc::new(AtomicBool::new(true));
    if let Some(admin) = admin {
        let state = build_admin_state(&control, ready.clone(), asks.clone());
        *control.admin_server.borrow_mut() = Some(AdminServer { listener: admin, state, stop_on_drop: None });
        control.open_admin();
    }
    tokio::spawn(wall_clock::keep_clock_synced());
    let asked = tokio::task::spawn_local(control.clone().run_commands(asked));
    let watched = tokio::task::spawn_local(reload::watch_config(control.clone(), asks));
    banner::print_banner(&gateway.config, &source.display_name, &shown, admin_shown.as_deref());
    systemd::notify_ready();
    if let Some(inheritance) = inheritance {
        inheritance.notify_serving();
        control.listeners.borrow_mut().adopt_socket_files(inheritance.socket_files);
    }
    drop(gateway);
    let outcome = wait_and_drain((signals, relay), ended, &control, &ready, || {
        asked.abort();
        watched.abort();
    })
    .await;
    control.shut_down().await;
    logging::flush_lines();
    outcome
}

fn build_admin_state(
    control: &Rc<ControlThread>,
    ready: Arc<AtomicBool>,
    asks: mpsc::Sender<ControlCommand>,
) -> AdminState {
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
        explain::explain_request(&gateway, used.as_deref(), &query, Now::read_clock()).await
    };
    let degraded = control.current.clone();
    let told = Rc::downgrade(control);
    let status =
        move || told.upgrade().map_or_else(AdminResponse::shutting_down, |control| control.render_status());
    let reload = async move || {
        let (answer, answered) = oneshot::channel();
        match asks.send(ControlCommand::Reload(Some(answer))).await {
            Ok(()) => answered.await.unwrap_or_else(|_| AdminResponse::shutting_down()),
            Err(_) => AdminResponse::shutting_down(),
        }
    };
    let served = control.current.clone();
    AdminState::new(ready, metrics, explain)
        .with_upstreams(move || served.load().upstreams.clone())
        .with_store(move || degraded.load().store.as_ref().is_some_and(|store| store.is_degraded()))
        .with_control(status, reload)
}

/// Raises the descriptor limit as far as allowed, and says how many clients fit in beside everything else.
fn raise_descriptor_limit(max_connections: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    let Some(descriptors) = current else { return max_connections };
    let reserved = (descriptors / RESERVED_SHARE).min(RESERVED_MAX);
    let fit = usize::try_from((descriptors - reserved) / DESCRIPTORS_PER_CLIENT).unwrap_or(usize::MAX).max(1);
    if fit < max_connections {
        tracing::warn!(descriptors, max_connections = fit, "the descriptor limit allows fewer connections");
    }
    fit.min(max_connections)
}

/// Waits for the first signal or until another process serves, drains, and ends at the deadline or at the second
/// signal. `stop_asking` ends what is done for whoever asks.
async fn wait_and_drain(
    (mut signals, relay): (Signals, SignalRelay),
    mut ended: WorkersEnded,
    control: &ControlThread,
    ready: &AtomicBool,
    stop_asking: impl FnOnce(),
) -> Result<(), ProcessFault> {
    let told = tokio::select! {
        () = signals.wait_for_stop(&relay) => {
            systemd::notify_stopping();
            Some(Instant::now())
        }
        () = control.upgraded.notified() => None,
        // No sender is left only when every worker ended by itself.
        _ = ended.recv() => return Err(ProcessFault::Run("every worker ended".to_owned())),
    };
    stop_asking();
    control.resolve_upgrade();
    ready.store(false, Ordering::Relaxed);
    tracing::info!("draining");
    control.listeners.borrow_mut().close_all();
    control.workers.begin_drain();
    let patience = control.current.load().server.timeouts.shutdown;
    tokio::select! {
        _ = ended.recv() => {
            tracing::info!("drained");
            return Ok(());
        }
        () = signals.wait_for_second_stop(&relay, told) => tracing::warn!("second signal: ending at once"),
        () = tokio::time::sleep(patience) => {
            tracing::warn!("the shutdown timeout passed; ending with requests in flight");
        }
    }
    control.workers.end_now();
    let _ = tokio::time::timeout(FORCED_END_TIMEOUT, ended.recv()).await;
    Ok(())
}

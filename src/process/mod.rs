//! The process: start, worker threads, listeners, signals, reloads, hot upgrades and shutdown.
//!
//! A [`WorkerThread`](sluicegate_proxy::gateway::worker::WorkerThread) is one thread; a
//! [`Worker`](sluicegate_proxy::gateway::worker::Worker) is that thread under one gateway. A request takes
//! the current worker and keeps it to its end. Each worker thread has its own runtime, listening sockets, upstream
//! connections, log buffer and metric cells.
//!
//! [`control_thread`] owns everything in force, on the control thread. [`reload`] reads a configuration, prepares it
//! ([`listeners`]) and swaps it in; [`workers`] sends the threads their
//! [`WorkerCommand`](sluicegate_proxy::downstream::worker_thread::WorkerCommand)s and waits for completion;
//! [`gateway_tasks`] are the tasks beside the workers. [`hot_upgrade`] is the change of the program.
//! [`reload_history`] and [`config_diff`] report on reloads, [`status`] on the gateway as a whole, [`heavy_keys`] on
//! the keys of its limits. Gateways tell each other through the store about themselves ([`fleet`]), and about entries
//! of operators and pauses of upstreams ([`entry_sharing`]). [`key_fetch`] asks issuers for the keys of their tokens,
//! [`acme`] orders certificates, and [`notify`] sends events.

mod acme;
mod admin_actions;
mod banner;
mod config_diff;
mod control_thread;
mod entry_sharing;
mod fleet;
mod fleet_reader;
mod gateway_tasks;
mod heavy_keys;
mod hot_upgrade;
mod http_client;
mod key_fetch;
mod listeners;
mod notify;
mod operator_changes;
mod reload;
mod reload_history;
mod signals;
mod span_export;
mod status;
mod systemd;
mod workers;

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use sd_notify::NotifyState;
use tokio::runtime::LocalRuntime;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::operate::admin::{AdminListener, AdminState};
use crate::operate::traffic::TrafficSampler;
use admin_actions::ControlHandle;
use control_thread::{AdminServer, COMMANDS_MAX, ControlThread};
use fleet_reader::FleetReader;
use gateway_tasks::GatewayTasks;
use hot_upgrade::new_process::ReceivedHandover;
use hot_upgrade::sections::{self, HandoverSections};
pub(crate) use key_fetch::fetch_keys;
use listeners::Listeners;
use reload_history::ReloadHistory;
use signals::{EarlySignals, SignalRelay, Signals};
use sluicegate_base::clock::Now;
use sluicegate_base::file::FileFingerprint;
use sluicegate_base::wall_clock;
use sluicegate_config::LoadedConfig;
use sluicegate_config::values::FileValues;
use sluicegate_limit::snapshot;
use sluicegate_model::{Config, Problem, ServerConfig};
use sluicegate_observe::logging;
use sluicegate_proxy::downstream::bind;
use sluicegate_proxy::downstream::connection_limits::ConnectionLimits;
use sluicegate_proxy::gateway::{Gateway, SavedOperatorState};
use workers::{Workers, WorkersEnded};

/// Descriptors for listeners, logs, the admin listener and the store, as a share of all and at most.
const RESERVED_SHARE: u64 = 8;
const RESERVED_MAX: u64 = 256;
/// Descriptors of one client: its connection, and the connection of its request to a server.
const DESCRIPTORS_PER_CLIENT: u64 = 2;
/// Time for the workers to drop their remaining connections after the drain.
const FORCED_END_TIMEOUT: Duration = Duration::from_secs(1);

/// Why the gateway ended without a signal.
#[derive(Debug)]
pub enum ProcessFault {
    /// A listening socket could not be opened.
    Listen(String),
    /// Anything else: the runtime, a thread, a signal, a hot upgrade or the gateway failed.
    Run(String),
}

/// The source of the configuration of a process.
pub struct ConfigSource {
    /// The name in the banner.
    pub display_name: String,
    /// The file that a reload reads again.
    pub file: Option<PathBuf>,
}

/// A process that is starting: HUP, USR1 and USR2 no longer end it.
pub struct Startup {
    runtime: LocalRuntime,
    signals: EarlySignals,
}

impl Startup {
    /// Catches signals from now on; the first step of a process that will serve.
    ///
    /// # Errors
    /// The runtime cannot be built, or a signal cannot be caught.
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

/// Serves the configuration loaded from `source`, and those reloaded from it, until TERM or INT. A second signal, at
/// least a second later, ends the process at once.
///
/// # Errors
/// An address cannot be listened on, or a thread cannot be started.
pub fn run(startup: Startup, loaded: LoadedConfig, source: ConfigSource) -> Result<(), ProcessFault> {
    let Startup { runtime, signals } = startup;
    let mut handover = ReceivedHandover::receive_handover().map_err(ProcessFault::Run)?;
    let mut spare = systemd::take_passed_sockets().map_err(ProcessFault::Listen)?;
    wall_clock::sync_clock();
    let LoadedConfig { mut config, files, warnings, file_hash, values, .. } = loaded;
    let file_hash = if files.is_empty() { String::new() } else { file_hash };
    config.share_certificates(None);
    acme::fill_certificates(&config);
    let gateway = Gateway::build(&config, None).map_err(run_fault)?;
    for (target, sockets) in handover.iter_mut().flat_map(|handover| handover.sockets.drain_all()) {
        spare.add_sockets(target, sockets);
    }
    let signals = signals.with_termination(&runtime).map_err(|error| signal_fault(&error))?;
    let bound = bind::bind_listeners(&config.all_listeners(), config.server.workers, &mut spare)
        .map_err(ProcessFault::Listen)?;
    // Sockets of the old process that the new file does not list are closed.
    spare.retain_systemd();
    for target in spare.unused_targets() {
        tracing::warn!("a socket was passed as {target}, and nothing listens on it");
    }
    let mut inherited = |admin: &sluicegate_model::AdminConfig| handover.as_mut()?.take_admin(admin.listen);
    let admin = config.admin.as_ref().map(|admin| AdminListener::bind(admin, inherited(admin)));
    let admin = admin.transpose().map_err(ProcessFault::Listen)?;
    let (gateway, sections) = restore_state(gateway, &config, handover.as_ref());
    let gateway = Arc::new(gateway);
    let listeners = Listeners::new(bound, spare);
    let serving = serve_until_stopped(
        signals,
        (source, files, warnings, file_hash, values),
        gateway,
        listeners,
        admin,
        handover.map(|handover| (handover, sections)),
    );
    let outcome = runtime.block_on(serving);
    // A reload that still reads its file must not delay the end.
    runtime.shutdown_background();
    outcome
}

/// Restores the counters of the previous process, handed over or from its snapshot, and its state of the servers;
/// returns the sections that it handed over.
fn restore_state(
    mut gateway: Gateway,
    config: &Config,
    handover: Option<&ReceivedHandover>,
) -> (Gateway, HandoverSections) {
    let (handed_over, sections) = handover.map(ReceivedHandover::receive_counters).unwrap_or_default();
    let mut found =
        handed_over.or_else(|| config.state.snapshot.as_deref().and_then(snapshot::find_snapshot));
    let of_operators = sections.parse_section(sections::OPERATORS);
    if let Some(saved) = of_operators.or_else(|| SavedOperatorState::from_snapshot(found.as_mut()?)) {
        let secret = found.as_ref().map(|found| found.secret);
        gateway = gateway.with_operator_state(saved, secret, Now::read_clock());
    }
    gateway.restore_store(&sections.parse_section(sections::STORE).unwrap_or_default());
    if let Some(found) = found {
        gateway.restore_counters(found, &sections.parse_section(sections::NUMBERS).unwrap_or_default());
    }
    gateway.restore_servers(&sections.parse_section::<Vec<_>>(sections::SERVERS).unwrap_or_default());
    (gateway, sections)
}

/// The files of a configuration: the source, all that were read, their warnings, a hash and the values.
type ServedFiles = (ConfigSource, Vec<FileFingerprint>, Vec<Problem>, String, FileValues);

/// All that could fail has succeeded; no connection is accepted yet.
async fn serve_until_stopped(
    signals: Signals,
    (source, files, warnings, file_hash, values): ServedFiles,
    gateway: Arc<Gateway>,
    listeners: Listeners,
    admin: Option<AdminListener>,
    handover: Option<(ReceivedHandover, HandoverSections)>,
) -> Result<(), ProcessFault> {
    let server = &gateway.config.server;
    let max_open = raise_descriptor_limit(server);
    let (limits, inboxes) = ConnectionLimits::new(server.workers, max_open, server.connections_per_ip);
    let (current, (sender, commands)) =
        (Arc::new(ArcSwap::new(gateway.clone())), mpsc::channel(COMMANDS_MAX));
    let relay = SignalRelay { commands: sender.clone(), current: current.clone() };
    let (workers, ended) = Workers::start_threads(&gateway, &limits, inboxes)?;
    let addresses = listeners.display_addresses();
    let admin_address = admin.as_ref().map(|admin| format!("http://{}", admin.local_addr()));
    let entries_changed = Rc::new(Notify::new());
    let tasks = GatewayTasks::start_all(current.clone(), entries_changed.clone()).map_err(run_fault)?;
    let control = Rc::new(ControlThread {
        file: source.file,
        tasks: RefCell::new(Some(tasks)),
        entries_changed,
        history: ReloadHistory::new(&gateway),
        traffic: Rc::new(TrafficSampler::new(&gateway, Now::read_clock())),
        listeners: RefCell::new(listeners),
        file_hash: RefCell::new(file_hash),
        values: RefCell::new(values),
        files: RefCell::new(files),
        read_unix_ns: Cell::new(Now::read_clock().to_unix_ns()),
        warnings: RefCell::new(warnings),
        fleet: FleetReader::default(),
        admin_server: RefCell::new(None),
        reloaded: Notify::new(),
        gateway_changed: Notify::new(),
        upgraded: Notify::new(),
        current,
        pending_child: Arc::default(),
        connection_limits: limits,
        workers,
    });
    control.register_metrics(&gateway.metrics);
    wait_for_store(&gateway).await;
    control.accept_all().await.map_err(run_fault)?;
    let ready = Arc::new(AtomicBool::new(true));
    if let Some(admin) = admin {
        serve_admin(&control, admin, ControlHandle::new(&control, sender.clone()), ready.clone());
    }
    tokio::spawn(wall_clock::keep_clock_synced());
    let control_tasks = [
        tokio::task::spawn_local(control.clone().run_commands(commands)),
        tokio::task::spawn_local(operator_changes::remove_ended_grants(control.clone(), sender.clone())),
        tokio::task::spawn_local(operator_changes::adopt_entries(control.clone(), sender.clone())),
        tokio::task::spawn_local(fleet::run_store_tasks(control.clone(), sender.clone())),
        tokio::task::spawn_local(reload::watch_config(control.clone(), sender)),
    ];
    banner::print_banner(&gateway.config, &source.display_name, &addresses, admin_address.as_deref());
    systemd::notify_ready();
    if let Some((handover, sections)) = handover {
        finish_handover(&control, handover, &sections);
    }
    drop(gateway);
    let outcome = wait_and_drain((signals, relay), ended, &control, &ready, || {
        control_tasks.iter().for_each(JoinHandle::abort);
    })
    .await;
    control.shut_down().await;
    logging::flush_lines();
    outcome
}

fn run_fault(error: std::io::Error) -> ProcessFault {
    ProcessFault::Run(error.to_string())
}

/// Tells the old process that this one serves, and goes on with its history.
fn finish_handover(control: &ControlThread, handover: ReceivedHandover, sections: &HandoverSections) {
    handover.notify_serving();
    control.listeners.borrow_mut().adopt_socket_files(handover.socket_files);
    // Requests are served already; only the admin listener waits while a long history is read.
    if let Some(saved) = sections.parse_section(sections::HISTORY) {
        let metrics = &control.current.load().metrics;
        control.traffic.history.borrow_mut().restore(saved, metrics, Now::read_clock());
    }
}

/// Else the first requests would be decided without the store.
async fn wait_for_store(gateway: &Gateway) {
    if let Some(store) = &gateway.store {
        store.wait_probed().await;
    }
}

fn serve_admin(
    control: &ControlThread,
    listener: AdminListener,
    actions: ControlHandle,
    ready: Arc<AtomicBool>,
) {
    let state = AdminState::new(ready, control.current.clone(), control.traffic.clone(), actions);
    state.register_metrics(&control.current.load().metrics);
    tokio::task::spawn_local(state.clone().watch_traffic());
    *control.admin_server.borrow_mut() = Some(AdminServer { listener, state, stop_on_drop: None });
    control.open_admin();
}

/// Raises the descriptor limit as far as allowed, and returns the number of clients that fit beside all other uses.
fn raise_descriptor_limit(server: &ServerConfig) -> usize {
    const ALLOWED: &str = "the descriptor limit allows fewer connections";
    let max_connections = server.max_connections;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    let Some(descriptors) = current else { return max_connections };
    let reserved = (descriptors / RESERVED_SHARE).min(RESERVED_MAX);
    let fit = usize::try_from((descriptors - reserved) / DESCRIPTORS_PER_CLIENT).unwrap_or(usize::MAX).max(1);
    if fit < max_connections && server.is_max_connections_written {
        tracing::warn!(descriptors, max_connections = fit, "{ALLOWED}");
    } else if fit < max_connections {
        tracing::info!(descriptors, max_connections = fit, "{ALLOWED}");
    }
    fit.min(max_connections)
}

/// Waits for the first signal or until another process serves. Then goes on serving for `timeouts.drain`, while
/// `/readyz` answers 503, drains, and ends at the deadline or at the second signal. `stop_tasks` ends the control
/// thread's tasks.
async fn wait_and_drain(
    (mut signals, relay): (Signals, SignalRelay),
    mut ended: WorkersEnded,
    control: &ControlThread,
    ready: &AtomicBool,
    stop_tasks: impl FnOnce(),
) -> Result<(), ProcessFault> {
    let signalled_at = tokio::select! {
        () = signals.wait_for_stop(&relay) => {
            systemd::send_states(&[NotifyState::Stopping]);
            Some(Instant::now())
        }
        () = control.upgraded.notified() => None,
        // Without a drain the channel closes only when every worker ended by itself.
        _ = ended.recv() => return Err(ProcessFault::Run("every worker ended".to_owned())),
    };
    stop_tasks();
    control.resolve_upgrade();
    ready.store(false, Ordering::Relaxed);
    control.current.load().calls.serving.send_replace(false);
    let drain_time = control.current.load().config.server.timeouts.drain;
    // After an upgrade another process has the listeners already.
    if signalled_at.is_some() && !drain_time.is_zero() {
        tracing::info!(seconds = drain_time.as_secs_f64(), "not ready any more, and still accepting");
        tokio::select! {
            () = tokio::time::sleep(drain_time) => {}
            () = signals.wait_for_second_stop(&relay, signalled_at) => {
                tracing::warn!("second signal: ending at once");
                return end_workers(&mut ended, control).await;
            }
        }
    }
    tracing::info!("draining");
    control.listeners.borrow_mut().close_all();
    control.workers.begin_drain();
    let shutdown_timeout = control.current.load().config.server.timeouts.shutdown;
    tokio::select! {
        _ = ended.recv() => {
            tracing::info!("drained");
            return Ok(());
        }
        () = signals.wait_for_second_stop(&relay, signalled_at) => tracing::warn!("second signal: ending at once"),
        () = tokio::time::sleep(shutdown_timeout) => {
            tracing::warn!("the shutdown timeout passed; ending with requests in flight");
        }
    }
    end_workers(&mut ended, control).await
}

/// Ends the workers with their requests in flight.
async fn end_workers(ended: &mut WorkersEnded, control: &ControlThread) -> Result<(), ProcessFault> {
    control.workers.end_now();
    let _ = tokio::time::timeout(FORCED_END_TIMEOUT, ended.recv()).await;
    Ok(())
}

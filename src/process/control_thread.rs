//! Owns the gateway in force and everything that belongs to it, on the control thread, and executes commands one after
//! the other.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustix::process::{Pid, Signal, kill_process};
use sd_notify::NotifyState;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::spawn_blocking;

use super::acme::AcmeTasks;
use super::fleet_reader::FleetReader;
use super::gateway_tasks::GatewayTasks;
use super::hot_upgrade::old_process::{self, PendingChild};
use super::listeners::Listeners;
use super::reload_history::ReloadHistory;
use super::systemd;
use super::workers::Workers;
use crate::operate::admin::status::Reloaded;
use crate::operate::admin::{AdminError, AdminListener, AdminState};
use crate::operate::traffic::TrafficSampler;
use sluicegate_base::file::FileFingerprint;
use sluicegate_config::values::FileValues;
use sluicegate_model::Problem;
use sluicegate_proxy::downstream::connection_limits::ConnectionLimits;
use sluicegate_proxy::downstream::worker_thread::WorkerCommand;
use sluicegate_proxy::gateway::{Gateway, OperatorChange, OperatorFault, OperatorOutcome};

/// Commands that may wait.
pub(super) const COMMANDS_MAX: usize = 64;

/// Time to write the last lines of the access log.
const LOG_FLUSH: Duration = Duration::from_secs(2);

/// A command to the running gateway.
pub(super) enum ControlCommand {
    /// Reload the file, and send the result to the caller.
    Reload(Option<oneshot::Sender<Result<Reloaded, AdminError>>>),
    /// Reload the file, because the files were found with these contents.
    FilesChanged(Vec<FileFingerprint>),
    /// Make a change of an operator, and send the result.
    Change(Box<OperatorChange>, oneshot::Sender<Result<OperatorOutcome, OperatorFault>>),
    /// Hash by the secret that the store told.
    AdoptSecret,
    /// Start the program again and hand everything over to the new process.
    Upgrade,
}

pub(super) struct ControlThread {
    /// `None` = the configuration does not come from a file.
    pub file: Option<PathBuf>,
    pub current: Arc<ArcSwap<Gateway>>,
    pub connection_limits: Arc<ConnectionLimits>,
    pub workers: Workers,
    pub listeners: RefCell<Listeners>,
    /// `None` = shut down.
    pub tasks: RefCell<Option<GatewayTasks>>,
    pub history: Arc<ReloadHistory>,
    /// The source of rates for the status page and the admin API.
    pub traffic: Rc<TrafficSampler>,
    /// The files of the configuration in force, or of the last one that was rejected.
    pub files: RefCell<Vec<FileFingerprint>>,
    /// The moment at which the file in force was read, in ns since 1970.
    pub read_unix_ns: Cell<u64>,
    /// A hash of the file in force; empty without a file.
    pub file_hash: RefCell<String>,
    /// What the files in force say.
    pub values: RefCell<FileValues>,
    /// The warnings about the file in force.
    pub warnings: RefCell<Vec<Problem>>,
    /// Reads the reports of other gateways.
    pub fleet: FleetReader,
    /// Notified when another configuration is in force.
    pub reloaded: Notify,
    /// Notified when another gateway is in force, also for other grants alone.
    pub gateway_changed: Notify,
    /// Notified when changes of operators on other gateways are to be adopted.
    pub entries_changed: Rc<Notify>,
    /// `None` = there is no admin listener.
    pub admin_server: RefCell<Option<AdminServer>>,
    /// Notified when another process has taken over.
    pub upgraded: Notify,
    pub pending_child: Arc<PendingChild>,
}

pub(super) struct AdminServer {
    pub listener: AdminListener,
    pub state: AdminState,
    /// `None` = no connection is accepted.
    pub stop_on_drop: Option<oneshot::Sender<()>>,
}

impl ControlThread {
    /// Starts to serve the admin listener; [`AdminServer::stop_on_drop`] stops it.
    pub(super) fn open_admin(&self) {
        if let Some(server) = &mut *self.admin_server.borrow_mut() {
            match server.listener.clone_listener() {
                Ok(admin) => {
                    let (stop_sender, leave) = oneshot::channel();
                    server.stop_on_drop = Some(stop_sender);
                    tokio::task::spawn_local(admin.serve_admin(server.state.clone(), leave));
                }
                Err(error) => tracing::error!(%error, "the admin listener cannot be served"),
            }
        }
    }

    /// Executes commands one after the other. Equal commands that wait together are executed once.
    pub(super) async fn run_commands(self: Rc<ControlThread>, mut commands: mpsc::Receiver<ControlCommand>) {
        while let Some(first) = commands.recv().await {
            let (mut reload, mut upgrade, mut waiting) = (false, false, Vec::new());
            let (mut changed, mut changes, mut secret) = (None, Vec::new(), false);
            let mut next = Some(first);
            while let Some(command) = next {
                match command {
                    ControlCommand::Reload(reply) => {
                        reload = true;
                        waiting.extend(reply);
                    }
                    ControlCommand::FilesChanged(found) => changed = Some(found),
                    ControlCommand::Change(change, reply) => changes.push((change, reply)),
                    ControlCommand::AdoptSecret => secret = true,
                    ControlCommand::Upgrade => upgrade = true,
                }
                next = commands.try_recv().ok();
            }
            if reload || changed.is_some() {
                let response = self.reload_config(changed.filter(|_| !reload)).await;
                for reply in waiting {
                    // The caller may be gone.
                    let _ = reply.send(response.clone());
                }
            }
            if secret {
                self.use_shared_secret().await;
            }
            for (change, reply) in changes {
                // The caller may be gone.
                let _ = reply.send(self.apply_change(*change).await);
            }
            if upgrade {
                match self.upgrade_process().await {
                    Ok(pid) => {
                        forward_commands(&mut commands, pid);
                        return self.upgraded.notify_one();
                    }
                    Err(why) => tracing::error!("the upgrade failed, and this process goes on: {why}"),
                }
            }
        }
    }

    /// Makes the workers accept from all listeners.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub(super) async fn accept_all(&self) -> io::Result<()> {
        let commands = self.listeners.borrow().accept_commands(self.workers.count())?;
        self.workers.send_commands(commands).await;
        Ok(())
    }

    /// Hands everything over to a new process of the program, and returns its id.
    async fn upgrade_process(&self) -> Result<u32, String> {
        let sockets = self.listeners.borrow().export_sockets();
        let admin = self.admin_server.borrow().as_ref().map(|server| server.listener.clone_socket());
        let as_text = |error: io::Error| error.to_string();
        let sockets = (sockets.map_err(as_text)?, admin.transpose().map_err(as_text)?);
        tracing::info!("starting the new process");
        let panicked = |_| "its thread panicked".to_owned();
        let pending = self.pending_child.clone();
        let successor = spawn_blocking(move || old_process::start_successor(&sockets, pending));
        let successor = successor.await.map_err(panicked)??;
        let pid = successor.pid;
        tracing::info!(pid, "the new process is ready; leaving the listeners to it");
        if let Some(server) = &mut *self.admin_server.borrow_mut() {
            // New connections wait in the queue of its socket.
            server.stop_on_drop = None;
        }
        let history = self.traffic.history.borrow().save();
        self.workers.send_to_all(|| WorkerCommand::LeaveListeners).await;
        // From here on no request is judged by our counters.
        self.workers.send_to_all(|| WorkerCommand::StopJudging).await;
        // Two processes must not write the snapshot at once, nor order certificates.
        self.with_tasks(|tasks| {
            tasks.release_snapshot();
            tasks.acme = AcmeTasks::default();
        });
        let gateway = self.current.load_full();
        let handover = spawn_blocking(move || {
            let state = old_process::write_state(&gateway, history);
            if let Err(error) = &state {
                tracing::warn!(%error, "the counters cannot be handed over");
            }
            successor.hand_over(state.as_ref().map_or(&[], |files| files.as_slice()))
        });
        if let Err(why) = handover.await.map_err(panicked).and_then(|outcome| outcome) {
            self.with_tasks(|tasks| tasks.update_snapshot(&self.current.load()));
            self.with_tasks(|tasks| tasks.resume_orders(&self.current.load()));
            self.current.load().attach_store();
            self.open_admin();
            self.workers.send_to_all(|| WorkerCommand::ResumeJudging).await;
            self.accept_all()
                .await
                .map_err(|error| format!("{why}; and no connection is accepted: {error}"))?;
            return Err(why);
        }
        tracing::info!(pid, "the new process serves");
        systemd::send_states(&[NotifyState::MainPid(pid)]);
        self.listeners.borrow_mut().release_sockets();
        Ok(pid)
    }

    /// Called before the end: a new process has either taken over, or is ended.
    pub(super) fn resolve_upgrade(&self) {
        if self.pending_child.close_for_good() {
            self.listeners.borrow_mut().release_sockets();
        } else {
            self.with_tasks(|tasks| tasks.update_snapshot(&self.current.load()));
        }
    }

    pub(super) fn with_tasks(&self, act: impl FnOnce(&mut GatewayTasks)) {
        if let Some(tasks) = &mut *self.tasks.borrow_mut() {
            act(tasks);
        }
    }

    /// Shuts the tasks down and flushes the access log.
    pub(super) async fn shut_down(&self) {
        if let Some(tasks) = self.tasks.take() {
            tasks.shut_down().await;
        }
        self.current.load().access_log.flush_within(LOG_FLUSH);
    }
}

/// Passes commands that arrived during the upgrade on to the new process.
fn forward_commands(commands: &mut mpsc::Receiver<ControlCommand>, pid: u32) {
    let mut reload = false;
    while let Ok(command) = commands.try_recv() {
        match command {
            ControlCommand::Reload(reply) => {
                reload = true;
                // The caller may be gone.
                let _ = reply.map(|reply| reply.send(Err(AdminError::handed_to_process(pid))));
            }
            ControlCommand::Upgrade => {
                tracing::warn!(
                    pid,
                    "an upgrade was requested during another; send the signal to the new process"
                )
            }
            // The caller may be gone.
            ControlCommand::Change(_, reply) => drop(reply.send(Err(OperatorFault::HandedOver(pid)))),
            // The new process watches the files and asks the store itself.
            ControlCommand::FilesChanged(_) | ControlCommand::AdoptSecret => {}
        }
    }
    if reload {
        let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
        match process.map(|process| kill_process(process, Signal::HUP)) {
            Some(Ok(())) => tracing::info!(pid, "handed on to the new process: the reload of its file"),
            _ => tracing::warn!(
                pid,
                "a reload requested during the upgrade is lost; send the signal to the new process"
            ),
        }
    }
}

//! The gateway in force and everything that goes with it, on the control thread: what it is asked for is done one
//! after the other.

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::spawn_blocking;

use super::gateway_tasks::GatewayTasks;
use super::hot_upgrade::old_process;
use super::hot_upgrade::old_process::{HandoverSockets, PendingChild};
use super::listeners::Listeners;
use super::reload_history::ReloadHistory;
use super::systemd;
use super::worker_thread::WorkerCommand;
use super::workers::Workers;
use crate::config::FileFingerprint;
use crate::downstream::connection_limits::ConnectionLimits;
use crate::operate::admin::{AdminListener, AdminResponse, AdminState};
use crate::proxy::gateway::{Gateway, REQUESTS_CLOSED, REQUESTS_OPENED};

/// What may wait to be asked for.
pub const COMMANDS_MAX: usize = 64;

/// How long the last lines of the access log may take to be written.
const LOG_FLUSH: Duration = Duration::from_secs(2);

/// What can be asked for while the gateway runs.
pub enum ControlCommand {
    /// To read the file again, and whom to tell what came of it.
    Reload(Option<oneshot::Sender<AdminResponse>>),
    /// The same, because the files were found like this.
    FilesChanged(Vec<FileFingerprint>),
    /// To start the program again and leave everything to it.
    Upgrade,
}

pub struct ControlThread {
    /// `None` = it was not read from a file.
    pub file: Option<PathBuf>,
    pub current: Arc<ArcSwap<Gateway>>,
    pub connection_limits: Arc<ConnectionLimits>,
    pub workers: Workers,
    pub listeners: RefCell<Listeners>,
    /// `None` = finished.
    pub tasks: RefCell<Option<GatewayTasks>>,
    pub history: Arc<ReloadHistory>,
    /// What was read for the configuration in force, or for the one that was refused last.
    pub files: RefCell<Vec<FileFingerprint>>,
    /// Woken when another configuration is in force.
    pub reloaded: Notify,
    /// `None` = there is no admin listener.
    pub admin_server: RefCell<Option<AdminServer>>,
    /// Woken when another process serves in our place.
    pub upgraded: Notify,
    pub pending_child: Arc<PendingChild>,
}

/// The admin listener, and who answers there.
pub struct AdminServer {
    pub listener: AdminListener,
    pub state: AdminState,
    /// Without it nobody is accepted there.
    pub stop_on_drop: Option<oneshot::Sender<()>>,
}

impl ControlThread {
    /// Has the admin listener answered.
    pub fn open_admin(&self) {
        if let Some(desk) = &mut *self.admin_server.borrow_mut() {
            match desk.listener.clone_listener() {
                Ok(admin) => {
                    let (serving, leave) = oneshot::channel();
                    desk.stop_on_drop = Some(serving);
                    tokio::task::spawn_local(admin.serve_admin(desk.state.clone(), leave));
                }
                Err(error) => tracing::error!(%error, "the admin listener is not answered"),
            }
        }
    }

    /// Leaves those who ask there from now on in the queue.
    fn close_admin(&self) {
        if let Some(desk) = &mut *self.admin_server.borrow_mut() {
            desk.stop_on_drop = None;
        }
    }

    /// Does what is asked for, one after the other. Asks for the same that wait together are one.
    pub async fn run_commands(self: Rc<ControlThread>, mut asks: mpsc::Receiver<ControlCommand>) {
        while let Some(first) = asks.recv().await {
            let (mut reload, mut upgrade, mut waiting) = (false, false, Vec::new());
            let mut changed = None;
            let mut next = Some(first);
            while let Some(ask) = next {
                match ask {
                    ControlCommand::Reload(who) => {
                        reload = true;
                        waiting.extend(who);
                    }
                    ControlCommand::FilesChanged(found) => changed = Some(found),
                    ControlCommand::Upgrade => upgrade = true,
                }
                next = asks.try_recv().ok();
            }
            if reload || changed.is_some() {
                let reply = self.reload_config(changed.filter(|_| !reload)).await;
                for who in waiting {
                    // Whoever asked may be gone.
                    let _ = who.send(reply.clone());
                }
            }
            if upgrade {
                match self.upgrade_process().await {
                    Ok(pid) => {
                        forward_commands(&mut asks, pid);
                        return self.upgraded.notify_one();
                    }
                    Err(why) => tracing::error!("the upgrade failed, and this process goes on: {why}"),
                }
            }
        }
    }

    /// Has the workers accept from all listeners.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub async fn accept_all(&self) -> io::Result<()> {
        let orders = self.listeners.borrow().accept_commands(self.workers.count())?;
        self.workers.send_commands(orders).await;
        Ok(())
    }

    /// Leaves everything to a new process of the program, and answers its id.
    async fn upgrade_process(&self) -> Result<u32, String> {
        let sites = self.listeners.borrow().export_sockets();
        let admin = self.admin_server.borrow().as_ref().map(|desk| desk.listener.clone_socket());
        let told = |error: io::Error| error.to_string();
        let estate =
            HandoverSockets { sockets: sites.map_err(told)?, admin: admin.transpose().map_err(told)? };
        tracing::info!("starting the program anew");
        let gone = |_| "its thread panicked".to_owned();
        let cradle = self.pending_child.clone();
        let heir =
            spawn_blocking(move || old_process::start_successor(&estate, cradle)).await.map_err(gone)??;
        let pid = heir.pid();
        tracing::info!(pid, "the new process is ready; leaving the listeners to it");
        self.close_admin();
        self.workers.send_to_all(|| WorkerCommand::LeaveListeners).await;
        // When this is done nothing is judged by our counters any more.
        self.workers.send_to_all(|| WorkerCommand::StopJudging).await;
        // Two processes must not write it at once.
        self.with_tasks(GatewayTasks::release_snapshot);
        let gateway = self.current.load_full();
        let handed = spawn_blocking(move || {
            let known = old_process::write_state(&gateway);
            if let Err(error) = &known {
                tracing::warn!(%error, "the counters cannot be handed over");
            }
            heir.hand_over(known.as_ref().map_or(&[], |files| files.as_slice()))
        });
        if let Err(why) = handed.await.map_err(gone).and_then(|handed| handed) {
            self.with_tasks(|followers| followers.update_snapshot(&self.current.load()));
            self.current.load().attach_store();
            self.open_admin();
            self.workers.send_to_all(|| WorkerCommand::ResumeJudging).await;
            self.accept_all().await.map_err(|error| format!("{why}; and nobody is accepted: {error}"))?;
            return Err(why);
        }
        tracing::info!(pid, "the new process serves");
        systemd::notify_main_pid(pid);
        self.listeners.borrow_mut().release_sockets();
        Ok(pid)
    }

    /// Before the end: a new process either serves in our place, or not at all.
    pub fn resolve_upgrade(&self) {
        if self.pending_child.close_for_good() {
            self.listeners.borrow_mut().release_sockets();
        } else {
            self.with_tasks(|followers| followers.update_snapshot(&self.current.load()));
        }
    }

    pub fn with_tasks(&self, tell: impl FnOnce(&mut GatewayTasks)) {
        if let Some(followers) = &mut *self.tasks.borrow_mut() {
            tell(followers);
        }
    }

    /// The last words.
    pub async fn shut_down(&self) {
        let followers = self.tasks.take();
        if let Some(followers) = followers {
            followers.shut_down().await;
        }
        self.current.load().access_log.flush_within(LOG_FLUSH);
    }

    /// How the gateway is, for people and programs.
    pub fn render_status(&self) -> AdminResponse {
        let gateway = self.current.load();
        let closed = gateway.request_counts.sum(REQUESTS_CLOSED);
        let in_flight = gateway.request_counts.sum(REQUESTS_OPENED).saturating_sub(closed);
        let last = self.history.last_attempt();
        let listening = self.listeners.borrow().display_addresses();
        let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
        let file = self.file.as_ref().map(|file| file.display().to_string());
        let shared_limits = conflicting_limits(&gateway);
        let followers = self.tasks.borrow();
        let snapshot = followers.as_ref().and_then(GatewayTasks::snapshot_status);
        let snapshot = snapshot.map(|(path, failure)| (path.display().to_string(), failure));
        let json = json!({
            "version": version,
            "pid": pid,
            "file": file,
            "uptime_s": self.history.uptime_seconds(),
            "generation": self.history.generation(),
            "workers": self.workers.count(),
            "listening": listening,
            "connections": self.connection_limits.open_count(),
            "in_flight": in_flight,
            "shared_limits": shared_limits.iter().map(|(limit, trouble)| json!({
                "limit": limit,
                "trouble": trouble,
            })).collect::<Vec<_>>(),
            "snapshot": snapshot.as_ref().map(|(path, failure)| json!({ "file": path, "error": failure })),
            "last_reload": last.as_ref().map(|last| json!({
                "at": last.at,
                "result": if last.ok { "ok" } else { "failed" },
                "told": last.message,
            })),
        });
        let mut text =
            format!("sluicegate {version}, process {pid}, up {} s\n", self.history.uptime_seconds());
        let mut line = |name: &str, value: String| text.push_str(&format!("{name:<12}{value}\n"));
        line("file", file.unwrap_or_else(|| "none".to_owned()));
        line("generation", self.history.generation().to_string());
        line("listening", listening.join(" "));
        line("connections", self.connection_limits.open_count().to_string());
        line("in flight", in_flight.to_string());
        for (limit, trouble) in &shared_limits {
            line("limit", format!("{limit}: {trouble}"));
        }
        if let Some((path, failure)) = snapshot {
            let told = failure.map(|why| format!(" cannot be written: {why}"));
            line("snapshot", path + told.as_deref().unwrap_or_default());
        }
        line(
            "last reload",
            match last {
                None => "none".to_owned(),
                Some(last) if last.ok => format!("ok: {}", last.message),
                Some(last) => format!("failed: {}", last.message),
            },
        );
        AdminResponse::ok(text, json)
    }
}

/// Shared limits that other gateways do not count as this one does.
fn conflicting_limits(gateway: &Gateway) -> Vec<(String, &'static str)> {
    let sides = gateway.shared.iter().flatten().map(|side| &side.fleet);
    let troubles = sides.flat_map(|fleet| {
        let limit = || fleet.announcement.limit.clone();
        let differs = fleet.differs().then(|| (limit(), "its numbers differ from those of other gateways"));
        let collides = fleet
            .collides()
            .then(|| (limit(), "other gateways use this name for a limit with another key or algorithm"));
        differs.into_iter().chain(collides)
    });
    troubles.collect()
}

/// Has the process that serves in our place do what was asked of us meanwhile.
fn forward_commands(asks: &mut mpsc::Receiver<ControlCommand>, pid: u32) {
    let mut reload = false;
    while let Ok(ask) = asks.try_recv() {
        match ask {
            ControlCommand::Reload(who) => {
                reload = true;
                // Whoever asked may be gone.
                let _ = who.map(|who| who.send(AdminResponse::handed_to_process(pid)));
            }
            ControlCommand::Upgrade => {
                tracing::warn!(pid, "an upgrade was asked for during another; ask the new process")
            }
            // It looks at the files itself.
            ControlCommand::FilesChanged(_) => {}
        }
    }
    if reload {
        let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
        match process.map(|process| kill_process(process, Signal::HUP)) {
            Some(Ok(())) => tracing::info!(pid, "handed on to the new process: to read its file again"),
            _ => tracing::warn!(pid, "a reload that was asked for meanwhile is lost; ask the new process"),
        }
    }
}

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

use super::followers::Followers;
use super::hot_upgrade::old_process;
use super::hot_upgrade::old_process::{Cradle, Estate};
use super::listeners::Listeners;
use super::reload_history::History;
use super::systemd;
use super::worker_thread::Order;
use super::workers::Workers;
use crate::config::FileRead;
use crate::downstream::connection_limits::Crew;
use crate::operate::admin::{Admin, AdminState, Reply};
use crate::proxy::gateway::{CLOSED, Gateway, OPENED};

/// What may wait to be asked for.
pub const ASKS: usize = 64;

/// How long the last lines of the access log may take to be written.
const LOG_FLUSH: Duration = Duration::from_secs(2);

/// What can be asked for while the gateway runs.
pub enum Ask {
    /// To read the file again, and whom to tell what came of it.
    Reload(Option<oneshot::Sender<Reply>>),
    /// The same, because the files were found like this.
    Changed(Vec<FileRead>),
    /// To start the program again and leave everything to it.
    Upgrade,
}

pub struct Control {
    /// `None` = it was not read from a file.
    pub file: Option<PathBuf>,
    pub current: Arc<ArcSwap<Gateway>>,
    pub crew: Arc<Crew>,
    pub workers: Workers,
    pub listeners: RefCell<Listeners>,
    /// `None` = finished.
    pub followers: RefCell<Option<Followers>>,
    pub history: Arc<History>,
    /// What was read for the configuration in force, or for the one that was refused last.
    pub files: RefCell<Vec<FileRead>>,
    /// Woken when another configuration is in force.
    pub taken_over: Notify,
    /// `None` = there is no admin listener.
    pub desk: RefCell<Option<Desk>>,
    /// Woken when another process serves in our place.
    pub left: Notify,
    pub cradle: Arc<Cradle>,
}

/// The admin listener, and who answers there.
pub struct Desk {
    pub admin: Admin,
    pub state: AdminState,
    /// Without it nobody is accepted there.
    pub serving: Option<oneshot::Sender<()>>,
}

impl Control {
    /// Has the admin listener answered.
    pub fn open_admin(&self) {
        if let Some(desk) = &mut *self.desk.borrow_mut() {
            match desk.admin.again() {
                Ok(admin) => {
                    let (serving, leave) = oneshot::channel();
                    desk.serving = Some(serving);
                    tokio::task::spawn_local(admin.run(desk.state.clone(), leave));
                }
                Err(error) => tracing::error!(%error, "the admin listener is not answered"),
            }
        }
    }

    /// Leaves those who ask there from now on in the queue.
    fn close_admin(&self) {
        if let Some(desk) = &mut *self.desk.borrow_mut() {
            desk.serving = None;
        }
    }

    /// Does what is asked for, one after the other. Asks for the same that wait together are one.
    pub async fn serve(self: Rc<Control>, mut asks: mpsc::Receiver<Ask>) {
        while let Some(first) = asks.recv().await {
            let (mut reload, mut upgrade, mut waiting) = (false, false, Vec::new());
            let mut changed = None;
            let mut next = Some(first);
            while let Some(ask) = next {
                match ask {
                    Ask::Reload(who) => {
                        reload = true;
                        waiting.extend(who);
                    }
                    Ask::Changed(found) => changed = Some(found),
                    Ask::Upgrade => upgrade = true,
                }
                next = asks.try_recv().ok();
            }
            if reload || changed.is_some() {
                let reply = self.reload(changed.filter(|_| !reload)).await;
                for who in waiting {
                    // Whoever asked may be gone.
                    let _ = who.send(reply.clone());
                }
            }
            if upgrade {
                match self.upgrade().await {
                    Ok(pid) => {
                        hand_on(&mut asks, pid);
                        return self.left.notify_one();
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
        let orders = self.listeners.borrow().accept_all(self.workers.count())?;
        self.workers.tell(orders).await;
        Ok(())
    }

    /// Leaves everything to a new process of the program, and answers its id.
    async fn upgrade(&self) -> Result<u32, String> {
        let sites = self.listeners.borrow().export();
        let admin = self.desk.borrow().as_ref().map(|desk| desk.admin.handle());
        let told = |error: io::Error| error.to_string();
        let estate = Estate { sites: sites.map_err(told)?, admin: admin.transpose().map_err(told)? };
        tracing::info!("starting the program anew");
        let gone = |_| "its thread panicked".to_owned();
        let cradle = self.cradle.clone();
        let heir = spawn_blocking(move || old_process::start(&estate, cradle)).await.map_err(gone)??;
        let pid = heir.pid();
        tracing::info!(pid, "the new process is ready; leaving the listeners to it");
        self.close_admin();
        self.workers.tell_all(|| Order::Leave).await;
        // When this is done nothing is judged by our counters any more.
        self.workers.tell_all(|| Order::Settle).await;
        // Two processes must not write it at once.
        self.with_followers(Followers::leave_snapshot);
        let gateway = self.current.load_full();
        let handed = spawn_blocking(move || {
            let known = old_process::known(&gateway);
            if let Err(error) = &known {
                tracing::warn!(%error, "the counters cannot be handed over");
            }
            heir.hand_over(known.as_ref().map_or(&[], |files| files.as_slice()))
        });
        if let Err(why) = handed.await.map_err(gone).and_then(|handed| handed) {
            self.with_followers(|followers| followers.follow_snapshot(&self.current.load()));
            self.current.load().serve_store();
            self.open_admin();
            self.workers.tell_all(|| Order::Stay).await;
            self.accept_all().await.map_err(|error| format!("{why}; and nobody is accepted: {error}"))?;
            return Err(why);
        }
        tracing::info!(pid, "the new process serves");
        systemd::main_is(pid);
        self.listeners.borrow_mut().leave();
        Ok(pid)
    }

    /// Before the end: a new process either serves in our place, or not at all.
    pub fn settle_succession(&self) {
        if self.cradle.close() {
            self.listeners.borrow_mut().leave();
        } else {
            self.with_followers(|followers| followers.follow_snapshot(&self.current.load()));
        }
    }

    pub fn with_followers(&self, tell: impl FnOnce(&mut Followers)) {
        if let Some(followers) = &mut *self.followers.borrow_mut() {
            tell(followers);
        }
    }

    /// The last words.
    pub async fn finish(&self) {
        let followers = self.followers.take();
        if let Some(followers) = followers {
            followers.finish().await;
        }
        self.current.load().access_log.flush(LOG_FLUSH);
    }

    /// How the gateway is, for people and programs.
    pub fn status(&self) -> Reply {
        let gateway = self.current.load();
        let closed = gateway.visits.sum(CLOSED);
        let in_flight = gateway.visits.sum(OPENED).saturating_sub(closed);
        let last = self.history.last();
        let listening = self.listeners.borrow().shown();
        let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
        let file = self.file.as_ref().map(|file| file.display().to_string());
        let shared_limits = troubled_limits(&gateway);
        let followers = self.followers.borrow();
        let snapshot = followers.as_ref().and_then(Followers::snapshot);
        let snapshot = snapshot.map(|(path, failure)| (path.display().to_string(), failure));
        let json = json!({
            "version": version,
            "pid": pid,
            "file": file,
            "uptime_s": self.history.uptime(),
            "generation": self.history.generation(),
            "workers": self.workers.count(),
            "listening": listening,
            "connections": self.crew.open(),
            "in_flight": in_flight,
            "shared_limits": shared_limits.iter().map(|(limit, trouble)| json!({
                "limit": limit,
                "trouble": trouble,
            })).collect::<Vec<_>>(),
            "snapshot": snapshot.as_ref().map(|(path, failure)| json!({ "file": path, "error": failure })),
            "last_reload": last.as_ref().map(|last| json!({
                "at": last.at,
                "result": if last.ok { "ok" } else { "failed" },
                "told": last.told,
            })),
        });
        let mut text = format!("sluicegate {version}, process {pid}, up {} s\n", self.history.uptime());
        let mut line = |name: &str, value: String| text.push_str(&format!("{name:<12}{value}\n"));
        line("file", file.unwrap_or_else(|| "none".to_owned()));
        line("generation", self.history.generation().to_string());
        line("listening", listening.join(" "));
        line("connections", self.crew.open().to_string());
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
                Some(last) if last.ok => format!("ok: {}", last.told),
                Some(last) => format!("failed: {}", last.told),
            },
        );
        Reply::ok(text, json)
    }
}

/// Shared limits that other gateways do not count as this one does.
fn troubled_limits(gateway: &Gateway) -> Vec<(String, &'static str)> {
    let sides = gateway.shared.iter().flatten().map(|side| &side.fleet);
    let troubles = sides.flat_map(|fleet| {
        let limit = || fleet.announced.limit.clone();
        let differs = fleet.differs().then(|| (limit(), "its numbers differ from those of other gateways"));
        let collides = fleet
            .collides()
            .then(|| (limit(), "other gateways use this name for a limit with another key or algorithm"));
        differs.into_iter().chain(collides)
    });
    troubles.collect()
}

/// Has the process that serves in our place do what was asked of us meanwhile.
fn hand_on(asks: &mut mpsc::Receiver<Ask>, pid: u32) {
    let mut reload = false;
    while let Ok(ask) = asks.try_recv() {
        match ask {
            Ask::Reload(who) => {
                reload = true;
                // Whoever asked may be gone.
                let _ = who.map(|who| who.send(Reply::handed_on(pid)));
            }
            Ask::Upgrade => {
                tracing::warn!(pid, "an upgrade was asked for during another; ask the new process")
            }
            // It looks at the files itself.
            Ask::Changed(_) => {}
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

//! The life of a worker: one OS thread, one runtime, and everything a request needs without leaving it.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::bind::Sockets;
use crate::base::wall_clock;
use crate::downstream::accept::{Ending, Listener, accept};
use crate::downstream::connection;
use crate::downstream::connection_limits::{Crew, Inbox};
use crate::downstream::listener_protocol::Door;
use crate::net::deadline::{ClientSpans, ConnectionWatch, TICK, ticks};
use crate::proxy::gateway::Gateway;
use crate::proxy::reject::Fault;
use crate::proxy::worker::Home;
use crate::shared::Session;

/// How often a draining worker looks whether its last connection is gone.
const DRAIN_PAUSE: Duration = Duration::from_millis(10);
/// The same of one that ended its connections.
const GONE_PAUSE: Duration = Duration::from_millis(1);
/// How long connections that are ended may take to go, and the shared store to hear what the last requests gave back.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// How long who asks for a listener to be closed waits for those in its queue to be let in.
const QUEUE_PATIENCE: Duration = Duration::from_secs(1);
/// How long connections may go on asking when all of them shall end: longer than an unused one stays open. What comes
/// later is not judged.
const SETTLE_PATIENCE: Duration = Duration::from_millis(1_500);
/// Ticks after which an unused connection is spare when others find no place.
const SPARE_AFTER: u64 = 10;
/// How often the dealings with a store that is no longer used are looked at.
const SESSION_PAUSE: Duration = Duration::from_secs(1);

/// What the control thread wants of a worker.
pub enum Order {
    /// Serve what begins from now on by this gateway.
    Serve(Arc<Gateway>),
    /// Accept from these sockets too, which belong to the listener of this number.
    Accept(u64, Sockets, Arc<ArcSwap<Door>>),
    /// Let in who stands in the queues of this listener, then close it.
    Close(u64),
    /// End the connections that would be refused now, each after its requests in flight.
    Recheck,
    /// Leave all listeners to another process. Done when nobody is accepted any more.
    Leave,
    /// Ask all connections to end. Done when no request is judged here any more.
    Settle,
    /// Judge again: nobody took our place.
    Stay,
}

/// Dropped when an order is carried out.
pub type Done = mpsc::Sender<()>;

/// What a worker thread is given.
pub struct Duty {
    pub id: usize,
    pub gateway: Arc<Gateway>,
    pub crew: Arc<Crew>,
    pub inbox: Inbox,
    pub orders: mpsc::UnboundedReceiver<(Order, Done)>,
    /// Becomes true when the worker shall finish what it has and end.
    pub drain: watch::Receiver<bool>,
}

/// One socket that is being accepted from.
struct Accepting {
    listener: u64,
    end: oneshot::Sender<Ending>,
    task: JoinHandle<()>,
}

/// The worker's dealings with the store, and who tells it what requests leave behind.
struct Clerk {
    session: Rc<Session>,
    task: JoinHandle<()>,
}

struct Post {
    home: Rc<Home>,
    crew: Arc<Crew>,
    accepting: Vec<Accepting>,
    clerk: Option<Clerk>,
}

/// Works until drained.
///
/// # Errors
/// When the runtime cannot be built.
pub fn work(duty: Duty) -> io::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
    runtime.block_on(serve(duty));
    // A look-up that hangs in its thread must not hold up the way down.
    runtime.shutdown_background();
    Ok(())
}

async fn serve(duty: Duty) {
    let Duty { id, gateway, crew, mut inbox, mut orders, mut drain } = duty;
    let home = Rc::new(Home::new(id, gateway));
    let sweeping = tokio::task::spawn_local(sweep(home.clone(), crew.clone()));
    let clerk = Clerk::of(&home);
    let mut post = Post { home: home.clone(), crew, accepting: Vec::new(), clerk };
    loop {
        tokio::select! {
            // What was handed over before an order comes before it.
            biased;
            arrival = inbox.recv() => match arrival {
                Some((arrival, ticket)) => connection::adopt(&home, arrival, ticket),
                None => break,
            },
            Some((order, done)) = orders.recv() => post.obey(order, done),
            changed = drain.changed() => {
                if changed.is_err() || *drain.borrow() {
                    break;
                }
            }
        }
    }
    let letting_in = post.end(|_| true, Ending::LetIn);
    inbox.close();
    while let Some((arrival, ticket)) = inbox.recv().await {
        connection::adopt(&home, arrival, ticket);
    }
    while home.watches.open_count() > 0 || letting_in.iter().any(|task| !task.is_finished()) {
        // A connection that was just handed over has not been asked yet.
        home.watches.each(ConnectionWatch::close_gracefully);
        tokio::select! {
            () = tokio::time::sleep(DRAIN_PAUSE) => {}
            Err(_) = drain.changed() => {
                letting_in.iter().for_each(JoinHandle::abort);
                end_at_once(&home).await;
                break;
            }
        }
    }
    sweeping.abort();
    if let Some(clerk) = post.clerk {
        clerk.dismiss().await;
    }
}

// === impl Post ===

impl Post {
    fn obey(&mut self, order: Order, done: Done) {
        match order {
            Order::Serve(gateway) => {
                self.home.serve_by(gateway);
                self.change_clerk();
            }
            Order::Accept(listener, sockets, door) => self.accept(listener, sockets, &door),
            Order::Close(listener) => {
                let tasks = self.end(|known| known == listener, Ending::LetIn);
                tokio::task::spawn_local(async move {
                    // Whoever finds no place yet is let in later.
                    let _ = tokio::time::timeout(QUEUE_PATIENCE, all_of(tasks)).await;
                    drop(done);
                });
            }
            Order::Recheck => self.home.watches.each(ConnectionWatch::recheck_admission),
            Order::Leave => {
                let tasks = self.end(|_| true, Ending::Leave);
                tokio::task::spawn_local(async move {
                    let _ = tokio::time::timeout(QUEUE_PATIENCE, all_of(tasks)).await;
                    drop(done);
                });
            }
            Order::Settle => {
                let home = self.home.clone();
                tokio::task::spawn_local(async move {
                    let _ = tokio::time::timeout(SETTLE_PATIENCE, settle(&home)).await;
                    home.leave();
                    drop(done);
                });
            }
            Order::Stay => self.home.stay(),
        }
    }

    fn accept(&mut self, listener: u64, sockets: Sockets, door: &Arc<ArcSwap<Door>>) {
        let sockets: Vec<io::Result<Listener>> = match sockets {
            Sockets::Tcp(all) => {
                all.into_iter().map(|one| TcpListener::from_std(one).map(Listener::Tcp)).collect()
            }
            Sockets::Unix(one, _) => vec![UnixListener::from_std(one).map(Listener::Unix)],
        };
        for socket in sockets {
            match socket {
                Ok(socket) => {
                    let (end, ended) = oneshot::channel();
                    let task = accept(socket, door.clone(), self.home.clone(), self.crew.clone(), ended);
                    let task = tokio::task::spawn_local(task);
                    self.accepting.push(Accepting { listener, end, task });
                }
                Err(error) => tracing::error!(%error, "cannot watch a listening socket"),
            }
        }
    }

    /// Ends accepting from the listeners that are meant; their tasks end soon.
    fn end(&mut self, is_meant: impl Fn(u64) -> bool, how: Ending) -> Vec<JoinHandle<()>> {
        let ended = self.accepting.extract_if(.., |accepting| is_meant(accepting.listener));
        ended
            .map(|Accepting { end, task, .. }| {
                // One that ended by itself need not be told.
                let _ = end.send(how);
                task
            })
            .collect()
    }

    /// Has another clerk where the store is another; the old one stays until the last request that used it is gone.
    fn change_clerk(&mut self) {
        let worker = self.home.worker();
        let same = match (&self.clerk, &worker.session) {
            (Some(clerk), Some(session)) => Rc::ptr_eq(&clerk.session, session),
            (None, None) => true,
            _ => false,
        };
        if same {
            return;
        }
        let before = std::mem::replace(&mut self.clerk, Clerk::of(&self.home));
        if let Some(clerk) = before {
            tokio::task::spawn_local(async move {
                while clerk.is_needed() {
                    tokio::time::sleep(SESSION_PAUSE).await;
                }
                clerk.dismiss().await;
            });
        }
    }
}

async fn all_of(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        let _ = task.await;
    }
}

/// Waits until every connection is answering its last requests or gone.
async fn settle(home: &Home) {
    loop {
        let may_ask = Cell::new(false);
        home.watches.each(|watch| {
            watch.close_gracefully();
            may_ask.set(may_ask.get() || watch.may_ask());
        });
        if !may_ask.get() {
            return;
        }
        tokio::time::sleep(DRAIN_PAUSE).await;
    }
}

// === impl Clerk ===

impl Clerk {
    fn of(home: &Home) -> Option<Clerk> {
        let session = home.worker().session.clone()?;
        let task = tokio::task::spawn_local(session.clone().clerk());
        Some(Clerk { session, task })
    }

    /// Whether some request has dealings with the store by this session: besides us the clerk's task has it.
    fn is_needed(&self) -> bool {
        Rc::strong_count(&self.session) > 2 || Arc::strong_count(&self.session.desk) > 1
    }

    async fn dismiss(self) {
        let _ = tokio::time::timeout(LAST_WORDS, self.session.desk.emptied()).await;
        self.task.abort();
    }
}

/// Nobody waits any more: each request ends with its line in the log, and gives back what it holds.
async fn end_at_once(home: &Home) {
    home.watches.each(ConnectionWatch::abort_now);
    let gone = async {
        while home.watches.open_count() > 0 {
            tokio::time::sleep(GONE_PAUSE).await;
        }
    };
    let _ = tokio::time::timeout(LAST_WORDS, gone).await;
}

async fn sweep(home: Rc<Home>, crew: Arc<Crew>) {
    // The first tick may come a moment later than the first answer.
    wall_clock::look_for_steps();
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        wall_clock::look_for_steps();
        let worker = home.worker();
        let timeouts = &worker.gateway.server.timeouts;
        let spans = ClientSpans {
            header: ticks(timeouts.header),
            idle: ticks(timeouts.idle),
            spare: if crew.is_full() { SPARE_AFTER } else { u64::MAX },
            body: ticks(timeouts.body),
            write: ticks(timeouts.write),
            handshake: ticks(timeouts.handshake),
        };
        home.watches.sweep(&spans, |broken| {
            if let Some(fault) = Fault::of(broken) {
                worker.gateway.metrics.fault(worker.id, fault.index());
            }
        });
        worker.pools.sweep();
    }
}

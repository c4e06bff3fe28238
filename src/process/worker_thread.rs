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

use super::bind::BoundSockets;
use crate::base::wall_clock;
use crate::downstream::accept::{AcceptEnd, WorkerListener, accept_connections};
use crate::downstream::connection;
use crate::downstream::connection_limits::{ConnectionLimits, WorkerInbox};
use crate::downstream::listener_protocol::ListenerProtocol;
use crate::net::deadline::{ClientSpans, ConnectionWatch, TICK, ticks_for};
use crate::proxy::gateway::Gateway;
use crate::proxy::reject::Fault;
use crate::proxy::worker::WorkerThread;
use crate::shared::Session;

/// How often a draining worker looks whether its last connection is gone.
const DRAIN_PAUSE: Duration = Duration::from_millis(10);
/// The same of one that ended its connections.
const ABORT_PAUSE: Duration = Duration::from_millis(1);
/// How long connections that are ended may take to go, and the shared store to hear what the last requests gave back.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(100);
/// How long who asks for a listener to be closed waits for those in its queue to be let in.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long connections may go on asking when all of them shall end: longer than an unused one stays open. What comes
/// later is not judged.
const STOP_JUDGING_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Ticks after which an unused connection is spare when others find no place.
const SPARE_AFTER: u64 = 10;
/// How often the dealings with a store that is no longer used are looked at.
const SESSION_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// What the control thread wants of a worker.
pub enum WorkerCommand {
    /// Serve what begins from now on by this gateway.
    UseGateway(Arc<Gateway>),
    /// Accept from these sockets too, which belong to the listener of this number.
    Accept(u64, BoundSockets, Arc<ArcSwap<ListenerProtocol>>),
    /// Let in who stands in the queues of this listener, then close it.
    CloseListener(u64),
    /// End the connections that would be refused now, each after its requests in flight.
    RecheckConnections,
    /// Leave all listeners to another process. Done when nobody is accepted any more.
    LeaveListeners,
    /// Ask all connections to end. Done when no request is judged here any more.
    StopJudging,
    /// Judge again: nobody took our place.
    ResumeJudging,
}

/// Dropped when an order is carried out.
pub type CommandDone = mpsc::Sender<()>;

/// What a worker thread is given.
pub struct WorkerStart {
    pub id: usize,
    pub gateway: Arc<Gateway>,
    pub connection_limits: Arc<ConnectionLimits>,
    pub inbox: WorkerInbox,
    pub commands: mpsc::UnboundedReceiver<(WorkerCommand, CommandDone)>,
    /// Becomes true when the worker shall finish what it has and end.
    pub drain: watch::Receiver<bool>,
}

/// One socket that is being accepted from.
struct AcceptTask {
    listener: u64,
    end_sender: oneshot::Sender<AcceptEnd>,
    task: JoinHandle<()>,
}

/// The worker's dealings with the store, and who tells it what requests leave behind.
struct StoreFlusher {
    session: Rc<Session>,
    task: JoinHandle<()>,
}

struct WorkerControl {
    state: Rc<WorkerThread>,
    connection_limits: Arc<ConnectionLimits>,
    accept_tasks: Vec<AcceptTask>,
    flusher: Option<StoreFlusher>,
}

/// Works until drained.
///
/// # Errors
/// When the runtime cannot be built.
pub fn run_worker(duty: WorkerStart) -> io::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
    runtime.block_on(run_until_drained(duty));
    // A look-up that hangs in its thread must not hold up the way down.
    runtime.shutdown_background();
    Ok(())
}

async fn run_until_drained(duty: WorkerStart) {
    let WorkerStart { id, gateway, connection_limits: crew, mut inbox, commands: mut orders, mut drain } =
        duty;
    let home = Rc::new(WorkerThread::new(id, gateway));
    let sweeping = tokio::task::spawn_local(sweep_connections(home.clone(), crew.clone()));
    let clerk = StoreFlusher::spawn_flusher(&home);
    let mut post = WorkerControl {
        state: home.clone(),
        connection_limits: crew,
        accept_tasks: Vec::new(),
        flusher: clerk,
    };
    loop {
        tokio::select! {
            // What was handed over before an order comes before it.
            biased;
            arrival = inbox.recv() => match arrival {
                Some((arrival, ticket)) => connection::adopt_connection(&home, arrival, ticket),
                None => break,
            },
            Some((order, done)) = orders.recv() => post.run_command(order, done),
            changed = drain.changed() => {
                if changed.is_err() || *drain.borrow() {
                    break;
                }
            }
        }
    }
    let letting_in = post.stop_accepting(|_| true, AcceptEnd::DrainQueue);
    inbox.close();
    while let Some((arrival, ticket)) = inbox.recv().await {
        connection::adopt_connection(&home, arrival, ticket);
    }
    while home.watches.open_count() > 0 || letting_in.iter().any(|task| !task.is_finished()) {
        // A connection that was just handed over has not been asked yet.
        home.watches.for_each_connection(ConnectionWatch::close_gracefully);
        tokio::select! {
            () = tokio::time::sleep(DRAIN_PAUSE) => {}
            Err(_) = drain.changed() => {
                letting_in.iter().for_each(JoinHandle::abort);
                abort_connections(&home).await;
                break;
            }
        }
    }
    sweeping.abort();
    if let Some(clerk) = post.flusher {
        clerk.flush_and_stop().await;
    }
}

// === impl Post ===

impl WorkerControl {
    fn run_command(&mut self, order: WorkerCommand, done: CommandDone) {
        match order {
            WorkerCommand::UseGateway(gateway) => {
                self.state.switch_gateway(gateway);
                self.replace_flusher();
            }
            WorkerCommand::Accept(listener, sockets, door) => self.start_accepting(listener, sockets, &door),
            WorkerCommand::CloseListener(listener) => {
                let tasks = self.stop_accepting(|known| known == listener, AcceptEnd::DrainQueue);
                tokio::task::spawn_local(async move {
                    // Whoever finds no place yet is let in later.
                    let _ = tokio::time::timeout(QUEUE_TIMEOUT, join_tasks(tasks)).await;
                    drop(done);
                });
            }
            WorkerCommand::RecheckConnections => {
                self.state.watches.for_each_connection(ConnectionWatch::recheck_terms)
            }
            WorkerCommand::LeaveListeners => {
                let tasks = self.stop_accepting(|_| true, AcceptEnd::LeaveQueue);
                tokio::task::spawn_local(async move {
                    let _ = tokio::time::timeout(QUEUE_TIMEOUT, join_tasks(tasks)).await;
                    drop(done);
                });
            }
            WorkerCommand::StopJudging => {
                let home = self.state.clone();
                tokio::task::spawn_local(async move {
                    let _ = tokio::time::timeout(STOP_JUDGING_TIMEOUT, wait_last_requests(&home)).await;
                    home.stop_judging();
                    drop(done);
                });
            }
            WorkerCommand::ResumeJudging => self.state.resume_judging(),
        }
    }

    fn start_accepting(
        &mut self,
        listener: u64,
        sockets: BoundSockets,
        door: &Arc<ArcSwap<ListenerProtocol>>,
    ) {
        let sockets: Vec<io::Result<WorkerListener>> = match sockets {
            BoundSockets::Tcp(all) => {
                all.into_iter().map(|one| TcpListener::from_std(one).map(WorkerListener::Tcp)).collect()
            }
            BoundSockets::Unix(one, _) => vec![UnixListener::from_std(one).map(WorkerListener::Unix)],
        };
        for socket in sockets {
            match socket {
                Ok(socket) => {
                    let (end, ended) = oneshot::channel();
                    let task = accept_connections(
                        socket,
                        door.clone(),
                        self.state.clone(),
                        self.connection_limits.clone(),
                        ended,
                    );
                    let task = tokio::task::spawn_local(task);
                    self.accept_tasks.push(AcceptTask { listener, end_sender: end, task });
                }
                Err(error) => tracing::error!(%error, "cannot watch a listening socket"),
            }
        }
    }

    /// Ends accepting from the listeners that are meant; their tasks end soon.
    fn stop_accepting(&mut self, is_meant: impl Fn(u64) -> bool, how: AcceptEnd) -> Vec<JoinHandle<()>> {
        let ended = self.accept_tasks.extract_if(.., |accepting| is_meant(accepting.listener));
        ended
            .map(|AcceptTask { end_sender: end, task, .. }| {
                // One that ended by itself need not be told.
                let _ = end.send(how);
                task
            })
            .collect()
    }

    /// Has another clerk where the store is another; the old one stays until the last request that used it is gone.
    fn replace_flusher(&mut self) {
        let worker = self.state.current_worker();
        let same = match (&self.flusher, &worker.session) {
            (Some(clerk), Some(session)) => Rc::ptr_eq(&clerk.session, session),
            (None, None) => true,
            _ => false,
        };
        if same {
            return;
        }
        let before = std::mem::replace(&mut self.flusher, StoreFlusher::spawn_flusher(&self.state));
        if let Some(clerk) = before {
            tokio::task::spawn_local(async move {
                while clerk.is_in_use() {
                    tokio::time::sleep(SESSION_POLL_INTERVAL).await;
                }
                clerk.flush_and_stop().await;
            });
        }
    }
}

async fn join_tasks(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        let _ = task.await;
    }
}

/// Waits until every connection is answering its last requests or gone.
async fn wait_last_requests(home: &WorkerThread) {
    loop {
        let may_ask = Cell::new(false);
        home.watches.for_each_connection(|watch| {
            watch.close_gracefully();
            may_ask.set(may_ask.get() || watch.may_receive_request());
        });
        if !may_ask.get() {
            return;
        }
        tokio::time::sleep(DRAIN_PAUSE).await;
    }
}

// === impl Clerk ===

impl StoreFlusher {
    fn spawn_flusher(home: &WorkerThread) -> Option<StoreFlusher> {
        let session = home.current_worker().session.clone()?;
        let task = tokio::task::spawn_local(session.clone().run_flusher());
        Some(StoreFlusher { session, task })
    }

    /// Whether some request has dealings with the store by this session: besides us the clerk's task has it.
    fn is_in_use(&self) -> bool {
        Rc::strong_count(&self.session) > 2 || Arc::strong_count(&self.session.outbox) > 1
    }

    async fn flush_and_stop(self) {
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, self.session.outbox.wait_flushed()).await;
        self.task.abort();
    }
}

/// Nobody waits any more: each request ends with its line in the log, and gives back what it holds.
async fn abort_connections(home: &WorkerThread) {
    home.watches.for_each_connection(ConnectionWatch::abort_now);
    let gone = async {
        while home.watches.open_count() > 0 {
            tokio::time::sleep(ABORT_PAUSE).await;
        }
    };
    let _ = tokio::time::timeout(FLUSH_TIMEOUT, gone).await;
}

async fn sweep_connections(home: Rc<WorkerThread>, crew: Arc<ConnectionLimits>) {
    // The first tick may come a moment later than the first answer.
    wall_clock::detect_clock_step();
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        wall_clock::detect_clock_step();
        let worker = home.current_worker();
        let timeouts = &worker.gateway.server.timeouts;
        let spans = ClientSpans {
            header: ticks_for(timeouts.header),
            idle: ticks_for(timeouts.idle),
            spare: if crew.is_full() { SPARE_AFTER } else { u64::MAX },
            body: ticks_for(timeouts.body),
            write: ticks_for(timeouts.write),
            handshake: ticks_for(timeouts.handshake),
        };
        home.watches.sweep_deadlines(&spans, |broken| {
            if let Some(fault) = Fault::from_broken_deadline(broken) {
                worker.gateway.metrics.count_fault(worker.id, fault.index());
            }
        });
        worker.pools.sweep_idle();
    }
}

//! Runs a worker: one OS thread, one runtime, and everything a request needs without leaving the thread.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::downstream::accept::{AcceptEnd, WorkerListener, accept_connections};
use crate::downstream::bind::BoundSockets;
use crate::downstream::connection;
use crate::downstream::connection_limits::{ConnectionLimits, WorkerInbox};
use crate::downstream::listener_protocol::ListenerProtocol;
use crate::gateway::Gateway;
use crate::gateway::worker::{Worker, WorkerThread};
use crate::reject::Fault;
use sluicegate_base::clock::Now;
use sluicegate_base::wall_clock;
use sluicegate_http::net::deadline::{ClientSpans, ConnectionWatch, TICK, ticks_for};
use sluicegate_store::Session;

/// Interval at which a draining worker checks for its last connection.
const DRAIN_PAUSE: Duration = Duration::from_millis(10);
/// The same interval after its connections were aborted.
const ABORT_PAUSE: Duration = Duration::from_millis(1);
/// Time for aborted connections to end, and for the last refunds to reach the shared store.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(100);
/// Time to accept the queue of a closing listener before the command counts as done.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for connections to send last requests while all of them are closed; longer than an unused one stays open. Later
/// requests are not judged.
const STOP_JUDGING_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Ticks after which an unused connection may be closed for one that waits for a permit.
const SPARE_AFTER: u64 = 10;
/// Interval at which the use of a replaced store is checked.
const SESSION_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A command of the control thread to a worker.
pub enum WorkerCommand {
    /// Serve new requests by this gateway.
    UseGateway(Arc<Gateway>),
    /// Accept from these sockets too, which belong to the listener with this id.
    Accept(u64, BoundSockets, Arc<ArcSwap<ListenerProtocol>>),
    /// Accept the connections in the queues of this listener, then close it.
    CloseListener(u64),
    /// End the connections that the current terms reject, each after its requests in flight.
    RecheckConnections,
    /// Leave all listeners to another process. Done when no connection is accepted any more.
    LeaveListeners,
    /// Close all connections gracefully. Done when no request is judged here any more.
    StopJudging,
    /// Judge again: no other process has taken over.
    ResumeJudging,
    /// Look at the worker.
    Inspect(WorkerInspection),
}

/// Runs between two requests, so it must take less than a millisecond.
pub type WorkerInspection = Box<dyn FnOnce(&Worker) + Send>;

/// Dropped when a command is done.
pub type CommandDone = mpsc::Sender<()>;

/// The inputs of a worker thread.
pub struct WorkerStart {
    /// The index of the worker, from 0.
    pub id: usize,
    /// The gateway that serves its first requests.
    pub gateway: Arc<Gateway>,
    /// The limits over the connections of all workers.
    pub connection_limits: Arc<ConnectionLimits>,
    /// The connections that other workers hand over.
    pub inbox: WorkerInbox,
    /// The commands of the control thread, each with a sender that is dropped when it is done.
    pub commands: mpsc::UnboundedReceiver<(WorkerCommand, CommandDone)>,
    /// True = finish the open connections and end; closed = end at once.
    pub drain: watch::Receiver<bool>,
}

/// The accept loop of one socket.
struct AcceptTask {
    listener: u64,
    end_sender: oneshot::Sender<AcceptEnd>,
    task: JoinHandle<()>,
}

/// The worker's session with the store, and the task that sends its refunds and slots there.
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

/// Runs a worker until it is drained.
///
/// # Errors
/// The runtime cannot be built.
pub fn run_worker(start: WorkerStart) -> io::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
    runtime.block_on(run_until_drained(start));
    // A DNS look-up that hangs in its thread must not delay the end.
    runtime.shutdown_background();
    Ok(())
}

async fn run_until_drained(start: WorkerStart) {
    let WorkerStart { id, gateway, connection_limits: limits, mut inbox, mut commands, mut drain } = start;
    let thread = Rc::new(WorkerThread::new(id, gateway));
    let sweeping = tokio::task::spawn_local(sweep_connections(thread.clone(), limits.clone()));
    let flusher = StoreFlusher::spawn_flusher(&thread);
    let mut control =
        WorkerControl { state: thread.clone(), connection_limits: limits, accept_tasks: Vec::new(), flusher };
    loop {
        tokio::select! {
            // Connections handed over before a command are adopted before it.
            biased;
            socket = inbox.recv() => match socket {
                Some((socket, context)) => connection::adopt_connection(&thread, socket, context),
                None => break,
            },
            Some((command, done)) = commands.recv() => control.run_command(command, done),
            changed = drain.changed() => {
                if changed.is_err() || *drain.borrow() {
                    break;
                }
            }
        }
    }
    let accepting_queues = control.stop_accepting(|_| true, AcceptEnd::DrainQueue);
    inbox.close();
    while let Some((socket, context)) = inbox.recv().await {
        connection::adopt_connection(&thread, socket, context);
    }
    while thread.watches.open_count() > 0 || accepting_queues.iter().any(|task| !task.is_finished()) {
        // Repeated, for connections that were handed over in the meantime.
        thread.watches.for_each_connection(ConnectionWatch::close_gracefully);
        tokio::select! {
            () = tokio::time::sleep(DRAIN_PAUSE) => {}
            Err(_) = drain.changed() => {
                accepting_queues.iter().for_each(JoinHandle::abort);
                abort_connections(&thread).await;
                break;
            }
        }
    }
    sweeping.abort();
    // Slots of leases that are counted in the store go back with the last flush.
    let worker = thread.current_worker();
    worker.gateway.calls.leases.end_all(worker.id, Now::read_clock());
    drop(worker);
    if let Some(flusher) = control.flusher {
        flusher.settle_after_upgrade(&mut drain).await;
        flusher.flush_and_stop().await;
    }
}

impl WorkerControl {
    fn run_command(&mut self, command: WorkerCommand, done: CommandDone) {
        match command {
            WorkerCommand::UseGateway(gateway) => {
                self.state.switch_gateway(gateway);
                self.replace_flusher();
            }
            WorkerCommand::Accept(listener, sockets, protocol) => {
                let sockets: Vec<io::Result<WorkerListener>> = match sockets {
                    BoundSockets::Tcp(all) => all
                        .into_iter()
                        .map(|one| TcpListener::from_std(one).map(WorkerListener::Tcp))
                        .collect(),
                    BoundSockets::Unix(one, _) => vec![UnixListener::from_std(one).map(WorkerListener::Unix)],
                };
                for socket in sockets {
                    match socket {
                        Ok(socket) => {
                            let (end_sender, end) = oneshot::channel();
                            let (thread, limits) = (self.state.clone(), self.connection_limits.clone());
                            let task = accept_connections(socket, protocol.clone(), thread, limits, end);
                            let task = tokio::task::spawn_local(task);
                            self.accept_tasks.push(AcceptTask { listener, end_sender, task });
                        }
                        Err(error) => tracing::error!(%error, "cannot watch a listening socket"),
                    }
                }
            }
            WorkerCommand::CloseListener(listener) => {
                let tasks = self.stop_accepting(|known| known == listener, AcceptEnd::DrainQueue);
                // Connections without a permit yet are accepted later.
                spawn_until(QUEUE_TIMEOUT, join_tasks(tasks), || drop(done));
            }
            WorkerCommand::RecheckConnections => {
                self.state.watches.for_each_connection(ConnectionWatch::recheck_terms)
            }
            WorkerCommand::LeaveListeners => {
                let tasks = self.stop_accepting(|_| true, AcceptEnd::LeaveQueue);
                spawn_until(QUEUE_TIMEOUT, join_tasks(tasks), || drop(done));
            }
            WorkerCommand::StopJudging => {
                let thread = self.state.clone();
                spawn_until(STOP_JUDGING_TIMEOUT, wait_last_requests(thread.clone()), move || {
                    thread.stop_judging();
                    if let Some(session) = thread.current_worker().session.clone() {
                        tokio::task::spawn_local(async move { session.return_leases().await });
                    }
                    drop(done);
                });
            }
            WorkerCommand::ResumeJudging => self.state.resume_judging(),
            WorkerCommand::Inspect(inspect) => inspect(&self.state.current_worker()),
        }
    }

    /// Ends accepting from the selected listeners; their tasks end soon.
    fn stop_accepting(&mut self, is_selected: impl Fn(u64) -> bool, how: AcceptEnd) -> Vec<JoinHandle<()>> {
        let ended = self.accept_tasks.extract_if(.., |accepting| is_selected(accepting.listener));
        ended
            .map(|AcceptTask { end_sender, task, .. }| {
                // The receiver is gone if the task ended by itself.
                let _ = end_sender.send(how);
                task
            })
            .collect()
    }

    /// Replaces the flusher if the store changed; the old one runs until the last request with its session is gone.
    fn replace_flusher(&mut self) {
        let worker = self.state.current_worker();
        let flushed = self.flusher.as_ref().map(|flusher| Rc::as_ptr(&flusher.session));
        if flushed == worker.session.as_ref().map(Rc::as_ptr) {
            return;
        }
        let previous = std::mem::replace(&mut self.flusher, StoreFlusher::spawn_flusher(&self.state));
        if let Some(flusher) = previous {
            tokio::task::spawn_local(async move {
                while flusher.is_in_use() {
                    tokio::time::sleep(SESSION_POLL_INTERVAL).await;
                }
                flusher.flush_and_stop().await;
            });
        }
    }
}

/// Runs `work` for at most `longest`, then `end`.
fn spawn_until(longest: Duration, work: impl Future<Output = ()> + 'static, end: impl FnOnce() + 'static) {
    tokio::task::spawn_local(async move {
        let _ = tokio::time::timeout(longest, work).await;
        end();
    });
}

async fn join_tasks(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        let _ = task.await;
    }
}

/// Waits until every connection is closed or answers its last requests.
async fn wait_last_requests(thread: Rc<WorkerThread>) {
    loop {
        let may_receive = Cell::new(false);
        thread.watches.for_each_connection(|watch| {
            watch.close_gracefully();
            may_receive.set(may_receive.get() || watch.may_receive_request());
        });
        if !may_receive.get() {
            return;
        }
        tokio::time::sleep(DRAIN_PAUSE).await;
    }
}

impl StoreFlusher {
    fn spawn_flusher(thread: &WorkerThread) -> Option<StoreFlusher> {
        let session = thread.current_worker().session.clone()?;
        let task = tokio::task::spawn_local(session.clone().run_flusher());
        Some(StoreFlusher { session, task })
    }

    /// True if a request still uses this session; the flusher and its task hold one reference each.
    fn is_in_use(&self) -> bool {
        Rc::strong_count(&self.session) > 2 || Arc::strong_count(&self.session.outbox) > 1
    }

    /// Waits after an upgrade until the last units of this process are settled, as nobody else does it. An outage of
    /// the store does not end the wait; the end of the process does.
    async fn settle_after_upgrade(&self, drain: &mut watch::Receiver<bool>) {
        let outbox = &self.session.outbox;
        if !outbox.debts.is_handed_over() {
            return;
        }
        let has_to_end = async { while drain.changed().await.is_ok() {} };
        tokio::select! {
            () = outbox.wait_all_settled() => {}
            () = has_to_end => {}
        }
    }

    async fn flush_and_stop(self) {
        let flushed = async {
            self.session.outbox.wait_flushed().await;
            self.session.return_leases().await;
        };
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, flushed).await;
        self.task.abort();
    }
}

/// Aborts all connections; each request still writes its log line and releases its guards.
async fn abort_connections(thread: &WorkerThread) {
    thread.watches.for_each_connection(ConnectionWatch::abort_now);
    let gone = async {
        while thread.watches.open_count() > 0 {
            tokio::time::sleep(ABORT_PAUSE).await;
        }
    };
    let _ = tokio::time::timeout(FLUSH_TIMEOUT, gone).await;
}

async fn sweep_connections(thread: Rc<WorkerThread>, limits: Arc<ConnectionLimits>) {
    // The first tick may come after the first answer.
    wall_clock::detect_clock_step();
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        wall_clock::detect_clock_step();
        let worker = thread.current_worker();
        let timeouts = &worker.gateway.config.server.timeouts;
        let spans = ClientSpans {
            header: ticks_for(timeouts.header),
            idle: ticks_for(timeouts.idle),
            spare: if limits.has_waiters() { SPARE_AFTER } else { u64::MAX },
            body: ticks_for(timeouts.body),
            write: ticks_for(timeouts.write),
            handshake: ticks_for(timeouts.handshake),
        };
        thread.watches.sweep_deadlines(&spans, |missed| {
            if let Some(fault) = Fault::from_broken_deadline(missed) {
                worker.gateway.metrics.count_fault(worker.id, fault.index());
            }
        });
        worker.pools.sweep_idle();
        worker.gateway.calls.leases.end_due(worker.id, Now::read_clock());
        worker.gateway.upstreams.iter().for_each(|upstream| upstream.recheck_queue());
    }
}

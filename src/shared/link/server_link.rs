//! The way of one worker to one server.

use std::cell::{Cell, RefCell, RefMut};
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::Store;
use super::connection::{StoreConnection, add_script_loads};
use super::fault::{ErrorReply, StoreAddress, StoreFault};
use super::server::StoreServer;
use crate::base::clock::Now;
use crate::shared::{LuaScript, PackedCall};

/// How often a call is sent anew because the script was missing. One reload is enough but for a server that is
/// made to forget its scripts again and again.
const RELOADS_MAX: usize = 4;
/// So many calls in a row that got no answer on one connection give it up, though others may work.
const UNANSWERED_MAX: u32 = 5;
/// Between two connects of one worker while calls still go through.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

pub(super) struct ServerLink {
    pub server: Arc<StoreServer>,
    state: RefCell<LinkState>,
    /// Connects so far.
    connects: Cell<u32>,
    /// Calls in a row that got no answer on the connection of the last one.
    unanswered: Cell<u32>,
}

enum LinkState {
    None,
    /// The connect failed at that moment.
    Failed(Instant),
    /// Since that moment.
    Connecting(watch::Receiver<Option<ConnectResult>>, Instant),
    /// And the breaker's epoch when it was made.
    Connected(StoreConnection, u64),
}

type ConnectResult = Result<(StoreConnection, u64), StoreFault>;

/// What is to be run, and until when.
pub(super) struct ScriptCall<'a> {
    pub store: &'a Arc<Store>,
    pub script: &'a LuaScript,
    pub packed: &'a PackedCall,
    pub deadline: Instant,
}

pub(super) enum CallOutcome {
    Answered(Vec<u8>),
    /// Did not run: this is the place of the key, for good or (`true`) for this call.
    Redirected(StoreAddress, bool),
    /// Did not run: a moment of a migration.
    TryAgain,
    Failed(StoreFault),
}

// === impl Lane ===

impl ServerLink {
    pub(super) fn new(server: Arc<StoreServer>) -> ServerLink {
        ServerLink {
            server,
            state: RefCell::new(LinkState::None),
            connects: Cell::new(0),
            unanswered: Cell::new(0),
        }
    }

    /// Runs it here, if the breaker lets it. `asking`: the server said that it is to be asked this once.
    pub(super) async fn run_call(&self, work: &ScriptCall<'_>, asking: bool) -> CallOutcome {
        let server = &*self.server;
        let Some(epoch) = server.breaker.admit(Now::read_clock()) else {
            self.drop_connection();
            return CallOutcome::Failed(StoreFault::Down);
        };
        if self.refresh_state().is_unreachable(work.store.timeout) {
            return CallOutcome::Failed(StoreFault::Down);
        }
        let Some(_room) = server.acquire_call() else {
            return CallOutcome::Failed(StoreFault::Busy);
        };
        let (waited, connects) = (Cell::new(false), self.connects.get());
        let exchange = self.exchange_call(work, asking, epoch, &waited);
        let outcome = timeout_at(work.deadline, exchange).await;
        let outcome = outcome.unwrap_or(CallOutcome::Failed(StoreFault::Timeout));
        match outcome {
            // The connect may take longer than a call; whether it fails is judged at its end.
            CallOutcome::Failed(StoreFault::Timeout) if waited.get() => {}
            CallOutcome::Failed(failure) => {
                if failure == StoreFault::Timeout && connects == self.connects.get() {
                    self.count_unanswered();
                }
                server.record_fault(epoch, failure);
            }
            _ => {
                self.unanswered.set(0);
                server.breaker.record_call(Now::read_clock(), epoch, false);
            }
        }
        outcome
    }

    /// `waited` is set when there was no connection at once.
    async fn exchange_call(
        &self,
        work: &ScriptCall<'_>,
        asking: bool,
        epoch: u64,
        waited: &Cell<bool>,
    ) -> CallOutcome {
        let connection = match self.ready_connection(work.store, epoch, waited).await {
            Ok(connection) => connection,
            Err(failure) => return CallOutcome::Failed(failure),
        };
        let mut loads = connection.load_count();
        let mut answer = if asking {
            send_call(&connection, &[], true, work).await
        } else {
            connection.send_command(&evalsha_command(work)).await.map_err(|fault| fault.kind)
        };
        for _ in 0..RELOADS_MAX {
            match answer {
                Ok(Value::ServerError(ref error))
                    if matches!(ErrorReply::from_server_error(error), ErrorReply::NoScript) => {}
                _ => break,
            }
            // Whoever hears of it first loads the scripts; what is sent behind that finds them.
            let mut scripts = Arc::default();
            if connection.load_count() == loads {
                connection.count_load();
                scripts = work.store.loaded_scripts(Some(work.script));
            }
            loads = connection.load_count();
            answer = send_call(&connection, &scripts, asking, work).await;
        }
        match answer {
            Ok(Value::BulkString(bytes)) => CallOutcome::Answered(bytes),
            Ok(Value::ServerError(error)) => match ErrorReply::from_server_error(&error) {
                ErrorReply::NoScript => CallOutcome::Failed(StoreFault::CommandError),
                ErrorReply::Moved(address) => CallOutcome::Redirected(address, false),
                ErrorReply::Ask(address) => CallOutcome::Redirected(address, true),
                ErrorReply::TryAgain => CallOutcome::TryAgain,
                ErrorReply::Failed(failure) => CallOutcome::Failed(failure),
            },
            Ok(_) => CallOutcome::Failed(StoreFault::Garbled),
            Err(failure) => CallOutcome::Failed(failure),
        }
    }

    /// The connection of this epoch. A connect goes on when who waits for it leaves.
    async fn ready_connection(
        &self,
        store: &Arc<Store>,
        epoch: u64,
        waited: &Cell<bool>,
    ) -> Result<StoreConnection, StoreFault> {
        let mut coming = {
            let mut way = self.refresh_state();
            match &*way {
                LinkState::Connected(connection, of) if *of == epoch => return Ok(connection.clone()),
                LinkState::Connecting(coming, _) => coming.clone(),
                _ => {
                    let coming = spawn_connect(store.clone(), self.server.clone());
                    *way = LinkState::Connecting(coming.clone(), Instant::now());
                    self.connects.set(self.connects.get().wrapping_add(1));
                    self.unanswered.set(0);
                    coming
                }
            }
        };
        waited.set(true);
        let came = coming.wait_for(Option::is_some).await.map_or(None, |came| came.clone());
        self.refresh_state();
        came.unwrap_or(Err(StoreFault::Broken)).map(|(connection, _)| connection)
    }

    /// The way as it stands now.
    fn refresh_state(&self) -> RefMut<'_, LinkState> {
        let mut way = self.state.borrow_mut();
        way.advance_state();
        way
    }

    /// A connection whose peer went away without a word is only known by its silence.
    fn count_unanswered(&self) {
        self.unanswered.set(self.unanswered.get() + 1);
        if self.unanswered.get() >= UNANSWERED_MAX {
            self.drop_connection();
        }
    }

    /// While the server is not asked, its connections are of no use, and what it still sends is not read.
    fn drop_connection(&self) {
        let mut way = self.state.borrow_mut();
        if matches!(*way, LinkState::Connected(..)) {
            *way = LinkState::None;
        }
    }
}

// === impl Way ===

impl LinkState {
    /// Too early for another connect, or one is under way for longer than a call may wait.
    fn is_unreachable(&self, timeout: Duration) -> bool {
        match self {
            LinkState::Failed(at) => at.elapsed() < RECONNECT_PAUSE,
            LinkState::Connecting(coming, since) => coming.borrow().is_none() && since.elapsed() >= timeout,
            _ => false,
        }
    }

    /// Moves on if the connect ended, well or badly, or the connection did.
    fn advance_state(&mut self) {
        let next = match self {
            LinkState::Connecting(coming, _) => match (&*coming.borrow(), coming.has_changed().is_err()) {
                (Some(Ok((connection, epoch))), _) if connection.is_alive() => {
                    LinkState::Connected(connection.clone(), *epoch)
                }
                (Some(Ok(_)), _) => LinkState::None,
                (Some(Err(_)), _) | (None, true) => LinkState::Failed(Instant::now()),
                (None, false) => return,
            },
            LinkState::Connected(connection, _) if !connection.is_alive() => LinkState::None,
            _ => return,
        };
        *self = next;
    }
}

fn spawn_connect(store: Arc<Store>, server: Arc<StoreServer>) -> watch::Receiver<Option<ConnectResult>> {
    let (told, coming) = watch::channel(None);
    tokio::spawn(async move {
        let connected = store.connect_to(&server.address).await;
        let epoch = server.breaker.epoch();
        if let Err(fault) = &connected {
            server.record_fault(epoch, fault.kind);
        }
        let arrival = connected.map(|connection| (connection, epoch)).map_err(|fault| fault.kind);
        told.send_replace(Some(arrival));
    });
    coming
}

fn evalsha_command(work: &ScriptCall<'_>) -> Cmd {
    let PackedCall { keys, body } = work.packed;
    let bytes = 64 + keys.iter().map(Vec::len).sum::<usize>() + body.len();
    let mut command = Cmd::with_capacity(4 + keys.len(), bytes);
    command.arg("EVALSHA").arg(&work.script.sha).arg(keys.len());
    for key in keys {
        command.arg(key.as_slice());
    }
    command.arg(body.as_slice());
    command
}

/// Sends the call behind what it needs. The answer is that of the call.
async fn send_call(
    connection: &StoreConnection,
    scripts: &[&str],
    asking: bool,
    work: &ScriptCall<'_>,
) -> Result<Value, StoreFault> {
    let mut row = Pipeline::with_capacity(scripts.len() + 2);
    add_script_loads(&mut row, scripts);
    if asking {
        row.cmd("ASKING");
    }
    row.add_command(evalsha_command(work));
    let answers = connection.send_pipeline(&row).await.map_err(|fault| fault.kind)?;
    answers.into_iter().next_back().ok_or(StoreFault::Garbled)
}

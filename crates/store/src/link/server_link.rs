//! The link of one worker to one server.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::Store;
use super::call_lines::{CallLines, LateReply, LineEntry};
use super::connection::{StoreConnection, add_script_loads, take_last_answer};
use super::fault::{StoreAddress, StoreFault};
use super::server::StoreServer;
use crate::{LuaScript, PackedCall, ScriptOp};
use sluicegate_base::clock::Now;

/// The number of repeats of a call because the script was missing. One reload is enough unless the server's scripts
/// are flushed again and again.
const RELOADS_MAX: usize = 4;
/// A connection is given up after so many consecutive unanswered calls, though other calls may work.
const UNANSWERED_MAX: u32 = 5;
/// Pause after a failed connect of one worker while calls still go through.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

pub(super) struct ServerLink {
    pub server: Arc<StoreServer>,
    state: RefCell<LinkState>,
    /// Connects so far.
    connects: Cell<u32>,
    /// Consecutive unanswered calls on the current connection.
    unanswered: Cell<u32>,
    lines: Rc<CallLines>,
}

enum LinkState {
    None,
    /// The connect failed at that moment.
    Failed(Instant),
    /// A connect has run since that moment.
    Connecting(watch::Receiver<Option<ConnectResult>>, Instant),
    /// The connection, and the breaker's epoch when it was made.
    Connected(StoreConnection, u64),
}

type ConnectResult = Result<(StoreConnection, u64), StoreFault>;

/// A script call and its deadline.
pub(super) struct ScriptCall<'a> {
    pub store: &'a Arc<Store>,
    pub script: &'a LuaScript,
    pub packed: &'a PackedCall,
    pub deadline: Instant,
}

pub(super) enum CallOutcome {
    Answered(Vec<u8>),
    /// Did not run: the key is at this address, for good or (`true`) for this call.
    Redirected(StoreAddress, bool),
    /// Did not run: the slot is being migrated.
    TryAgain,
    Failed(CallFailure),
}

/// The failure of a call that brought no reply in time.
pub(crate) struct CallFailure {
    pub fault: StoreFault,
    /// The reply may still come.
    pub late: Option<LateReply>,
}

// === impl ServerLink ===

impl ServerLink {
    pub(super) fn new(server: Arc<StoreServer>) -> ServerLink {
        ServerLink {
            server,
            state: RefCell::new(LinkState::None),
            connects: Cell::new(0),
            unanswered: Cell::new(0),
            lines: Rc::default(),
        }
    }

    /// Runs the call here, if the breaker admits it. `asking`: an `ASK` redirect led here for this one call.
    pub(super) async fn run_call(&self, call: &ScriptCall<'_>, asking: bool) -> CallOutcome {
        let server = &*self.server;
        let started = Now::read_clock();
        let Some(epoch) = server.breaker.admit(started) else {
            self.drop_connection();
            return CallOutcome::failed(StoreFault::Down);
        };
        if self.refresh_state().is_unreachable(call.store.timeout) {
            return CallOutcome::failed(StoreFault::Down);
        }
        let Some(_permit) = server.acquire_call() else { return CallOutcome::failed(StoreFault::Busy) };
        let (waited, connects) = (Cell::new(false), self.connects.get());
        let exchange = self.exchange_call(call, asking, epoch, &waited);
        let outcome = timeout_at(call.deadline, exchange).await;
        let outcome = outcome.unwrap_or_else(|_| CallOutcome::failed(StoreFault::Timeout));
        let ended = Now::read_clock();
        server.call_times.observe_shared(ended.ns_since(started));
        match outcome {
            // A connect may take longer than a call; its failure is judged when it ends.
            CallOutcome::Failed(CallFailure { fault: StoreFault::Timeout, .. }) if waited.get() => {}
            CallOutcome::Failed(CallFailure { fault, .. }) => {
                if fault == StoreFault::Timeout && connects == self.connects.get() {
                    self.count_unanswered();
                }
                server.record_fault(epoch, fault);
            }
            _ => {
                self.unanswered.set(0);
                server.breaker.record_call(ended, epoch, false);
            }
        }
        outcome
    }

    /// Sends the call. `waited` is set if no connection was ready.
    async fn exchange_call(
        &self,
        call: &ScriptCall<'_>,
        asking: bool,
        epoch: u64,
        waited: &Cell<bool>,
    ) -> CallOutcome {
        let connection = match self.ready_connection(call.store, epoch, waited).await {
            Ok(connection) => connection,
            Err(fault) => return CallOutcome::failed(fault),
        };
        let mut loads = connection.load_count();
        let mut answer = if asking {
            send_call(&connection, &[], true, call).await
        } else {
            let enter = || self.lines.enter(&connection, (call.packed, call.deadline), &call.script.sha);
            // A leading call is kept until it ends, though its reply may be read later.
            let (mut reply, _leading) = match call.is_take().then(enter) {
                None => (send_detached(&connection, call), None),
                Some(LineEntry::Leads(leading)) => (send_detached(&connection, call), Some(leading)),
                Some(LineEntry::Follows(reply)) => (reply, None),
            };
            match timeout_at(call.deadline, &mut reply).await {
                Ok(answer) => answer,
                Err(_) => {
                    let failure = CallFailure { fault: StoreFault::Timeout, late: Some(reply) };
                    return CallOutcome::Failed(failure);
                }
            }
        };
        for _ in 0..RELOADS_MAX {
            if !answer.as_ref().is_err_and(is_script_missing) {
                break;
            }
            // The first call to notice loads the scripts; calls sent behind it find them.
            let mut scripts = Arc::default();
            if connection.load_count() == loads {
                connection.count_load();
                scripts = call.store.loaded_scripts(Some(call.script));
            }
            loads = connection.load_count();
            answer = send_call(&connection, &scripts, asking, call).await;
        }
        match answer {
            Ok(Value::BulkString(bytes)) => CallOutcome::Answered(bytes),
            Ok(_) => CallOutcome::failed(StoreFault::Garbled),
            Err(error) => CallOutcome::from_error(&error),
        }
    }

    /// The connection of this epoch. A connect continues even if all calls that wait for it have ended.
    async fn ready_connection(
        &self,
        store: &Arc<Store>,
        epoch: u64,
        waited: &Cell<bool>,
    ) -> Result<StoreConnection, StoreFault> {
        let mut receiver = {
            let mut state = self.refresh_state();
            match &*state {
                LinkState::Connected(connection, known) if *known == epoch => return Ok(connection.clone()),
                LinkState::Connecting(receiver, _) => receiver.clone(),
                _ => {
                    let receiver = spawn_connect(store.clone(), self.server.clone());
                    *state = LinkState::Connecting(receiver.clone(), Instant::now());
                    self.connects.set(self.connects.get().wrapping_add(1));
                    self.unanswered.set(0);
                    receiver
                }
            }
        };
        waited.set(true);
        let result = receiver.wait_for(Option::is_some).await.map_or(None, |result| result.clone());
        self.refresh_state();
        result.unwrap_or(Err(StoreFault::Broken)).map(|(connection, _)| connection)
    }

    /// The link's state, brought up to date.
    fn refresh_state(&self) -> RefMut<'_, LinkState> {
        let mut state = self.state.borrow_mut();
        state.advance_state();
        state
    }

    /// Counts an unanswered call: a peer that vanished silently is only noticed this way.
    fn count_unanswered(&self) {
        self.unanswered.set(self.unanswered.get() + 1);
        if self.unanswered.get() >= UNANSWERED_MAX {
            self.drop_connection();
        }
    }

    /// Drops the connection: while the server is not asked, it is of no use, and its input is not read.
    fn drop_connection(&self) {
        let mut state = self.state.borrow_mut();
        if matches!(*state, LinkState::Connected(..)) {
            *state = LinkState::None;
        }
    }
}

// === impl LinkState ===

impl LinkState {
    /// True if it is too early for another connect, or one takes longer than a call may wait.
    fn is_unreachable(&self, timeout: Duration) -> bool {
        match self {
            LinkState::Failed(at) => at.elapsed() < RECONNECT_PAUSE,
            LinkState::Connecting(receiver, since) => {
                receiver.borrow().is_none() && since.elapsed() >= timeout
            }
            _ => false,
        }
    }

    /// Advances if the connect has ended, in success or failure, or the connection has.
    fn advance_state(&mut self) {
        let next = match self {
            LinkState::Connecting(receiver, _) => {
                match (&*receiver.borrow(), receiver.has_changed().is_err()) {
                    (Some(Ok((connection, epoch))), _) if connection.is_alive() => {
                        LinkState::Connected(connection.clone(), *epoch)
                    }
                    (Some(Ok(_)), _) => LinkState::None,
                    (Some(Err(_)), _) | (None, true) => LinkState::Failed(Instant::now()),
                    (None, false) => return,
                }
            }
            LinkState::Connected(connection, _) if !connection.is_alive() => LinkState::None,
            _ => return,
        };
        *self = next;
    }
}

// === impl ScriptCall ===

impl ScriptCall<'_> {
    /// True if it charges, so that it may be sent together with others about its keys.
    fn is_take(&self) -> bool {
        std::ptr::eq(self.script, LuaScript::counter_script())
            && self.packed.body.first() == Some(&(ScriptOp::Take as u8))
    }
}

// === impl CallOutcome ===

impl CallOutcome {
    fn failed(fault: StoreFault) -> CallOutcome {
        CallOutcome::Failed(fault.into())
    }

    fn from_error(error: &RedisError) -> CallOutcome {
        match error.kind() {
            ErrorKind::Server(kind @ (ServerErrorKind::Moved | ServerErrorKind::Ask)) => {
                let redirected = |address| CallOutcome::Redirected(address, kind == ServerErrorKind::Ask);
                StoreAddress::from_redirect(error)
                    .map_or(CallOutcome::failed(StoreFault::Garbled), redirected)
            }
            ErrorKind::Server(ServerErrorKind::TryAgain) => CallOutcome::TryAgain,
            _ => CallOutcome::failed(StoreFault::from_error(error)),
        }
    }
}

impl From<StoreFault> for CallFailure {
    fn from(fault: StoreFault) -> CallFailure {
        CallFailure { fault, late: None }
    }
}

/// True if the call did not run because the server has forgotten the script.
pub(super) fn is_script_missing(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

fn spawn_connect(store: Arc<Store>, server: Arc<StoreServer>) -> watch::Receiver<Option<ConnectResult>> {
    let (sender, receiver) = watch::channel(None);
    tokio::spawn(async move {
        let connected = store.connect_to(&server.address).await;
        let epoch = server.breaker.epoch();
        if let Err(fault) = &connected {
            server.record_fault(epoch, fault.kind);
        }
        let result = connected.map(|connection| (connection, epoch)).map_err(|fault| fault.kind);
        sender.send_replace(Some(result));
    });
    receiver
}

fn evalsha_command(call: &ScriptCall<'_>) -> Cmd {
    let PackedCall { keys, body } = call.packed;
    let bytes = 64 + keys.iter().map(Vec::len).sum::<usize>() + body.len();
    let mut command = Cmd::with_capacity(4 + keys.len(), bytes);
    command.arg("EVALSHA").arg(&call.script.sha).arg(keys.len()).arg(keys.as_slice()).arg(body);
    command
}

/// Sends the call so that its reply can still be read after the call has ended.
fn send_detached(connection: &StoreConnection, call: &ScriptCall<'_>) -> LateReply {
    let (connection, command) = (connection.clone(), evalsha_command(call));
    Box::pin(async move { connection.send_command(&command).await })
}

/// Sends the call behind the scripts and the `ASKING` that it needs; returns the answer to the call.
async fn send_call(
    connection: &StoreConnection,
    scripts: &[&str],
    asking: bool,
    call: &ScriptCall<'_>,
) -> RedisResult<Value> {
    let mut pipeline = Pipeline::with_capacity(scripts.len() + 2);
    add_script_loads(&mut pipeline, scripts);
    if asking {
        pipeline.cmd("ASKING");
    }
    pipeline.add_command(evalsha_command(call));
    take_last_answer(connection.send_pipeline(&pipeline).await?)
}

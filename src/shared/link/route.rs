//! The way of one worker to one server.

use std::cell::{Cell, RefCell, RefMut};
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::Store;
use super::connection::{Connection, add_loads};
use super::fault::{Address, Failure, Said};
use super::server::Server;
use crate::base::clock::Now;
use crate::shared::{Packed, Script};

/// How often a call is sent anew because the script was missing. One reload is enough but for a server that is
/// made to forget its scripts again and again.
const RELOADS_MAX: usize = 4;
/// So many calls in a row that got no answer on one connection give it up, though others may work.
const UNHEARD_MAX: u32 = 5;
/// Between two connects of one worker while calls still go through.
const CONNECT_AGAIN: Duration = Duration::from_millis(50);

pub(super) struct Lane {
    pub server: Arc<Server>,
    way: RefCell<Way>,
    /// Connects so far.
    connects: Cell<u32>,
    /// Calls in a row that got no answer on the connection of the last one.
    unheard: Cell<u32>,
}

enum Way {
    None,
    /// The connect failed at that moment.
    Failed(Instant),
    /// Since that moment.
    Coming(watch::Receiver<Option<Arrival>>, Instant),
    /// And the breaker's epoch when it was made.
    There(Connection, u64),
}

type Arrival = Result<(Connection, u64), Failure>;

/// What is to be run, and until when.
pub(super) struct Work<'a> {
    pub store: &'a Arc<Store>,
    pub script: &'a Script,
    pub packed: &'a Packed,
    pub deadline: Instant,
}

pub(super) enum Outcome {
    Answered(Vec<u8>),
    /// Did not run: this is the place of the key, for good or (`true`) for this call.
    Elsewhere(Address, bool),
    /// Did not run: a moment of a migration.
    TryAgain,
    Failed(Failure),
}

// === impl Lane ===

impl Lane {
    pub(super) fn new(server: Arc<Server>) -> Lane {
        Lane { server, way: RefCell::new(Way::None), connects: Cell::new(0), unheard: Cell::new(0) }
    }

    /// Runs it here, if the breaker lets it. `asking`: the server said that it is to be asked this once.
    pub(super) async fn run(&self, work: &Work<'_>, asking: bool) -> Outcome {
        let server = &*self.server;
        let Some(epoch) = server.breaker.admit(Now::read()) else {
            self.leave();
            return Outcome::Failed(Failure::Down);
        };
        if self.look().is_far(work.store.timeout) {
            return Outcome::Failed(Failure::Down);
        }
        let Some(_room) = server.enter() else {
            return Outcome::Failed(Failure::Busy);
        };
        let (waited, connects) = (Cell::new(false), self.connects.get());
        let exchange = self.exchange(work, asking, epoch, &waited);
        let outcome = timeout_at(work.deadline, exchange).await;
        let outcome = outcome.unwrap_or(Outcome::Failed(Failure::Timeout));
        match outcome {
            // The connect may take longer than a call; whether it fails is judged at its end.
            Outcome::Failed(Failure::Timeout) if waited.get() => {}
            Outcome::Failed(failure) => {
                if failure == Failure::Timeout && connects == self.connects.get() {
                    self.note_unheard();
                }
                server.failed(epoch, failure);
            }
            _ => {
                self.unheard.set(0);
                server.breaker.note(Now::read(), epoch, false);
            }
        }
        outcome
    }

    /// `waited` is set when there was no connection at once.
    async fn exchange(&self, work: &Work<'_>, asking: bool, epoch: u64, waited: &Cell<bool>) -> Outcome {
        let connection = match self.connection(work.store, epoch, waited).await {
            Ok(connection) => connection,
            Err(failure) => return Outcome::Failed(failure),
        };
        let mut loads = connection.loads();
        let mut answer = if asking {
            send(&connection, &[], true, work).await
        } else {
            connection.ask(&evalsha(work)).await.map_err(|fault| fault.failure)
        };
        for _ in 0..RELOADS_MAX {
            match answer {
                Ok(Value::ServerError(ref error)) if matches!(Said::of(error), Said::NoScript) => {}
                _ => break,
            }
            // Whoever hears of it first loads the scripts; what is sent behind that finds them.
            let mut scripts = Arc::default();
            if connection.loads() == loads {
                connection.count_load();
                scripts = work.store.scripts(Some(work.script));
            }
            loads = connection.loads();
            answer = send(&connection, &scripts, asking, work).await;
        }
        match answer {
            Ok(Value::BulkString(bytes)) => Outcome::Answered(bytes),
            Ok(Value::ServerError(error)) => match Said::of(&error) {
                Said::NoScript => Outcome::Failed(Failure::Refused),
                Said::Moved(address) => Outcome::Elsewhere(address, false),
                Said::Ask(address) => Outcome::Elsewhere(address, true),
                Said::TryAgain => Outcome::TryAgain,
                Said::Failed(failure) => Outcome::Failed(failure),
            },
            Ok(_) => Outcome::Failed(Failure::Garbled),
            Err(failure) => Outcome::Failed(failure),
        }
    }

    /// The connection of this epoch. A connect goes on when who waits for it leaves.
    async fn connection(
        &self,
        store: &Arc<Store>,
        epoch: u64,
        waited: &Cell<bool>,
    ) -> Result<Connection, Failure> {
        let mut coming = {
            let mut way = self.look();
            match &*way {
                Way::There(connection, of) if *of == epoch => return Ok(connection.clone()),
                Way::Coming(coming, _) => coming.clone(),
                _ => {
                    let coming = connect(store.clone(), self.server.clone());
                    *way = Way::Coming(coming.clone(), Instant::now());
                    self.connects.set(self.connects.get().wrapping_add(1));
                    self.unheard.set(0);
                    coming
                }
            }
        };
        waited.set(true);
        let came = coming.wait_for(Option::is_some).await.map_or(None, |came| came.clone());
        self.look();
        came.unwrap_or(Err(Failure::Broken)).map(|(connection, _)| connection)
    }

    /// The way as it stands now.
    fn look(&self) -> RefMut<'_, Way> {
        let mut way = self.way.borrow_mut();
        way.arrive();
        way
    }

    /// A connection whose peer went away without a word is only known by its silence.
    fn note_unheard(&self) {
        self.unheard.set(self.unheard.get() + 1);
        if self.unheard.get() >= UNHEARD_MAX {
            self.leave();
        }
    }

    /// While the server is not asked, its connections are of no use, and what it still sends is not read.
    fn leave(&self) {
        let mut way = self.way.borrow_mut();
        if matches!(*way, Way::There(..)) {
            *way = Way::None;
        }
    }
}

// === impl Way ===

impl Way {
    /// Too early for another connect, or one is under way for longer than a call may wait.
    fn is_far(&self, timeout: Duration) -> bool {
        match self {
            Way::Failed(at) => at.elapsed() < CONNECT_AGAIN,
            Way::Coming(coming, since) => coming.borrow().is_none() && since.elapsed() >= timeout,
            _ => false,
        }
    }

    /// Moves on if the connect ended, well or badly, or the connection did.
    fn arrive(&mut self) {
        let next = match self {
            Way::Coming(coming, _) => match (&*coming.borrow(), coming.has_changed().is_err()) {
                (Some(Ok((connection, epoch))), _) if connection.is_alive() => {
                    Way::There(connection.clone(), *epoch)
                }
                (Some(Ok(_)), _) => Way::None,
                (Some(Err(_)), _) | (None, true) => Way::Failed(Instant::now()),
                (None, false) => return,
            },
            Way::There(connection, _) if !connection.is_alive() => Way::None,
            _ => return,
        };
        *self = next;
    }
}

fn connect(store: Arc<Store>, server: Arc<Server>) -> watch::Receiver<Option<Arrival>> {
    let (told, coming) = watch::channel(None);
    tokio::spawn(async move {
        let connected = store.connect(&server.address).await;
        let epoch = server.breaker.epoch();
        if let Err(fault) = &connected {
            server.failed(epoch, fault.failure);
        }
        let arrival = connected.map(|connection| (connection, epoch)).map_err(|fault| fault.failure);
        told.send_replace(Some(arrival));
    });
    coming
}

fn evalsha(work: &Work<'_>) -> Cmd {
    let Packed { keys, body } = work.packed;
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
async fn send(
    connection: &Connection,
    scripts: &[&str],
    asking: bool,
    work: &Work<'_>,
) -> Result<Value, Failure> {
    let mut row = Pipeline::with_capacity(scripts.len() + 2);
    add_loads(&mut row, scripts);
    if asking {
        row.cmd("ASKING");
    }
    row.add_command(evalsha(work));
    let answers = connection.ask_in_a_row(&row).await.map_err(|fault| fault.failure)?;
    answers.into_iter().next_back().ok_or(Failure::Garbled)
}

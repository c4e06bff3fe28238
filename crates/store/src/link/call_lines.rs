//! Calls about a key while another one about it is under way: they wait for its end, and are then sent together, as one
//! call of the script, in the order of arrival. Each is judged as if it came alone, at the price of one round trip more
//! at most, and a hot key costs one call per round trip instead of one per request.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use redis::{Cmd, RedisError, RedisResult, Value};
use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use super::connection::StoreConnection;
use crate::PackedCall;

/// Maximum number of calls that are sent together.
const BATCH_MAX: usize = 64;
/// The longest wait for a late reply.
pub(crate) const LATE_TIMEOUT: Duration = Duration::from_secs(10);

/// The reply to a call that was sent, and perhaps not answered by its deadline. Dropping it leaves the reply unread.
pub(crate) type LateReply = Pin<Box<dyn Future<Output = RedisResult<Value>>>>;

/// The keys with a call under way, on the links of one worker to one server.
#[derive(Default)]
pub(super) struct CallLines {
    /// By the hashes of the names of keys.
    by_key: RefCell<HashMap<u64, Rc<CallLine>>>,
    hasher: RandomState,
}

/// The calls about some keys.
#[derive(Default)]
struct CallLine {
    keys: RefCell<SmallVec<[u64; 4]>>,
    waiting: RefCell<Vec<WaitingCall>>,
    /// A task sends those that wait.
    is_served: Cell<bool>,
    /// The call under way has ended.
    ended: Notify,
}

/// A call that waits for another one.
struct WaitingCall {
    packed: PackedCall,
    deadline: Instant,
    reply: oneshot::Sender<RedisResult<Value>>,
}

/// The first call about some keys. Dropping it lets those that wait go.
pub(super) struct LeadingCall {
    lines: Rc<CallLines>,
    line: Rc<CallLine>,
}

/// How a call is sent.
pub(super) enum LineEntry {
    /// At once.
    Leads(LeadingCall),
    /// Behind the one under way, which brings this reply.
    Follows(LateReply),
}

// === impl CallLines ===

impl CallLines {
    /// Enters a call of the script with this hash into the line of its keys.
    pub(super) fn enter(
        self: &Rc<CallLines>,
        connection: &StoreConnection,
        (packed, deadline): (&PackedCall, Instant),
        sha: &str,
    ) -> LineEntry {
        let keys: SmallVec<[u64; 4]> = packed.keys.iter().map(|key| self.hasher.hash_one(key)).collect();
        let mut by_key = self.by_key.borrow_mut();
        let Some(line) = keys.iter().find_map(|key| by_key.get(key)).cloned() else {
            let line = Rc::new(CallLine { keys: RefCell::new(keys.clone()), ..CallLine::default() });
            by_key.extend(keys.iter().map(|key| (*key, line.clone())));
            return LineEntry::Leads(LeadingCall { lines: self.clone(), line });
        };
        drop(by_key);
        let (sender, reply) = oneshot::channel();
        let waiting = WaitingCall { packed: packed.clone(), deadline, reply: sender };
        line.waiting.borrow_mut().push(waiting);
        if !line.is_served.replace(true) {
            let (lines, connection, sha) = (self.clone(), connection.clone(), sha.to_owned());
            tokio::task::spawn_local(async move { lines.send_waiting(&line, &connection, &sha).await });
        }
        LineEntry::Follows(Box::pin(async move { reply.await.unwrap_or_else(|_| Err(timed_out())) }))
    }

    /// Sends those that wait, one batch after the other, from the end of the call under way on.
    async fn send_waiting(&self, line: &Rc<CallLine>, connection: &StoreConnection, sha: &str) {
        line.ended.notified().await;
        loop {
            let batch = self.take_batch(line);
            let Some(until) = batch.iter().map(|call| call.deadline).max() else { break };
            let command = batch_command(sha, &batch);
            let connection = connection.clone();
            let mut reply: LateReply = Box::pin(async move { connection.send_command(&command).await });
            match timeout_at(until, &mut reply).await {
                Ok(answer) => hand_out(batch, answer),
                // Further calls need not wait for it.
                Err(_) => drop(tokio::task::spawn_local(async move {
                    if let Ok(answer) = timeout(LATE_TIMEOUT, reply).await {
                        hand_out(batch, answer);
                    }
                })),
            }
        }
        self.forget(line);
    }

    /// The next calls in turn, without those that nobody waits for. Their keys become keys of the line.
    fn take_batch(&self, line: &Rc<CallLine>) -> Vec<WaitingCall> {
        let (mut waiting, now) = (line.waiting.borrow_mut(), Instant::now());
        waiting.retain(|call| call.deadline > now && !call.reply.is_closed());
        let count = waiting.len().min(BATCH_MAX);
        let batch: Vec<WaitingCall> = waiting.drain(..count).collect();
        let (mut by_key, mut own) = (self.by_key.borrow_mut(), line.keys.borrow_mut());
        for key in batch.iter().flat_map(|call| &call.packed.keys) {
            let key = self.hasher.hash_one(key);
            if let Entry::Vacant(free) = by_key.entry(key) {
                free.insert(line.clone());
                own.push(key);
            }
        }
        batch
    }

    fn forget(&self, line: &Rc<CallLine>) {
        let mut by_key = self.by_key.borrow_mut();
        for key in line.keys.borrow().iter() {
            by_key.remove(key);
        }
    }
}

impl Drop for LeadingCall {
    fn drop(&mut self) {
        match self.line.is_served.get() {
            true => self.line.ended.notify_one(),
            false => self.lines.forget(&self.line),
        }
    }
}

/// The bodies as one call: its keys are those of all.
fn batch_command(sha: &str, batch: &[WaitingCall]) -> Cmd {
    let keys = || batch.iter().flat_map(|call| &call.packed.keys);
    let mut command = redis::cmd("EVALSHA");
    command.arg(sha).arg(keys().count());
    for part in keys().chain(batch.iter().map(|call| &call.packed.body)) {
        command.arg(part);
    }
    command
}

/// Gives each call its answer.
fn hand_out(batch: Vec<WaitingCall>, answer: RedisResult<Value>) {
    let answers: Vec<RedisResult<Value>> = match answer {
        Ok(Value::Array(answers)) if answers.len() == batch.len() => answers.into_iter().map(Ok).collect(),
        answer => batch.iter().map(|_| answer.clone()).collect(),
    };
    for (call, answer) in batch.into_iter().zip(answers) {
        // Whoever asked has gone.
        let _ = call.reply.send(answer);
    }
}

fn timed_out() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

//! Which server is the primary, by what sentinels say.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::Store;
use super::connection::Greeting;
use super::fault::{Address, Failure, Fault};
use super::prober;
use super::server::Server;
use super::topology::Topology;

/// For the answer of one sentinel, the connect included.
const ASK: Duration = Duration::from_millis(250);
/// Between two questions while all is well.
const AGAIN: Duration = Duration::from_secs(5);
/// While nobody knows a primary.
const SEARCH: Duration = Duration::from_millis(500);
/// Between two questions, whatever happens.
const BREATH: Duration = Duration::from_millis(100);

/// Asks for ever, and follows what is said.
pub(super) async fn supervise(store: Arc<Store>, sentinels: &[(String, u16)], name: &str) {
    let sentinels: Vec<Address> = sentinels.iter().map(Address::from).collect();
    let mut watched = JoinSet::new();
    let mut current: Option<Arc<Server>> = None;
    let mut first = 0;
    let mut silent = false;
    loop {
        let said = ask_in_turn(&store.greeting, &sentinels, first, name).await;
        if said.is_none() && !silent {
            warn!(primary = name, "no sentinel knows the primary of redis");
        }
        silent = said.is_none();
        if let Some(address) = said
            && current.as_ref().is_none_or(|server| server.address != address)
        {
            let server = Arc::new(Server::new(address));
            let in_use = current.as_ref().is_some_and(|server| !server.breaker.is_open());
            // A sentinel that missed a failover must not lead away from a primary that works.
            if !in_use || prober::accepts(&store, &server).await {
                watched.shutdown().await;
                store.topology.store(Arc::new(Topology::single(Some(server.clone()))));
                watched.spawn(prober::watch(store.clone(), server.clone()));
                current = Some(server);
            }
        }
        // The next question goes to another one, in case this one is wrong.
        first = (first + 1) % sentinels.len().max(1);
        sleep(BREATH).await;
        let wait = if current.is_some() { AGAIN } else { SEARCH };
        let _ = timeout(wait, store.doubt.notified()).await;
    }
}

async fn ask_in_turn(
    greeting: &Greeting,
    sentinels: &[Address],
    first: usize,
    name: &str,
) -> Option<Address> {
    for turn in 0..sentinels.len() {
        let sentinel = &sentinels[(first + turn) % sentinels.len()];
        if let Ok(Ok(address)) = timeout(ASK, ask(greeting, sentinel, name)).await {
            return Some(address);
        }
    }
    None
}

async fn ask(greeting: &Greeting, sentinel: &Address, name: &str) -> Result<Address, Fault> {
    let mut question = redis::cmd("SENTINEL");
    question.arg("get-master-addr-by-name").arg(name);
    let mut answer = greeting.anonymous().connect(sentinel).await?.ask(&question).await?;
    if matches!(&answer, Value::ServerError(error) if error.code() == "NOAUTH") && greeting.has_password() {
        answer = greeting.without_database().connect(sentinel).await?.ask(&question).await?;
    }
    Ok(read(&answer).ok_or(Failure::Garbled)?.said_by(sentinel))
}

fn read(answer: &Value) -> Option<Address> {
    let Value::Array(parts) = answer else {
        return None;
    };
    let [Value::BulkString(host), Value::BulkString(port)] = parts.as_slice() else {
        return None;
    };
    Address::checked(str::from_utf8(host).ok()?, str::from_utf8(port).ok()?.parse().ok()?)
}

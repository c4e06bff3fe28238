//! Discovery of the primary through sentinels.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::Store;
use super::connection::StoreConnector;
use super::fault::StoreAddress;
use super::prober;
use super::server::StoreServer;
use super::topology::Topology;

/// Deadline for the answer of one sentinel, the connect included.
const ASK_TIMEOUT: Duration = Duration::from_millis(250);
/// Between two questions while all is well.
const ASK_INTERVAL: Duration = Duration::from_secs(5);
/// Between two questions while no primary is known.
const SEARCH_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum pause between two questions.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// Asks for the primary for ever, and follows the answers.
pub(super) async fn supervise_sentinels(store: Arc<Store>, sentinels: &[(String, u16)], name: &str) {
    let sentinels: Vec<StoreAddress> = sentinels.iter().map(StoreAddress::from).collect();
    let mut watched = JoinSet::new();
    let mut current: Option<Arc<StoreServer>> = None;
    let mut first = 0;
    let mut silent = false;
    loop {
        let answer = ask_in_turn(&store.connector, &sentinels, first, name).await;
        if answer.is_none() && !silent {
            warn!(primary = name, "no sentinel knows the primary of redis");
        }
        silent = answer.is_none();
        if silent {
            store.record_reachability();
        }
        if let Some(address) = answer
            && current.as_ref().is_none_or(|server| server.address != address)
        {
            let server = Arc::new(StoreServer::new(address));
            let in_use = current.as_ref().is_some_and(|server| !server.breaker.is_open());
            // A sentinel that missed a failover must not lead away from a primary that works.
            if !in_use || prober::accepts_beat(&store, &server).await {
                watched.shutdown().await;
                store.topology.store(Arc::new(Topology::with_server(Some(server.clone()))));
                watched.spawn(prober::watch_server(store.clone(), server.clone()));
                current = Some(server);
            }
        }
        // The next question goes to another sentinel, in case this one is wrong.
        first = (first + 1) % sentinels.len().max(1);
        sleep(PAUSE_MIN).await;
        let wait = if current.is_some() { ASK_INTERVAL } else { SEARCH_INTERVAL };
        let _ = timeout(wait, store.topology_doubt.notified()).await;
    }
}

async fn ask_in_turn(
    connector: &StoreConnector,
    sentinels: &[StoreAddress],
    first: usize,
    name: &str,
) -> Option<StoreAddress> {
    for turn in 0..sentinels.len() {
        let sentinel = &sentinels[(first + turn) % sentinels.len()];
        if let Ok(Some(address)) = timeout(ASK_TIMEOUT, ask_primary(connector, sentinel, name)).await {
            return Some(address);
        }
    }
    None
}

async fn ask_primary(
    connector: &StoreConnector,
    sentinel: &StoreAddress,
    name: &str,
) -> Option<StoreAddress> {
    let mut question = redis::cmd("SENTINEL");
    question.arg("get-master-addr-by-name").arg(name);
    let connection = connector.for_sentinels(false).connect(sentinel).await.ok()?;
    let mut answer = connection.send_command(&question).await;
    if answer.as_ref().is_err_and(|error| error.code() == Some("NOAUTH")) && connector.has_password() {
        let connection = connector.for_sentinels(true).connect(sentinel).await.ok()?;
        answer = connection.send_command(&question).await;
    }
    let (host, port): (String, u16) = redis::from_redis_value(answer.ok()?).ok()?;
    Some(StoreAddress::parse_announced(&host, port)?.resolve_from(sentinel))
}

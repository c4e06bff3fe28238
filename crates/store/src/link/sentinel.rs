//! Discovery of the primary through sentinels.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisResult, Value};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::connection::{StoreConnection, StoreConnector};
use super::fault::StoreAddress;
use super::server::StoreServer;
use super::topology::Topology;
use super::{Store, prober};

/// Deadline for the answer of one sentinel, the connect included.
const ASK_TIMEOUT: Duration = Duration::from_millis(250);
/// The pause between two questions while all is well; each goes to another sentinel, on a connection of its own.
const ASK_INTERVAL: Duration = Duration::from_secs(5);
/// The pause between two questions on that connection: the old primary of a planned failover accepts calls that the new
/// one never learns of.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);
/// The pause between two questions while no primary is known.
const SEARCH_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum pause between two questions.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// A sentinel that has answered.
struct Sentinel {
    connection: StoreConnection,
    address: StoreAddress,
    /// The primary that it named.
    primary: StoreAddress,
}

/// Asks for the primary for ever, and follows the answers.
pub(super) async fn supervise_sentinels(store: Arc<Store>, sentinels: &[(String, u16)], name: &str) {
    let sentinels: Vec<StoreAddress> = sentinels.iter().map(StoreAddress::from).collect();
    let mut watched = JoinSet::new();
    let mut current: Option<Arc<StoreServer>> = None;
    let mut first = 0;
    let mut silent = false;
    loop {
        let mut sentinel = None;
        for turn in 0..sentinels.len() {
            let asked = &sentinels[(first + turn) % sentinels.len()];
            let asking = Sentinel::connect_to(&store.connector, asked, name);
            if let Ok(Some(found)) = timeout(ASK_TIMEOUT, asking).await {
                sentinel = Some(found);
                break;
            }
        }
        if sentinel.is_none() && !silent {
            warn!(primary = name, "no sentinel knows the primary of redis");
        }
        silent = sentinel.is_none();
        if silent {
            store.record_reachability();
        }
        if let Some(Sentinel { primary, .. }) = &sentinel
            && current.as_ref().is_none_or(|server| server.address != *primary)
        {
            let server = Arc::new(StoreServer::new(primary.clone()));
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
        let _ = timeout(wait, async {
            tokio::select! {
                () = store.topology_doubt.notified() => {}
                () = watch_primary(sentinel.as_ref(), name) => {}
            }
        })
        .await;
    }
}

/// Returns when the sentinel names another primary.
async fn watch_primary(sentinel: Option<&Sentinel>, name: &str) {
    let Some(Sentinel { connection, address, primary }) = sentinel else { return pending().await };
    loop {
        sleep(WATCH_INTERVAL).await;
        match ask_primary(connection, name).await {
            Ok(answer) if parse_primary(&answer, address).is_some_and(|named| named != *primary) => return,
            Ok(_) => {}
            Err(_) => return pending().await,
        }
    }
}

async fn ask_primary(connection: &StoreConnection, name: &str) -> RedisResult<Value> {
    connection.send_command(redis::cmd("SENTINEL").arg("get-master-addr-by-name").arg(name)).await
}

fn parse_primary(answer: &Value, sentinel: &StoreAddress) -> Option<StoreAddress> {
    let (host, port): (String, u16) = redis::from_redis_value_ref(answer).ok()?;
    Some(StoreAddress::parse_announced(&host, port)?.resolve_from(sentinel))
}

// === impl Sentinel ===

impl Sentinel {
    async fn connect_to(connector: &StoreConnector, address: &StoreAddress, name: &str) -> Option<Sentinel> {
        let mut connection = connector.for_sentinels(false).connect(address).await.ok()?;
        let mut answer = ask_primary(&connection, name).await;
        let has_password = connector.settings.password().is_some();
        if has_password && answer.as_ref().is_err_and(|error| error.code() == Some("NOAUTH")) {
            connection = connector.for_sentinels(true).connect(address).await.ok()?;
            answer = ask_primary(&connection, name).await;
        }
        let primary = parse_primary(&answer.ok()?, address)?;
        Some(Sentinel { connection, address: address.clone(), primary })
    }
}

//! Discovery of a Cluster: its servers, and the slots that each of them owns.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

use redis::Value;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::connection::StoreConnector;
use super::fault::StoreAddress;
use super::server::StoreServer;
use super::topology::{NO_OWNER, SLOTS, Topology, slot_of_tag};
use super::{Store, prober};

/// Deadline for the answer of one server, the connect included.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);
const ASK_INTERVAL: Duration = Duration::from_secs(5);
/// The pause between two questions while no server reports the slots.
const SEARCH_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum pause between two questions.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Servers asked in one round.
const SERVERS_ASKED_MAX: usize = 16;
/// Maximum number of primaries.
const PRIMARIES_MAX: usize = 1024;
/// Numbers tried to find a tag in the slots of each server; a server with one slot is missed once in 200,000 times.
const TAGS_MAX: u32 = 200_000;

/// The answer of one server: its primaries, and for each slot the index of its owner.
struct SlotMap {
    primaries: Vec<StoreAddress>,
    owners: Vec<u16>,
}

/// Asks for the slots for ever, and applies the answers.
pub(super) async fn supervise_cluster(store: Arc<Store>, seeds: &[(String, u16)]) {
    let seeds: Vec<StoreAddress> = seeds.iter().map(StoreAddress::from).collect();
    let mut watched = JoinSet::new();
    let mut probers = BTreeMap::new();
    let mut silent = false;
    let mut round = 0;
    loop {
        let map = find_map(&store, &seeds, round).await;
        if map.is_none() && !silent {
            warn!("no server of the redis cluster reports its slots");
        }
        silent = map.is_none();
        if silent {
            store.record_reachability();
        }
        if let Some(map) = map {
            apply_map(&store, map, &mut watched, &mut probers);
        }
        round += 1;
        sleep(PAUSE_MIN).await;
        let wait = if silent { SEARCH_INTERVAL } else { ASK_INTERVAL };
        let _ = timeout(wait, store.topology_doubt.notified()).await;
    }
}

/// Asks working servers first, then the seeds, then servers with an open breaker; each round begins with another one.
async fn find_map(store: &Store, seeds: &[StoreAddress], round: usize) -> Option<SlotMap> {
    let topology = store.topology.load_full();
    let (open, closed): (Vec<_>, Vec<_>) =
        topology.servers.iter().partition(|server| server.breaker.is_open());
    let turned = |addresses: Vec<&StoreAddress>| {
        let first = round.checked_rem(addresses.len()).unwrap_or(0);
        let turned = addresses.iter().skip(first).chain(addresses.iter().take(first));
        turned.map(|&address| address.clone()).collect::<Vec<_>>()
    };
    let mut candidates = turned(closed.iter().map(|server| &server.address).collect());
    candidates.extend(turned(seeds.iter().collect()));
    candidates.extend(turned(open.iter().map(|server| &server.address).collect()));
    for address in candidates.iter().take(SERVERS_ASKED_MAX) {
        if let Ok(Some(map)) = timeout(ASK_TIMEOUT, ask_slots(&store.connector, address)).await {
            return Some(map);
        }
    }
    None
}

async fn ask_slots(connector: &StoreConnector, address: &StoreAddress) -> Option<SlotMap> {
    let connection = connector.connect(address).await.ok()?;
    let answer = connection.send_command(redis::cmd("CLUSTER").arg("SLOTS")).await.ok()?;
    SlotMap::parse_reply(&answer, address)
}

/// Watches new servers, drops those that are gone, and keeps the state of the others.
fn apply_map(
    store: &Arc<Store>,
    map: SlotMap,
    watched: &mut JoinSet<()>,
    probers: &mut BTreeMap<StoreAddress, (Arc<StoreServer>, AbortHandle)>,
) {
    probers.retain(|address, (_, prober)| {
        let stays = map.primaries.contains(address);
        if !stays {
            prober.abort();
        }
        stays
    });
    while watched.try_join_next().is_some() {}
    let tags = map.find_tags();
    let mut servers = Vec::with_capacity(map.primaries.len());
    for (address, tag) in map.primaries.iter().zip(tags) {
        let (server, _) = probers.entry(address.clone()).or_insert_with(|| {
            let server = Arc::new(StoreServer::new(address.clone()));
            server.tag.store(tag, Relaxed);
            (server.clone(), watched.spawn(prober::watch_server(store.clone(), server)))
        });
        server.tag.store(tag, Relaxed);
        servers.push(server.clone());
    }
    let topology = store.topology.load();
    let same = servers.len() == topology.servers.len()
        && servers.iter().zip(&topology.servers).all(|(new, old)| Arc::ptr_eq(new, old));
    if same {
        topology.assign_owners(&map.owners);
    } else {
        store.topology.store(Arc::new(Topology::with_owners(servers, &map.owners)));
    }
}

// === impl SlotMap ===

impl SlotMap {
    /// Parses the reply of `origin` to `CLUSTER SLOTS`; `None` if any part is malformed.
    fn parse_reply(answer: &Value, origin: &StoreAddress) -> Option<SlotMap> {
        let Value::Array(ranges) = answer else { return None };
        if ranges.is_empty() || ranges.len() > usize::from(SLOTS) {
            return None;
        }
        let ranges: Vec<_> = ranges.iter().map(|range| read_range(range, origin)).collect::<Option<_>>()?;
        let mut primaries: Vec<StoreAddress> = ranges.iter().map(|(_, _, address)| address.clone()).collect();
        primaries.sort();
        primaries.dedup();
        if primaries.len() > PRIMARIES_MAX {
            return None;
        }
        let mut owners = vec![NO_OWNER; usize::from(SLOTS)];
        for (first, last, address) in &ranges {
            let index = primaries.binary_search(address).ok()?;
            owners[usize::from(*first)..=usize::from(*last)].fill(u16::try_from(index).ok()?);
        }
        Some(SlotMap { primaries, owners })
    }

    /// The smallest number with a tag in one of the slots of each primary; all gateways find the same one.
    fn find_tags(&self) -> Vec<u32> {
        let mut tags = vec![None; self.primaries.len()];
        let mut missing = tags.len();
        for number in 0..TAGS_MAX {
            let slot = slot_of_tag(format!("nodes.{number}").as_bytes());
            let owner = self.owners[usize::from(slot)];
            if let Some(tag @ None) = tags.get_mut(usize::from(owner)) {
                *tag = Some(number);
                missing -= 1;
            }
            if missing == 0 {
                break;
            }
        }
        tags.into_iter().map(Option::unwrap_or_default).collect()
    }
}

/// Reads the first slot, the last slot and the primary. The primary's host may be missing; it is then that of
/// `origin`.
fn read_range(range: &Value, origin: &StoreAddress) -> Option<(u16, u16, StoreAddress)> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = parts.as_slice() else {
        return None;
    };
    let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
    if first > last || last >= SLOTS {
        return None;
    }
    let (host, port) = match primary.as_slice() {
        [Value::BulkString(host), Value::Int(port), ..] => (str::from_utf8(host).ok()?, port),
        [Value::Nil, Value::Int(port), ..] => ("", port),
        _ => return None,
    };
    let address = StoreAddress::parse_announced(host, u16::try_from(*port).ok()?)?;
    Some((first, last, address.resolve_from(origin)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> StoreAddress {
        StoreAddress { host: "10.0.0.1".into(), port: 7000 }
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let primary = Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())]);
        let replica = primary.clone();
        Value::Array(vec![Value::Int(first), Value::Int(last), primary, replica])
    }

    fn host(name: &str) -> Value {
        Value::BulkString(name.as_bytes().to_vec())
    }

    #[test]
    fn a_map_names_the_owner_of_each_slot() {
        let answer = Value::Array(vec![
            range(0, 5460, host("10.0.0.2"), 7001),
            range(5461, 10922, host(""), 7000),
            range(10923, 16000, Value::Nil, 7002),
            range(16001, 16001, host("10.0.0.2"), 7001),
        ]);
        let map = SlotMap::parse_reply(&answer, &origin()).unwrap();
        let name =
            |index: u16| map.primaries.get(usize::from(index)).map(|a| format!("{}:{}", a.host, a.port));
        let owner = |slot: usize| name(map.owners[slot]);
        assert_eq!(map.primaries.len(), 3);
        assert_eq!(owner(0).as_deref(), Some("10.0.0.2:7001"));
        assert_eq!(owner(5461).as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(owner(16000).as_deref(), Some("10.0.0.1:7002"));
        assert_eq!(owner(16001).as_deref(), Some("10.0.0.2:7001"));
        assert_eq!(owner(16002), None);
        for (index, tag) in map.find_tags().into_iter().enumerate() {
            let slot = slot_of_tag(format!("nodes.{tag}").as_bytes());
            assert_eq!(usize::from(map.owners[usize::from(slot)]), index);
        }
    }

    #[test]
    fn a_server_with_one_slot_has_a_tag_too() {
        let answer = Value::Array(vec![range(0, 16382, host("a"), 1), range(16383, 16383, host("b"), 2)]);
        let map = SlotMap::parse_reply(&answer, &origin()).unwrap();
        assert_eq!(slot_of_tag(format!("nodes.{}", map.find_tags()[1]).as_bytes()), 16383);
    }

    #[test]
    fn a_map_that_makes_no_sense_is_none() {
        let wrong = [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(0, 16384, host("a"), 1)]),
            Value::Array(vec![range(-1, 5, host("a"), 1)]),
            Value::Array(vec![range(6, 5, host("a"), 1)]),
            Value::Array(vec![range(0, 5, host("a"), 0)]),
            Value::Array(vec![range(0, 5, host("a"), 65536)]),
            Value::Array(vec![range(0, 5, host("a b"), 1)]),
            Value::Array(vec![range(0, 5, Value::Int(1), 1)]),
            Value::Array(vec![range(0, 5, host("a"), 1), Value::Nil]),
        ];
        for answer in wrong {
            assert!(SlotMap::parse_reply(&answer, &origin()).is_none(), "{answer:?}");
        }
    }
}

//! What the requests of one worker thread share, and what the requests of one connection share.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::HeaderValue;

use crate::access_log::LineWriter;
use crate::clock::Now;
use crate::deadline::{Watch, Watches, ticks};
use crate::forwarded::peer_value;
use crate::gateway::Gateway;
use crate::request_id::RequestIds;
use crate::socket::Socket;
use crate::table::Key;
use crate::upstream::Pools;
use crate::wall::Wall;

/// One worker's own things; nothing of it crosses to another thread.
pub struct Worker {
    pub id: usize,
    pub gateway: Arc<Gateway>,
    pub watches: Watches,
    pub pools: Rc<Pools>,
    pub request_ids: RequestIds,
    pub wall: Wall,
    pub log: LineWriter,
}

impl Worker {
    pub fn new(id: usize, gateway: Arc<Gateway>) -> Worker {
        let watches = Watches::default();
        let pools = Rc::new(Pools::new(watches.ticks.clone(), gateway.server_count));
        let log = gateway.access_log.writer(id);
        let wall = Wall::new(Now::read());
        Worker { id, gateway, watches, pools, request_ids: RequestIds::new(), wall, log }
    }
}

/// One client connection.
pub struct Connection {
    pub watch: Rc<Watch>,
    pub socket: Rc<Socket>,
    /// `None` on a unix socket.
    pub peer: Option<IpAddr>,
    /// The peer as it stands in X-Forwarded-For, rendered once.
    pub peer_value: Option<HeaderValue>,
    /// The key of limits by the peer's address; it serves every request that is not a proxy's.
    pub peer_key: Option<Key>,
    requests: Cell<u64>,
    /// The tick after which the connection is too old for another request.
    old_at: u64,
}

impl Connection {
    pub fn new(worker: &Worker, socket: Socket) -> Connection {
        let peer = socket.peer();
        let now = worker.watches.ticks.now();
        Connection {
            watch: worker.watches.open(),
            socket: Rc::new(socket),
            peer,
            peer_value: peer.map(peer_value),
            peer_key: peer.map(|ip| worker.gateway.keys.ip(worker.gateway.clients.masked(ip))),
            requests: Cell::new(0),
            old_at: worker
                .gateway
                .server
                .keepalive_age
                .map_or(u64::MAX, |age| now.saturating_add(ticks(age))),
        }
    }

    /// Counts a request; true when it shall be the connection's last.
    pub fn count_request(&self, worker: &Worker) -> bool {
        let served = self.requests.get() + 1;
        self.requests.set(served);
        served >= worker.gateway.server.keepalive_requests || worker.watches.ticks.now() >= self.old_at
    }
}

//! The state of servers that a process hands over to its successor.

use serde::{Deserialize, Serialize};

use super::Upstream;
use super::server::{Server, ServerProtocol};
use super::server_state::{DRAINING, SavedServerState};
use sluicegate_base::clock::Now;

/// The state of one server, with the settings that identify it.
#[derive(Debug, Serialize, Deserialize)]
pub struct SavedServer {
    upstream: String,
    /// `host:port`.
    server: String,
    has_tls: bool,
    #[serde(rename = "speech")]
    protocol: ServerProtocol,
    #[serde(rename = "standing")]
    state: SavedServerState,
}

impl SavedServer {
    fn matches_server(&self, server: &Server) -> bool {
        *self.server == *server.name
            && self.has_tls == server.tls.is_some()
            && self.protocol == server.protocol
    }
}

impl Upstream {
    /// The state of its servers at `now`.
    pub fn save_servers(&self, now: Now) -> impl Iterator<Item = SavedServer> {
        self.servers.iter().map(move |server| {
            // Ends an ejection that has expired.
            server.current_flags();
            SavedServer {
                upstream: self.name.to_string(),
                server: server.name.to_string(),
                has_tls: server.tls.is_some(),
                protocol: server.protocol,
                state: server.state.to_saved(now),
            }
        })
    }

    /// Takes over the state of all servers from the previous process, as a reload would: a known server keeps its
    /// state; a server that is new in a known upstream begins a slow start.
    pub fn restore_servers(&self, saved: &[SavedServer], now: Now) {
        let mut saved: Vec<&SavedServer> = saved.iter().filter(|one| one.upstream == *self.name).collect();
        if saved.is_empty() {
            return;
        }
        let all = saved.clone();
        for server in &self.servers {
            match saved.iter().position(|one| one.matches_server(server)) {
                Some(index) => server.state.restore_saved(&saved.remove(index).state, now),
                None => {
                    server.begin_slow_start(now);
                    // A new protocol makes it another server, but the operator still wants it drained.
                    let is_same = |one: &&SavedServer| *one.server == *server.name && one.state.draining;
                    if all.iter().any(is_same) {
                        server.state.set_flag(DRAINING);
                    }
                }
            }
        }
    }
}

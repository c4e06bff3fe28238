//! What is known of servers, as one process tells it to the next.

use serde::{Deserialize, Serialize};

use super::Upstream;
use super::server::{Server, ServerProtocol};
use super::server_state::{DRAINING, SavedServerState};
use crate::base::clock::Now;

/// A server, and what is known of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct SavedServer {
    upstream: String,
    /// `host:port`.
    server: String,
    has_tls: bool,
    speech: ServerProtocol,
    standing: SavedServerState,
}

impl SavedServer {
    fn matches_server(&self, server: &Server) -> bool {
        *self.server == *server.name && self.has_tls == server.tls.is_some() && self.speech == server.protocol
    }
}

impl Upstream {
    /// What is known of its servers at `now`.
    pub fn save_servers(&self, now: Now) -> impl Iterator<Item = SavedServer> {
        self.servers.iter().map(move |server| {
            // An ejection that is over is none.
            server.current_flags();
            SavedServer {
                upstream: self.name.to_string(),
                server: server.name.to_string(),
                has_tls: server.tls.is_some(),
                speech: server.protocol,
                standing: server.state.to_saved(now),
            }
        })
    }

    /// Takes over what the process before knew of all servers, as a reload would: of a server that was there too,
    /// everything; one that is new among servers that were there comes up slowly.
    pub fn restore_servers(&self, known: &[SavedServer], now: Now) {
        let mut known: Vec<&SavedServer> = known.iter().filter(|one| one.upstream == *self.name).collect();
        if known.is_empty() {
            return;
        }
        let all = known.clone();
        for server in &self.servers {
            match known.iter().position(|one| one.matches_server(server)) {
                Some(place) => server.state.restore_saved(&known.remove(place).standing, now),
                None => {
                    server.begin_slow_start(now);
                    // Spoken to in another way it is another server, but still the one that shall be empty.
                    let is_same =
                        |one: &&SavedServer| *one.server == *server.name && one.standing.is_draining();
                    if all.iter().any(is_same) {
                        server.state.set_flag(DRAINING);
                    }
                }
            }
        }
    }
}

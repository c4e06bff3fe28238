//! What is known of servers, as one process tells it to the next.

use serde::{Deserialize, Serialize};

use super::Upstream;
use super::server::{Server, Speech};
use super::server_state::{DRAINING, KnownStanding};
use crate::base::clock::Now;

/// A server, and what is known of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct KnownServer {
    upstream: String,
    /// `host:port`.
    server: String,
    has_tls: bool,
    speech: Speech,
    standing: KnownStanding,
}

impl KnownServer {
    fn is(&self, server: &Server) -> bool {
        *self.server == *server.name && self.has_tls == server.tls.is_some() && self.speech == server.speech
    }
}

impl Upstream {
    /// What is known of its servers at `now`.
    pub fn known_servers(&self, now: Now) -> impl Iterator<Item = KnownServer> {
        self.servers.iter().map(move |server| {
            // An ejection that is over is none.
            server.settled_state();
            KnownServer {
                upstream: self.name.to_string(),
                server: server.name.to_string(),
                has_tls: server.tls.is_some(),
                speech: server.speech,
                standing: server.standing.known(now),
            }
        })
    }

    /// Takes over what the process before knew of all servers, as a reload would: of a server that was there too,
    /// everything; one that is new among servers that were there comes up slowly.
    pub fn meet_servers(&self, known: &[KnownServer], now: Now) {
        let mut known: Vec<&KnownServer> = known.iter().filter(|one| one.upstream == *self.name).collect();
        if known.is_empty() {
            return;
        }
        let all = known.clone();
        for server in &self.servers {
            match known.iter().position(|one| one.is(server)) {
                Some(place) => server.standing.take_over(&known.remove(place).standing, now),
                None => {
                    server.rise(now);
                    // Spoken to in another way it is another server, but still the one that shall be empty.
                    let is_same =
                        |one: &&KnownServer| *one.server == *server.name && one.standing.is_draining();
                    if all.iter().any(is_same) {
                        server.standing.set(DRAINING);
                    }
                }
            }
        }
    }
}

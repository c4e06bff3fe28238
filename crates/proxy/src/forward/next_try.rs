//! The next server to try, and the place there if the request has one already.

use std::sync::Arc;

use super::fault::ForwardFault;
use sluicegate_http::upstream::{Server, ServerChoice, ServerInFlight, ServerPlace, Upstream};
use sluicegate_model::ServerId;

pub struct TryServer<'u> {
    pub server: &'u Arc<Server>,
    /// `None` = the try takes a place itself, and fails if there is none.
    pub place: Option<ServerInFlight>,
}

/// The next step of a request.
pub enum NextTry<'u> {
    At(TryServer<'u>),
    /// The request waits for a place.
    Wait,
}

impl<'u> TryServer<'u> {
    /// The try at the server of a place that is taken already.
    pub fn with_place(upstream: &'u Upstream, place: ServerInFlight) -> TryServer<'u> {
        TryServer { server: &upstream.servers[place.server().position.0], place: Some(place) }
    }
}

impl<'u> NextTry<'u> {
    /// The next try of a request with this `hash` at a server that is not in `tried`.
    ///
    /// # Errors
    /// No server is usable, or every one is full and the upstream has no queue.
    #[inline(always)]
    pub fn choose(
        upstream: &'u Upstream,
        hash: u64,
        tried: &[ServerId],
    ) -> Result<NextTry<'u>, ForwardFault> {
        if upstream.queue().is_some() {
            return match upstream.take_place(hash, tried) {
                ServerPlace::Taken(place) => Ok(NextTry::At(TryServer::with_place(upstream, place))),
                ServerPlace::Full => Ok(NextTry::Wait),
                ServerPlace::Exhausted | ServerPlace::Down => Err(ForwardFault::Down),
            };
        }
        match upstream.choose_server(hash, tried) {
            ServerChoice::Server(server) => Ok(NextTry::At(TryServer { server, place: None })),
            ServerChoice::Full => Err(ForwardFault::Full),
            ServerChoice::Down | ServerChoice::Exhausted => Err(ForwardFault::Down),
        }
    }
}

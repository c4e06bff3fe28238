//! The admin API: shows and steers the running gateway. It runs on the control thread, apart from the workers, so that
//! it answers when they are busy.
//!
//! [`endpoints`] is the table of all endpoints, from which come routing, access, the page of a wrong path and the
//! OpenAPI document. A new endpoint is a row there, with its JSON as a
//! [`json_object`](sluicegate_base::json_shape::json_object), an example in [`examples`], and a handler. The handler
//! gets an [`AdminRequest`](endpoint::AdminRequest) with an authorized caller and parameters that fit the table, and
//! returns an [`Answer`](answer::Answer). A handler of changes reports the change by
//! [`Answer::with_change`](answer::Answer::with_change), and [`audit`] records it.

mod answer;
mod audit;
mod authorize;
mod bans;
pub(crate) mod changed_limits;
mod connections;
mod endpoint;
mod endpoints;
mod event_streams;
mod events;
mod examples;
mod history;
mod key_status;
mod keys;
mod limit_changes;
mod limits;
mod openapi;
mod page;
mod routes;
mod service;
mod state;
pub mod status;
mod upstreams;
mod usage;

use std::cell::Cell;
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use arc_swap::ArcSwap;
use http_body_util::BodyExt;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::operate::traffic::TrafficSampler;
use sluicegate_http::net::bind_fault::describe_bind_error;
use sluicegate_model as model;
use sluicegate_proxy::gateway::Gateway;

pub use answer::AdminError;
use authorize::CallerPolicy;
use connections::{AdminConnections, ConnectionGuard};
use endpoint::EndpointAccess;
use endpoints::ENDPOINTS;
use service::AdminService;
use state::ChangeCounts;
pub use state::{ActionFuture, AdminState, GatewayActions};

/// A bound admin listener that does not answer yet.
#[derive(Debug)]
pub struct AdminListener {
    listener: TcpListener,
    address: SocketAddr,
    policy: CallerPolicy,
}

/// Connections open at once; a further one closes the longest unused one.
const CONNECTIONS_MAX: usize = 64;
/// A head must arrive within this time; an idle connection is closed after it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

impl AdminListener {
    /// Binds the listener, or uses the `inherited` socket of the process before an upgrade. The address is in use
    /// until the listener is dropped. The error names the address.
    pub fn bind(
        config: &model::AdminConfig,
        inherited: Option<TcpListener>,
    ) -> Result<AdminListener, String> {
        let bind = || {
            let listener = inherited.map_or_else(|| TcpListener::bind(config.listen), Ok)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(AdminListener { listener, address, policy: CallerPolicy(config.clone()) })
        };
        bind().map_err(|error: io::Error| {
            let why = describe_bind_error(config.listen, &error);
            format!("cannot listen on {} for admin: {why}", config.listen)
        })
    }

    /// The real address, also for port 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The configured address, and another handle on the socket.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn clone_socket(&self) -> io::Result<(SocketAddr, TcpListener)> {
        Ok((self.policy.0.listen, self.listener.try_clone()?))
    }

    /// Another handle on the same listener.
    ///
    /// # Errors
    /// As [`AdminListener::clone_socket`].
    pub fn clone_listener(&self) -> io::Result<AdminListener> {
        let (_, listener) = self.clone_socket()?;
        Ok(AdminListener { listener, address: self.address, policy: self.policy.clone() })
    }

    /// Accepts until the sender of `leave` is dropped, then serves its open connections to their end. If the future is
    /// dropped, they end at once. Must run inside a local tokio runtime.
    pub async fn serve_admin(self, state: AdminState, mut leave: oneshot::Receiver<()>) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let events = state.events.clone();
        let service = AdminService::new(state, self.policy);
        let all = Rc::new(AdminConnections::default());
        // Dropping the set ends the connections together with the listener.
        let mut tasks = tokio::task::JoinSet::new();
        let spare = Rc::new(SpareDescriptor::default());
        spare.refill_fd();
        loop {
            let next = async {
                let accepted = listener.accept().await?;
                all.make_room(CONNECTIONS_MAX).await;
                io::Result::Ok(accepted)
            };
            let accepted = tokio::select! {
                accepted = next => accepted,
                _ = &mut leave => break,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let (connection, service) = (all.track_connection(), service.clone());
                    let (own, spare) = (connection.own.clone(), RefillSpare(spare.clone()));
                    let task = tasks.spawn_local(async move {
                        // Dropped after the connection, however it ends.
                        let _spare = spare;
                        serve_connection(stream, peer, service, connection).await;
                    });
                    // It was not set before.
                    let _ = own.abort.set(task);
                }
                Err(_) if spare.release_fd() => {}
                Err(error) => {
                    tracing::warn!(%error, "the admin listener cannot accept");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    spare.refill_fd();
                }
            }
            while tasks.try_join_next().is_some() {}
        }
        drop(listener);
        // Their clients connect again, to the process that took over.
        events.close_all();
        while tasks.join_next().await.is_some() {}
        Ok(())
    }
}

/// A spare descriptor for the next connection, so that the listener answers when clients use all others.
#[derive(Default)]
struct SpareDescriptor(Cell<Option<File>>);

impl SpareDescriptor {
    /// False when the descriptor is in use already.
    fn release_fd(&self) -> bool {
        self.0.take().is_some()
    }

    fn refill_fd(&self) {
        let descriptor = self.0.take().or_else(|| File::open("/dev/null").ok());
        self.0.set(descriptor);
    }
}

/// Opens the spare descriptor again when a connection closed its own.
struct RefillSpare(Rc<SpareDescriptor>);

impl Drop for RefillSpare {
    fn drop(&mut self) {
        self.0.refill_fd();
    }
}

async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    service: AdminService,
    connection: ConnectionGuard,
) {
    let connection = Rc::new(connection);
    let own = connection.own.clone();
    let service = tower::service_fn(move |request| {
        let (own, in_use) = (connection.own.clone(), connection.clone().mark_in_use());
        let answer = service.clone().answer_request(request, peer, own);
        // The body keeps the connection in use until it is written.
        let keep = move |never: Infallible| {
            let _ = &in_use;
            never
        };
        async move { Ok::<_, Infallible>(answer.await.map(|body| body.map_err(keep))) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    // A broken or slow admin client is no fault of the gateway.
    tokio::select! {
        _ = connection => {}
        () = own.wait_for_end() => {}
    }
}

impl AdminState {
    /// The data of the gateway in force; `ready` is false while it starts or drains.
    pub fn new(
        ready: Arc<AtomicBool>,
        current: Arc<ArcSwap<Gateway>>,
        traffic: Rc<TrafficSampler>,
        actions: impl GatewayActions + 'static,
    ) -> AdminState {
        let changing = ENDPOINTS.iter().filter(|endpoint| endpoint.access == EndpointAccess::Change);
        let changes = Arc::new(ChangeCounts::new(changing.map(|endpoint| endpoint.name)));
        AdminState { ready, current, traffic, events: Rc::default(), changes, actions: Rc::new(actions) }
    }
}

#[cfg(test)]
mod tests;

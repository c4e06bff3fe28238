//! The admin listener: health, readiness, metrics, status, `explain`, reload and draining of servers. Runs on the
//! control thread, apart from the workers, so that it answers when they are busy.

mod authorize;
mod connections;
mod control;
mod explain;
mod pages;
mod response;
mod upstreams;

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tower::Service;

use crate::config;
use crate::net::bind_fault::describe_bind_error;
use crate::operate::explain::{Explanation, Query};
use crate::upstream::Upstream;

use authorize::CallerPolicy;
use connections::{AdminConnections, ConnectionGuard, GuardedBody};
pub use pages::AdminService;
pub use response::AdminResponse;

/// A bound admin listener that does not answer yet.
#[derive(Debug)]
pub struct AdminListener {
    listener: TcpListener,
    address: SocketAddr,
    configured: SocketAddr,
    policy: CallerPolicy,
}

/// The data and actions behind the admin pages.
#[derive(Clone)]
pub struct AdminState {
    /// False while the gateway starts or drains.
    ready: Arc<AtomicBool>,
    /// Writes the metrics page, in [`crate::observe::metrics::CONTENT_TYPE`].
    metrics: Arc<dyn Fn() -> String + Send + Sync>,
    explain: Rc<ExplainFn>,
    /// True while the shared store is impaired.
    degraded: Arc<dyn Fn() -> bool + Send + Sync>,
    /// The upstreams of the gateway in force.
    upstreams: Rc<dyn Fn() -> Vec<Arc<Upstream>>>,
    status: Rc<dyn Fn() -> AdminResponse>,
    reload: Rc<ReloadFn>,
}

/// Reloads the configuration and returns the result.
type ReloadFn = dyn Fn() -> Pin<Box<dyn Future<Output = AdminResponse>>>;

/// Explains a request from the running counters; the error is a fault of the query.
type ExplainFn = dyn Fn(Query) -> Pin<Box<dyn Future<Output = Result<Explanation, String>>>>;

/// Connections open at once; a further one closes the longest unused one.
const CONNECTIONS_MAX: usize = 64;
/// A head must arrive within this time; an idle connection is closed after it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection is closed after this time: scrapers reconnect.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(300);
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

impl AdminListener {
    /// Binds the listener, or uses the `inherited` socket of the process before an upgrade. The address is in use
    /// until the listener is dropped. The error names the address.
    pub fn bind(
        config: &config::AdminConfig,
        inherited: Option<TcpListener>,
    ) -> Result<AdminListener, String> {
        let bind = || {
            let listener = inherited.map_or_else(|| TcpListener::bind(config.listen), Ok)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(AdminListener { listener, address, configured: config.listen, policy: config.into() })
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
    /// When the process is out of descriptors.
    pub fn clone_socket(&self) -> io::Result<(SocketAddr, TcpListener)> {
        Ok((self.configured, self.listener.try_clone()?))
    }

    /// Another handle on the same listener.
    ///
    /// # Errors
    /// As [`AdminListener::clone_socket`].
    pub fn clone_listener(&self) -> io::Result<AdminListener> {
        let (configured, listener) = self.clone_socket()?;
        Ok(AdminListener { listener, address: self.address, configured, policy: self.policy.clone() })
    }

    /// Accepts until the sender of `leave` is dropped, then serves its open connections to their end. If the future is
    /// dropped, they end at once. Must run inside a local tokio runtime.
    pub async fn serve_admin(self, state: AdminState, mut leave: oneshot::Receiver<()>) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let pages = AdminService::new(state, self.policy);
        let all = Rc::new(AdminConnections::default());
        // Dropping the set ends the connections together with the listener.
        let mut tasks = tokio::task::JoinSet::new();
        let spare = Rc::new(SpareDescriptor::new());
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
                Ok((stream, _)) => {
                    let (connection, pages) = (all.track_connection(), pages.clone());
                    let (own, spare) = (connection.connection_state(), RefillSpare(spare.clone()));
                    own.set_abort(tasks.spawn_local(async move {
                        // Dropped after the connection, however it ends.
                        let _spare = spare;
                        serve_connection(stream, pages, connection).await;
                    }));
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
        while tasks.join_next().await.is_some() {}
        Ok(())
    }
}

/// A spare descriptor for the next connection, so that the listener answers when clients use all others.
struct SpareDescriptor(Cell<Option<File>>);

impl SpareDescriptor {
    fn new() -> SpareDescriptor {
        SpareDescriptor(Cell::new(File::open("/dev/null").ok()))
    }

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

async fn serve_connection(stream: TcpStream, pages: AdminService, connection: ConnectionGuard) {
    let connection = Rc::new(connection);
    let service = tower::service_fn(move |request| {
        let (in_use, answer) = (connection.clone().mark_in_use(), pages.clone().call(request));
        async move { answer.await.map(|answer| answer.map(|body| GuardedBody::new(body, in_use))) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    // A broken or slow admin client is no fault of the gateway.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
}

impl AdminState {
    pub fn new(
        ready: Arc<AtomicBool>,
        metrics: impl Fn() -> String + Send + Sync + 'static,
        explain: impl AsyncFn(Query) -> Result<Explanation, String> + 'static,
    ) -> AdminState {
        let explain = Rc::new(explain);
        AdminState {
            ready,
            metrics: Arc::new(metrics),
            explain: Rc::new(move |query| {
                let explain = explain.clone();
                Box::pin(async move { explain(query).await })
            }),
            degraded: Arc::new(|| false),
            upstreams: Rc::new(Vec::new),
            status: Rc::new(AdminResponse::shutting_down),
            reload: Rc::new(|| Box::pin(async { AdminResponse::shutting_down() })),
        }
    }

    /// Sets the upstreams to show and to drain.
    pub fn with_upstreams(self, upstreams: impl Fn() -> Vec<Arc<Upstream>> + 'static) -> AdminState {
        AdminState { upstreams: Rc::new(upstreams), ..self }
    }

    /// Sets the actions of `/status` and `/reload`.
    pub fn with_control(
        self,
        status: impl Fn() -> AdminResponse + 'static,
        reload: impl AsyncFn() -> AdminResponse + 'static,
    ) -> AdminState {
        let reload = Rc::new(reload);
        let reload: Rc<ReloadFn> = Rc::new(move || {
            let reload = reload.clone();
            Box::pin(async move { reload().await })
        });
        AdminState { status: Rc::new(status), reload, ..self }
    }

    /// Sets the check that makes `/readyz` report a degraded store.
    pub fn with_store(self, degraded: impl Fn() -> bool + Send + Sync + 'static) -> AdminState {
        AdminState { degraded: Arc::new(degraded), ..self }
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Relaxed)
    }
}

#[cfg(test)]
mod tests;

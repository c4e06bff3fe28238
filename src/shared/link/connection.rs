//! One connection to one server.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::task::{Context, Poll};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, ProtocolVersion, RedisConnectionInfo, Value};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::fault::{Address, Failure, Fault};
use crate::config;

/// For the connect, the handshake and the greeting together.
const CONNECT: Duration = Duration::from_millis(250);
/// Calls that may wait for one write.
const QUEUE: usize = 4096;
const WRITE_MAX: usize = 64 * 1024;
/// What may arrive between two complete answers; those of our scripts have some hundred bytes.
const UNANSWERED_MAX: u64 = 2 * 1024 * 1024;

/// How to reach a server and what to say there first.
#[derive(Clone)]
pub(super) struct Greeting {
    tls: Option<TlsConnector>,
    settings: RedisConnectionInfo,
}

/// All clones are the same connection, which closes with the last of them.
#[derive(Clone)]
pub(super) struct Connection {
    way: MultiplexedConnection,
    shared: Arc<Shared>,
}

struct Shared {
    alive: Arc<AtomicBool>,
    allowance: Arc<AtomicU64>,
    /// How often the scripts were loaded on this connection.
    loads: AtomicU32,
    driver: AbortHandle,
}

// === impl Greeting ===

impl Greeting {
    pub(super) fn new(config: &config::Redis) -> Greeting {
        let mut settings = RedisConnectionInfo::default()
            .set_db(config.database.into())
            .set_protocol(ProtocolVersion::RESP2)
            .set_skip_set_lib_name();
        if let Some(user) = &config.user {
            settings = settings.set_username(&user.0);
        }
        if let Some(password) = &config.password {
            settings = settings.set_password(&password.0);
        }
        Greeting { tls: config.tls.then(connector), settings }
    }

    /// Without user, password and database: many sentinels have none of them.
    pub(super) fn anonymous(&self) -> Greeting {
        let settings =
            RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
        Greeting { tls: self.tls.clone(), settings }
    }

    /// The same user, without the database, which a sentinel does not have.
    pub(super) fn without_database(&self) -> Greeting {
        Greeting { tls: self.tls.clone(), settings: self.settings.clone().set_db(0) }
    }

    pub(super) fn has_password(&self) -> bool {
        self.settings.password().is_some()
    }

    /// Connects and says who we are.
    pub(super) async fn connect(&self, address: &Address) -> Result<Connection, Fault> {
        timeout(CONNECT, self.connect_at_leisure(address))
            .await
            .unwrap_or_else(|_| Err(Failure::Timeout.into()))
    }

    async fn connect_at_leisure(&self, address: &Address) -> Result<Connection, Fault> {
        let found = lookup_host((address.host.as_str(), address.port)).await;
        let found: Vec<SocketAddr> = found.map_err(|_| Fault::of_name())?.collect();
        let socket = TcpStream::connect(found.as_slice()).await?;
        socket.set_nodelay(true)?;
        match &self.tls {
            None => self.greet(socket).await,
            Some(connector) => {
                let name = ServerName::try_from(address.host.clone()).map_err(|_| Failure::Refused)?;
                self.greet(connector.connect(name, socket).await?).await
            }
        }
    }

    async fn greet<S>(&self, stream: S) -> Result<Connection, Fault>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let allowance = Arc::new(AtomicU64::new(UNANSWERED_MAX));
        let stream = Rationed { stream, allowance: allowance.clone() };
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(QUEUE)
            .set_write_backpressure_boundary(WRITE_MAX);
        let greeted = MultiplexedConnection::new_with_config(&self.settings, stream, config).await;
        let (way, driver) = greeted.map_err(|error| Fault::of(&error))?;
        let alive = Arc::new(AtomicBool::new(true));
        let flag = Lifeline(alive.clone());
        let driver = tokio::spawn(async move {
            let _flag = flag;
            driver.await;
        });
        let shared = Shared { alive, allowance, loads: AtomicU32::new(0), driver: driver.abort_handle() };
        Ok(Connection { way, shared: Arc::new(shared) })
    }
}

/// TLS with the authorities that the system trusts.
fn connector() -> TlsConnector {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        // Cannot fail: this provider serves TLS 1.2 and 1.3.
        .expect("the provider knows the default versions")
        .with_root_certificates(config::system_authorities())
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

// === impl Connection ===

impl Connection {
    /// False once it broke: what is sent then cannot arrive.
    pub(super) fn is_alive(&self) -> bool {
        self.shared.alive.load(Acquire)
    }

    pub(super) fn loads(&self) -> u32 {
        self.shared.loads.load(Relaxed)
    }

    /// Sends one command. The answer may be an error of the server's.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, Fault> {
        let answer = self.way.clone().send_packed_command(command).await;
        self.shared.allowance.store(UNANSWERED_MAX, Relaxed);
        answer.map_err(|error| Fault::of(&error))
    }

    /// Sends commands behind each other; nobody's command of this connection comes between.
    pub(super) async fn ask_in_a_row(&self, commands: &Pipeline) -> Result<Vec<Value>, Fault> {
        let answers = self.way.clone().send_packed_commands(commands, 0, commands.len()).await;
        self.shared.allowance.store(UNANSWERED_MAX, Relaxed);
        answers.map_err(|error| Fault::of(&error))
    }

    /// Loads the scripts, for all that comes behind.
    pub(super) async fn load(&self, scripts: &[&str]) -> Result<(), Fault> {
        let mut row = Pipeline::with_capacity(scripts.len());
        add_loads(&mut row, scripts);
        let answers =
            timeout(CONNECT, self.ask_in_a_row(&row)).await.unwrap_or(Err(Failure::Timeout.into()))?;
        self.count_load();
        for answer in &answers {
            match answer {
                Value::BulkString(_) => {}
                Value::ServerError(error) => return Err(Fault::of_server(error)),
                _ => return Err(Failure::Garbled.into()),
            }
        }
        Ok(())
    }

    /// From now on, what is sent finds the scripts loaded: somebody sends them before anything else.
    pub(super) fn count_load(&self) {
        self.shared.loads.fetch_add(1, Relaxed);
    }
}

pub(super) fn add_loads(row: &mut Pipeline, scripts: &[&str]) {
    for script in scripts {
        row.cmd("SCRIPT").arg("LOAD").arg(script);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Says that the connection's driver ended, however it did.
struct Lifeline(Arc<AtomicBool>);

impl Drop for Lifeline {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

/// A stream that breaks when the peer sends without end and never completes an answer.
struct Rationed<S> {
    stream: S,
    allowance: Arc<AtomicU64>,
}

// === impl Rationed ===

impl<S: AsyncRead + Unpin> AsyncRead for Rationed<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buf);
        let read = (buf.filled().len() - before) as u64;
        let left = this.allowance.load(Relaxed);
        if read > left {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        this.allowance.store(left - read, Relaxed);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rationed<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

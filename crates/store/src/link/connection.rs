//! A connection to one server: connect, TLS, greeting, and pipelined commands.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::task::{Context, Poll};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, ProtocolVersion, RedisConnectionInfo, RedisResult, Value};
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::fault::{DescribedFault, StoreAddress, StoreFault};
use sluicegate_base::system_roots::load_system_roots;
use sluicegate_model as model;

/// Deadline for the connect, the handshake and the greeting together.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);
/// Maximum number of calls that wait to be written.
const QUEUE_MAX: usize = 4096;
const WRITE_MAX: usize = 64 * 1024;
/// Bytes that may arrive between two complete answers; those of our scripts have a few hundred.
const UNANSWERED_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// The settings for a connect: TLS, user and database.
#[derive(Clone)]
pub(super) struct StoreConnector {
    tls: Option<TlsConnector>,
    pub(super) settings: RedisConnectionInfo,
}

/// All clones are the same connection, which closes with the last of them.
#[derive(Clone)]
pub(super) struct StoreConnection {
    multiplexed: MultiplexedConnection,
    driver: Arc<ConnectionDriver>,
}

struct ConnectionDriver {
    allowance: Arc<AtomicU64>,
    /// The number of script loads on this connection.
    loads: AtomicU32,
    task: AbortHandle,
}

// === impl StoreConnector ===

impl StoreConnector {
    pub(super) fn new(config: &model::RedisConfig) -> StoreConnector {
        let mut settings = plain_settings().set_db(config.database.into());
        if let Some(user) = &config.user {
            settings = settings.set_username(&user.0);
        }
        if let Some(password) = &config.password {
            settings = settings.set_password(&password.0);
        }
        StoreConnector { tls: config.tls.then(|| tls_connector(&config.tls_files)), settings }
    }

    /// The connector for sentinels, which have no databases; many have no users either.
    pub(super) fn for_sentinels(&self, with_user: bool) -> StoreConnector {
        let settings = if with_user { self.settings.clone().set_db(0) } else { plain_settings() };
        StoreConnector { tls: self.tls.clone(), settings }
    }

    /// Connects and authenticates.
    pub(super) async fn connect(&self, address: &StoreAddress) -> Result<StoreConnection, DescribedFault> {
        timeout(CONNECT_TIMEOUT, self.connect_untimed(address)).await.map_err(|_| StoreFault::Timeout)?
    }

    async fn connect_untimed(&self, address: &StoreAddress) -> Result<StoreConnection, DescribedFault> {
        let found = lookup_host((address.host.as_str(), address.port)).await;
        let found: Vec<SocketAddr> = found.map_err(|_| DescribedFault::unknown_host())?.collect();
        let socket = TcpStream::connect(found.as_slice()).await?;
        socket.set_nodelay(true)?;
        match &self.tls {
            None => self.open_connection(socket).await,
            Some(connector) => {
                let name =
                    ServerName::try_from(address.host.clone()).map_err(|_| StoreFault::CommandError)?;
                self.open_connection(connector.connect(name, socket).await?).await
            }
        }
    }

    async fn open_connection<S>(&self, stream: S) -> Result<StoreConnection, DescribedFault>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let allowance = Arc::new(AtomicU64::new(UNANSWERED_BYTES_MAX));
        let stream = RationedStream { stream, allowance: allowance.clone() };
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(QUEUE_MAX)
            .set_write_backpressure_boundary(WRITE_MAX);
        let (multiplexed, driver) =
            MultiplexedConnection::new_with_config(&self.settings, stream, config).await?;
        let task = tokio::spawn(driver).abort_handle();
        let driver = Arc::new(ConnectionDriver { allowance, loads: AtomicU32::new(0), task });
        Ok(StoreConnection { multiplexed, driver })
    }
}

/// Settings without user, password and database.
fn plain_settings() -> RedisConnectionInfo {
    RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name()
}

/// TLS with the configured authorities, or those that the system trusts.
fn tls_connector(files: &model::RedisTlsFiles) -> TlsConnector {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let roots = files.roots.clone().unwrap_or_else(|| Arc::new(load_system_roots()));
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        // Cannot fail: this provider serves TLS 1.2 and 1.3.
        .expect("the provider knows the default versions")
        .with_root_certificates(roots);
    let config = match &files.identity {
        Some(identity) => {
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.clone())))
        }
        None => builder.with_no_client_auth(),
    };
    TlsConnector::from(Arc::new(config))
}

// === impl StoreConnection ===

impl StoreConnection {
    /// False once it broke: nothing that is sent then can arrive.
    pub(super) fn is_alive(&self) -> bool {
        !self.driver.task.is_finished()
    }

    pub(super) fn load_count(&self) -> u32 {
        self.driver.loads.load(Relaxed)
    }

    /// Sends one command.
    pub(super) async fn send_command(&self, command: &Cmd) -> RedisResult<Value> {
        let answer = self.multiplexed.clone().send_packed_command(command).await;
        self.driver.allowance.store(UNANSWERED_BYTES_MAX, Relaxed);
        check_answer(answer?)
    }

    /// Sends commands in a row; no other command of this connection comes between. Each answer may be an error:
    /// see [`check_answer`].
    pub(super) async fn send_pipeline(&self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        let answers = self.multiplexed.clone().send_packed_commands(commands, 0, commands.len()).await;
        self.driver.allowance.store(UNANSWERED_BYTES_MAX, Relaxed);
        answers
    }

    /// Loads the scripts for all later calls.
    pub(super) async fn load_scripts(&self, scripts: &[&str]) -> Result<(), DescribedFault> {
        let mut pipeline = Pipeline::with_capacity(scripts.len());
        add_script_loads(&mut pipeline, scripts);
        let answers = timeout(CONNECT_TIMEOUT, self.send_pipeline(&pipeline)).await;
        let answers = answers.map_err(|_| StoreFault::Timeout)??;
        self.count_load();
        for answer in answers {
            let Value::BulkString(_) = check_answer(answer)? else { return Err(StoreFault::Garbled.into()) };
        }
        Ok(())
    }

    /// Notes a load of the scripts: the caller sends them before anything else, so later calls find them.
    pub(super) fn count_load(&self) {
        self.driver.loads.fetch_add(1, Relaxed);
    }
}

/// An error reply is an error. One inside an array is not: the command ran.
pub(super) fn check_answer(answer: Value) -> RedisResult<Value> {
    match answer {
        Value::ServerError(error) => Err(error.into()),
        answer => Ok(answer),
    }
}

/// Takes the answer to the last command of a row.
pub(super) fn take_last_answer(answers: Vec<Value>) -> RedisResult<Value> {
    check_answer(answers.into_iter().next_back().unwrap_or(Value::Nil))
}

pub(super) fn add_script_loads(pipeline: &mut Pipeline, scripts: &[&str]) {
    for script in scripts {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(script);
    }
}

impl Drop for ConnectionDriver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A stream that breaks when the peer sends without end and never completes an answer.
struct RationedStream<S> {
    stream: S,
    allowance: Arc<AtomicU64>,
}

// === impl RationedStream ===

impl<S: AsyncRead + Unpin> AsyncRead for RationedStream<S> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for RationedStream<S> {
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

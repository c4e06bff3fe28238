//! Active health checks: the gateway sends each server a request at a fixed interval.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderValue, USER_AGENT};
use http::uri::{Scheme, Uri};
use http::{Request, StatusCode, Version};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::Server;
use super::connect::{ConnectFault, DialledSocket, dial_server};
use super::http1::FIELDS_MAX;
use super::server_state::HealthChange;
use crate::net::proxy_protocol::LOCAL_HEADER;
use sluicegate_base::clock::Now;
use sluicegate_model::HealthConfig;

/// Bytes read of a response body, so that the server can finish writing; the content does not matter.
const BODY_MAX: usize = 64 * 1024;
const HEALTH_AGENT: HeaderValue = HeaderValue::from_static("sluicegate-health");

/// Checks the server until the task is dropped.
pub(super) async fn watch_server(server: Arc<Server>, health: HealthConfig) {
    let mut interval =
        tokio::time::interval_at(Instant::now() + first_delay(health.interval), health.interval);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        if let Some(result) = check_server(&server, &health).await {
            server.record_health(&health, result);
        }
    }
}

/// A random part of one interval, so that many gateways do not check their servers all at once.
fn first_delay(interval: Duration) -> Duration {
    let share = RandomState::new().hash_one(0) >> 32;
    interval.mul_f64(share as f64 / f64::from(u32::MAX))
}

impl Server {
    fn record_health(&self, health: &HealthConfig, result: Result<(), String>) {
        let now = Now::read_clock();
        let reason = result.as_ref().err().cloned().unwrap_or_default();
        let change = self.state.record_check(result, health.rise, health.fall, now);
        let (upstream, server) = (&*self.upstream, &*self.name);
        match change {
            Some(HealthChange::Up) => {
                self.begin_slow_start(now);
                tracing::info!(upstream, server, "a server is up");
            }
            Some(HealthChange::Down) => tracing::warn!(upstream, server, "a server is down: {reason}"),
            None if !reason.is_empty() => {
                tracing::debug!(upstream, server, "a health check failed: {reason}");
            }
            None => {}
        }
        if change.is_some() {
            self.state.signal_queue();
        }
    }
}

/// The result of one check, with the reason of a failure; `None` if this machine has no socket left for it.
async fn check_server(server: &Arc<Server>, health: &HealthConfig) -> Option<Result<(), String>> {
    let end = Instant::now() + health.timeout;
    let checking = async {
        let header = if server.announces_clients { LOCAL_HEADER } else { &[] };
        match dial_server(server, server.protocol, end, header).await {
            Ok(dialled) => {
                let status = fetch_status(dialled, server, health).await;
                Some(status.map_err(|error| format!("the connection broke: {error}")))
            }
            Err(ConnectFault::Full) => None,
            Err(fault) => {
                tracing::debug!(upstream = %server.upstream, server = %server.name, %fault, "cannot connect");
                fault.server_fault().map(|fault| Err(fault.to_string()))
            }
        }
    };
    Some(match tokio::time::timeout_at(end, checking).await {
        Ok(checked) => match checked? {
            Ok(status) if health.status.contains(status.as_u16()) => Ok(()),
            Ok(status) => Err(format!("it answered {}", status.as_u16())),
            Err(reason) => Err(reason),
        },
        Err(_) => Err("no answer in time".to_owned()),
    })
}

/// The status of the response, over a new connection: connecting is part of the check.
async fn fetch_status(
    dialled: DialledSocket,
    server: &Server,
    health: &HealthConfig,
) -> hyper::Result<StatusCode> {
    let DialledSocket { socket, is_http2, .. } = dialled;
    let stream = TokioIo::new(socket);
    // Ends with the check, whatever its result.
    let mut connection_task = JoinSet::new();
    let request = build_check(is_http2, server, health);
    let response = if is_http2 {
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
        connection_task.spawn(connection);
        sender.send_request(request).await?
    } else {
        let mut builder = http1::Builder::new();
        // As many as any other response may have.
        let (mut sender, connection) = builder.max_headers(FIELDS_MAX).handshake(stream).await?;
        connection_task.spawn(connection);
        sender.send_request(request).await?
    };
    let (head, mut body) = response.into_parts();
    let mut left = BODY_MAX;
    while left > 0
        && let Some(Ok(frame)) = body.frame().await
    {
        left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
    }
    Ok(head.status)
}

fn build_check(is_http2: bool, server: &Server, health: &HealthConfig) -> Request<Empty<Bytes>> {
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = health.path.clone().into();
    request.headers_mut().insert(USER_AGENT, HEALTH_AGENT);
    if is_http2 {
        let scheme = if server.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
        let authority = server.authority.to_str().ok().and_then(|authority| authority.parse().ok());
        let mut parts = request.uri().clone().into_parts();
        (parts.scheme, parts.authority) = (Some(scheme), authority);
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
        *request.version_mut() = Version::HTTP_2;
    } else {
        request.headers_mut().insert(HOST, server.authority.clone());
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    request
}

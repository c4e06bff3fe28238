//! Opens the connections of this process's own requests, to collectors of spans and to issuers of tokens.

use std::io;

use bytes::Bytes;
use http::HeaderValue;
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use sluicegate_http::upstream::{ServerSocket, ServerTls};

/// The value of `User-Agent`.
pub(super) const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("sluicegate/", env!("CARGO_PKG_VERSION")));

/// Opens a connection of HTTP/1, which ends with its sender.
///
/// # Errors
/// A phrase: "cannot connect", and the reason.
pub(super) async fn open_connection(
    host: &str,
    port: u16,
    tls: Option<&ServerTls>,
) -> Result<SendRequest<Full<Bytes>>, String> {
    let unreachable = |error: io::Error| format!("cannot connect: {error}");
    let stream = TcpStream::connect((host, port)).await.map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    let socket = match tls {
        None => ServerSocket::Plain(stream),
        Some(tls) => {
            let (stream, _is_http2) = tls.connect_stream(stream, true).await.map_err(unreachable)?;
            ServerSocket::Tls(Box::new(stream))
        }
    };
    let handshake = http1::handshake(TokioIo::new(socket)).await;
    let (sender, connection) = handshake.map_err(|error| format!("cannot connect: {error}"))?;
    // The exchange tells its fault.
    tokio::spawn(async { drop(connection.await) });
    Ok(sender)
}

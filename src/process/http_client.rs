//! Sends this process's own requests, to collectors of spans, issuers of tokens, directories of certificates and the
//! receiver of events.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{HOST, USER_AGENT};
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use tokio::net::TcpStream;

use sluicegate_http::upstream::{ServerSocket, ServerTls};
use sluicegate_model::{HttpsUrl, UpstreamProtocol, UpstreamTlsConfig};

/// The value of `User-Agent`.
pub(super) const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("sluicegate/", env!("CARGO_PKG_VERSION")));

/// The most bytes of a response.
const DOCUMENT_MAX: usize = 1 << 20;

/// Sends a request to `url` over HTTPS, and reads the whole response; redirects are not followed.
///
/// # Errors
/// A phrase that follows the URL.
pub(super) async fn exchange(
    url: &HttpsUrl,
    roots: Arc<RootCertStore>,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, String> {
    let (head, body) = send(url, Some(roots), request).await?.into_parts();
    let read = Limited::new(body, DOCUMENT_MAX).collect().await;
    let body = read.map_err(|error| format!("cannot be read: {error}, at most 1 MiB"))?.to_bytes();
    Ok(Response::from_parts(head, body))
}

/// Sends a request to `url`, without TLS if there are no `roots`, and reads the head of the response.
///
/// # Errors
/// A phrase that follows the URL.
pub(super) async fn send(
    url: &HttpsUrl,
    roots: Option<Arc<RootCertStore>>,
    mut request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, String> {
    *request.uri_mut() = url.target.parse().map_err(|_| "names no usable URL")?;
    let host = HeaderValue::from_str(&url.authority).map_err(|_| "names no usable host")?;
    request.headers_mut().insert(HOST, host);
    request.headers_mut().insert(USER_AGENT, AGENT);
    let tls = roots.map(|roots| {
        let roots = Some(roots);
        let tls = UpstreamTlsConfig { roots, server_name: None, identity: None, files: Vec::new() };
        ServerTls::new(&url.host, &tls, UpstreamProtocol::Http1)
    });
    let mut sender = open_connection(&url.host, url.port, tls.as_ref()).await?;
    sender.send_request(request).await.map_err(|error| format!("broke the connection: {error}"))
}

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

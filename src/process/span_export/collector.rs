//! The connection to the collector, which is kept between exports.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, USER_AGENT};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use rustls::RootCertStore;
use tokio::time::timeout;

use crate::process::http_client::{AGENT, open_connection};
use sluicegate_http::upstream::ServerTls;
use sluicegate_model::{CollectorConfig, UpstreamProtocol, UpstreamTlsConfig};
use sluicegate_observe::traces::otlp;

/// The time of one export, with connecting.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that are read of a response body; after a longer one the connection is closed.
const BODY_MAX: usize = 64 * 1024;

pub(super) struct Collector {
    pub settings: CollectorConfig,
    /// `None` = plain HTTP.
    tls: Option<ServerTls>,
    headers: HeaderMap,
    connection: Option<SendRequest<Full<Bytes>>>,
}

/// Why the collector did not take an export. It has none of the secrets that were sent.
type Reason = String;

impl Collector {
    /// `roots` are the trusted authorities, needed for `https`.
    pub(super) fn new(settings: CollectorConfig, roots: Option<RootCertStore>) -> Collector {
        let tls = settings.tls.then(|| {
            let roots = Some(roots.unwrap_or_else(RootCertStore::empty).into());
            let tls = UpstreamTlsConfig { roots, server_name: None, identity: None, files: Vec::new() };
            ServerTls::new(&settings.host, &tls, UpstreamProtocol::Http1)
        });
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(otlp::CONTENT_TYPE));
        headers.insert(USER_AGENT, AGENT);
        // The configuration has checked all of these.
        headers.extend(HeaderValue::from_str(&settings.authority).map(|host| (HOST, host)));
        for (name, value) in &settings.headers {
            if let Ok(value) = HeaderValue::from_str(&value.0) {
                headers.insert(name, value);
            }
        }
        Collector { settings, tls, headers, connection: None }
    }

    /// Sends one export. A connection that was kept may have ended meanwhile, so a new one is tried after it.
    ///
    /// # Errors
    /// The collector cannot be reached, is too slow, or answered no 2xx.
    pub(super) async fn post(&mut self, body: Bytes) -> Result<(), Reason> {
        let posting = async {
            if let Some(kept) = self.connection.take()
                && let Ok(status) = self.exchange(kept, body.clone()).await
            {
                return Ok(status);
            }
            let CollectorConfig { host, port, .. } = &self.settings;
            let opened = open_connection(host, *port, self.tls.as_ref()).await?;
            self.exchange(opened, body.clone())
                .await
                .map_err(|error| format!("the connection broke: {error}"))
        };
        match timeout(EXPORT_TIMEOUT, posting).await {
            Ok(Ok(status)) if status.is_success() => Ok(()),
            Ok(Ok(status)) => Err(format!("it answered {}", status.as_u16())),
            Ok(Err(reason)) => Err(reason),
            Err(_elapsed) => Err("no answer in time".to_owned()),
        }
    }

    /// Posts `body` and keeps the connection, if it is still usable.
    async fn exchange(
        &mut self,
        mut sender: SendRequest<Full<Bytes>>,
        body: Bytes,
    ) -> hyper::Result<StatusCode> {
        sender.ready().await?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        // The configuration has checked the path.
        *request.uri_mut() = self.settings.path.parse().unwrap_or_default();
        *request.headers_mut() = self.headers.clone();
        let (head, mut body) = sender.send_request(request).await?.into_parts();
        let mut left = BODY_MAX;
        while let Some(frame) = body.frame().await {
            let Some(rest) = left.checked_sub(frame?.data_ref().map_or(0, Bytes::len)) else {
                return Ok(head.status);
            };
            left = rest;
        }
        self.connection = Some(sender);
        Ok(head.status)
    }
}

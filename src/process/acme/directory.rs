//! Asks the directory of an authority, on the control thread: over HTTPS alone, with bounds on time and bytes, and
//! without following redirects.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use parking_lot::Mutex;
use rustls::RootCertStore;
use serde::Deserialize;
use tokio::time::timeout;

use crate::process::http_client::{AGENT, open_connection};
use sluicegate_base::time_text::parse_rfc3339;
use sluicegate_base::wall_clock::unix_ns;
use sluicegate_http::upstream::ServerTls;
use sluicegate_model::value::https_url::parse_https_url;
use sluicegate_model::{UpstreamProtocol, UpstreamTlsConfig};

/// The time of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const DOCUMENT_MAX: usize = 1 << 20;
/// The longest wait that a directory may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(7 * 86_400);

/// A client of one directory.
#[derive(Clone)]
pub(super) struct DirectoryClient {
    roots: Arc<RootCertStore>,
    requested: Arc<Mutex<RequestedWait>>,
}

/// The wait that the last answer asked for, and whether that was an error.
#[derive(Clone, Copy, Default)]
struct RequestedWait {
    wait: Option<Duration>,
    is_error: bool,
}

/// A window for the renewal of a certificate, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RenewalWindow {
    pub start: u64,
    pub end: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DirectoryDocument {
    new_nonce: String,
    renewal_info: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RenewalDocument {
    suggested_window: SuggestedWindow,
}

#[derive(Deserialize)]
struct SuggestedWindow {
    start: String,
    end: String,
}

impl DirectoryClient {
    pub(super) fn new(roots: Arc<RootCertStore>) -> DirectoryClient {
        DirectoryClient { roots, requested: Arc::default() }
    }

    /// The wait that the last answer asked for.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        self.requested.lock().wait
    }

    /// The same, if the last answer was an error.
    pub(super) fn retry_after_error(&self) -> Option<Duration> {
        let asked = *self.requested.lock();
        asked.wait.filter(|_| asked.is_error)
    }

    /// The window in which the authority wants the certificate of this identity to be renewed (RFC 9773); `None` = the
    /// directory has none.
    ///
    /// # Errors
    /// The reason, without texts of the directory.
    pub(super) async fn fetch_window(
        &self,
        directory: &str,
        identity: &str,
    ) -> Result<Option<RenewalWindow>, String> {
        let found: DirectoryDocument = self.get_json(directory).await?;
        let Some(url) = found.renewal_info else { return Ok(None) };
        let found: RenewalDocument =
            self.get_json(&format!("{}/{identity}", url.trim_end_matches('/'))).await?;
        let seconds = |text: &str| Some(parse_rfc3339(text.as_bytes())?.0 / 1_000_000_000);
        let window = &found.suggested_window;
        let (start, end) = (seconds(&window.start), seconds(&window.end));
        Ok(start.zip(end).map(|(start, end)| RenewalWindow { start, end }))
    }

    async fn get_json<T: for<'de> Deserialize<'de>>(&self, url: &str) -> Result<T, String> {
        let request =
            Request::get(url).body(Full::default()).map_err(|_| "names no usable URL".to_owned())?;
        let response = self.clone().send(request).await?;
        if !response.status().is_success() {
            return Err(format!("answers {}", response.status().as_u16()));
        }
        serde_json::from_slice(response.body()).map_err(|_| "answers with no usable JSON".to_owned())
    }

    async fn send(self, mut request: Request<Full<Bytes>>) -> Result<Response<Bytes>, String> {
        *self.requested.lock() = RequestedWait::default();
        let url = parse_https_url(&request.uri().to_string()).map_err(|_| "names no usable https:// URL")?;
        *request.uri_mut() = url.target.parse().map_err(|_| "names no usable URL".to_owned())?;
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, AGENT);
        headers.insert(HOST, HeaderValue::from_str(&url.authority).map_err(|_| "names no usable host")?);
        let exchange = async {
            let roots = Some(self.roots.clone());
            let tls = UpstreamTlsConfig { roots, server_name: None, identity: None, files: Vec::new() };
            let tls = ServerTls::new(&url.host, &tls, UpstreamProtocol::Http1);
            let mut sender = open_connection(&url.host, url.port, Some(&tls)).await?;
            let broke = |error: hyper::Error| format!("broke the connection: {error}");
            let (head, body) = sender.send_request(request).await.map_err(broke)?.into_parts();
            let read = Limited::new(body, DOCUMENT_MAX).collect().await;
            let body = read.map_err(|error| format!("cannot be read: {error}"))?.to_bytes();
            Ok(Response::from_parts(head, body))
        };
        let late = |_elapsed| Err(format!("did not answer within {} s", REQUEST_TIMEOUT.as_secs()));
        let mut response = timeout(REQUEST_TIMEOUT, exchange).await.unwrap_or_else(late)?;
        let wait = read_retry_after(response.headers());
        *self.requested.lock() = RequestedWait { wait, is_error: !response.status().is_success() };
        // The library adds it to the time of day without a bound.
        response.headers_mut().remove(RETRY_AFTER);
        Ok(response)
    }
}

impl HttpClient for DirectoryClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let Ok(body) = body.collect().await;
            let is_directory = head.method == Method::GET;
            let request = Request::from_parts(head, Full::new(body.to_bytes()));
            let response = client.send(request).await.map_err(|reason| Error::Other(reason.into()))?;
            // The library takes this URL to be one.
            let is_usable = |found: DirectoryDocument| parse_https_url(&found.new_nonce).is_ok();
            if is_directory && !serde_json::from_slice(response.body()).is_ok_and(is_usable) {
                return Err(Error::Other("answers with no usable directory".into()));
            }
            Ok(BytesResponse::from(response.map(Full::new)))
        })
    }
}

/// `Retry-After` in seconds or as a date (RFC 9110, section 10.2.3).
fn read_retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let at = httpdate::parse_http_date(text).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
            at.saturating_sub(Duration::from_nanos(unix_ns()))
        }
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_read_in_seconds_or_as_a_date() {
        let read = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static(text));
            read_retry_after(&headers)
        };
        assert_eq!(read("120"), Some(Duration::from_secs(120)));
        assert_eq!(read("99999999999"), Some(RETRY_AFTER_MAX));
        assert_eq!(read("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert_eq!(read("soon"), None);
        assert_eq!(read("-5"), None);
        assert_eq!(read_retry_after(&HeaderMap::new()), None);
    }
}

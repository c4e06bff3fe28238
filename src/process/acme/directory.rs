//! Asks the directory of an authority, on the control thread: over HTTPS alone, with bounds on time and bytes, and
//! without following redirects.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use parking_lot::Mutex;
use rustls::RootCertStore;
use serde_json::Value;
use tokio::time::timeout;

use crate::process::http_client::exchange;
use sluicegate_base::time_text::parse_rfc3339;
use sluicegate_base::wall_clock::unix_ns;
use sluicegate_model::value::https_url::parse_https_url;

/// The time of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The bounds of waits between polls that a directory may ask for.
const POLL_MIN: Duration = Duration::from_secs(1);
const POLL_MAX: Duration = Duration::from_secs(30);
/// The longest wait that a directory may ask for.
pub(super) const RETRY_AFTER_MAX: Duration = Duration::from_secs(7 * 86_400);

/// A client of one directory.
#[derive(Clone)]
pub(super) struct DirectoryClient {
    pub roots: Arc<RootCertStore>,
    /// The wait that the last answer asked for.
    pub retry_after: Arc<Mutex<Option<Duration>>>,
}

/// The start and the end of a window for the renewal of a certificate, in seconds since 1970.
pub(super) type RenewalWindow = (u64, u64);

impl DirectoryClient {
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
        let found = self.get_json(directory).await?;
        let Some(url) = found["renewalInfo"].as_str() else { return Ok(None) };
        let found = self.get_json(&format!("{}/{identity}", url.trim_end_matches('/'))).await?;
        let window = &found["suggestedWindow"];
        let seconds = |end: &str| Some(parse_rfc3339(window[end].as_str()?.as_bytes())?.0 / 1_000_000_000);
        Ok(seconds("start").zip(seconds("end")))
    }

    async fn get_json(&self, url: &str) -> Result<Value, String> {
        let response = self.send(url, Request::new(Full::default())).await?;
        if !response.status().is_success() {
            return Err(format!("answers {}", response.status().as_u16()));
        }
        serde_json::from_slice(response.body()).map_err(|_| "answers with no usable JSON".to_owned())
    }

    async fn send(&self, url: &str, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, String> {
        *self.retry_after.lock() = None;
        let url = parse_https_url(url).map_err(|_| "names no usable https:// URL")?;
        let exchange = exchange(&url, self.roots.clone(), request);
        let late = |_elapsed| Err(format!("did not answer within {} s", REQUEST_TIMEOUT.as_secs()));
        let mut response = timeout(REQUEST_TIMEOUT, exchange).await.unwrap_or_else(late)?;
        let wait = read_retry_after(response.headers());
        *self.retry_after.lock() = wait;
        // The library adds it to the time of day without a bound, and waits as long between its polls.
        response.headers_mut().remove(RETRY_AFTER);
        if let Some(wait) = wait {
            let pause = wait.clamp(POLL_MIN, POLL_MAX).as_secs();
            response.headers_mut().insert(RETRY_AFTER, pause.into());
        }
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
            let (url, is_directory) = (head.uri.to_string(), head.method == Method::GET);
            let request = Request::from_parts(head, Full::new(body.to_bytes()));
            let response = client.send(&url, request).await.map_err(|reason| Error::Other(reason.into()))?;
            // The library takes this URL to be one.
            let is_usable =
                |found: Value| found["newNonce"].as_str().is_some_and(|url| parse_https_url(url).is_ok());
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
    use http::HeaderValue;

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

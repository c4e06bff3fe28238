//! Fetches the keys of issuers, on the control thread: over HTTPS alone, with bounds on time and bytes, and without
//! following redirects.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::Full;
use serde::Deserialize;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::http_client::exchange;
use sluicegate_http::request::source::{FetchedKeys, KeySet};
use sluicegate_model::value::https_url::parse_https_url;
use sluicegate_model::{HttpsUrl, KeyFetchConfig};
use sluicegate_proxy::gateway::Gateway;

/// The time of one fetch, with the discovery document.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const LIFETIME_MIN: Duration = Duration::from_secs(60);
/// An hour before a set ends to serve, so that one failure does no harm.
const LIFETIME_MAX: Duration = Duration::from_secs(23 * 3600);
const LIFETIME_DEFAULT: Duration = Duration::from_secs(600);
/// Characters that are shown of a text of the issuer.
const SHOWN_MAX: usize = 100;

/// The tasks that fetch, one for each issuer of the gateway in force.
#[derive(Default)]
pub(super) struct KeyFetchTasks(Vec<(Arc<KeySet>, JoinSet<()>)>);

impl KeyFetchTasks {
    /// Continues the tasks of sets that the gateway has as well, and starts those of the others.
    pub(super) fn continue_for(self, gateway: &Gateway) -> KeyFetchTasks {
        let KeyFetchTasks(mut before) = self;
        let task = |set: &Arc<KeySet>| match before.iter().position(|(known, _)| Arc::ptr_eq(known, set)) {
            Some(index) => before.swap_remove(index),
            None => {
                let (fetched, mut task) = (set.clone(), JoinSet::new());
                task.spawn_local(async move { fetched.keep_fetched(fetch_keys).await });
                (set.clone(), task)
            }
        };
        KeyFetchTasks(gateway.key_sets().map(task).collect())
    }
}

/// The document of an issuer (OpenID Connect Discovery 1.0, section 3), as far as it is used.
#[derive(Deserialize)]
struct DiscoveryDocument {
    issuer: String,
    jwks_uri: String,
}

/// Fetches the keys of an issuer.
///
/// # Errors
/// The reason, in which texts of the issuer are escaped and cut.
pub(crate) async fn fetch_keys(config: &KeyFetchConfig) -> Result<FetchedKeys, String> {
    let fetching = async {
        let found = match config.is_discovery {
            true => Some(discover_url(config).await?),
            false => None,
        };
        let url = found.as_ref().unwrap_or(&config.url);
        let (text, lifetime) = get_document(url, config).await?;
        FetchedKeys::read(&text, config, lifetime).map_err(|reason| format!("{url} {reason}"))
    };
    let late = |_elapsed| Err(format!("{} did not answer within {} s", config.url, FETCH_TIMEOUT.as_secs()));
    timeout(FETCH_TIMEOUT, fetching).await.unwrap_or_else(late)
}

/// The URL of the keys, by the discovery document of the issuer itself.
async fn discover_url(config: &KeyFetchConfig) -> Result<HttpsUrl, String> {
    let (text, _) = get_document(&config.url, config).await?;
    let at = &config.url;
    let document: DiscoveryDocument =
        serde_json::from_slice(&text).map_err(|_| format!("{at} is no discovery document"))?;
    if document.issuer != config.issuer {
        let other: String = document.issuer.chars().take(SHOWN_MAX).collect();
        return Err(format!("{at} is the document of another issuer, {other:?}"));
    }
    parse_https_url(&document.jwks_uri)
        .map_err(|error| format!("{at} has no usable jwks_uri: {}", error.message))
}

/// The body of a response with 200, and the time for which it may be kept.
async fn get_document(url: &HttpsUrl, config: &KeyFetchConfig) -> Result<(Bytes, Duration), String> {
    let fault = |reason: String| format!("{url} {reason}");
    let mut request = Request::new(Full::default());
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
    let (head, text) = exchange(url, config.roots.clone(), request).await.map_err(fault)?.into_parts();
    match head.status {
        StatusCode::OK => {}
        status if status.is_redirection() => {
            return Err(fault(format!("redirects ({}), which is not followed", status.as_u16())));
        }
        status => return Err(fault(format!("answers {}", status.as_u16()))),
    }
    if text.trim_ascii_start().starts_with(b"<") {
        return Err(fault("answers HTML, not JSON".to_owned()));
    }
    Ok((text, lifetime_of(&head.headers)))
}

fn lifetime_of(headers: &HeaderMap) -> Duration {
    let lines = headers.get_all(CACHE_CONTROL).iter().filter_map(|line| line.to_str().ok());
    let seconds = lines.flat_map(|line| line.split(',')).filter_map(|directive| {
        let directive = directive.trim().to_ascii_lowercase();
        match directive.as_str() {
            "no-store" | "no-cache" => Some(0),
            other => other.strip_prefix("max-age=")?.trim_matches('"').parse::<u64>().ok(),
        }
    });
    let lifetime = seconds.min().map_or(LIFETIME_DEFAULT, Duration::from_secs);
    lifetime.clamp(LIFETIME_MIN, LIFETIME_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_kept_as_long_as_its_issuer_says() {
        for (lines, seconds) in [
            (&[][..], 600),
            (&["public, max-age=900"], 900),
            (&["Max-Age=\"300\""], 300),
            (&["max-age=5"], 60),
            (&["max-age=99999999"], 23 * 3600),
            (&["max-age=900, no-store"], 60),
            (&["max-age=900", "max-age=700"], 700),
            (&["max-age=soon"], 600),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(CACHE_CONTROL, HeaderValue::from_static(line));
            }
            assert_eq!(lifetime_of(&headers), Duration::from_secs(seconds), "{lines:?}");
        }
    }
}

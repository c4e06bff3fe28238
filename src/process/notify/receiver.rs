//! The requests to the receiver of `notify`, signed as by Standard Webhooks 1.0.

use std::time::{Duration, UNIX_EPOCH};

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, InvalidHeaderValue, USER_AGENT};
use http::{HeaderValue, Method, Request};
use http_body_util::Full;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::process::http_client::{AGENT, open_connection};
use sluicegate_base::wall_clock::unix_seconds;
use sluicegate_http::upstream::ServerTls;
use sluicegate_model::{HttpsUrl, NotifyConfig, UpstreamProtocol, UpstreamTlsConfig, parse_webhook_secret};
use sluicegate_proxy::gateway::{Delivery, StepEvent};

/// The value of `type` in messages.
const EVENT_TYPE: &str = "quota.step";

/// A receiver of events.
pub(super) struct Receiver {
    pub url: HttpsUrl,
    key: hmac::Key,
    /// `None` = plain HTTP.
    tls: Option<ServerTls>,
}

/// The body of a request, with its members in this order.
#[derive(Serialize)]
struct EventMessage {
    r#type: &'static str,
    timestamp: String,
    data: Map<String, Value>,
}

impl Receiver {
    pub(super) fn new(config: &NotifyConfig) -> Receiver {
        let tls = config.roots.clone().map(|roots| {
            let roots = Some(roots);
            let tls = UpstreamTlsConfig { roots, server_name: None, identity: None, files: Vec::new() };
            ServerTls::new(&config.url.host, &tls, UpstreamProtocol::Http1)
        });
        // The configuration has checked the secret.
        let secret = parse_webhook_secret(&config.secret.0).unwrap_or_default();
        Receiver { url: config.url.clone(), key: hmac::Key::new(hmac::HMAC_SHA256, &secret), tls }
    }

    /// Sends an event once. Only the head of the answer is read, and a redirect is not followed.
    ///
    /// # Errors
    /// The receiver cannot be reached, or answered no 2xx; the reason has neither the secret nor the path of the URL.
    pub(super) async fn post(&self, delivery: &Delivery) -> Result<(), String> {
        let request = self.build_request(delivery, unix_seconds()).ok_or("the request cannot be built")?;
        let mut sender = open_connection(&self.url.host, self.url.port, self.tls.as_ref()).await?;
        let answer = sender.send_request(request).await;
        match answer.map_err(|error| format!("the connection broke: {error}"))?.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("it answered {}", status.as_u16())),
        }
    }

    /// `None` if the URL of the configuration names no target or host, which it has checked.
    fn build_request(&self, delivery: &Delivery, unix_seconds: u64) -> Option<Request<Full<Bytes>>> {
        let (id, body) = (format!("msg_{:032x}", delivery.id), write_message(&delivery.event));
        let signature = self.sign(&id, unix_seconds, &body);
        let mut request = Request::new(Full::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.target.parse().ok()?;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_str(&self.url.authority).ok()?);
        headers.insert(USER_AGENT, AGENT);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert("webhook-id", id.parse().ok()?);
        headers.insert("webhook-timestamp", unix_seconds.into());
        headers.insert("webhook-signature", signature.ok()?);
        Some(request)
    }

    fn sign(&self, id: &str, unix_seconds: u64, body: &str) -> Result<HeaderValue, InvalidHeaderValue> {
        let signed = hmac::sign(&self.key, format!("{id}.{unix_seconds}.{body}").as_bytes());
        HeaderValue::from_str(&format!("v1,{}", STANDARD.encode(signed)))
    }
}

fn write_message(event: &StepEvent) -> String {
    let at = UNIX_EPOCH + Duration::from_millis(event.unix_ms);
    let timestamp = humantime::format_rfc3339_seconds(at).to_string();
    let message = EventMessage { r#type: EVENT_TYPE, timestamp, data: event.data(true) };
    // Only maps with odd keys fail to serialize, and there are none.
    serde_json::to_string(&message).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::notify::tests::{event, receiver_config};

    /// The example of the specification, in "Signature scheme".
    #[test]
    fn the_signature_is_that_of_the_specification() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let receiver = Receiver::new(&receiver_config("http://127.0.0.1:1/", secret));
        let signature =
            receiver.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signature.unwrap(), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    /// By Python: `hmac.digest(b"a plain text of 24 bytes", b"msg_1.2.{}", "sha256")`.
    #[test]
    fn a_secret_without_the_prefix_is_taken_as_it_is() {
        let receiver = Receiver::new(&receiver_config("http://127.0.0.1:1/", "a plain text of 24 bytes"));
        assert_eq!(
            receiver.sign("msg_1", 2, "{}").unwrap(),
            "v1,20Zg7aI+KxSn49QtP39/smlWcmfNH0bGru40BxktGr4="
        );
    }

    #[test]
    fn a_message_has_its_members_in_order() {
        let expected = r#"{"type":"quota.step","timestamp":"2026-01-20T10:00:00Z","data":{"limit":"plan","#
            .to_owned()
            + r#""key":"account=acme","step":{"at":80,"then":"warn"},"text":"acme reached 80 % of plan"}}"#;
        assert_eq!(write_message(&event("plan")), expected);
    }
}

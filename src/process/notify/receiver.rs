//! The requests to the receiver of `notify`, signed as by Standard Webhooks 1.0.

use std::time::{Duration, UNIX_EPOCH};

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use http::header::CONTENT_TYPE;
use http_body_util::Full;
use serde_json::json;

use crate::process::http_client::send;
use sluicegate_base::wall_clock::unix_seconds;
use sluicegate_model::{NotifyConfig, Secret, parse_webhook_secret};
use sluicegate_proxy::gateway::StepEvent;

/// Sends an event once. Only the head of the answer is read, and a redirect is not followed.
///
/// # Errors
/// The receiver cannot be reached, or answered no 2xx; the reason has neither the secret nor the path of the URL.
pub(super) async fn post_event(config: &NotifyConfig, id: &str, event: &StepEvent) -> Result<(), String> {
    let (body, unix_seconds) = (write_message(event), unix_seconds());
    let request = Request::post("/")
        .header(CONTENT_TYPE, "application/json")
        .header("webhook-id", id)
        .header("webhook-timestamp", unix_seconds)
        .header("webhook-signature", sign(&config.secret, id, unix_seconds, &body))
        .body(Full::from(body))
        .map_err(|error| format!("the request cannot be built: {error}"))?;
    match send(&config.url, config.roots.clone(), request).await?.status() {
        status if status.is_success() => Ok(()),
        status => Err(format!("it answered {}", status.as_u16())),
    }
}

/// The value of `webhook-signature`.
fn sign(secret: &Secret, id: &str, unix_seconds: u64, body: &str) -> String {
    // The configuration has checked the secret.
    let key = parse_webhook_secret(&secret.0).unwrap_or_default();
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
    let signature = hmac::sign(&key, format!("{id}.{unix_seconds}.{body}").as_bytes());
    format!("v1,{}", STANDARD.encode(signature))
}

/// The body of a request, with its members in the order of the specification.
fn write_message(event: &StepEvent) -> String {
    let at = UNIX_EPOCH + Duration::from_millis(event.unix_ms);
    let timestamp = humantime::format_rfc3339_seconds(at).to_string();
    json!({ "type": "quota.step", "timestamp": timestamp, "data": event.data }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::notify::tests::event;

    fn secret(text: &str) -> Secret {
        Secret(text.to_owned())
    }

    /// The example of the specification, in "Signature scheme".
    #[test]
    fn the_signature_is_that_of_the_specification() {
        let (secret, id) = (secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), "msg_p5jXN8AQM9LWM0D4loKWxJek");
        let signature = sign(&secret, id, 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    /// By Python: `hmac.digest(b"a plain text of 24 bytes", b"msg_1.2.{}", "sha256")`.
    #[test]
    fn a_secret_without_the_prefix_is_taken_as_it_is() {
        let signature = sign(&secret("a plain text of 24 bytes"), "msg_1", 2, "{}");
        assert_eq!(signature, "v1,20Zg7aI+KxSn49QtP39/smlWcmfNH0bGru40BxktGr4=");
    }

    #[test]
    fn a_message_has_its_members_in_order() {
        let expected = r#"{"type":"quota.step","timestamp":"2026-01-20T10:00:00Z","data":{"limit":"plan","#
            .to_owned()
            + r#""key":"account=acme","step":{"at":80,"then":"warn"},"text":"acme reached 80 % of plan"}}"#;
        assert_eq!(write_message(&event("plan")), expected);
    }
}

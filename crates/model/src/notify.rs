//! The model of `notify`: the receiver of events, and how its requests are signed (Standard Webhooks 1.0).

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::RootCertStore;

use crate::diagnostics::codes;
use crate::diagnostics::problem::ValueError;
use crate::value::https_url::HttpsUrl;
use crate::value::scalars::{Parsed, Secret};

/// The `notify` section.
#[derive(Debug, Clone)]
pub struct NotifyConfig {
    /// The receiver. Without `roots` its scheme is `http`.
    pub url: HttpsUrl,
    /// The secret of signatures, as it is written.
    pub secret: Secret,
    /// The authorities that verify the receiver; `None` = plain HTTP to this host.
    pub roots: Option<Arc<RootCertStore>>,
}

/// The least bytes of a secret.
const SECRET_BYTES: usize = 24;

/// The bytes of a secret: in base64 after `whsec_`, else those of the text. No problem quotes the secret.
///
/// # Errors
/// No base64 follows the prefix, or the secret has fewer than 24 bytes.
pub fn parse_webhook_secret(text: &str) -> Parsed<Vec<u8>> {
    let wrong = |message: &str| {
        let help = "write secret: \"${NOTIFY_SECRET}\", made by: echo whsec_$(openssl rand -base64 32)";
        ValueError::new(codes::TOKEN, message).with_help(help)
    };
    let bytes = match text.strip_prefix("whsec_") {
        Some(digits) => STANDARD.decode(digits).map_err(|_| wrong("no base64 follows `whsec_`"))?,
        None => text.as_bytes().to_vec(),
    };
    if bytes.len() < SECRET_BYTES {
        return Err(wrong("the secret of signatures has fewer than 24 bytes"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_at_least_24_bytes() {
        let bytes = |text: &str| parse_webhook_secret(text).map(|bytes| bytes.len()).ok();
        for (text, length) in [
            ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", Some(24)),
            ("whsec_Zm9vYmFyYmF6Zm9vYmFyYmF6Zm9vYmFyYmF6MQ==", Some(28)),
            ("a text of just 24 bytes.", Some(24)),
            ("a text of only 23 bytes", None),
            ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLd", None),
            ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLd-w", None),
            ("whsec_", None),
            ("", None),
        ] {
            assert_eq!(bytes(text), length, "{text}");
        }
        let error = parse_webhook_secret("whsec_hunter2-hunter2-hunter2-hunter2").unwrap_err();
        assert!(!format!("{error:?}").contains("hunter2"));
    }
}

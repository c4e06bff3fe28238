//! `GET /`: the page for operators. It holds no data: its script asks the other endpoints, with a token if they need
//! one.

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::HeaderValue;
use http::header::{CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY};

use super::answer::Answer;
use super::endpoint::{AdminRequest, Answered};

pub(super) const HTML: &str = "text/html; charset=utf-8";

const PAGE: &str = include_str!("page.html");

/// Only the script and the style of the page itself work in it, and it talks to this listener alone.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; require-trusted-types-for 'script'; frame-ancestors 'none'",
        hash_element("script"),
        hash_element("style")
    )
});

pub(super) async fn show_page(_: AdminRequest) -> Answered {
    let mut headers: Vec<(HeaderName, HeaderValue)> =
        vec![(REFERRER_POLICY, HeaderValue::from_static("no-referrer"))];
    headers.extend(HeaderValue::from_str(&POLICY).ok().map(|policy| (CONTENT_SECURITY_POLICY, policy)));
    Ok(Answer::fixed(HTML, Bytes::from_static(PAGE.as_bytes())).with_headers(headers))
}

/// The hash of the only element of this name, as a policy names it.
fn hash_element(name: &str) -> String {
    let behind = PAGE.split_once(&format!("<{name}>")).map_or("", |(_, behind)| behind);
    let content = behind.split_once(&format!("</{name}>")).map_or("", |(content, _)| content);
    format!("sha256-{}", STANDARD.encode(digest(&SHA256, content.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_safe() {
        assert!(PAGE.len() <= 60 * 1024, "{}", PAGE.len());
        for forbidden in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "http:",
            "https:",
            "style=",
        ] {
            assert!(!PAGE.contains(forbidden), "{forbidden}");
        }
        for element in ["<script", "</script", "<style", "</style"] {
            assert_eq!(PAGE.matches(element).count(), 1, "{element}");
        }
        assert_ne!(hash_element("script"), hash_element("nothing"));
        assert_ne!(hash_element("style"), hash_element("nothing"));
    }
}

//! Warns of headers that put the secrets of clients into the access log.

use http::HeaderName;

use super::{LintContext, warn_at};
use sluicegate_model::diagnostics::codes;
use sluicegate_model::diagnostics::problem::ValueError;

/// Headers that exist to carry secrets.
const SECRETS: [&str; 7] =
    ["authorization", "proxy-authorization", "cookie", "set-cookie", "api-key", "x-api-key", "x-auth-token"];

pub(super) fn lint_logged(file: &LintContext<'_>) {
    let token = file.config.account.jwt.as_ref().map(|jwt| &jwt.header);
    let is_secret = |name: &HeaderName| SECRETS.contains(&name.as_str()) || token == Some(name);
    let written = file.value_at(&["access_log", "headers"]);
    for (name, value) in file.config.access_log.headers.iter().zip(written.one_or_more()) {
        if is_secret(name) {
            let message =
                format!("the access log would hold `{name}` in clear, and with it secrets of clients");
            let help = "remove it; each line has the account and the keys of its limits, as hashes";
            warn_at(&value, ValueError::new(codes::LOGGED_SECRET, message).with_help(help));
        }
    }
}

//! Writes the account of a step into its requests, where the configuration reads it.

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value};

use crate::operate::explain::Query;
use sluicegate_model::{AccountConfig, JwtConfig, Secret, TokenRules, ValueSource};

/// Seconds since 1970 at which the tokens of scenarios expire: after every scenario.
const TOKEN_EXPIRES: u64 = 32_503_680_000;

/// The secret of tokens whose issuer signs with a key; it serves in scenarios alone.
const SCENARIO_SECRET: &str = "a secret that serves in scenarios alone";

/// The reason why the account cannot be written, and the remedy.
pub(super) type AccountFault = (String, &'static str);

/// Adds the header, cookie, parameter or token that names the account.
///
/// # Errors
/// The configuration reads the account from a place that is not written here.
pub(super) fn write_account(
    account: &str,
    query: &mut Query,
    config: &AccountConfig,
) -> Result<(), AccountFault> {
    match &config.from {
        None => {
            return Err((
                "the configuration has no `account.from`, so requests have no account".to_owned(),
                "remove `account`, or name the source of accounts in the configuration",
            ));
        }
        Some(ValueSource::Header(name)) => query.headers.push(format!("{name}: {account}")),
        Some(ValueSource::Auth(name)) => query.auth.push(format!("{name}: {account}")),
        Some(ValueSource::Cookie(name)) => query.headers.push(format!("cookie: {name}={account}")),
        Some(ValueSource::Query(name)) => {
            let (mark, name) = (if query.url.contains('?') { '&' } else { '?' }, name.as_str());
            let escaped = utf8_percent_encode(account, NON_ALPHANUMERIC);
            query.url.push_str(&format!("{mark}{name}={escaped}"));
        }
        Some(ValueSource::Jwt(claim)) => {
            let mut jwt = config.jwt.clone().ok_or_else(|| unsigned("no token is verified"))?;
            accept_own_tokens(&mut jwt);
            let rules = jwt.entries.first().ok_or_else(|| unsigned("no token is verified"))?;
            let token = sign_token(claim, account, rules)?;
            let scheme = if jwt.header == http::header::AUTHORIZATION { "Bearer " } else { "" };
            query.headers.push(format!("{}: {scheme}{token}", jwt.header));
        }
        Some(ValueSource::Json(pointer)) => {
            return Err((
                format!("the account is read from the body, at `json:{}`", pointer.as_str()),
                "write it there with `json`, e.g. json: { user: acme }",
            ));
        }
    }
    Ok(())
}

fn unsigned(why: &str) -> AccountFault {
    (
        format!("the account is read from a token that cannot be made here: {why}"),
        "write a token of its issuer with `headers`, e.g. headers: { Authorization: Bearer … }",
    )
}

/// Adds a secret where only the issuer could sign tokens, so that scenarios can.
pub(super) fn accept_own_tokens(jwt: &mut JwtConfig) {
    for rules in jwt.entries.iter_mut().filter(|rules| rules.secret.is_none()) {
        rules.secret = Some(Secret(SCENARIO_SECRET.to_owned()));
        rules.algorithms.push(Algorithm::HS256);
    }
}

/// A token that the configuration accepts at any time, signed with its secret.
fn sign_token(claim: &str, account: &str, jwt: &TokenRules) -> Result<String, AccountFault> {
    let secret = jwt.secret.as_ref().ok_or_else(|| unsigned("it has no secret"))?;
    let is_symmetric =
        |algorithm: &&Algorithm| matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512);
    let algorithm = jwt.algorithms.iter().find(is_symmetric);
    let algorithm = algorithm.ok_or_else(|| unsigned("no algorithm of a secret is allowed"))?;
    let mut claims = Map::new();
    claims.insert("exp".to_owned(), Value::from(TOKEN_EXPIRES));
    for (name, values) in [("iss", &jwt.issuers), ("aud", &jwt.audiences)] {
        if let Some(first) = values.first() {
            claims.insert(name.to_owned(), Value::from(first.as_str()));
        }
    }
    claims.insert(claim.to_owned(), Value::from(account));
    let key = EncodingKey::from_secret(secret.0.as_bytes());
    encode(&Header::new(*algorithm), &claims, &key).map_err(|error| unsigned(&error.to_string()))
}

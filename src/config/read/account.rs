//! Reads `account`: the sources of account and tier, and the verification of tokens.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::header::AUTHORIZATION;
use jsonwebtoken::{Algorithm, AlgorithmFamily};

use super::members::TierMembers;
use super::token_keys::TokenKeys;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::{Mention, ValueError};
use crate::config::model::account::{AccountConfig, JwtConfig, TierRules};
use crate::config::model::limit::ValueSource;
use crate::config::value::names;
use crate::config::value::scalars::{Parsed, Secret};
use crate::config::yaml::fields::{FieldReader, FieldValue, parse_or_none, parse_word};
use crate::config::yaml::file::{FileContent, NamedFile};

/// Reads the section, and checks the claims and tiers that the rest of the file uses. Paths start at `folder`.
pub(crate) fn read_account(root: &mut FieldReader<'_>, folder: &Path) -> AccountConfig {
    let mut account = AccountConfig::default();
    let mut reported = false;
    if let Some(mut fields) = root.open_section("account") {
        account.from = read_source(&mut fields, "from");
        if let Some(tier) = fields.open_section("tier") {
            account.tier = read_tier_rules(tier, folder);
        }
        if let Some(jwt) = fields.open_section("jwt") {
            (account.jwt, reported) = read_jwt(jwt, folder);
        }
        fields.report_unknown();
    }
    check_mentions(root, &account, reported);
    account
}

fn read_source(fields: &mut FieldReader<'_>, name: &'static str) -> Option<ValueSource> {
    let value = fields.get_field(name)?;
    let source = value.parse_with(parse_or_none(parse_account_source))??;
    value.mention_source(&source);
    Some(source)
}

fn parse_account_source(text: &str) -> Parsed<ValueSource> {
    names::parse_source(text).unwrap_or_else(|| {
        Err(ValueError::new(codes::WORD, format!("`{text}` is not a source"))
            .with_help("write header:NAME, cookie:NAME, query:NAME or jwt:CLAIM"))
    })
}

fn read_tier_rules(mut fields: FieldReader<'_>, folder: &Path) -> TierRules {
    let mut rules = TierRules { from: read_source(&mut fields, "from"), ..TierRules::default() };
    for (key, value) in fields.get_field("members").map(|value| value.entries()).unwrap_or_default() {
        if key.name.is_empty() {
            value.report_at_name(ValueError::new(codes::NAME, "an account cannot have an empty name"));
        }
        match &value.one_or_more()[..] {
            [_] if value.as_text().is_some() => {
                if let Some(tier) =
                    value.parse_with(|text| names::check_tier_name(text).map(|()| text.to_owned()))
                {
                    rules.members.insert(key.name.as_bytes(), &tier);
                }
            }
            _ => value.report_shape("one tier, as in alice: gold"),
        }
    }
    rules.file = read_named_file::<TierMembers>(&mut fields, "file", folder).unwrap_or_default();
    rules.default = fields
        .read_scalar("default", rules.default, |text| names::check_tier_name(text).map(|()| text.to_owned()));
    fields.report_unknown();
    rules
}

/// Loads a named file; `None` after an error, `Some(None)` for `none`.
fn read_named_file<T: FileContent>(
    fields: &mut FieldReader<'_>,
    name: &'static str,
    folder: &Path,
) -> Option<Option<Arc<NamedFile<T>>>> {
    let Some(value) = fields.get_field(name) else { return Some(None) };
    value.parse_with(parse_or_none(|text| {
        if text.is_empty() || text.contains('\0') {
            return Err(ValueError::new(codes::UNREADABLE, format!("`{name}` names no file")));
        }
        if text.starts_with("https://") || text.starts_with("http://") {
            let help = "save it to a file; a file that changes is read again";
            let message = format!("`{text}` is a URL, and `{name}` names a file");
            return Err(ValueError::new(codes::UNREADABLE, message).with_help(help));
        }
        let path: PathBuf = folder.join(text);
        NamedFile::load_file(path)
            .map(Arc::new)
            .map_err(|reason| ValueError::new(codes::UNREADABLE, format!("the file `{text}` {reason}")))
    }))
}

const ALGORITHMS: [(&str, Algorithm); 12] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
    ("HS256", Algorithm::HS256),
    ("HS384", Algorithm::HS384),
    ("HS512", Algorithm::HS512),
];

const SECRET_BYTES: usize = 32;

/// The verification of tokens, if any, and whether the section had an error.
fn read_jwt(mut fields: FieldReader<'_>, folder: &Path) -> (Option<JwtConfig>, bool) {
    let keys = read_named_file::<TokenKeys>(&mut fields, "jwks", folder);
    let secret = match fields.get_field("secret") {
        Some(value) => value.parse_with(parse_or_none(parse_secret)),
        None => Some(None),
    };
    let named = fields.get_field("algorithms");
    let mut algorithms = match &named {
        Some(value) => value.parse_list(parse_algorithm),
        None => vec![Algorithm::RS256, Algorithm::ES256],
    };
    let issuers = read_names(&mut fields, "issuer");
    let audiences = read_names(&mut fields, "audience");
    let header = fields.read_scalar("header", AUTHORIZATION, names::parse_header_name);
    warn_of_short_secret(fields.get_field("secret"), secret.as_ref());
    let whole = fields.whole.clone();
    fields.report_unknown();
    let (Some(keys), Some(secret)) = (keys, secret) else { return (None, true) };
    if let (None, None) = (&keys, &secret) {
        return (None, false);
    }
    if named.is_none() && keys.is_none() {
        algorithms = vec![Algorithm::HS256];
    }
    if named.as_ref().is_some_and(|value| value.one_or_more().len() != algorithms.len()) {
        // While one algorithm is misspelt, errors about the others would mislead.
        return (None, true);
    }
    let given = named.unwrap_or(whole);
    if algorithms.is_empty() {
        given.report_empty("write e.g. algorithms: [RS256, ES256]");
    }
    check_jwt_algorithms(&given, &algorithms, keys.is_some(), secret.is_some());
    if let Some(keys) = &keys
        && !algorithms.iter().any(|algorithm| keys.content().can_verify(*algorithm))
        && algorithms.iter().any(|algorithm| algorithm.family() != AlgorithmFamily::Hmac)
    {
        given.report_at_name(
            ValueError::new(codes::TOKEN, "no key of `jwks` fits any of the algorithms")
                .with_help("name the algorithm that your tokens are signed by, e.g. algorithms: [EdDSA]"),
        );
    }
    (Some(JwtConfig { keys, secret, issuers, audiences, algorithms, header }), false)
}

fn check_jwt_algorithms(given: &FieldValue<'_>, algorithms: &[Algorithm], keys: bool, secret: bool) {
    for algorithm in algorithms {
        let shared = algorithm.family() == AlgorithmFamily::Hmac;
        let (has, needs) = if shared { (secret, "secret") } else { (keys, "jwks") };
        if !has {
            let message = format!("the algorithm {algorithm:?} needs `{needs}`");
            let help = if shared {
                "write secret: \"${JWT_SECRET}\", or leave the algorithm out"
            } else {
                "write jwks: FILE with the public keys, or leave the algorithm out"
            };
            given.report_at_name(ValueError::new(codes::TOKEN, message).with_help(help));
        }
    }
    let signed = |family: AlgorithmFamily| algorithms.iter().any(|one| one.family() == family);
    if secret && !signed(AlgorithmFamily::Hmac) {
        given.report_at_name(
            ValueError::new(codes::TOKEN, "no algorithm here uses `secret`")
                .with_help("write algorithms with HS256, or leave the secret out"),
        );
    }
    if keys && algorithms.iter().all(|one| one.family() == AlgorithmFamily::Hmac) && !algorithms.is_empty() {
        given.report_at_name(
            ValueError::new(codes::TOKEN, "no algorithm here uses `jwks`")
                .with_help("write algorithms with RS256 or ES256, or leave jwks out"),
        );
    }
}

fn parse_algorithm(text: &str) -> Parsed<Algorithm> {
    parse_word(&ALGORITHMS)(text).map_err(|error| match text.eq_ignore_ascii_case("none") {
        true => ValueError::new(codes::TOKEN, "a token without a signature proves nothing")
            .with_help("write e.g. algorithms: [RS256, ES256]"),
        false => error,
    })
}

/// The secret itself never appears in a problem.
fn parse_secret(text: &str) -> Parsed<Secret> {
    if text.is_empty() {
        return Err(ValueError::new(codes::TOKEN, "the secret is empty"));
    }
    Ok(Secret(text.to_owned()))
}

/// RFC 7518 (section 3.2) requires as many bytes as the hash has: a shorter secret can be guessed from one token.
fn warn_of_short_secret(value: Option<FieldValue<'_>>, secret: Option<&Option<Secret>>) {
    if let (Some(value), Some(Some(secret))) = (value, secret)
        && secret.0.len() < SECRET_BYTES
    {
        let message = format!("the secret is shorter than {SECRET_BYTES} bytes");
        let error = ValueError::new(codes::WEAK, message).with_help("make one by: openssl rand -base64 48");
        value.sink.add_warning(value.named_at, &value.path, error);
    }
}

/// `none`, or one or more names.
fn read_names(fields: &mut FieldReader<'_>, name: &'static str) -> Vec<String> {
    let Some(value) = fields.get_field(name).filter(|value| !value.is_word("none")) else {
        return Vec::new();
    };
    if value.is_empty() {
        value.report_empty("write none to accept any");
    }
    let named = |text: &str| match text {
        "" => Err(ValueError::new(codes::NAME, format!("an empty {name} fits no token"))),
        text => Ok(text.to_owned()),
    };
    value.parse_list(named)
}

/// Checks that tokens with used claims can be verified, and that tiers of limits can have callers.
fn check_mentions(root: &FieldReader<'_>, account: &AccountConfig, reported: bool) {
    let sink = root.whole.sink;
    let rules = &account.tier;
    for (position, field, mentioned) in sink.take_mentions() {
        match mentioned {
            Mention::Claim if account.jwt.is_none() && !reported => {
                let error = ValueError::new(codes::TOKEN, "a `jwt:` source needs a way to verify tokens");
                let help = "write account: { jwt: { jwks: FILE } } or account: { jwt: { secret: … } }";
                sink.add_problem(position, &field, error.with_help(help));
            }
            Mention::Tier(tier) if !is_reachable_tier(rules, &tier) => {
                let message = format!("no caller can be in the tier `{tier}`");
                let error = ValueError::new(codes::UNUSED, message);
                let help = "give it to accounts under account: { tier: { members: …, file: …, from: … } }";
                sink.add_warning(position, &field, error.with_help(help));
            }
            _ => {}
        }
    }
}

/// Whether a caller may be in `tier`. Files and requests may name any tier, so these sources always count.
fn is_reachable_tier(rules: &TierRules, tier: &str) -> bool {
    rules.from.is_some()
        || rules.file.is_some()
        || tier == rules.default
        || rules.members.tiers().any(|known| known == tier)
}

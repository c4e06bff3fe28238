//! Reads `account`: the sources of account and tier, and the verification of tokens.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use jsonwebtoken::{Algorithm, AlgorithmFamily};

use super::auth::is_copied;
use super::named_file::read_named_file;
use super::tls_files::UpstreamTlsReader;
use crate::schema::field::{Field, ParseScalar};
use crate::schema::tables::account::{account, jwt, keys, parse_tier, tier, tls as jwt_tls};
use crate::schema::tables::root::root as root_fields;
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_base::file::FileContent;
use sluicegate_model::api_keys::ApiKeyTable;
use sluicegate_model::value::https_url::parse_https_url;
use sluicegate_model::{
    AccountConfig, ApiKeysConfig, AuthConfig, JwtConfig, KeyFetchConfig, KeySource, LocationConfig, Mention,
    Secret, TierMembers, TierRules, TokenKeySource, TokenKeys, TokenRules, ValueError, ValueSource, codes,
    did_you_mean,
};

/// Reads the section, and checks the claims and tiers that the rest of the file uses.
pub(crate) fn read_account(root: &FieldReader<'_>, locations: &[LocationConfig]) -> AccountConfig {
    let (mut account, reported) = root.read_section(&root_fields::ACCOUNT, |fields| {
        let from = read_source(fields, &account::FROM);
        let tier = fields.read_section(&account::TIER, read_tier_rules);
        let (jwt, reported) = read_jwt(fields);
        let has_tokens = jwt.as_ref().is_some_and(|jwt| jwt.header == AUTHORIZATION);
        let keys = fields.read_section_or_none(&account::KEYS, |fields| read_keys(fields, has_tokens));
        let reported = reported || keys.as_ref().is_some_and(Option::is_none);
        (AccountConfig { from, tier, jwt, keys: keys.flatten() }, reported)
    });
    check_mentions(root, &mut account, locations, reported);
    account
}

fn read_source<S>(fields: &FieldReader<'_>, field: &Field<S>) -> Option<ValueSource>
where
    S: ParseScalar<Parsed = Option<ValueSource>>,
{
    let source = fields.read(field)?;
    fields.find(field)?.mention(Mention::Source(source.clone()));
    Some(source)
}

fn read_tier_rules(fields: &FieldReader<'_>) -> TierRules {
    let mut members = TierMembers::default();
    for (key, value) in fields.find(&tier::MEMBERS).map(|value| value.entries()).unwrap_or_default() {
        if key.name.is_empty() {
            value.report_at_name(ValueError::new(codes::NAME, "an account cannot have an empty name"));
        }
        match &value.one_or_more()[..] {
            [_] if value.as_text().is_some() => {
                if let Some(tier) = value.parse_with(parse_tier) {
                    members.insert(key.name.as_bytes(), &tier);
                }
            }
            _ => value.report_shape("one tier, as in alice: gold"),
        }
    }
    TierRules {
        from: read_source(fields, &tier::FROM),
        members,
        file: read_named_file(fields, &tier::FILE, TierMembers::parse).unwrap_or_default(),
        default: fields.read(&tier::DEFAULT),
    }
}

/// The API keys; `None` after an error.
fn read_keys(fields: &FieldReader<'_>, has_tokens: bool) -> Option<ApiKeysConfig> {
    let written = fields.find_required(&keys::FILE);
    let file = read_named_file(fields, &keys::FILE, ApiKeyTable::parse);
    let (from, rejects_unknown) = (fields.read(&keys::FROM), fields.read(&keys::UNKNOWN));
    let (rejects_missing, is_passed) = (fields.read(&keys::MISSING), fields.read(&keys::FORWARD));
    if let Some(from) = fields.find(&keys::FROM) {
        from.check_filled("write e.g. from: header:X-Api-Key");
    }
    let file = file.flatten()?;
    if let (Some(warning), Some(written)) = (file.content().warning(), written) {
        let error =
            ValueError::new(codes::UNREADABLE, format!("the file `{}` {warning}", file.path.display()));
        written.warn_at_name(error.with_help("correct these lines"));
    }
    let columns = Vec::new();
    Some(ApiKeysConfig { file, from, rejects_unknown, rejects_missing, is_passed, columns, has_tokens })
}

const SECRET_BYTES: usize = 32;
/// The discovery document of an issuer (OpenID Connect Discovery 1.0, section 4).
const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";

/// The verification of tokens, if any, and whether the section had an error.
fn read_jwt(account: &FieldReader<'_>) -> (Option<JwtConfig>, bool) {
    let items = account.find(&account::JWT).map(|value| value.one_or_more()).unwrap_or_default();
    let tls = UpstreamTlsReader::default();
    let (mut header, mut entries, mut reported) = (None, Vec::<TokenRules>::new(), false);
    for item in &items {
        let fields = item.open_section(&jwt::SECTION);
        let (entry, own_header) = fields.read_all(|fields| {
            let entry = read_token_rules(fields, &tls);
            (entry, fields.find(&jwt::HEADER).map(|value| (fields.read(&jwt::HEADER), value)))
        });
        match (&header, own_header) {
            (None, own) => header = Some(own.map_or_else(|| fields.read(&jwt::HEADER), |(own, _)| own)),
            (Some(header), Some((own, value))) if own != *header => {
                let help = format!("write header: {header} in the first entry alone");
                value.refuse_name(codes::TOKEN, "`header` is the same for all entries", help);
            }
            _ => {}
        }
        match entry {
            Err(()) => reported = true,
            Ok(None) if items.len() > 1 => {
                let help = "write jwks: FILE, an https:// URL or discover";
                item.refuse_name(codes::TOKEN, "this entry has no way to verify tokens", help);
            }
            Ok(None) => {}
            Ok(Some(entry)) => {
                check_issuers(item, &entry, &entries, items.len());
                entries.push(entry);
            }
        }
    }
    (header.filter(|_| !entries.is_empty()).map(|header| JwtConfig { header, entries }), reported)
}

/// Checks that a token can belong to no other entry.
fn check_issuers(item: &FieldValue<'_>, entry: &TokenRules, others: &[TokenRules], count: usize) {
    if count > 1 && entry.issuers.is_empty() {
        let help = "write issuer: https://id.example.com/, as `iss` in its tokens";
        item.refuse_name(codes::TOKEN, "each entry of a list names its `issuer`", help);
    }
    if others.len() == JwtConfig::ENTRIES_MAX {
        let message = format!("a list has at most {} entries", JwtConfig::ENTRIES_MAX);
        item.refuse_name(codes::TOKEN, message, "remove some");
    }
    let is_known = |issuer: &&String| others.iter().any(|other| other.issuers.contains(issuer));
    if let Some(issuer) = entry.issuers.iter().find(is_known) {
        let message = format!("the issuer `{issuer}` has an entry already");
        item.refuse_name(codes::TOKEN, message, "write one entry for each issuer");
    }
}

/// The rules of one entry; `None` = it verifies nothing.
///
/// # Errors
/// A field was wrong, and that was reported.
fn read_token_rules(fields: &FieldReader<'_>, tls: &UpstreamTlsReader) -> Result<Option<TokenRules>, ()> {
    let secret = fields.read_valid(&jwt::SECRET);
    let named = fields.find(&jwt::ALGORITHMS);
    let mut algorithms = fields.read(&jwt::ALGORITHMS);
    let issuers = fields.read_list_or_word(&jwt::ISSUER);
    let audiences = fields.read_list_or_word(&jwt::AUDIENCE);
    let keys = read_token_keys(fields, tls, (&issuers, &algorithms));
    warn_of_short_secret(fields.find(&jwt::SECRET), secret.as_ref());
    let whole = fields.whole.clone();
    let (keys, secret) = (keys.ok_or(())?, secret.ok_or(())?);
    if let (None, None) = (&keys, &secret) {
        return Ok(None);
    }
    if named.is_none() && keys.is_none() {
        algorithms = vec![Algorithm::HS256];
    }
    if named.as_ref().is_some_and(|value| value.one_or_more().len() != algorithms.len()) {
        // While one algorithm is misspelt, errors about the others would mislead.
        return Err(());
    }
    let given = named.unwrap_or(whole);
    if algorithms.is_empty() {
        given.report_empty("write e.g. algorithms: [RS256, ES256]");
    }
    check_jwt_algorithms(&given, &algorithms, keys.is_some(), secret.is_some());
    if let Some(TokenKeySource::File(keys)) = &keys
        && !algorithms.iter().any(|algorithm| keys.content().can_verify(*algorithm))
        && algorithms.iter().any(|algorithm| algorithm.family() != AlgorithmFamily::Hmac)
    {
        given.refuse_name(
            codes::TOKEN,
            "no key of `jwks` fits any of the algorithms",
            "name the algorithm that your tokens are signed by, e.g. algorithms: [EdDSA]",
        );
    }
    Ok(Some(TokenRules { keys, secret, issuers, audiences, algorithms }))
}

/// The public keys of an entry; `None` after an error, `Some(None)` for `none`.
fn read_token_keys(
    fields: &FieldReader<'_>,
    tls: &UpstreamTlsReader,
    (issuers, algorithms): (&[String], &[Algorithm]),
) -> Option<Option<TokenKeySource>> {
    let written = fields.find(&jwt::JWKS);
    let text = written.as_ref().and_then(FieldValue::as_text).unwrap_or_default();
    let is_discovery = text == "discover";
    let Some(written) = written.filter(|_| is_discovery || text.contains("://")) else {
        if let Some(tls) = fields.find(&jwt::TLS) {
            tls.refuse_name(codes::TLS, "`tls` is for keys that are fetched", "remove tls");
        }
        let file = read_named_file(fields, &jwt::JWKS, TokenKeys::parse)?;
        return Some(file.map(TokenKeySource::File));
    };
    let roots =
        fields.read_section(&jwt::TLS, |fields| tls.read_roots(fields, &jwt_tls::CA).map(|(roots, _)| roots));
    let [issuer] = issuers else {
        let help = "write issuer: https://id.example.com/, as `iss` in its tokens";
        written.refuse_name(codes::TOKEN, "keys that are fetched need one `issuer`", help);
        return None;
    };
    let discovery = format!("{}{DISCOVERY_PATH}", issuer.trim_end_matches('/'));
    let url = written.parse_with(|text| match is_discovery {
        true => parse_https_url(&discovery).map_err(|error| {
            let help = "write an issuer that is an https:// URL, or jwks: URL";
            ValueError::new(codes::ADDRESS, format!("the issuer is no place: {}", error.message))
                .with_help(help)
        }),
        false => parse_https_url(text),
    })?;
    let (issuer, algorithms) = (issuer.clone(), algorithms.to_vec());
    let fetch = KeyFetchConfig { issuer, url, is_discovery, algorithms, roots: roots? };
    Some(Some(TokenKeySource::Issuer(Arc::new(fetch))))
}

fn check_jwt_algorithms(given: &FieldValue<'_>, algorithms: &[Algorithm], keys: bool, secret: bool) {
    let is_shared = |algorithm: &Algorithm| algorithm.family() == AlgorithmFamily::Hmac;
    let (any_shared, all_shared) = (algorithms.iter().any(is_shared), algorithms.iter().all(is_shared));
    if secret && !keys && !algorithms.is_empty() && !any_shared {
        let help = "remove `algorithms`, because a secret is for HS256; or write jwks: FILE for public keys";
        return given.refuse_name(codes::TOKEN, "no algorithm here uses `secret`", help);
    }
    for algorithm in algorithms {
        let shared = is_shared(algorithm);
        let (has, needs) = if shared { (secret, "secret") } else { (keys, "jwks") };
        if !has {
            let message = format!("the algorithm {algorithm:?} needs `{needs}`");
            let help = if shared {
                "write secret: \"${JWT_SECRET}\", or leave the algorithm out"
            } else {
                "write jwks: FILE with the public keys, or discover; or leave the algorithm out"
            };
            given.refuse_name(codes::TOKEN, message, help);
        }
    }
    if secret && !any_shared {
        let help = "write algorithms with HS256, or leave the secret out";
        given.refuse_name(codes::TOKEN, "no algorithm here uses `secret`", help);
    }
    if keys && all_shared && !algorithms.is_empty() {
        let help = "write algorithms with RS256 or ES256, or leave jwks out";
        given.refuse_name(codes::TOKEN, "no algorithm here uses `jwks`", help);
    }
}

/// RFC 7518 (section 3.2) requires as many bytes as the hash has: a shorter secret can be guessed from one token.
fn warn_of_short_secret(value: Option<FieldValue<'_>>, secret: Option<&Option<Secret>>) {
    if let (Some(value), Some(Some(secret))) = (value, secret)
        && secret.0.len() < SECRET_BYTES
    {
        let message = format!("the secret is shorter than {SECRET_BYTES} bytes");
        let error = ValueError::new(codes::WEAK, message).with_help("make one by: openssl rand -base64 48");
        value.warn_at_name(error);
    }
}

/// Checks that tokens with used claims can be verified, and that tiers of limits can have callers.
fn check_mentions(
    root: &FieldReader<'_>,
    account: &mut AccountConfig,
    locations: &[LocationConfig],
    reported: bool,
) {
    let sink = root.whole.sink;
    let services: Vec<&AuthConfig> = locations.iter().filter_map(|location| location.auth.as_ref()).collect();
    for (position, field, mentioned) in sink.take_mentions() {
        let refuse = |code, message: &str, near: Option<String>, help: &str| {
            let error = ValueError::new(code, message).with_optional_help(near).with_default_help(help);
            sink.add_problem(position, &field, error);
        };
        let rules = &account.tier;
        match mentioned {
            Mention::KeyColumn(column) => match &mut account.keys {
                Some(keys) if keys.file.content().columns().any(|known| known == column) => {
                    keys.columns.push(column.into());
                }
                keys => {
                    let table = keys.as_ref().map(|keys| keys.file.content());
                    let near = table.as_ref().and_then(|table| did_you_mean(&column, table.columns()));
                    let message = format!("no file of API keys has the column `{column}`");
                    let help = "write the name of a further column of account.keys.file";
                    refuse(codes::TEMPLATE, &message, near, help);
                }
            },
            Mention::Anchor if account.keys.is_none() && !reported => {
                let message = "the dates of accounts are in a file of API keys, and there is none";
                refuse(codes::UNDEFINED, message, None, "write account: { keys: { file: keys.csv } }");
            }
            Mention::Source(source) if is_key_source(account, &source) => {
                let message = "API keys are read from here, and nothing else may be";
                refuse(codes::TOKEN, message, None, "write account, which a key gives");
            }
            Mention::Source(ValueSource::Auth(_)) if services.is_empty() => {
                let message = "no location has `auth`, whose answer this is";
                refuse(codes::UNDEFINED, message, None, "write auth: { url: … } in a location");
            }
            Mention::Source(ValueSource::Header(name))
                if services.iter().any(|auth| is_copied(&auth.copy, &name)) =>
            {
                let message = format!("`{name}` is in `copy` of `auth`, so every request loses its own");
                let help = format!("write account here, and account: {{ from: auth:{name} }}");
                refuse(codes::PROTECTED_HEADER, &message, None, &help);
            }
            Mention::Source(ValueSource::Jwt(_)) if account.jwt.is_none() && !reported => {
                let help =
                    "write account: { jwt: { issuer: URL, jwks: discover } }, or jwks: FILE, or secret: …";
                refuse(codes::TOKEN, "a `jwt:` source needs a way to verify tokens", None, help);
            }
            Mention::Tier(tier) if !is_reachable_tier(rules, account.keys.is_some(), &tier) => {
                let message = format!("no caller can be in the tier `{tier}`");
                let error = ValueError::new(codes::UNUSED, message);
                let is_account = rules.members.tier_of(tier.as_bytes());
                let swapped = is_account.map(|account| {
                    format!("the account comes first: write members: {{ {account}: {tier} }}, one for each")
                });
                let known = rules.members.tiers().chain([rules.default.as_str()]);
                let help = "give it to accounts under account: { tier: { members: …, file: …, from: … } }";
                let error = error
                    .with_optional_help(swapped.or_else(|| did_you_mean(&tier, known)))
                    .with_default_help(help);
                sink.add_warning(position, &field, error);
            }
            _ => {}
        }
    }
}

/// True if a source is a place of API keys, which would become keys of counters, accounts and texts of logs.
fn is_key_source(account: &AccountConfig, source: &ValueSource) -> bool {
    account.keys.iter().flat_map(|keys| &keys.from).any(|place| match place {
        KeySource::Bearer | KeySource::Basic => *source == ValueSource::Header(AUTHORIZATION),
        KeySource::Value(own) => own == source,
    })
}

/// True if a caller may be in `tier`. Files and requests may name any tier, so these sources always count.
fn is_reachable_tier(rules: &TierRules, has_keys: bool, tier: &str) -> bool {
    has_keys
        || rules.from.is_some()
        || rules.file.is_some()
        || tier == rules.default
        || rules.members.tiers().any(|known| known == tier)
}

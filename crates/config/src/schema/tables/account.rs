//! The fields of `account`.

use std::path::PathBuf;

use http::HeaderName;
use jsonwebtoken::Algorithm;

use crate::schema::field::{OneOrMore, Shape, section};
use crate::schema::kinds::{FILE, Nested, NestedOrNone, OneOrMoreOrWord, OrWord, Special, Text, Words, text};
use sluicegate_model::value::names;
use sluicegate_model::value::words::parse_word;
use sluicegate_model::{KeySource, Parsed, Secret, ValueError, ValueSource, codes};

const ALGORITHMS: &str = "RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 EdDSA HS256 HS384 HS512";

/// Where an account or a tier is read from.
type Source = OrWord<Text<ValueSource>>;

const SOURCE: Source = OrWord(
    "none",
    Text::new("header:NAME, cookie:NAME, query:NAME, jwt:CLAIM or json:/POINTER", parse_tier_source),
);

section! {
    /// The caller of a request, for the keys `account` and `tier`, tiers of limits, and logs.
    mod account = "account";
    /// Where the account is read from. `auth:NAME` is a header in the answer of the auth service, whether it is copied
    /// or not; locations without `auth` then have no accounts.
    FROM: Source = OrWord(
        "none",
        Text::new("a source of a tier, or auth:NAME", parse_account_source),
    ), "from", "none", "jwt:sub";
    /// The tier of a caller, which may have numbers of its own in a limit.
    TIER: Nested = Nested(&tier::SECTION), "tier", "{}", "{ members: { alice: gold }, default: free }";
    /// The verification of tokens, which every `jwt:` source needs.
    JWT: Special = Special(|| Shape::OneOrMore(Box::new(Shape::Section(&jwt::SECTION)))),
        "jwt", "{}", "{ issuer: https://id.example.com/, jwks: discover }";
    /// API keys: a request with a key of the file has the account of its line.
    KEYS: NestedOrNone = NestedOrNone(&keys::SECTION), "keys", "none", "{ file: keys.csv }";
}

section! {
    /// API keys. The file has their hashes; `sluicegate api-key new` makes a key and adds its line.
    mod keys = "account.keys";
    /// A CSV file with a header. The columns `sha256` (64 hexadecimal digits) and `account` are needed; `tier`,
    /// `until` (RFC 3339), `disabled` (anything but `false`), `anchor` (a date, for limits with `begins: account`) and
    /// further ones, which `${key:NAME}` reads, may be there. The file is read again when it changes.
    FILE: Special = Special(|| text("the path of a file")), "file", required, "keys.csv";
    /// The places of a key in a request. Of `Bearer`, a text with the form of a token is one where `jwt` verifies
    /// tokens; of `basic` the password is the key.
    FROM: OneOrMore<Text<KeySource>> =
        OneOrMore(Text::new("bearer, basic, header:NAME, query:NAME or cookie:NAME", parse_key_source)),
        "from", "[bearer, header:X-Api-Key]", "header:X-Token";
    /// A key that is not in the file, or is expired or disabled: `reject` answers 401, `ignore` lets the request go on
    /// without an account.
    UNKNOWN: Words<bool> = Words(&[("reject", true), ("ignore", false)]), "unknown", "reject", "ignore";
    /// A request without a key: `ignore` lets it go on without an account, `reject` answers 401.
    MISSING: Words<bool> = Words(&[("ignore", false), ("reject", true)]), "missing", "ignore", "reject";
    /// A key of the file on its way to the upstream: `strip` removes it, `pass` leaves it.
    FORWARD: Words<bool> = Words(&[("strip", false), ("pass", true)]), "forward", "strip", "pass";
}

section! {
    /// The tier of a caller: that of its account in `members`, then in `file`, then from `from`, then `default`.
    mod tier = "account.tier";
    /// Where the tier itself is read from.
    FROM: Source = SOURCE, "from", "none", "jwt:plan";
    /// The tiers of accounts.
    MEMBERS: Special = Special(|| Shape::Map("accounts", Box::new(text("a tier")))),
        "members", "{}", "{ alice: gold, bob: silver }";
    /// A CSV file with lines `id,tier`, which is read again when it changes.
    FILE: Special = Special(|| text("the path of a file, or none")), "file", "none", "tiers.csv";
    /// The tier of every other caller.
    DEFAULT: Text<String> = Text::new("a name", parse_tier), "default", "default", "free";
}

section! {
    /// The verification of tokens (RFC 7519). At least one of `jwks` and `secret` is needed. A list has an entry for
    /// each identity provider; each of them names its `issuer`, and verifies the tokens of this issuer alone.
    mod jwt = "account.jwt";
    /// The public keys. A file holds one in PEM, or a JSON Web Key Set, and is read again when it changes. A set at an
    /// `https://` URL is fetched; `discover` fetches the one that ISSUER/.well-known/openid-configuration names. Both
    /// need one `issuer`. A set is fetched at the start, when its `Cache-Control` ends (after 1 minute to 23 hours, by
    /// default 10 minutes), and when a token names an unknown key, at most once in 10 seconds.
    JWKS: Special = Special(|| text("the path of a file, an https:// URL, discover or none")),
        "jwks", "none", "discover";
    /// TLS towards the issuer; it is always verified.
    TLS: Nested = Nested(&tls::SECTION), "tls", "{}", "{ ca: authority.pem }";
    /// The secret of the HS algorithms; one of fewer than 32 bytes is a warning (W008).
    SECRET: OrWord<Text<Secret>> = OrWord("none", Text::new("a text", parse_secret)),
        "secret", "none", "\"${JWT_SECRET}\"";
    /// The issuers whose tokens are accepted; `none` accepts any.
    ISSUER: OneOrMoreOrWord<Text<String>> =
        OneOrMoreOrWord("none", Text::new("an issuer", |text| parse_claim(text, "issuer"))),
        "issuer", "none", "https://id.example.com";
    /// The audiences of which a token must name one; `none` accepts any.
    AUDIENCE: OneOrMoreOrWord<Text<String>> =
        OneOrMoreOrWord("none", Text::new("an audience", |text| parse_claim(text, "audience"))),
        "audience", "none", "api";
    /// The algorithms that tokens may be signed by. With `secret` alone the default is HS256.
    ALGORITHMS: OneOrMore<Text<Algorithm>> = OneOrMore(Text::new(
        "RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA, HS256, HS384 or HS512",
        parse_algorithm,
    )), "algorithms", "[RS256, ES256]", "[EdDSA]";
    /// The request header with the token, after an optional `Bearer`. It is the same for all entries.
    HEADER: Text<HeaderName> = Text::new("a header name", names::parse_header_name),
        "header", "authorization", "x-token";
}

section! {
    /// TLS towards an issuer whose keys are fetched.
    mod tls = "account.jwt.tls";
    /// A PEM file with the trusted authorities; `system` stands for those of the system.
    CA: OrWord<Text<PathBuf>> = OrWord("system", FILE), "ca", "system", "authority.pem";
}

fn parse_key_source(text: &str) -> Parsed<KeySource> {
    match (text, names::parse_source(text)) {
        ("bearer", _) => Ok(KeySource::Bearer),
        ("basic", _) => Ok(KeySource::Basic),
        (_, Some(Ok(ValueSource::Jwt(_) | ValueSource::Json(_)))) | (_, None) => {
            Err(ValueError::new(codes::WORD, format!("`{text}` is no place of an API key"))
                .with_optional_help(names::suggest_source(text))
                .with_default_help("write bearer, basic, header:NAME, query:NAME or cookie:NAME"))
        }
        (_, Some(source)) => source.map(KeySource::Value),
    }
}

fn parse_account_source(text: &str) -> Parsed<ValueSource> {
    match text.strip_prefix("auth:") {
        Some(name) => names::parse_header_name(name).map(ValueSource::Auth),
        None => parse_tier_source(text),
    }
}

fn parse_tier_source(text: &str) -> Parsed<ValueSource> {
    names::parse_source(text).unwrap_or_else(|| {
        Err(ValueError::new(codes::WORD, format!("`{text}` is not a source"))
            .with_optional_help(names::suggest_source(text))
            .with_default_help("write header:NAME, cookie:NAME, query:NAME, jwt:CLAIM or json:/POINTER"))
    })
}

pub(crate) fn parse_tier(text: &str) -> Parsed<String> {
    names::check_tier_name(text).map(|()| text.to_owned())
}

fn parse_algorithm(text: &str) -> Parsed<Algorithm> {
    let words: Vec<(&str, Algorithm)> =
        ALGORITHMS.split(' ').filter_map(|name| Some((name, name.parse().ok()?))).collect();
    parse_word(&words)(text).map_err(|error| match text.eq_ignore_ascii_case("none") {
        true => ValueError::new(codes::TOKEN, "a token without a signature proves nothing")
            .with_help("write e.g. algorithms: [RS256, ES256]"),
        false => error,
    })
}

/// The secret itself never appears in a problem.
fn parse_secret(text: &str) -> Parsed<Secret> {
    names::parse_filled(text, codes::TOKEN, "the secret is empty").map(Secret)
}

fn parse_claim(text: &str, claim: &str) -> Parsed<String> {
    names::parse_filled(text, codes::NAME, format!("an empty {claim} fits no token"))
}

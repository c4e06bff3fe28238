//! The fields of `state`.

use std::path::PathBuf;
use std::time::Duration;

use super::shares::parse_part;
use crate::schema::field::{Shape, section};
use crate::schema::kinds::{
    FILE, Nested, NestedOrNone, Number, OrWord, SHARE as PERCENT, Span, Special, Text, Words, text,
};
use sluicegate_model::{OnFailure, Parsed, StoreConfig, ValueError, codes};

const PREFIX_MAX: usize = 32;

section! {
    /// The place where limits count, and the counters of this process.
    mod state = "state";
    /// Where limits count that do not say `state` themselves. With `leased`, those that cannot be leased count as with
    /// `redis`.
    STORE: Words<StoreConfig> = Words(&StoreConfig::WORDS), "store", "local", "redis";
    /// Keys that one limit counts apart. When it is full, new ones share counters by network, and that is counted.
    MAX_KEYS: Number<usize> = Number(1, 1_000_000_000), "max_keys", "1000000", "100000";
    /// The precision of the heaviest keys of each limit: the rates that are shown of them are too low by at most the
    /// limit's whole rate divided by this number. Each worker keeps up to twice as many names per limit, of the keys
    /// that ask most and of those that are refused most; `none` keeps none.
    HEAVY_HITTERS: OrWord<Number<usize>> = OrWord("none", Number(16, 4096)), "heavy_hitters", "1024", "4096";
    /// A file in which local counters and bans survive a restart. A relative path starts at the folder of this file.
    SNAPSHOT: OrWord<Text<PathBuf>> = OrWord("none", Text::new("the path of a file", parse_file_path)),
        "snapshot", "none", "/var/lib/sluicegate/state";
    /// Redis or Valkey, which counts for several gateways.
    REDIS: Special = Special(|| Shape::Section(&redis::SECTION)), "redis", "{}", "{ url: \"redis://10.0.0.9\" }";
}

section! {
    /// Redis or Valkey, which counts for several gateways.
    mod redis = "state.redis";
    /// The server: `redis://`, `rediss://` for TLS, `redis+sentinel://HOST,HOST/NAME`, or a list for a Cluster.
    URL: Special = Special(|| Shape::OneOrMore(Box::new(text("the URL of a Redis or Valkey")))),
        "url", "none", "\"redis://:${REDIS_PASSWORD}@10.0.0.9:6379\"";
    /// The beginning of all names of keys. Gateways with the same prefix count together.
    PREFIX: Text<String> = Text::new("a prefix", parse_key_prefix), "prefix", "sg", "shop";
    /// The time of a whole decision, after which `on_failure` decides.
    TIMEOUT: Span = Span(Duration::from_millis(2), Duration::from_millis(200)), "timeout", "20ms", "50ms";
    /// The number of gateways to assume in an outage before they have been counted.
    NODES_AT_LEAST: Number = Number(1, 100_000), "nodes_at_least", "1", "3";
    /// TLS to `rediss://` servers.
    TLS: Nested = Nested(&redis_tls::SECTION), "tls", "{}", "{ ca: authority.pem }";
    /// Another Redis, from which this one leases units for the gateways of its region: leased limits then count for all
    /// regions together. See [regions](redis.md#regions).
    HOME: NestedOrNone = NestedOrNone(&redis_home::SECTION), "home", "none",
        "{ url: \"rediss://home.example.com\", share: 40% }";
    /// What decides while Redis does not answer: this gateway's share of the limit, everything passes, or nothing.
    ON_FAILURE: Words<OnFailure> = Words(&OnFailure::WORDS), "on_failure", "local", "allow";
}

section! {
    /// The Redis of the home, which counts leased limits for all regions. Its gateways name it as `url`, and no home.
    mod redis_home = "state.redis.home";
    /// The server, as in `state.redis`.
    URL: Special = Special(|| Shape::OneOrMore(Box::new(text("the URL of a Redis or Valkey")))),
        "url", required, "\"rediss://:${HOME_PASSWORD}@home.example.com:6379\"";
    /// The part of each leased limit that this region has while the home does not answer.
    SHARE: Text<u32> = Text::new("a percentage", parse_home_share).matching(PERCENT), "share", required, "40%";
    /// TLS to a `rediss://` server.
    TLS: Nested = Nested(&redis_tls::SECTION), "tls", "{}", "{ ca: authority.pem }";
}

section! {
    /// TLS to `rediss://` servers. A relative path starts at the folder of this file.
    mod redis_tls = "state.redis.tls";
    /// A PEM file with the trusted authorities; `system` stands for those of the system.
    CA: OrWord<Text<PathBuf>> = OrWord("system", FILE), "ca", "system", "authority.pem";
    /// A PEM file with a certificate for servers that ask for one.
    CERT: OrWord<Text<PathBuf>> = OrWord("none", FILE), "cert", "none", "gateway.pem";
    /// A PEM file with the private key of `cert`.
    KEY: OrWord<Text<PathBuf>> = OrWord("none", FILE), "key", "none", "gateway.key";
}

/// A percentage from 1 to 100, in millionths.
fn parse_home_share(text: &str) -> Parsed<u32> {
    let part = parse_part(text)?;
    if part < 10_000 {
        let message = format!("`{text}` is too small a share of the limits");
        return Err(ValueError::new(codes::PERCENT, message).with_help("write 1% to 100%"));
    }
    Ok(part)
}

fn parse_file_path(text: &str) -> Parsed<PathBuf> {
    let path = PathBuf::from(text);
    if path.file_name().is_none() || text.contains('\0') || text.ends_with('/') {
        return Err(ValueError::new(codes::SNAPSHOT, format!("`{text}` is not the path of a file")));
    }
    Ok(path)
}

/// Parses the prefix of all keys in Redis. Braces are refused, because a Cluster would take them for a hash tag.
fn parse_key_prefix(text: &str) -> Parsed<String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-');
    if text.is_empty() || text.len() > PREFIX_MAX || !text.bytes().all(plain) {
        let message = format!("`{text}` cannot be a prefix of keys");
        let help = "use up to 32 letters, digits, `.`, `_`, `:` and `-`";
        return Err(ValueError::new(codes::NAME, message).with_help(help));
    }
    Ok(text.to_owned())
}

//! Reads `state`: the store of counters, and the limits that count in Redis.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::redis_range::check_redis_range;
use super::upstream_tls::load_system_roots;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::model::limit::{LimitConfig, OnFailure};
use crate::config::model::{DEFAULT_PREFIX, RedisConfig, StateConfig, StoreConfig};
use crate::config::value::redis_url;
use crate::config::value::redis_url::RedisEndpoint;
use crate::config::value::scalars;
use crate::config::value::scalars::Parsed;
use crate::config::yaml::fields::{FieldReader, FieldValue, parse_or_none, parse_word};
use crate::config::yaml::tree::NodeContent;

/// The section `state`, on which the readers of limits depend.
pub(crate) struct StateReader {
    /// `None` = wrong, and already reported.
    store: Option<StoreConfig>,
    redis: Option<RedisConfig>,
    /// No URL of Redis is set, and this is not reported yet.
    is_redis_missing: bool,
    on_failure: OnFailure,
    max_keys: usize,
    snapshot: Option<PathBuf>,
}

const TIMEOUT: Duration = Duration::from_millis(20);
const TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_millis(2)..=Duration::from_millis(200);
const PREFIX_MAX: usize = 32;
const NODES_MAX: u64 = 100_000;

const REDIS_URL_HELP: &str = "write state: { redis: { url: \"redis://HOST:6379\" } }";

pub(crate) fn read_state(root: &mut FieldReader<'_>) -> StateReader {
    let mut state = StateReader {
        store: Some(StoreConfig::Local),
        redis: None,
        is_redis_missing: true,
        on_failure: OnFailure::Local,
        max_keys: 1_000_000,
        snapshot: None,
    };
    let Some(mut fields) = root.open_section("state") else {
        return state;
    };
    let store = fields.get_field("store");
    let stores = [("local", StoreConfig::Local), ("redis", StoreConfig::Redis)];
    state.store = store.as_ref().map_or(state.store, |value| value.parse_with(parse_word(&stores)));
    state.max_keys =
        fields.read_scalar("max_keys", state.max_keys, |text| scalars::parse_count(text, 1, 1_000_000_000));
    state.snapshot = fields.get_field("snapshot").and_then(|value| read_snapshot(&value));
    match fields.get_field("redis") {
        Some(value) if !value.is_null() => state.read_redis(&value),
        _ => state.is_redis_missing = !fields.has_typo_of("redis"),
    }
    if let (Some(StoreConfig::Redis), Some(value), true) = (state.store, store, state.is_redis_missing) {
        let message = "`state.redis.url` is missing";
        value.report_at_value(ValueError::new(codes::MISSING, message).with_help(REDIS_URL_HELP));
        state.is_redis_missing = false;
    }
    fields.report_unknown();
    state
}

fn read_snapshot(value: &FieldValue<'_>) -> Option<PathBuf> {
    let path = value.parse_with(parse_or_none(parse_snapshot_path))??;
    if let Err(error) = probe_writable(&path) {
        let message = format!("the snapshot `{}` cannot be written: {error}", value.written_text());
        let help = "name a folder in which the user of the gateway may make files";
        let error = ValueError::new(codes::NO_EFFECT, message).with_help(help);
        value.sink.add_warning(value.node.position, &value.path, error);
    }
    Some(path)
}

/// Creates a file in the folder of `path`, as a snapshot does, and leaves no trace of it.
fn probe_writable(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::open(folder, flags | OFlags::TMPFILE, mode) {
        Ok(_) => return Ok(()),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    // Not every file system supports O_TMPFILE.
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.try", std::process::id()));
    let beside = folder.join(name);
    match rustix::fs::open(&beside, flags | OFlags::CREATE | OFlags::EXCL, mode) {
        Ok(_) => std::fs::remove_file(&beside),
        Err(error) => Err(error.into()),
    }
}

fn parse_snapshot_path(text: &str) -> Parsed<PathBuf> {
    let path = PathBuf::from(text);
    let wrong = |message| Err(ValueError::new(codes::SNAPSHOT, message));
    let Some(_) = path.file_name().filter(|_| !text.contains('\0') && !text.ends_with('/')) else {
        return wrong(format!("`{text}` is not the path of a file"));
    };
    if path.is_dir() {
        return wrong(format!("`{text}` is a folder, not a file"));
    }
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            wrong(format!("the folder `{}` does not exist", folder.display()))
        }
        _ => Ok(path),
    }
}

impl StateReader {
    fn read_redis(&mut self, value: &FieldValue<'_>) {
        if !matches!(value.node.content, NodeContent::Map(_)) {
            value.report_shape("a mapping such as { url: \"redis://HOST:6379\" }");
            self.is_redis_missing = false;
            return;
        }
        let mut fields = value.field_reader();
        let url = fields.get_field("url").filter(|url| !url.is_null() && !url.is_word("none"));
        self.is_redis_missing = url.is_none() && !fields.has_typo_of("url");
        let endpoint = url.as_ref().and_then(redis_url::read_redis_url);
        if let (Some(RedisEndpoint { tls: true, .. }), Some(url)) = (&endpoint, &url)
            && load_system_roots().is_empty()
        {
            let message = "this system trusts no authority, so the certificate of Redis cannot be verified";
            let help = "install the package ca-certificates, or name a file of authorities in SSL_CERT_FILE";
            url.report_at_value(ValueError::new(codes::TLS, message).with_help(help));
        }
        let prefix = fields.read_scalar("prefix", DEFAULT_PREFIX.to_owned(), parse_key_prefix);
        let timeout = fields.read_scalar("timeout", TIMEOUT, parse_store_timeout);
        let nodes_at_least =
            fields.read_scalar("nodes_at_least", 1, |text| scalars::parse_number(text, 1, NODES_MAX));
        self.on_failure = fields.read_scalar("on_failure", self.on_failure, parse_word(&OnFailure::WORDS));
        fields.report_unknown();
        self.redis = endpoint.map(|endpoint| RedisConfig {
            servers: endpoint.servers,
            tls: endpoint.tls,
            user: endpoint.user,
            password: endpoint.password,
            database: endpoint.database,
            prefix,
            timeout,
            nodes_at_least,
        });
    }

    /// Reads `state` and `on_failure` of a limit: its behaviour while Redis fails, if it counts there.
    pub fn read_shared(&self, fields: &mut FieldReader<'_>) -> Option<OnFailure> {
        let state = fields.get_field("state");
        let store =
            state.as_ref().map_or(self.store, |value| value.parse_with(|text| self.parse_store(text))?);
        let on_failure = fields.get_field("on_failure");
        let written = on_failure
            .as_ref()
            .filter(|value| !value.is_word("auto"))
            .map(|value| value.parse_with(parse_word(&OnFailure::WORDS)));
        match (store?, &state, on_failure, written) {
            (StoreConfig::Local, _, Some(value), Some(Some(_))) => {
                let message = "`on_failure` is only for state: redis, and this limit counts locally";
                let help = "write state: redis, or leave it out";
                value.report_at_name(ValueError::new(codes::SHARED, message).with_help(help));
                None
            }
            (StoreConfig::Local, ..) => None,
            (StoreConfig::Redis, Some(value), ..) if self.is_redis_missing => {
                let message = "this limit counts in Redis, but `state.redis.url` is missing";
                value.report_at_value(ValueError::new(codes::MISSING, message).with_help(REDIS_URL_HELP));
                None
            }
            (StoreConfig::Redis, _, _, Some(own)) => own,
            (StoreConfig::Redis, ..) => Some(self.on_failure),
        }
    }

    /// The behaviour of a limit without `state` while Redis fails, if it counts there.
    pub fn shared_by_default(&self) -> Option<OnFailure> {
        (self.store == Some(StoreConfig::Redis)).then_some(self.on_failure)
    }

    /// Reports settings that a shared limit cannot have; `warm_up` is the value of that field.
    pub fn check_shared_limit(
        &self,
        limit: &LimitConfig,
        value: &FieldValue<'_>,
        warm_up: Option<&FieldValue<'_>>,
    ) {
        if limit.shared.is_none() {
            return;
        }
        if let Err(reason) = check_redis_range(limit) {
            let (message, help) = reason.split_once(": ").unwrap_or((&reason, "write state: local"));
            let error = ValueError::new(codes::SHARED, message).with_help(help);
            warm_up.filter(|_| limit.warm_up.is_some()).unwrap_or(value).report_at_name(error);
        }
    }

    fn parse_store(&self, text: &str) -> Parsed<Option<StoreConfig>> {
        if text == "leased" {
            let error = ValueError::new(codes::UNSUPPORTED, "leased counters are not supported yet");
            return Err(error.with_help("write state: redis"));
        }
        parse_word(&[
            ("auto", self.store),
            ("local", Some(StoreConfig::Local)),
            ("redis", Some(StoreConfig::Redis)),
        ])(text)
    }

    /// The whole section, once the limits that count in Redis are known.
    pub fn build_state(&self, limits: &[LimitConfig], has_bans: bool) -> StateConfig {
        let store = self.store.unwrap_or(StoreConfig::Local);
        let is_used =
            limits.iter().any(|limit| limit.shared.is_some()) || has_bans && store == StoreConfig::Redis;
        StateConfig {
            store,
            redis: self.redis.clone().filter(|_| is_used),
            max_keys: self.max_keys,
            snapshot: self.snapshot.clone(),
        }
    }
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

fn parse_store_timeout(text: &str) -> Parsed<Duration> {
    let timeout = scalars::parse_duration(text)?;
    if TIMEOUTS.contains(&timeout) {
        return Ok(timeout);
    }
    let message = format!("`{text}` is out of range for the time of a decision");
    Err(ValueError::new(codes::DURATION, message).with_help("write a time from 2ms to 200ms"))
}

//! Reads `state`: the store of counters, Redis, and the limits that count there.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::tls_files::UpstreamTlsReader;
use crate::schema::field::Field;
use crate::schema::kinds::Nested;
use crate::schema::tables::limits::limit;
use crate::schema::tables::root::root;
use crate::schema::tables::state::{redis, redis_home, redis_tls, state};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use crate::yaml::tree::NodeContent;
use sluicegate_base::file::explain_path;
use sluicegate_base::system_roots::load_system_roots;
use sluicegate_model::value::redis_url::{parse_seed_url, parse_server_url};
use sluicegate_model::value::words::parse_word;
use sluicegate_model::{
    Algorithm, LimitConfig, OnFailure, Parsed, RedisConfig, RedisHome, RedisServers, RedisTlsFiles,
    StateConfig, StoreConfig, UpstreamConfig, check_leases, check_redis_range, codes,
};

/// The section `state`, on which the readers of limits depend.
pub(crate) struct StateReader {
    /// `None` = wrong, and already reported.
    store: Option<StoreConfig>,
    /// No URL of Redis is set, and this is not reported yet.
    is_redis_missing: bool,
    on_failure: OnFailure,
    config: StateConfig,
}

/// The deadline of a call of the home, for which no request waits.
const HOME_TIMEOUT: Duration = Duration::from_secs(1);
/// A shorter timeout is often too short for the way to a home and back.
const HOME_WAIT_MIN: Duration = Duration::from_millis(100);

const REDIS_URL_HELP: &str = "write state: { redis: { url: \"redis://HOST:6379\" } }";

pub(crate) fn read_state(root: &FieldReader<'_>) -> StateReader {
    root.read_section(&root::STATE, |fields| {
        let store = fields.find(&state::STORE);
        let named = fields.read_valid(&state::STORE);
        let config = StateConfig {
            store: named.unwrap_or(StoreConfig::Local),
            redis: None,
            max_keys: fields.read(&state::MAX_KEYS),
            heavy_hitters: fields.read(&state::HEAVY_HITTERS),
            snapshot: read_snapshot(fields),
        };
        let on_failure = redis::ON_FAILURE.parse_default();
        let mut state = StateReader { store: named, is_redis_missing: true, on_failure, config };
        match fields.find(&state::REDIS) {
            Some(value) if !value.is_null() => state.read_redis(&value),
            _ => state.is_redis_missing = !fields.is_misnamed("redis"),
        }
        if let (Some(StoreConfig::Redis | StoreConfig::Leased), Some(value), true) =
            (state.store, store, state.is_redis_missing)
        {
            let message = "`state.redis.url` is missing";
            value.refuse(codes::MISSING, message, REDIS_URL_HELP);
            state.is_redis_missing = false;
        }
        state
    })
}

fn read_snapshot(fields: &FieldReader<'_>) -> Option<PathBuf> {
    let name = fields.read(&state::SNAPSHOT)?;
    let value = fields.find(&state::SNAPSHOT)?;
    let folder = value.folder();
    let path = folder.join(&name);
    if let Err(message) = check_folder(&path, &name) {
        value.refuse(codes::SNAPSHOT, message, explain_path(&folder, &name));
    } else if let Err(error) = probe_writable(&path) {
        let message = format!("the snapshot `{}` cannot be written: {error}", value.written_text());
        let help = "name a folder in which the user of the gateway may make files";
        value.warn(codes::NO_EFFECT, message, help);
    }
    Some(path)
}

/// Messages show the path by the `name` in the file.
fn check_folder(path: &Path, name: &Path) -> Result<(), String> {
    if path.is_dir() {
        return Err(format!("`{}` is a folder, not a file", name.display()));
    }
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() && !parent.is_dir() => {
            let named = name.parent().filter(|named| !named.as_os_str().is_empty()).unwrap_or(parent);
            Err(format!("the folder `{}` does not exist", named.display()))
        }
        _ => Ok(()),
    }
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

impl StateReader {
    fn read_redis(&mut self, value: &FieldValue<'_>) {
        let form = "a mapping such as { url: \"redis://HOST:6379\" }";
        match value.open_map(&redis::SECTION, form) {
            Some(fields) => fields.read_all(|fields| self.read_redis_fields(fields)),
            None => self.is_redis_missing = false,
        }
    }

    fn read_redis_fields(&mut self, fields: &FieldReader<'_>) {
        let url = fields.find(&redis::URL).filter(|url| !url.is_null() && !url.is_word("none"));
        self.is_redis_missing = url.is_none() && !fields.is_misnamed("url");
        let endpoint = read_server(fields, url.as_ref(), &redis::TLS);
        let (prefix, timeout) = (fields.read(&redis::PREFIX), fields.read(&redis::TIMEOUT));
        let nodes_at_least = fields.read(&redis::NODES_AT_LEAST);
        self.on_failure = fields.read(&redis::ON_FAILURE);
        let home = fields.read_section_or_none(&redis::HOME, |home| read_home(home, &prefix)).flatten();
        if let (Some(home), Some(endpoint), Some(value)) = (&home, &endpoint, fields.find(&redis::HOME))
            && home.redis.servers == endpoint.servers
            && home.redis.database == endpoint.database
        {
            let help = "gateways beside the home name it as url, and no home";
            value.refuse_name(codes::REDIS, "the home is this Redis itself", help);
        }
        if let (true, Some(value)) = (timeout < HOME_WAIT_MIN, fields.find(&redis::HOME)) {
            let message = format!("the first requests for a key wait for the home, at most {timeout:?}");
            value.warn(codes::LONG_WAIT, message, "write timeout: 200ms beside url");
        }
        let home = home.map(Box::new);
        self.config.redis =
            endpoint.map(|endpoint| RedisConfig { prefix, timeout, nodes_at_least, home, ..endpoint });
    }

    /// True if a limit is leased because `state.store` says so.
    pub(crate) fn is_leased_by_default(&self, fields: &FieldReader<'_>) -> bool {
        self.store == Some(StoreConfig::Leased)
            && fields.find(&limit::STATE).is_none_or(|value| value.is_word("auto"))
    }

    /// True if units of this limit can be taken in advance, from a home too if there is one.
    pub(crate) fn can_lease(&self, limit: &LimitConfig) -> bool {
        limit.shared.is_some() && check_leases(limit).is_ok() && !self.is_unfit_for_home(limit)
    }

    /// Reports a leased limit that no home leases.
    pub(crate) fn check_home(&self, limit: &LimitConfig, value: &FieldValue<'_>) {
        if limit.leased && self.is_unfit_for_home(limit) {
            let message = format!("a {} is not leased from a home", limit.algorithm.word());
            value.refuse_name(codes::SHARED, message, "write state: redis, or algorithm: token_bucket");
        }
    }

    fn is_unfit_for_home(&self, limit: &LimitConfig) -> bool {
        let has_home = self.config.redis.as_ref().is_some_and(|redis| redis.home.is_some());
        has_home && !matches!(limit.algorithm, Algorithm::TokenBucket { .. })
    }

    /// Warns if no limit is leased though `state.store` says so, or there is a home.
    pub(crate) fn check_leased_store(root: &FieldReader<'_>, limits: &[LimitConfig]) {
        if limits.iter().any(|limit| limit.leased) {
            return;
        }
        root.read_section(&root::STATE, |fields| {
            let redis = fields.find(&state::REDIS).filter(FieldValue::is_map);
            let redis = redis.map(|value| value.open_section(&redis::SECTION));
            if let Some(home) = redis.and_then(|redis| redis.find(&redis::HOME)).filter(FieldValue::is_map) {
                let help = "write state: leased in a limit, or remove home";
                home.warn(codes::NO_EFFECT, "no limit is leased from the home", help);
            }
            if let Some(value) = fields.find(&state::STORE).filter(|value| value.is_word("leased")) {
                let help =
                    "write store: redis, or a limit that can be leased: check tells why each one is not";
                value.warn(codes::NO_EFFECT, "no limit is leased", help);
            }
        });
    }

    /// Reads `state` and `on_failure` of a limit: its behaviour while Redis fails, if it counts there.
    pub(crate) fn read_shared(&self, fields: &FieldReader<'_>) -> Option<OnFailure> {
        let state = fields.find(&limit::STATE);
        let store =
            state.as_ref().map_or(self.store, |value| value.parse_with(|text| self.parse_store(text))?);
        let on_failure = fields.find(&limit::ON_FAILURE).filter(|value| !value.is_word("auto"));
        let written = on_failure.as_ref().map(|_| fields.read_written(&limit::ON_FAILURE).flatten());
        match (store?, &state, on_failure, written) {
            (StoreConfig::Local, _, Some(value), Some(Some(_))) => {
                let message = "`on_failure` is only for state: redis, and this limit counts locally";
                let help = "write state: redis, or leave it out";
                value.refuse_name(codes::SHARED, message, help);
                None
            }
            (StoreConfig::Local, ..) => None,
            (_, Some(value), ..) if self.is_redis_missing => {
                let message = "this limit counts in Redis, but `state.redis.url` is missing";
                value.refuse(codes::MISSING, message, REDIS_URL_HELP);
                None
            }
            (_, _, _, Some(own)) => own,
            _ => Some(self.on_failure),
        }
    }

    fn parse_store(&self, text: &str) -> Parsed<Option<StoreConfig>> {
        parse_word(&[
            ("auto", self.store),
            ("local", Some(StoreConfig::Local)),
            ("redis", Some(StoreConfig::Redis)),
            ("leased", Some(StoreConfig::Leased)),
        ])(text)
    }

    /// The whole section, once it is known what Redis is used for.
    pub(crate) fn build_state(
        &self,
        limits: &[LimitConfig],
        has_bans: bool,
        upstreams: &[UpstreamConfig],
    ) -> StateConfig {
        let mut config = self.config.clone();
        let is_used = has_bans && config.store != StoreConfig::Local
            || limits.iter().any(|limit| limit.shared.is_some())
            || upstreams.iter().any(|upstream| upstream.has_auto_secret());
        config.redis = config.redis.filter(|_| is_used);
        config
    }
}

/// Reports settings that a shared limit cannot have; `warm_up` is the value of that field.
pub(crate) fn check_shared_limit(
    config: &LimitConfig,
    value: &FieldValue<'_>,
    warm_up: Option<&FieldValue<'_>>,
) {
    if config.shared.is_none() {
        return;
    }
    if let Err(reason) = check_redis_range(config) {
        let (message, help) = reason.split_once(": ").unwrap_or((&reason, "write state: local"));
        let place = warm_up.filter(|_| config.warm_up.is_some()).unwrap_or(value);
        place.refuse_name(codes::SHARED, message, help);
    }
}

/// Reads the home of a region, which has the prefix of its names; `None` after an error.
fn read_home(fields: &FieldReader<'_>, prefix: &str) -> Option<RedisHome> {
    let server = read_server(fields, fields.find_required(&redis_home::URL).as_ref(), &redis_home::TLS);
    let share = fields.read_required(&redis_home::SHARE);
    let redis = RedisConfig { prefix: prefix.to_owned(), timeout: HOME_TIMEOUT, ..server? };
    Some(RedisHome { redis, share: share? })
}

/// Reads a URL and the files for TLS; `None` without a URL, or after an error.
fn read_server(
    fields: &FieldReader<'_>,
    url: Option<&FieldValue<'_>>,
    tls_field: &Field<Nested>,
) -> Option<RedisConfig> {
    let endpoint = url.and_then(read_redis_endpoint);
    let is_encrypted = endpoint.as_ref().is_some_and(|endpoint| endpoint.tls);
    let read_url = url.filter(|_| endpoint.is_some());
    let tls_files = fields.read_section(tls_field, |tls| {
        let reader = UpstreamTlsReader::default();
        let own_roots = tls.find(&redis_tls::CA).filter(|ca| !ca.is_word("system"));
        let roots = own_roots
            .as_ref()
            .and_then(|_| reader.read_authorities(tls, &redis_tls::CA))
            .map(|(roots, _)| roots);
        let identity = reader.read_identity(tls, &redis_tls::CERT, &redis_tls::KEY);
        if let (None, Some(url), true) = (own_roots, read_url, is_encrypted)
            && load_system_roots().is_empty()
        {
            let message = "this system trusts no authority, so the certificate of Redis cannot be verified";
            let help =
                "install the package ca-certificates, or name a file of authorities in tls: { ca: FILE }";
            url.refuse(codes::TLS, message, help);
        }
        RedisTlsFiles { roots, identity }
    });
    let section = fields.find(tls_field).filter(|value| !value.is_null());
    if let (Some(section), Some(_), false) = (section, read_url, is_encrypted) {
        let message = "`tls` is for rediss:// URLs, and this Redis is reached without TLS";
        let help = "write the URL as rediss://HOST:PORT, or remove tls";
        section.refuse_name(codes::TLS, message, help);
    }
    endpoint.map(|endpoint| RedisConfig { tls_files, ..endpoint })
}

/// Reads `url`; `None` after an error.
pub(crate) fn read_redis_endpoint(value: &FieldValue<'_>) -> Option<RedisConfig> {
    match value.node.content {
        NodeContent::List(_) => read_cluster_urls(value),
        _ => value.parse_with(parse_server_url),
    }
}

/// Some nodes of a Cluster, which share everything except their addresses.
fn read_cluster_urls(value: &FieldValue<'_>) -> Option<RedisConfig> {
    let items = value.one_or_more();
    value.check_filled("write the URLs of some nodes of the Cluster, or one URL without a list");
    let mut endpoint: Option<RedisConfig> = None;
    let mut seeds = Vec::new();
    for item in &items {
        let Some((seed, url)) = item.parse_with(parse_seed_url) else { continue };
        seeds.push(seed);
        match &endpoint {
            None => endpoint = Some(url),
            Some(first)
                if (first.tls, &first.user, &first.password) != (url.tls, &url.user, &url.password) =>
            {
                let message = "the nodes of a Cluster must have the same scheme, user and password";
                item.refuse(codes::REDIS, message, "write the same ones in each URL of the list");
            }
            Some(_) => {}
        }
    }
    let endpoint = endpoint.filter(|_| seeds.len() == items.len())?;
    Some(RedisConfig { servers: RedisServers::Cluster(seeds), ..endpoint })
}

#[cfg(test)]
mod tests;

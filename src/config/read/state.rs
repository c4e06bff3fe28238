//! `state`: where counters live, and which limits count in Redis.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::redis_range::fits_redis;
use super::server::count;
use super::upstream_tls::system_authorities;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::Complaint;
use crate::config::model::limit::{Limit, OnFailure};
use crate::config::model::{DEFAULT_PREFIX, Redis, State, Store};
use crate::config::value::redis_url;
use crate::config::value::redis_url::Way;
use crate::config::value::scalars;
use crate::config::value::scalars::Read;
use crate::config::yaml::fields::{Fields, Value, or_none, word};
use crate::config::yaml::tree::Content;

/// The section `state`, for limits to refer to.
pub(crate) struct StateSection {
    /// `None` = unreadable, and already complained about.
    store: Option<Store>,
    redis: Option<Redis>,
    /// A limit may complain that nothing says where Redis is.
    is_redis_missing: bool,
    on_failure: OnFailure,
    max_keys: usize,
    snapshot: Option<PathBuf>,
}

const TIMEOUT: Duration = Duration::from_millis(20);
const TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_millis(2)..=Duration::from_millis(200);
const PREFIX_MAX: usize = 32;
const NODES_MAX: u64 = 100_000;

const WHERE: &str = "write state: { redis: { url: \"redis://HOST:6379\" } }";

pub(crate) fn read(root: &mut Fields<'_>) -> StateSection {
    let mut state = StateSection {
        store: Some(Store::Local),
        redis: None,
        is_redis_missing: true,
        on_failure: OnFailure::Local,
        max_keys: 1_000_000,
        snapshot: None,
    };
    let Some(mut fields) = root.section("state") else {
        return state;
    };
    let store = fields.get("store");
    let stores = [("local", Store::Local), ("redis", Store::Redis)];
    state.store = store.as_ref().map_or(state.store, |value| value.read(word(&stores)));
    state.max_keys = fields.read("max_keys", state.max_keys, |text| count(text, 1, 1_000_000_000));
    state.snapshot = fields.get("snapshot").and_then(|value| read_snapshot(&value));
    match fields.get("redis") {
        Some(value) if !value.is_null() => state.read_redis(&value),
        _ => state.is_redis_missing = !fields.mistyped("redis"),
    }
    if let (Some(Store::Redis), Some(value), true) = (state.store, store, state.is_redis_missing) {
        let message = "nothing says where Redis is: `state.redis.url` is missing";
        value.complain(Complaint::new(codes::MISSING, message).help(WHERE));
        state.is_redis_missing = false;
    }
    fields.close();
    state
}

fn read_snapshot(value: &Value<'_>) -> Option<PathBuf> {
    let path = value.read(or_none(snapshot))??;
    if let Err(error) = try_beside(&path) {
        let message = format!("the snapshot `{}` cannot be written: {error}", value.shown());
        let help = "name a folder in which the user of the gateway may make files";
        let complaint = Complaint::new(codes::IN_VAIN, message).help(help);
        value.found.warn(value.node.place, &value.path, complaint);
    }
    Some(path)
}

/// Makes a file in the folder of `path`, as a snapshot is written, and leaves no trace of it.
fn try_beside(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::open(folder, flags | OFlags::TMPFILE, mode) {
        Ok(_) => return Ok(()),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    // Not every file system has files without a name.
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.try", std::process::id()));
    let beside = folder.join(name);
    match rustix::fs::open(&beside, flags | OFlags::CREATE | OFlags::EXCL, mode) {
        Ok(_) => std::fs::remove_file(&beside),
        Err(error) => Err(error.into()),
    }
}

fn snapshot(text: &str) -> Read<PathBuf> {
    let path = PathBuf::from(text);
    let wrong = |message| Err(Complaint::new(codes::SNAPSHOT, message));
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

// === impl StateSection ===

impl StateSection {
    fn read_redis(&mut self, value: &Value<'_>) {
        if !matches!(value.node.content, Content::Map(_)) {
            value.complain_of_shape("a mapping such as { url: \"redis://HOST:6379\" }");
            self.is_redis_missing = false;
            return;
        }
        let mut fields = value.fields();
        let url = fields.get("url").filter(|url| !url.is_null() && !url.is_word("none"));
        self.is_redis_missing = url.is_none() && !fields.mistyped("url");
        let way = url.as_ref().and_then(redis_url::read);
        if let (Some(Way { tls: true, .. }), Some(url)) = (&way, &url)
            && system_authorities().is_empty()
        {
            let message = "this system trusts no authority, so the certificate of Redis cannot be verified";
            let help = "install the package ca-certificates, or name a file of authorities in SSL_CERT_FILE";
            url.complain(Complaint::new(codes::TLS, message).help(help));
        }
        let prefix = fields.read("prefix", DEFAULT_PREFIX.to_owned(), prefix);
        let timeout = fields.read("timeout", TIMEOUT, timeout);
        let nodes_at_least = fields.read("nodes_at_least", 1, |text| scalars::number(text, 1, NODES_MAX));
        self.on_failure = fields.read("on_failure", self.on_failure, word(&OnFailure::WORDS));
        fields.close();
        self.redis = way.map(|way| Redis {
            servers: way.servers,
            tls: way.tls,
            user: way.user,
            password: way.password,
            database: way.database,
            prefix,
            timeout,
            nodes_at_least,
        });
    }

    /// Reads `state` and `on_failure` of a limit: what it does while Redis fails, if it counts there.
    pub fn read_shared(&self, fields: &mut Fields<'_>) -> Option<OnFailure> {
        let state = fields.get("state");
        let store = state.as_ref().map_or(self.store, |value| value.read(|text| self.store_of(text))?);
        let on_failure = fields.get("on_failure");
        let written = on_failure
            .as_ref()
            .filter(|value| !value.is_word("auto"))
            .map(|value| value.read(word(&OnFailure::WORDS)));
        match (store?, &state, on_failure, written) {
            (Store::Local, _, Some(value), Some(Some(_))) => {
                let message = "`on_failure` is only for state: redis, and this limit counts locally";
                let help = "write state: redis, or leave it out";
                value.complain_at_name(Complaint::new(codes::SHARED, message).help(help));
                None
            }
            (Store::Local, ..) => None,
            (Store::Redis, Some(value), ..) if self.is_redis_missing => {
                let message = "this limit counts in Redis, and nothing says where that is";
                value.complain(Complaint::new(codes::MISSING, message).help(WHERE));
                None
            }
            (Store::Redis, _, _, Some(own)) => own,
            (Store::Redis, ..) => Some(self.on_failure),
        }
    }

    /// What a limit without `state` does while Redis fails, if it counts there.
    pub fn shared_by_default(&self) -> Option<OnFailure> {
        (self.store == Some(Store::Redis)).then_some(self.on_failure)
    }

    /// Complains of what a shared limit cannot have; `warm_up` is where that is written.
    pub fn check(&self, limit: &Limit, value: &Value<'_>, warm_up: Option<&Value<'_>>) {
        if limit.shared.is_none() {
            return;
        }
        if let Err(reason) = fits_redis(limit) {
            let (message, help) = reason.split_once(": ").unwrap_or((&reason, "write state: local"));
            let complaint = Complaint::new(codes::SHARED, message).help(help);
            warm_up.filter(|_| limit.warm_up.is_some()).unwrap_or(value).complain_at_name(complaint);
        }
    }

    fn store_of(&self, text: &str) -> Read<Option<Store>> {
        if text == "leased" {
            let complaint = Complaint::new(codes::NOT_YET, "leased counters are not supported yet");
            return Err(complaint.help("write state: redis"));
        }
        word(&[("auto", self.store), ("local", Some(Store::Local)), ("redis", Some(Store::Redis))])(text)
    }

    /// The whole section, now that it is known who counts in Redis.
    pub fn finish(&self, limits: &[Limit], has_bans: bool) -> State {
        let store = self.store.unwrap_or(Store::Local);
        let is_used = limits.iter().any(|limit| limit.shared.is_some()) || has_bans && store == Store::Redis;
        State {
            store,
            redis: self.redis.clone().filter(|_| is_used),
            max_keys: self.max_keys,
            snapshot: self.snapshot.clone(),
        }
    }
}

fn prefix(text: &str) -> Read<String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-');
    if text.is_empty() || text.len() > PREFIX_MAX || !text.bytes().all(plain) {
        let message = format!("`{text}` cannot begin the names of keys");
        let help = "use up to 32 letters, digits, `.`, `_`, `:` and `-`";
        return Err(Complaint::new(codes::NAME, message).help(help));
    }
    Ok(text.to_owned())
}

fn timeout(text: &str) -> Read<Duration> {
    let timeout = scalars::duration(text)?;
    if TIMEOUTS.contains(&timeout) {
        return Ok(timeout);
    }
    let message = format!("`{text}` is not a time that a decision may take");
    Err(Complaint::new(codes::DURATION, message).help("write a time from 2ms to 200ms"))
}

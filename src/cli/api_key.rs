//! `api-key`: makes keys and edits their file. Only hashes are written, so a key is shown once.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand, ValueHint};
use rustix::fs::{FlockOperation, flock};

use super::{CommandFault, CommandResult, FAILED, print_error, print_result, usage};
use sluicegate_base::file::{FileContent, describe_failure, read_capped};
use sluicegate_base::time_text;
use sluicegate_model::api_keys::{
    ApiKeyHash, ApiKeyTable, KeyColumns, LineSplitter, generate_key, numbered_lines,
};

#[derive(Debug, Subcommand)]
pub(super) enum ApiKeyVerb {
    /// Make a key, print it and add its hash to the file
    New(NewKeyArgs),
    /// List the keys of the file by the first digits of their hashes
    List(KeyFileArgs),
    /// Refuse a key from now on
    Disable(DisableArgs),
    /// Print the hash of a key from standard input, for the file
    Hash,
}

#[derive(Debug, Args)]
pub(super) struct KeyFileArgs {
    /// The file of keys [default: account.keys.file of gateway.yaml]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct NewKeyArgs {
    /// The account of requests with the key
    #[arg(long, value_name = "ACCOUNT", value_hint = ValueHint::Other)]
    pub account: String,
    /// The tier of these requests [default: that of the account]
    #[arg(long, value_name = "TIER", value_hint = ValueHint::Other)]
    pub tier: Option<String>,
    /// The end of its life: a duration such as 90d, or a time such as 2027-01-31T00:00:00Z [default: none]
    #[arg(long, value_name = "WHEN", value_hint = ValueHint::Other, value_parser = parse_until)]
    pub until: Option<String>,
    #[command(flatten)]
    pub file: KeyFileArgs,
}

#[derive(Debug, Args)]
pub(super) struct DisableArgs {
    /// The first digits of its hash as `list` shows them, at least 8
    #[arg(value_name = "DIGITS", value_hint = ValueHint::Other)]
    pub digits: String,
    #[command(flatten)]
    pub file: KeyFileArgs,
}

/// The header of a new file.
const HEADER: &str = "sha256,account,tier,until,disabled,note";
const DIGITS_LEAST: usize = 8;
const DIGITS_SHOWN: usize = 12;

/// `config`: gateway.yaml, which names the file of keys and lends a new one its owner.
pub(super) fn run_api_key(verb: ApiKeyVerb, config: &Path) -> CommandResult {
    match verb {
        ApiKeyVerb::New(new) => add_key(&new, config),
        ApiKeyVerb::List(args) => list_keys(&key_file(args.file, config)?),
        ApiKeyVerb::Disable(args) => disable_key(&args.digits, &key_file(args.file.file, config)?, config),
        ApiKeyVerb::Hash => print_hash(io::stdin().lock()),
    }
}

fn failed(path: &Path, why: impl std::fmt::Display) -> CommandFault {
    CommandFault::new(FAILED, format!("{} {why}", path.display()))
}

/// The file of keys. It need not exist yet, so gateway.yaml is read without its checks.
fn key_file(named: Option<PathBuf>, config: &Path) -> Result<PathBuf, CommandFault> {
    if let Some(file) = named {
        return Ok(file);
    }
    let text = fs::read_to_string(config).map_err(|error| {
        let why = describe_failure(error);
        usage(format!("{} {why}; name the file of keys with --file FILE", config.display()))
    })?;
    let root: serde_yaml::Value = serde_yaml::from_str(&text).unwrap_or_default();
    let file = root.get("account").and_then(|account| account.get("keys")).and_then(|keys| keys.get("file"));
    let file = file.and_then(serde_yaml::Value::as_str).filter(|file| !file.contains("${"));
    let missing = || failed(config, "names no account.keys.file; name the file of keys with --file FILE");
    Ok(config.parent().unwrap_or(Path::new("")).join(file.ok_or_else(missing)?))
}

fn add_key(new: &NewKeyArgs, config: &Path) -> CommandResult {
    let path = key_file(new.file.file.clone(), config)?;
    let key = generate_key().map_err(|why| CommandFault::new(FAILED, why))?;
    let hash = ApiKeyHash::of_key(key.as_bytes()).to_string();
    let given = [
        ("sha256", hash.as_str()),
        ("account", &new.account),
        ("tier", new.tier.as_deref().unwrap_or_default()),
        ("until", new.until.as_deref().unwrap_or_default()),
    ];
    edit_file(&path, config, |text| {
        let mut lines = KeyFile::parse(&text.unwrap_or_else(|| format!("{HEADER}\n").into()))?;
        for (name, _) in given.iter().filter(|(_, value)| !value.is_empty()) {
            lines.add_column(name);
        }
        let value_of = |column: &String| {
            given.iter().find(|(name, _)| column.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
        };
        let line = csv_line(lines.columns.iter().map(value_of));
        check_line(&lines.header(), &line)?;
        lines.rest.push(line.into());
        Ok(lines.to_bytes())
    })?;
    print_error(&format!("added to {}: {}\n", path.display(), &hash[..DIGITS_SHOWN]));
    print_result(&format!("{key}\n"))
}

fn check_line(header: &str, line: &str) -> Result<(), String> {
    if line.bytes().any(|byte| byte.is_ascii_control()) {
        return Err("is not changed: a value has control characters".to_owned());
    }
    let mut values = LineSplitter::default();
    let columns = values.split_line(header.as_bytes()).map_err(str::to_owned);
    let columns = columns.and_then(|()| KeyColumns::read_header(&values))?;
    let read = values.split_line(line.as_bytes()).and_then(|()| columns.read_record(&values).map(drop));
    read.map_err(|why| format!("is not changed: the new line would have {why}"))
}

fn list_keys(path: &Path) -> CommandResult {
    let bytes = read_capped(path, ApiKeyTable::BYTES_MAX).map_err(|why| failed(path, why))?;
    let mut values = LineSplitter::default();
    let mut columns = None;
    let mut list = "hash\taccount\ttier\tuntil\tstate\n".to_owned();
    for (number, line) in numbered_lines(&bytes) {
        let split = values.split_line(line);
        let Some(columns) = &columns else {
            split.map_err(|why| failed(path, format!("has {why} in its header")))?;
            columns = Some(KeyColumns::read_header(&values).map_err(|why| failed(path, why))?);
            continue;
        };
        match split.and_then(|()| columns.read_record(&values)) {
            Err(why) => print_error(&format!("warning: line {number} has {why}\n")),
            Ok(key) => {
                let until = UNIX_EPOCH.checked_add(Duration::from_secs(key.until));
                let until = until.filter(|_| key.until != u64::MAX);
                let state = match until {
                    _ if key.is_disabled => "disabled",
                    Some(until) if until <= SystemTime::now() => "expired",
                    _ => "",
                };
                let until = until.map(|until| humantime::format_rfc3339_seconds(until).to_string());
                let (hash, account) = (key.hash.to_string(), String::from_utf8_lossy(key.account));
                let (tier, until) = (key.tier.unwrap_or_default(), until.unwrap_or_default());
                list += &format!("{}\t{account}\t{tier}\t{until}\t{state}\n", &hash[..DIGITS_SHOWN]);
            }
        }
    }
    print_result(&list)
}

fn disable_key(digits: &str, path: &Path, config: &Path) -> CommandResult {
    if digits.len() < DIGITS_LEAST || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(usage(format!(
            "`{digits}` is not {DIGITS_LEAST} or more digits of a hash; see api-key list"
        )));
    }
    let digits = digits.to_ascii_lowercase();
    edit_file(path, config, |text| {
        let mut lines = KeyFile::parse(&text.ok_or("does not exist")?)?;
        lines.add_column("disabled");
        let position = |name: &str| lines.columns.iter().position(|column| column.eq_ignore_ascii_case(name));
        let (Some(hash), Some(disabled)) = (position("sha256"), position("disabled")) else {
            return Err("has no column `sha256` in its header".to_owned());
        };
        let (mut values, mut found) = (LineSplitter::default(), None);
        for line in &mut lines.rest {
            let is_line =
                numbered_lines(line).next().is_some_and(|(_, line)| values.split_line(line).is_ok());
            let own = String::from_utf8_lossy(values.value(hash)).to_ascii_lowercase();
            if !is_line || !own.starts_with(&digits) {
                continue;
            }
            if found.as_ref().is_some_and(|other| *other != own) {
                return Err(format!("has several keys that begin with {digits}; write more digits"));
            }
            found = Some(own);
            let mut all: Vec<String> =
                values.values().map(|value| String::from_utf8_lossy(value).into_owned()).collect();
            all.resize(lines.columns.len().max(all.len()), String::new());
            all[disabled] = "true".to_owned();
            *line = csv_line(all.iter().map(String::as_str)).into();
        }
        found.ok_or_else(|| format!("has no key that begins with {digits}"))?;
        Ok(lines.to_bytes())
    })?;
    print_result(&format!("disabled {digits} in {}\n", path.display()))
}

fn print_hash(stdin: impl Read) -> CommandResult {
    let mut key = Vec::new();
    let read = stdin.take(1 << 20).read_to_end(&mut key);
    read.map_err(|error| CommandFault::new(FAILED, format!("standard input cannot be read: {error}")))?;
    let key = key.strip_suffix(b"\n").unwrap_or(&key);
    let key = key.strip_suffix(b"\r").unwrap_or(key);
    if key.is_empty() {
        return Err(usage("write the key to standard input: its hash is printed"));
    }
    print_result(&format!("{}\n", ApiKeyHash::of_key(key)))
}

/// `90d` from now or a time, as the file has it.
fn parse_until(text: &str) -> Result<String, String> {
    if let Ok(span) = humantime::parse_duration(text) {
        // The text of a time has four digits for the year.
        let too_late = UNIX_EPOCH + Duration::from_secs(253_402_300_800);
        let until = SystemTime::now().checked_add(span).filter(|until| *until < too_late);
        return until
            .map(|until| humantime::format_rfc3339_seconds(until).to_string())
            .ok_or_else(|| "it ends too late".to_owned());
    }
    let read = time_text::parse_rfc3339(text.as_bytes());
    read.map(|_| text.to_owned()).ok_or_else(|| "write e.g. 90d or 2027-01-31T00:00:00Z".to_owned())
}

/// The lines of a file of keys, with its comments.
struct KeyFile {
    /// The lines before the header.
    above: Vec<Vec<u8>>,
    columns: Vec<String>,
    rest: Vec<Vec<u8>>,
}

impl KeyFile {
    fn parse(bytes: &[u8]) -> Result<KeyFile, String> {
        let (at, header) = numbered_lines(bytes).next().ok_or("has no header")?;
        let mut values = LineSplitter::default();
        values.split_line(header).map_err(|why| format!("has {why} in its header"))?;
        KeyColumns::read_header(&values)?;
        let columns = values.values().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        let lines = bytes.strip_suffix(b"\n").unwrap_or(bytes).split(|byte| *byte == b'\n');
        let mut above: Vec<Vec<u8>> = lines.map(<[u8]>::to_vec).collect();
        let rest = above.split_off(at);
        above.pop();
        Ok(KeyFile { above, columns, rest })
    }

    fn add_column(&mut self, name: &str) {
        if !self.columns.iter().any(|column| column.eq_ignore_ascii_case(name)) {
            self.columns.push(name.to_owned());
        }
    }

    fn header(&self) -> String {
        csv_line(self.columns.iter().map(String::as_str))
    }

    fn to_bytes(&self) -> Vec<u8> {
        let header = self.header().into_bytes();
        let lines = self.above.iter().chain([&header]).chain(&self.rest);
        lines.flat_map(|line| line.iter().copied().chain([b'\n'])).collect()
    }
}

/// A line of CSV (RFC 4180); quoted where a reader would need it.
fn csv_line<'v>(values: impl Iterator<Item = &'v str>) -> String {
    let quoted = |value: &str| match value.contains([',', '"', '#']) {
        true => format!("\"{}\"", value.replace('"', "\"\"")),
        false => value.to_owned(),
    };
    values.map(quoted).collect::<Vec<_>>().join(",")
}

/// Replaces a file by what `edit` makes of its content, `None` = there is no such file. Other calls wait meanwhile, and
/// a reader sees the old content or the new one. The file keeps its owner, group and mode; a new one gets those of
/// `model`, so that the gateway can read it.
fn edit_file(
    path: &Path,
    model: &Path,
    edit: impl FnOnce(Option<Vec<u8>>) -> Result<Vec<u8>, String>,
) -> Result<(), CommandFault> {
    // A link stays a link.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let unwritten = |error: io::Error| failed(path, format!("cannot be written: {error}"));
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let lock = File::open(folder).map_err(unwritten)?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|error| unwritten(error.into()))?;
    let known = fs::metadata(&target).ok();
    let old = known.as_ref().map(|_| read_capped(&target, ApiKeyTable::BYTES_MAX)).transpose();
    let new = old.and_then(edit).map_err(|why| failed(path, why))?;
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let beside = folder.join(format!(".{name}.new"));
    let write = || -> io::Result<()> {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        if let Some(known) = known.or_else(|| fs::metadata(model).ok()) {
            let made = file.metadata()?;
            if (made.uid(), made.gid()) != (known.uid(), known.gid()) {
                fchown(&file, Some(known.uid()), Some(known.gid()))?;
            }
            file.set_permissions(PermissionsExt::from_mode(known.mode() & 0o777))?;
        }
        file.write_all(&new)?;
        file.sync_all()?;
        fs::rename(&beside, &target)?;
        lock.sync_all()
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&beside);
        unwritten(error)
    })
}

//! API keys: the table of a CSV file, which holds the hashes of keys, and the form of the keys that are made here.
//!
//! A key is long and random, so one SHA-256 is enough: nobody finds a key by trying, and a slow hash would only cost
//! each request. A table of a million keys takes about 70 bytes for each: hashes in ascending order, found by their
//! first bits, and one text that all lines share.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use csv_core::ReadRecordResult;

use crate::value::names;
use sluicegate_base::calendar::Anchor;
use sluicegate_base::file::FileContent;
use sluicegate_base::time_text;
use sluicegate_base::value_hash::sha256;

/// The SHA-256 of a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiKeyHash(pub [u8; 32]);

/// The keys of a file by their hashes.
#[derive(Default)]
pub struct ApiKeyTable {
    /// In ascending order of their hashes.
    entries: Box<[(ApiKeyHash, ApiKeyLine)]>,
    /// The position of the first hash whose leading bits are at least the index.
    starts: Box<[u32]>,
    /// The values of all lines, each behind its length in one byte: the account and the further columns.
    text: Box<[u8]>,
    tiers: Vec<Arc<str>>,
    /// The accounts with a date, in the order of their names: where the text has the name, and the date.
    anchors: Box<[(u32, Anchor)]>,
    /// The first line with another date than an earlier one of its account.
    other_anchor: Option<usize>,
    /// The names of the further columns.
    columns: Vec<String>,
    broken: BrokenLines,
}

/// A line of the table without its hash.
#[derive(Clone, Copy)]
struct ApiKeyLine {
    /// The position of its values in the text.
    text_at: u32,
    /// The index of its tier plus one; 0 = none.
    tier: u16,
    /// Seconds since 1970 at which it expires; 0 = disabled.
    until: u64,
}

/// One key that is in force.
#[derive(Clone, Copy)]
pub struct ApiKey<'t> {
    table: &'t ApiKeyTable,
    line: ApiKeyLine,
}

/// The lines of a file that do not count.
#[derive(Debug, Default, Clone, Copy)]
struct BrokenLines {
    count: usize,
    /// The number of the first one and its fault.
    first: Option<(usize, &'static str)>,
}

/// The columns of a file by their positions in its header.
pub struct KeyColumns {
    sha256: usize,
    account: usize,
    tier: Option<usize>,
    until: Option<usize>,
    disabled: Option<usize>,
    anchor: Option<usize>,
    /// Columns that the gateway itself does not read, with their names.
    further: Vec<(usize, String)>,
    count: usize,
}

/// Splits lines into values, as RFC 4180 and spreadsheets write them.
pub struct LineSplitter {
    /// Reused: its tables cost more than a line.
    reader: csv_core::Reader,
    values: Vec<u8>,
    ends: [usize; COLUMNS_MAX],
    count: usize,
}

/// The values of one line that the gateway reads.
pub struct KeyRecord<'r> {
    /// The SHA-256 of the key.
    pub hash: ApiKeyHash,
    /// The account of requests with the key; never empty.
    pub account: &'r [u8],
    /// The tier of these requests; `None` = that of the account.
    pub tier: Option<&'r str>,
    /// Seconds since 1970; `u64::MAX` = it does not expire.
    pub until: u64,
    /// The key is refused whatever its time.
    pub is_disabled: bool,
    /// The date by which windows of the account begin.
    pub anchor: Option<Anchor>,
}

/// Lines of a file, comments included.
const LINES_MAX: usize = 2_000_000;
const LINE_BYTES_MAX: usize = 8 * 1024;
const COLUMNS_MAX: usize = 32;
const TIERS_MAX: usize = 1_000;
/// Bytes of an account or of a value of a further column.
const VALUE_BYTES_MAX: usize = 255;
/// More broken lines than one in this many make the whole file broken.
const BROKEN_SHARE: usize = 100;

// === impl ApiKeyHash ===

impl ApiKeyHash {
    /// The hash of a key as a request presents it.
    pub fn of_key(key: &[u8]) -> ApiKeyHash {
        ApiKeyHash(sha256(key))
    }

    /// Reads 64 hexadecimal digits.
    pub fn from_hex(text: &[u8]) -> Option<ApiKeyHash> {
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
        let (pairs, []) = text.as_chunks::<2>() else { return None };
        let mut hash = [0; 32];
        if pairs.len() != hash.len() {
            return None;
        }
        for (byte, [high, low]) in hash.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(ApiKeyHash(hash))
    }

    fn leading_bits(&self, bits: u32) -> usize {
        let ApiKeyHash([a, b, c, d, ..]) = *self;
        (u64::from(u32::from_be_bytes([a, b, c, d])) >> (32 - bits)) as usize
    }
}

impl fmt::Display for ApiKeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

// === impl ApiKeyTable ===

impl ApiKeyTable {
    /// The names of the columns that `${key:NAME}` can read.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(String::as_str)
    }

    /// The key with this hash, unless it is unknown, expired or disabled. `now` in seconds since 1970.
    pub fn find_key(&self, hash: &ApiKeyHash, now: u64) -> Option<ApiKey<'_>> {
        let bucket = hash.leading_bits(self.starts.len().checked_ilog2()?);
        let first = self.starts[bucket] as usize;
        let end = self.starts.get(bucket + 1).map_or(self.entries.len(), |end| *end as usize);
        let bucket = &self.entries[first..end];
        let (_, line) = bucket[bucket.binary_search_by_key(hash, |(known, _)| *known).ok()?];
        (now < line.until).then_some(ApiKey { table: self, line })
    }

    /// The date of an account, whether or not its keys are in force.
    pub fn find_anchor(&self, account: &[u8]) -> Option<Anchor> {
        let found = self.anchors.binary_search_by(|(at, _)| value_at(&self.text, *at, 0).cmp(account));
        found.ok().map(|index| self.anchors[index].1)
    }

    /// Keeps the dates of accounts, those of the lines with these numbers; of several the first counts.
    fn keep_anchors(&mut self, mut anchors: Vec<(u32, Anchor, usize)>) {
        let account = |at: u32| value_at(&self.text, at, 0);
        anchors.sort_by_key(|(at, _, line)| (account(*at), *line));
        anchors.dedup_by(|(later, other, line), (first, anchor, _)| {
            let is_same = account(*later) == account(*first);
            if is_same && other != anchor && self.other_anchor.is_none_or(|known| *line < known) {
                self.other_anchor = Some(*line);
            }
            is_same
        });
        self.anchors = anchors.into_iter().map(|(at, anchor, _)| (at, anchor)).collect();
    }

    /// A table of lines in the order of the file: of a hash given twice the last line counts.
    fn build(mut entries: Vec<(ApiKeyHash, ApiKeyLine)>, table: ApiKeyTable) -> ApiKeyTable {
        entries.reverse();
        entries.sort_by_key(|(hash, _)| *hash);
        entries.dedup_by_key(|(hash, _)| *hash);
        let bits = entries.len().checked_ilog2().unwrap_or(0).min(24);
        let mut starts = vec![0; 1 << bits].into_boxed_slice();
        // Counts first, then sums: each start is the number of hashes in the buckets before it.
        for (hash, _) in &entries {
            if let Some(next) = starts.get_mut(hash.leading_bits(bits) + 1) {
                *next += 1;
            }
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        ApiKeyTable { entries: entries.into(), starts, ..table }
    }
}

/// Accounts and hashes are no business of a log.
impl fmt::Debug for ApiKeyTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} API keys", self.entries.len())
    }
}

impl FileContent for ApiKeyTable {
    const BYTES_MAX: u64 = 512 << 20;

    fn suggest_content(reason: &str, _: &str) -> Option<String> {
        reason.starts_with("has").then(|| {
            "the first line names the columns, such as sha256,account,tier; sluicegate api-key new adds a line"
                .to_owned()
        })
    }

    fn warning(&self) -> Option<String> {
        let broken = (self.broken.count > 0).then(|| format!("{}; the others count", self.broken));
        let other = self.other_anchor.map(|line| {
            format!("has another anchor for an account in line {line} than in an earlier line, which counts")
        });
        let all: Vec<String> = broken.into_iter().chain(other).collect();
        (!all.is_empty()).then(|| all.join("; it "))
    }
}

impl ApiKeyTable {
    /// The table of a file.
    ///
    /// # Errors
    /// A phrase that follows the file's name.
    pub fn parse(bytes: &[u8]) -> Result<ApiKeyTable, String> {
        let (mut table, mut text, mut entries) = (ApiKeyTable::default(), Vec::new(), Vec::new());
        let mut anchors = Vec::new();
        let (mut values, mut columns, mut total) = (LineSplitter::default(), None, 0);
        for (number, line) in numbered_lines(bytes) {
            if number > LINES_MAX {
                return Err(format!("has more than {LINES_MAX} lines"));
            }
            let split = values.split_line(line);
            let Some(columns) = &columns else {
                split.map_err(|reason| format!("has {reason} in its header"))?;
                columns = Some(KeyColumns::read_header(&values)?);
                continue;
            };
            total += 1;
            let read = split.and_then(|()| columns.read_record(&values)).and_then(|key| {
                let line = table.keep_line(&key, columns, &values, &mut text)?;
                anchors.extend(key.anchor.map(|anchor| (line.text_at, anchor, number)));
                Ok((key.hash, line))
            });
            // An earlier line of the same key must not count instead of a broken one.
            let disabled =
                || Some((columns.read_hash(&values)?, ApiKeyLine { text_at: 0, tier: 0, until: 0 }));
            entries.extend(match read {
                Ok(entry) => Some(entry),
                Err(reason) => {
                    table.broken.count_line(number, reason);
                    disabled()
                }
            });
        }
        if table.broken.count * BROKEN_SHARE > total {
            return Err(table.broken.to_string());
        }
        table.columns = columns.ok_or("has no header")?.further.into_iter().map(|(_, name)| name).collect();
        table.text = text.into();
        table.keep_anchors(anchors);
        Ok(ApiKeyTable::build(entries, table))
    }

    /// Adds the values of a line to the text.
    fn keep_line(
        &mut self,
        key: &KeyRecord<'_>,
        columns: &KeyColumns,
        values: &LineSplitter,
        text: &mut Vec<u8>,
    ) -> Result<ApiKeyLine, &'static str> {
        let text_at = u32::try_from(text.len()).map_err(|_| "a value beyond the first 4 GiB of values")?;
        let further = columns.further.iter().map(|(column, _)| values.value(*column));
        if further.clone().any(|value| !is_value(value)) {
            return Err("a value of a further column that is too long, not UTF-8 or has control bytes");
        }
        let tier = match key.tier {
            None => 0,
            Some(tier) => self.tier_index(tier).ok_or("a tier beyond the first 1000 tiers")?,
        };
        for value in std::iter::once(key.account).chain(further) {
            text.push(value.len() as u8);
            text.extend_from_slice(value);
        }
        let until = if key.is_disabled { 0 } else { key.until };
        Ok(ApiKeyLine { text_at, tier, until })
    }

    fn tier_index(&mut self, tier: &str) -> Option<u16> {
        let known = self.tiers.iter().position(|known| **known == *tier);
        let index = known.unwrap_or(self.tiers.len());
        if index == self.tiers.len() && index < TIERS_MAX {
            self.tiers.push(tier.into());
        }
        u16::try_from(index + 1).ok().filter(|_| index < TIERS_MAX)
    }
}

// === impl ApiKey ===

impl<'t> ApiKey<'t> {
    /// Never empty.
    pub fn account(&self) -> &'t [u8] {
        self.value(0)
    }

    /// Seconds since 1970 at which it expires.
    pub fn until(&self) -> u64 {
        self.line.until
    }

    /// The tier of the line; `None` = the account's own.
    pub fn tier(&self) -> Option<&'t str> {
        let index = usize::from(self.line.tier).checked_sub(1)?;
        self.table.tiers.get(index).map(|tier| &**tier)
    }

    /// The value of a further column; `None` if it is empty or the file has no such column.
    pub fn column(&self, name: &str) -> Option<&'t [u8]> {
        let index = self.table.columns.iter().position(|known| known == name)?;
        Some(self.value(index + 1)).filter(|value| !value.is_empty())
    }

    fn value(&self, index: usize) -> &'t [u8] {
        value_at(&self.table.text, self.line.text_at, index)
    }
}

/// The value with this index of the line at a position of the text; the first is the account.
fn value_at(text: &[u8], at: u32, index: usize) -> &[u8] {
    let mut rest = text.get(at as usize..).unwrap_or_default();
    for _ in 0..index {
        let skipped = rest.first().map_or(0, |len| usize::from(*len) + 1);
        rest = rest.get(skipped..).unwrap_or_default();
    }
    let len = rest.first().map_or(0, |len| usize::from(*len));
    rest.get(1..=len).unwrap_or_default()
}

// === impl BrokenLines ===

impl BrokenLines {
    fn count_line(&mut self, number: usize, reason: &'static str) {
        self.count += 1;
        self.first.get_or_insert((number, reason));
    }
}

impl fmt::Display for BrokenLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (line, reason) = self.first.unwrap_or_default();
        match self.count {
            1 => write!(f, "has a broken line: line {line} has {reason}"),
            count => write!(f, "has {count} broken lines: line {line} has {reason}"),
        }
    }
}

// === impl LineSplitter ===

/// The lines of a CSV file with their numbers, without empty lines and comments.
pub fn numbered_lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).enumerate();
    lines
        .map(|(index, line)| (index + 1, line))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with(b"#"))
}

impl Default for LineSplitter {
    fn default() -> LineSplitter {
        let (reader, values) = (csv_core::Reader::new(), vec![0; LINE_BYTES_MAX]);
        LineSplitter { reader, values, ends: [0; COLUMNS_MAX], count: 0 }
    }
}

impl LineSplitter {
    /// # Errors
    /// The fault of the line, a phrase that follows "line 7 has"; it then has no values.
    pub fn split_line(&mut self, line: &[u8]) -> Result<(), &'static str> {
        self.count = 0;
        if line.len() > LINE_BYTES_MAX {
            return Err("more than 8 KiB");
        }
        // Each line stands for itself: an open quotation mark would take the lines behind it for its value.
        if line.iter().filter(|byte| **byte == b'"').count() % 2 == 1 {
            return Err("a quotation mark that is not closed");
        }
        let reader = &mut self.reader;
        reader.reset();
        let (result, _, written, ends) = reader.read_record(line, &mut self.values, &mut self.ends);
        let (result, count) = match result {
            // The end of the input ends the record.
            ReadRecordResult::InputEmpty => {
                let (result, _, _, more) =
                    reader.read_record(b"", &mut self.values[written..], &mut self.ends[ends..]);
                (result, ends + more)
            }
            result => (result, ends),
        };
        if !matches!(result, ReadRecordResult::Record) {
            return Err("more than 32 values");
        }
        self.count = count;
        Ok(())
    }

    /// The values of the line in order.
    pub fn values(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.count).map(|index| self.value(index))
    }

    /// Empty where the line has no such value.
    pub fn value(&self, index: usize) -> &[u8] {
        if index >= self.count {
            return b"";
        }
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.values.get(start..self.ends[index]).unwrap_or_default().trim_ascii()
    }
}

// === impl KeyColumns ===

impl KeyColumns {
    /// # Errors
    /// A phrase that follows the file's name.
    pub fn read_header(header: &LineSplitter) -> Result<KeyColumns, String> {
        let position =
            |name: &str| header.values().position(|column| column.eq_ignore_ascii_case(name.as_bytes()));
        let needed =
            |name: &str| position(name).ok_or_else(|| format!("has no column `{name}` in its header"));
        let names = ["sha256", "account", "tier", "until", "disabled", "anchor"];
        let mut further = Vec::new();
        for (index, column) in header.values().enumerate() {
            let name = String::from_utf8_lossy(column).into_owned();
            if position(&name) != Some(index) {
                return Err(format!("has the column `{name}` twice"));
            }
            if !names.iter().any(|known| known.eq_ignore_ascii_case(&name)) {
                further.push((index, name));
            }
        }
        Ok(KeyColumns {
            sha256: needed("sha256")?,
            account: needed("account")?,
            tier: position("tier"),
            until: position("until"),
            disabled: position("disabled"),
            anchor: position("anchor"),
            further,
            count: header.count,
        })
    }

    fn read_hash(&self, values: &LineSplitter) -> Option<ApiKeyHash> {
        ApiKeyHash::from_hex(values.value(self.sha256))
    }

    /// # Errors
    /// The fault of the line, a phrase that follows "line 7 has". It quotes nothing of it.
    pub fn read_record<'r>(&self, values: &'r LineSplitter) -> Result<KeyRecord<'r>, &'static str> {
        let value = |column: Option<usize>| column.map_or(&b""[..], |column| values.value(column));
        if values.count > self.count {
            return Err("more values than the header has columns");
        }
        let hash = self.read_hash(values).ok_or("a hash that is not 64 hexadecimal digits")?;
        let account = values.value(self.account);
        if account.is_empty() {
            return Err("no account");
        }
        if !is_value(account) {
            return Err("an account that is too long, not UTF-8 or has control bytes");
        }
        let tier = match value(self.tier) {
            [] => None,
            tier => {
                let name = str::from_utf8(tier).ok().filter(|tier| names::check_tier_name(tier).is_ok());
                Some(name.ok_or("a tier that cannot be a name")?)
            }
        };
        let until = match value(self.until) {
            [] => u64::MAX,
            until => {
                let read = time_text::parse_rfc3339(until);
                read.ok_or("a time that is not written as 2027-01-31T00:00:00Z")?.0 / time_text::SECOND
            }
        };
        let anchor = match value(self.anchor) {
            [] => None,
            date => Some(Anchor::parse(date).ok_or("an anchor that is not a date such as 2024-01-31")?),
        };
        let disabled = value(self.disabled);
        let is_disabled = !disabled.is_empty() && !disabled.eq_ignore_ascii_case(b"false");
        Ok(KeyRecord { hash, account, tier, until, is_disabled, anchor })
    }
}

/// True if a value may stand in a header field and in a log.
fn is_value(value: &[u8]) -> bool {
    let is_text = str::from_utf8(value).is_ok_and(|text| !text.bytes().any(|byte| byte.is_ascii_control()));
    value.len() <= VALUE_BYTES_MAX && is_text
}

/// Keys that are made here begin with this, so that scanners of leaked secrets find them.
pub const KEY_PREFIX: &str = "sgk_";
const RANDOM_DIGITS: usize = 30;
const CHECKSUM_DIGITS: usize = 6;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A new key: 30 random digits of base 62, about 178 bits, and their CRC-32.
///
/// # Errors
/// The system has no random numbers.
pub fn generate_key() -> Result<String, &'static str> {
    let random = SystemRandom::new();
    let mut digits = String::with_capacity(RANDOM_DIGITS);
    let mut bytes = [0; 64];
    while digits.len() < RANDOM_DIGITS {
        random.fill(&mut bytes).map_err(|_| "the system gives no random numbers")?;
        // 248 is the greatest multiple of 62 in a byte: the bytes above it would favour some digits.
        let fair =
            bytes.iter().filter(|byte| **byte < 248).map(|byte| char::from(BASE62[usize::from(byte % 62)]));
        digits.extend(fair.take(RANDOM_DIGITS - digits.len()));
    }
    let sum = checksum(digits.as_bytes());
    Ok([KEY_PREFIX, &digits, str::from_utf8(&sum).unwrap_or_default()].concat())
}

/// True if the key begins as those that are made here and cannot be one of them: it was mistyped or cut.
pub fn is_mistyped(key: &[u8]) -> bool {
    let Some(rest) = key.strip_prefix(KEY_PREFIX.as_bytes()) else { return false };
    rest.split_at_checked(RANDOM_DIGITS).is_none_or(|(digits, sum)| checksum(digits) != sum)
}

/// The CRC-32 in base 62, most significant digit first, with zeros in front.
fn checksum(digits: &[u8]) -> [u8; CHECKSUM_DIGITS] {
    let mut rest = crc32fast::hash(digits);
    let mut sum = [b'0'; CHECKSUM_DIGITS];
    for digit in sum.iter_mut().rev() {
        *digit = BASE62[(rest % 62) as usize];
        rest /= 62;
    }
    sum
}

#[cfg(test)]
mod tests;

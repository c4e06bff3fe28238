//! The tiers of accounts, from `members` or from a CSV file with lines `id,tier`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::api_keys::numbered_lines;
use crate::value::names;
use sluicegate_base::file::FileContent;

/// The tiers of accounts.
#[derive(Clone, Default)]
pub struct TierMembers {
    /// Each name once, because many accounts share few tiers.
    tiers: BTreeSet<Arc<str>>,
    tier_by_account: HashMap<Box<[u8]>, Arc<str>>,
}

/// Lines of a CSV file, comments included.
const LINES_MAX: usize = 2_000_000;

impl TierMembers {
    /// Lines `id,tier`; skips empty lines, lines that begin with `#`, and a heading `id,tier`.
    ///
    /// # Errors
    /// A phrase that follows the file's name.
    pub fn parse(bytes: &[u8]) -> Result<TierMembers, String> {
        let (mut members, mut first) = (TierMembers::default(), true);
        for (number, line) in numbered_lines(bytes) {
            if number > LINES_MAX {
                return Err(format!("has more than {LINES_MAX} lines"));
            }
            if std::mem::take(&mut first) && line == b"id,tier" {
                continue;
            }
            let (account, tier) = split_pair(line).map_err(|reason| format!("{reason} in line {number}"))?;
            if !members.insert(account, tier) {
                return Err(format!("gives an account a tier for the second time in line {number}"));
            }
        }
        Ok(members)
    }

    /// The tier of `account`.
    pub fn tier_of(&self, account: &[u8]) -> Option<&str> {
        self.tier_by_account.get(account).map(|tier| &**tier)
    }

    /// True if no account has a tier.
    pub fn is_empty(&self) -> bool {
        self.tier_by_account.is_empty()
    }

    /// Every tier of at least one account, in the order of the alphabet.
    pub fn tiers(&self) -> impl Iterator<Item = &str> {
        self.tiers.iter().map(|tier| &**tier)
    }

    /// Gives `account` a tier; `false` if it has one already.
    pub fn insert(&mut self, account: &[u8], tier: &str) -> bool {
        let known = self.tiers.get(tier).cloned();
        let tier = known.unwrap_or_else(|| {
            let tier: Arc<str> = tier.into();
            self.tiers.insert(tier.clone());
            tier
        });
        self.tier_by_account.insert(account.into(), tier).is_none()
    }
}

/// Sorted, so that equal members look the same.
impl fmt::Debug for TierMembers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.tier_by_account.iter().collect::<BTreeMap<_, _>>()).finish()
    }
}

impl FileContent for TierMembers {
    const BYTES_MAX: u64 = 64 << 20;

    fn suggest_content(reason: &str, _: &str) -> Option<String> {
        reason.contains(" line").then(|| "write one line for each account, such as alice,gold".to_owned())
    }
}

/// Splits one line. Errors never quote the account, because readers of the log need not know the customers.
fn split_pair(line: &[u8]) -> Result<(&[u8], &str), &'static str> {
    if line.contains(&b'"') {
        return Err("has a quoted value, which is not supported,");
    }
    let mut values = line.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    match (values.next(), values.next(), values.next()) {
        (Some([]), Some(_), None) => Err("has no account"),
        (Some(account), Some(tier), None) => {
            let tier = str::from_utf8(tier).ok().filter(|tier| names::check_tier_name(tier).is_ok());
            tier.map(|tier| (account, tier)).ok_or("has a tier that cannot be a name")
        }
        _ => Err("has something other than `id,tier`"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn lines_are_accounts_and_their_tiers() {
        let text = b"\xef\xbb\xbf# customers\r\n\r\nid,tier\r\n alice , gold\r\nm\xfcller,free\nbob,gold";
        let members = TierMembers::parse(text).unwrap();
        assert_eq!(members.tier_of(b"alice"), Some("gold"));
        assert_eq!(members.tier_of(b"bob"), Some("gold"));
        assert_eq!(members.tier_of(b"m\xfcller"), Some("free"));
        assert_eq!(
            (members.tier_of(b"id"), members.tier_of(b""), members.tier_by_account.len()),
            (None, None, 3)
        );
        assert_eq!(members.tiers().collect::<BTreeSet<_>>(), BTreeSet::from(["gold", "free"]));
        assert!(TierMembers::parse(b"").unwrap().is_empty());
    }

    #[test]
    fn a_bad_line_is_reported_by_its_number_alone() {
        for (text, reason) in [
            ("a,gold\nb", "something other than `id,tier` in line 2"),
            ("a,gold,x", "something other"),
            (",gold", "no account in line 1"),
            ("a,", "a tier that cannot be a name in line 1"),
            ("a,go ld", "a tier that cannot be a name"),
            ("\n\"a\",gold", "a quoted value, which is not supported, in line 2"),
            ("secret-id,gold\nsecret-id,free", "for the second time in line 2"),
        ] {
            let message = TierMembers::parse(text.as_bytes()).unwrap_err();
            assert!(message.contains(reason) && !message.contains("secret-id"), "{text:?}: {message}");
        }
    }

    #[test]
    fn a_file_is_bounded() {
        let lines = "#\n".repeat(LINES_MAX);
        assert!(TierMembers::parse(lines.as_bytes()).is_ok());
        let more = format!("{lines}a,gold");
        assert!(TierMembers::parse(more.as_bytes()).unwrap_err().contains("2000000 lines"));
    }
}

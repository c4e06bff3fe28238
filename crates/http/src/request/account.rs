//! The account that a request names, and its tier.

use std::borrow::Cow;

use compact_str::CompactString;

use crate::request::source::{SourceInput, SourceValue, read_source};
use sluicegate_model::{self as model, Config, TierRules, ValueSource};

/// The request names its account or its tier more than once: a 400, whatever its limits count by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DuplicateAccount;

/// The account, if the configuration has a source and the request a value for it. An empty name is none.
#[inline(always)]
pub fn find_account<'a>(
    from: Option<&ValueSource>,
    input: &SourceInput<'a>,
) -> Result<Option<Cow<'a, [u8]>>, DuplicateAccount> {
    let Some(source) = from else { return Ok(None) };
    match read_source(source, input) {
        SourceValue::One(account) => Ok(Some(account)),
        SourceValue::Absent => Ok(None),
        SourceValue::Repeated => Err(DuplicateAccount),
    }
}

/// The name of a tier, up to 64 visible ASCII characters. Most are short and need no allocation.
pub type Tier = CompactString;

/// Finds the tier of a request.
pub struct Tiers(TierRules);

impl Tiers {
    /// `None` if nothing in the configuration depends on tiers.
    pub fn new(config: &Config) -> Option<Tiers> {
        let rules = &config.account.tier;
        let uses_tiers = rules.is_configured()
            || config.account.keys.is_some()
            || config.limits.iter().any(|limit| !limit.tiers.is_empty());
        uses_tiers.then(|| Tiers(rules.clone()))
    }

    /// The tier of the API key, else by `members`, else by the file, else by the value of `from` in the request, else
    /// the default: the operator's settings come before the request. An invalid tier name counts as none.
    pub fn find_tier(
        &self,
        key_tier: Option<Tier>,
        account: Option<&[u8]>,
        input: &SourceInput<'_>,
    ) -> Result<Tier, DuplicateAccount> {
        if let Some(tier) = key_tier {
            return Ok(tier);
        }
        let Tiers(rules) = self;
        if let Some(account) = account {
            let in_file =
                || rules.file.as_ref().and_then(|file| file.content().tier_of(account).map(Tier::from));
            if let Some(tier) = rules.members.tier_of(account).map(Tier::from).or_else(in_file) {
                return Ok(tier);
            }
        }
        let Some(from) = &rules.from else { return Ok(rules.default.as_str().into()) };
        match read_source(from, input) {
            SourceValue::One(name) => {
                let name = str::from_utf8(&name).ok().filter(|name| model::is_tier_name(name));
                Ok(name.unwrap_or(&rules.default).into())
            }
            SourceValue::Absent => Ok(rules.default.as_str().into()),
            SourceValue::Repeated => Err(DuplicateAccount),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;
    use sluicegate_config as config;

    fn headers(name: &'static str, values: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    fn head_of(headers: &HeaderMap) -> SourceInput<'_> {
        SourceInput { headers, query: None, token: None, body: None }
    }

    #[test]
    fn the_account_is_the_one_value_of_its_source() {
        let source = ValueSource::Header(http::HeaderName::from_static("x-account-id"));
        let read = |values: &[&'static str]| {
            find_account(Some(&source), &head_of(&headers("x-account-id", values)))
                .map(|account| account.map(Cow::into_owned))
        };
        assert_eq!(read(&["alice"]), Ok(Some(b"alice".to_vec())));
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[""]), Ok(None), "an empty name is no name");
        assert_eq!(read(&["alice", "bob"]), Err(DuplicateAccount));
        assert_eq!(read(&["alice", "alice"]), Err(DuplicateAccount), "twice the same is twice");
    }

    #[test]
    fn without_a_source_there_is_no_account() {
        let headers = headers("x-account-id", &["alice", "bob"]);
        assert_eq!(
            find_account(None, &SourceInput { query: Some("account=eve"), ..head_of(&headers) }),
            Ok(None)
        );
    }

    fn tiers(section: &str, limit: &str) -> Option<Tiers> {
        let yaml = format!(
            "account: {{ from: header:x-a, tier: {{ {section} }} }}\n\
             locations: [{{ path: /, upstream: demo, limits: {{ rate: 1/s, {limit} }} }}]\n"
        );
        let loaded = config::parse(&yaml, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
        Tiers::new(&loaded.config)
    }

    #[test]
    fn settings_of_the_operator_come_before_the_request() {
        let tiers = tiers("from: header:x-tier, members: { alice: gold }, default: free", "").unwrap();
        let read = |account: Option<&str>, values: &[&'static str]| {
            let headers = headers("x-tier", values);
            tiers
                .find_tier(None, account.map(str::as_bytes), &head_of(&headers))
                .map(|tier| tier.as_str().to_owned())
        };
        assert_eq!(read(Some("alice"), &["silver"]).unwrap(), "gold");
        assert_eq!(read(Some("alice"), &["silver", "lead"]).unwrap(), "gold", "the header is not read");
        assert_eq!(read(Some("bob"), &["silver"]).unwrap(), "silver");
        assert_eq!(read(None, &["silver"]).unwrap(), "silver");
        assert_eq!(read(Some("bob"), &[]).unwrap(), "free");
        assert_eq!(read(Some("bob"), &["silver", "gold"]), Err(DuplicateAccount));
    }

    #[test]
    fn an_invalid_tier_is_the_default() {
        let tiers = tiers("from: header:x-tier", "").unwrap();
        let read = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert("x-tier", HeaderValue::from_bytes(value).unwrap());
            tiers.find_tier(None, None, &head_of(&headers)).unwrap().as_str().to_owned()
        };
        let long = "x".repeat(64);
        assert_eq!(read(long.as_bytes()), long);
        for wrong in [format!("{long}x").as_bytes(), b"go ld", b"g\xf6ld", b"\t", b""] {
            assert_eq!(read(wrong), "default");
        }
    }

    #[test]
    fn tiers_are_looked_up_only_if_they_are_used() {
        assert!(tiers("from: none, default: default", "").is_none());
        assert!(tiers("default: free", "").is_some());
        assert!(tiers("", "tiers: { gold: none }").is_some());
    }
}

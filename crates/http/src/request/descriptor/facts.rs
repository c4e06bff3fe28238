//! The facts that the entries of a descriptor state: those by which limits make their keys.

use std::borrow::Cow;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::Entries;
use crate::request::account::Tier;
use crate::request::location;
use sluicegate_model as model;

/// The facts that a descriptor states of the request behind it. Facts that it does not state are empty.
#[derive(Default)]
pub struct DescriptorFacts<'d> {
    /// The client's address in canonical form; of a network, its address.
    pub ip: Option<IpAddr>,
    /// The method; GET if none is stated.
    pub method: Method,
    /// Normalised if it begins with a slash.
    pub path: Cow<'d, [u8]>,
    /// The query without its question mark.
    pub query: Option<&'d str>,
    /// Canonical.
    pub host: Cow<'d, str>,
    /// The entries that limits read as headers.
    pub headers: HeaderMap,
    /// The name of the account, never empty.
    pub account: Option<&'d [u8]>,
    /// The tier; `None` also if the stated name cannot be one.
    pub tier: Option<Tier>,
}

/// An entry that counts as a header and has a value that no header has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnusableEntry {
    /// The index of the entry in the descriptor.
    pub index: usize,
}

// === impl DescriptorFacts ===

impl<'d> DescriptorFacts<'d> {
    /// `read_headers`: the names of the entries that limits read as headers.
    ///
    /// # Errors
    /// One of these entries has control characters in its value.
    pub fn read(
        entries: &Entries<'d>,
        read_headers: &[HeaderName],
    ) -> Result<DescriptorFacts<'d>, UnusableEntry> {
        let mut facts = DescriptorFacts { path: Cow::Borrowed(b"/"), ..DescriptorFacts::default() };
        for &(name, value) in entries {
            facts.state_entry(name, value);
        }
        for name in read_headers {
            if let Some(value) = join_values(entries, name)? {
                facts.headers.insert(name.clone(), value);
            }
        }
        Ok(facts)
    }

    /// A value that cannot be such a fact states none: the entry may mean something else.
    fn state_entry(&mut self, name: &str, value: &'d str) {
        match name {
            "remote_address" | "masked_remote_address" => {
                let address = value.split('/').next().unwrap_or_default();
                self.ip = address.parse::<IpAddr>().ok().map(|ip| ip.to_canonical()).or(self.ip);
            }
            "path" | ":path" => {
                let (path, query) =
                    value.split_once('?').map_or((value, None), |(path, query)| (path, Some(query)));
                let normalised = path.starts_with('/').then(|| location::normalise_path(path).ok()).flatten();
                (self.path, self.query) = (normalised.unwrap_or(Cow::Borrowed(path.as_bytes())), query);
            }
            "method" | ":method" => {
                self.method = Method::from_bytes(value.as_bytes()).unwrap_or_else(|_| self.method.clone());
            }
            "host" | "authority" | ":authority" => {
                self.host = location::canonical_host(value).unwrap_or(Cow::Borrowed(value));
            }
            "account" if !value.is_empty() => self.account = Some(value.as_bytes()),
            "tier" if model::is_tier_name(value) => self.tier = Some(Tier::from(value)),
            _ => {}
        }
    }
}

/// The value of the entries with this name; several are joined, as several lines of a header are.
fn join_values(entries: &Entries<'_>, name: &HeaderName) -> Result<Option<HeaderValue>, UnusableEntry> {
    let is_own = |entry: &(usize, &(&str, &str))| entry.1.0.eq_ignore_ascii_case(name.as_str());
    let mut own = entries.iter().enumerate().filter(is_own);
    let Some((index, (_, value))) = own.next() else { return Ok(None) };
    let first = HeaderValue::from_str(value).or_else(|_| HeaderValue::from_bytes(value.as_bytes()));
    let first = first.map_err(|_| UnusableEntry { index })?;
    let Some(second) = own.next() else { return Ok(Some(first)) };
    let mut joined = first.as_bytes().to_vec();
    for (index, (_, value)) in std::iter::once(second).chain(own) {
        HeaderValue::from_bytes(value.as_bytes()).map_err(|_| UnusableEntry { index })?;
        joined.push(b',');
        joined.extend_from_slice(value.as_bytes());
    }
    HeaderValue::from_maybe_shared(joined).map(Some).map_err(|_| UnusableEntry { index })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'d>(entries: &[(&'d str, &'d str)], names: &[&'static str]) -> DescriptorFacts<'d> {
        let names: Vec<HeaderName> = names.iter().map(|name| HeaderName::from_static(name)).collect();
        DescriptorFacts::read(&entries.iter().copied().collect(), &names).unwrap()
    }

    #[test]
    fn entries_are_the_facts_of_a_request() {
        let facts = read(
            &[
                ("remote_address", "::ffff:192.0.2.7"),
                ("path", "/a/../b?q=1"),
                ("method", "POST"),
                ("account", "acme"),
                ("tier", "gold"),
                ("host", "Example.COM:80"),
                ("To_Number", "1"),
                ("other", "x"),
            ],
            &["to_number", "absent"],
        );
        assert_eq!(facts.ip, Some("192.0.2.7".parse().unwrap()));
        assert_eq!((&*facts.path, facts.query), (&b"/b"[..], Some("q=1")));
        assert_eq!((facts.method, facts.account), (Method::POST, Some(&b"acme"[..])));
        assert_eq!((facts.tier.as_ref().map(Tier::as_str), &*facts.host), (Some("gold"), "example.com"));
        assert_eq!(facts.headers.get("to_number").unwrap(), "1");
        assert_eq!(facts.headers.len(), 1);
    }

    #[test]
    fn a_value_that_is_no_such_fact_states_none() {
        let facts = read(
            &[("remote_address", "unknown"), ("path", "login"), ("method", "a b"), ("tier", "a b")],
            &["path"],
        );
        assert_eq!((facts.ip, &*facts.path, facts.method), (None, &b"login"[..], Method::GET));
        assert!(facts.tier.is_none());
        assert_eq!(facts.headers.get("path").unwrap(), "login");
        let masked = read(&[("masked_remote_address", "10.1.0.0/16")], &[]);
        assert_eq!(masked.ip, Some("10.1.0.0".parse().unwrap()));
    }

    #[test]
    fn several_values_are_one_and_control_characters_are_refused() {
        assert_eq!(
            read(&[("n", "1"), ("m", ""), ("N", "ü")], &["n"]).headers.get("n").unwrap(),
            "1,ü".as_bytes()
        );
        let names = [HeaderName::from_static("n")];
        let refused = |entries: &[(&'static str, &'static str)]| {
            DescriptorFacts::read(&entries.iter().copied().collect(), &names).err()
        };
        assert_eq!(refused(&[("m", ""), ("n", "a\nb")]), Some(UnusableEntry { index: 1 }));
        assert_eq!(refused(&[("n", ""), ("n", "\0")]), Some(UnusableEntry { index: 1 }));
        assert_eq!(refused(&[("m", "\n")]), None);
    }
}

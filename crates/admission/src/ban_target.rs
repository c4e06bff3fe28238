//! The target of a ban, as operators write and read it: an address, a network, or an account.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use sluicegate_base::ip_set::unmap_network;

/// `192.0.2.7`, `10.0.0.0/8` or `account=acme`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum BanTarget {
    /// An address is a network of its full length. Never one of mapped IPv4 addresses, and without host bits.
    Network(IpNet),
    /// The name of an account, 1 to 1,024 bytes.
    Account(String),
}

/// A text that names no target of a ban.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("write an address, a network such as 10.0.0.0/8, or account=NAME")]
pub struct InvalidTarget;

/// The longest name of an account, in bytes.
const ACCOUNT_MAX: usize = 1024;

// === impl BanTarget ===

impl BanTarget {
    pub(crate) fn from_network(network: IpNet) -> BanTarget {
        BanTarget::Network(unmap_network(network).trunc())
    }
}

impl FromStr for BanTarget {
    type Err = InvalidTarget;

    fn from_str(text: &str) -> Result<BanTarget, InvalidTarget> {
        match text.strip_prefix("account=") {
            Some(name) if (1..=ACCOUNT_MAX).contains(&name.len()) => Ok(BanTarget::Account(name.to_owned())),
            Some(_) => Err(InvalidTarget),
            None => match text.parse::<IpAddr>() {
                Ok(ip) => Ok(BanTarget::from_network(ip.into())),
                Err(_) => text.parse().map(BanTarget::from_network).map_err(|_| InvalidTarget),
            },
        }
    }
}

impl fmt::Display for BanTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BanTarget::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                network.addr().fmt(f)
            }
            BanTarget::Network(network) => network.fmt(f),
            BanTarget::Account(name) => write!(f, "account={name}"),
        }
    }
}

impl From<BanTarget> for String {
    fn from(target: BanTarget) -> String {
        target.to_string()
    }
}

impl TryFrom<String> for BanTarget {
    type Error = InvalidTarget;

    fn try_from(text: String) -> Result<BanTarget, InvalidTarget> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_in_one_form() {
        let read = |text: &str| text.parse::<BanTarget>().map(|target| target.to_string());
        for (text, target) in [
            ("192.0.2.7", "192.0.2.7"),
            ("192.0.2.7/32", "192.0.2.7"),
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("::ffff:10.1.0.0/104", "10.0.0.0/8"),
            ("2001:DB8::1", "2001:db8::1"),
            ("2001:db8::1/64", "2001:db8::/64"),
            ("account=acme", "account=acme"),
            ("account=a=b c", "account=a=b c"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(target), "{text}");
        }
        let long = format!("account={}", "x".repeat(1025));
        for text in ["", "acme", "account=", "10.0.0.0/33", "10.0.0", "host.test", &long] {
            assert_eq!(read(text), Err(InvalidTarget), "{text}");
        }
    }
}

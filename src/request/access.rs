//! Who may come in: deny beats allow beats bypass.

use std::net::IpAddr;
use std::sync::Arc;

use crate::base::ip_set::{IpSet, IpSets};
use crate::config;

/// The access rules of a location, or of the requests that no location serves.
#[derive(Debug)]
pub struct Access {
    /// `None` = any.
    allow: Option<IpSets>,
    deny: IpSets,
    bypass: IpSets,
}

/// What the access rules make of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// May not come in.
    Denied,
    /// No limits and no bans.
    Bypassed,
    Ordinary,
}

impl Access {
    /// `None` for rules that make every client an ordinary one.
    pub fn new(config: &config::Access, sets: &[Arc<IpSet>]) -> Option<Access> {
        let says_nothing = config.allow.is_none() && config.deny.is_empty() && config.bypass.is_empty();
        (!says_nothing).then(|| Access {
            allow: config.allow.as_ref().map(|networks| IpSets::new(networks, sets)),
            deny: IpSets::new(&config.deny, sets),
            bypass: IpSets::new(&config.bypass, sets),
        })
    }

    /// `ip` is the client's whole address, in canonical form.
    #[inline]
    pub fn standing(&self, ip: IpAddr) -> Standing {
        if self.deny.contain(ip) || self.allow.as_ref().is_some_and(|allow| !allow.contain(ip)) {
            Standing::Denied
        } else if self.bypass.contain(ip) {
            Standing::Bypassed
        } else {
            Standing::Ordinary
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Networks;

    fn networks(text: &[&str]) -> Networks {
        Networks { written: text.iter().map(|net| net.parse().unwrap()).collect(), sets: vec![] }
    }

    #[test]
    fn deny_beats_allow_beats_bypass() {
        let config = config::Access {
            allow: Some(networks(&["10.0.0.0/8"])),
            deny: networks(&["10.0.0.66/32"]),
            bypass: networks(&["10.0.0.0/24", "192.0.2.1/32"]),
        };
        let access = Access::new(&config, &[]).expect("rules");
        let standing = |ip: &str| access.standing(ip.parse().unwrap());
        assert_eq!(standing("10.0.0.66"), Standing::Denied, "denied, although allowed and bypassed");
        assert_eq!(standing("192.0.2.1"), Standing::Denied, "not allowed, although bypassed");
        assert_eq!(standing("10.0.0.1"), Standing::Bypassed);
        assert_eq!(standing("10.0.1.1"), Standing::Ordinary);
    }

    #[test]
    fn rules_that_say_nothing_are_none() {
        assert!(Access::new(&config::Access::default(), &[]).is_none());
        let nobody = config::Access { allow: Some(Networks::default()), ..config::Access::default() };
        assert_eq!(Access::new(&nobody, &[]).unwrap().standing([10, 0, 0, 1].into()), Standing::Denied);
    }
}

//! Access rules by client address: deny beats allow beats bypass.

use std::net::IpAddr;
use std::sync::Arc;

use sluicegate_base::ip_set::{IpSet, IpSets};
use sluicegate_model::{self as model, NetworkList};

/// The access rules of a location, or of requests without a location.
#[derive(Debug)]
pub struct Access {
    /// `None` = any.
    allow: Option<IpSets>,
    deny: IpSets,
    bypass: IpSets,
}

/// The decision of the access rules for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessDecision {
    /// The client is in `deny`, or `allow` is set and does not contain it.
    Rejected,
    /// Exempt from limits and bans.
    Bypassed,
    /// Admitted, and subject to limits and bans.
    Ordinary,
}

impl Access {
    /// `None` if there are no rules.
    pub fn new(config: &model::AccessConfig, sets: &[Arc<IpSet>]) -> Option<Access> {
        let is_empty = config.allow.is_none() && config.deny.is_empty() && config.bypass.is_empty();
        let ip_sets = |networks: &NetworkList| IpSets::new(&networks.written, &networks.sets, sets);
        (!is_empty).then(|| Access {
            allow: config.allow.as_ref().map(ip_sets),
            deny: ip_sets(&config.deny),
            bypass: ip_sets(&config.bypass),
        })
    }

    /// `ip` is the client's unmasked address in canonical form.
    #[inline]
    pub fn decide_access(&self, ip: IpAddr) -> AccessDecision {
        if self.deny.contain_ip(ip) || self.allow.as_ref().is_some_and(|allow| !allow.contain_ip(ip)) {
            AccessDecision::Rejected
        } else if self.bypass.contain_ip(ip) {
            AccessDecision::Bypassed
        } else {
            AccessDecision::Ordinary
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(text: &[&str]) -> NetworkList {
        NetworkList { written: text.iter().map(|net| net.parse().unwrap()).collect(), sets: vec![] }
    }

    #[test]
    fn deny_beats_allow_beats_bypass() {
        let config = model::AccessConfig {
            allow: Some(networks(&["10.0.0.0/8"])),
            deny: networks(&["10.0.0.66/32"]),
            bypass: networks(&["10.0.0.0/24", "192.0.2.1/32"]),
        };
        let access = Access::new(&config, &[]).expect("rules");
        let decision = |ip: &str| access.decide_access(ip.parse().unwrap());
        assert_eq!(decision("10.0.0.66"), AccessDecision::Rejected, "denied, although allowed and bypassed");
        assert_eq!(decision("192.0.2.1"), AccessDecision::Rejected, "not allowed, although bypassed");
        assert_eq!(decision("10.0.0.1"), AccessDecision::Bypassed);
        assert_eq!(decision("10.0.1.1"), AccessDecision::Ordinary);
    }

    #[test]
    fn empty_rules_are_none() {
        assert!(Access::new(&model::AccessConfig::default(), &[]).is_none());
        let allow_none =
            model::AccessConfig { allow: Some(NetworkList::default()), ..model::AccessConfig::default() };
        assert_eq!(
            Access::new(&allow_none, &[]).unwrap().decide_access([10, 0, 0, 1].into()),
            AccessDecision::Rejected
        );
    }
}

//! Sets of networks, and the test whether an address is in one of them.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};
use prefix_trie::joint::JointPrefixSet;

/// A set of networks, shared by all fields of the configuration that name it.
#[derive(Debug)]
pub struct IpSet(Box<JointPrefixSet<IpNet>>);

/// The networks of one field: those written in it, and the sets it names.
#[derive(Debug, Clone, Default)]
pub struct IpSets(Box<[Arc<IpSet>]>);

// === impl IpSet ===

impl IpSet {
    /// The set of these networks; a network of IPv4-mapped addresses counts as the one of IPv4.
    pub fn new(networks: &[IpNet]) -> IpSet {
        IpSet(Box::new(networks.iter().map(|network| unmap_network(*network)).collect()))
    }

    /// True if `ip`, in canonical form, is in one of the networks.
    #[inline]
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.0.is_covered(&IpNet::from(ip))
    }
}

// === impl IpSets ===

impl IpSets {
    /// The networks written in a field, and the sets that it names by their places in `sets`.
    pub fn new(written: &[IpNet], named: &[usize], sets: &[Arc<IpSet>]) -> IpSets {
        let own = (!written.is_empty()).then(|| Arc::new(IpSet::new(written)));
        IpSets(own.into_iter().chain(named.iter().map(|&set| sets[set].clone())).collect())
    }

    /// True if `ip`, in canonical form, is in any of the sets.
    #[inline]
    pub fn contain_ip(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|set| set.contains(ip))
    }
}

/// `::ffff:10.0.0.0/104` is `10.0.0.0/8`: addresses are compared after the same step.
pub fn unmap_network(network: IpNet) -> IpNet {
    let IpNet::V6(v6) = network else { return network };
    let plain = v6.addr().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(96));
    let plain = plain.and_then(|(address, prefix)| Ipv4Net::new(address, prefix).ok());
    plain.map_or(network, IpNet::V4)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nets(text: &[&str]) -> Vec<IpNet> {
        text.iter().map(|net| net.parse().unwrap()).collect()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// The same networks, few and among many others.
    fn few_and_many(text: &[&str]) -> [IpSet; 2] {
        let mut networks = nets(text);
        let few = IpSet::new(&networks);
        networks.extend((0..40_u8).map(|n| IpNet::new(ip(&format!("203.0.113.{n}")), 32).unwrap()));
        [few, IpSet::new(&networks)]
    }

    #[test]
    fn an_address_is_in_a_network_that_covers_it() {
        for set in few_and_many(&["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32", "10.1.0.0/16"]) {
            for inside in ["10.0.0.0", "10.1.2.3", "10.255.255.255", "192.0.2.7", "2001:db8:ffff::1"] {
                assert!(set.contains(ip(inside)), "{inside}");
            }
            for outside in ["9.255.255.255", "11.0.0.0", "192.0.2.6", "2001:db9::", "::10.0.0.1", "::"] {
                assert!(!set.contains(ip(outside)), "{outside}");
            }
        }
        assert!(!IpSet::new(&[]).contains(ip("10.0.0.1")));
    }

    #[test]
    fn everything_can_be_named() {
        for set in few_and_many(&["0.0.0.0/0", "::/0"]) {
            assert!(
                ["0.0.0.0", "255.255.255.255", "::", "fe80::1"].into_iter().all(|one| set.contains(ip(one)))
            );
        }
        for set in few_and_many(&["0.0.0.0/0"]) {
            assert!(!set.contains(ip("2001:db8::1")));
        }
    }

    #[test]
    fn mapped_networks_are_ipv4_and_wider_ones_are_not() {
        for set in few_and_many(&["::ffff:10.0.0.0/104"]) {
            assert!(set.contains(ip("10.1.2.3")) && !set.contains(ip("11.0.0.1")));
        }
        assert_eq!(unmap_network("::/0".parse().unwrap()).to_string(), "::/0");
    }

    #[test]
    fn a_field_names_networks_and_shared_sets() {
        let named =
            vec![Arc::new(IpSet::new(&nets(&["10.0.0.0/8"]))), Arc::new(IpSet::new(&nets(&["::1/128"])))];
        let sets = IpSets::new(&nets(&["192.0.2.0/24"]), &[1], &named);
        assert!(
            sets.contain_ip(ip("192.0.2.9"))
                && sets.contain_ip(ip("::1"))
                && !sets.contain_ip(ip("10.0.0.1"))
        );
        assert_eq!(Arc::strong_count(&named[1]), 2, "shared, not copied");
        assert!(!IpSets::default().contain_ip(ip("10.0.0.1")));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

        #[test]
        fn a_trie_agrees_with_a_slice(
            networks in proptest::collection::vec((0..64_u32, 26..=32_u8, any::<bool>()), 0..60),
            queries in proptest::collection::vec((0..64_u32, any::<bool>()), 50),
        ) {
            let address = |low: u32, v6: bool| match v6 {
                false => IpAddr::from((0x0A00_0000 | low).to_be_bytes()),
                true => IpAddr::from((0x2001_0DB8_u128 << 96 | u128::from(low)).to_be_bytes()),
            };
            let net = |&(low, prefix, v6): &(u32, u8, bool)| {
                IpNet::new(address(low, v6), if v6 { prefix + 96 } else { prefix }).unwrap().trunc()
            };
            let networks: Vec<IpNet> = networks.iter().map(net).collect();
            let set = IpSet::new(&networks);
            for (low, v6) in queries {
                let ip = address(low, v6);
                prop_assert_eq!(set.contains(ip), networks.iter().any(|net| net.contains(&ip)), "{}", ip);
            }
        }
    }
}

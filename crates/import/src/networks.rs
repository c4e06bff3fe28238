//! Ordered rules of networks as sets: the first rule, or the longest prefix, decides about an address.

use std::net::IpAddr::{self, V4, V6};
use std::net::Ipv6Addr;

use ipnet::{IpNet, Ipv4Net, Ipv4Subnets, Ipv6Net, Ipv6Subnets};

/// More networks than this are not written.
const NETWORKS_MAX: usize = 20_000;

/// All addresses of both families.
pub(super) fn all_networks() -> [IpNet; 2] {
    [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())]
}

/// The addresses of `net` that are in none of `holes`; `None` = they are too many networks.
fn subtract_networks(net: IpNet, holes: &[IpNet], out: &mut Vec<IpNet>) -> Option<()> {
    if out.len() > NETWORKS_MAX {
        return None;
    }
    let inside: Vec<IpNet> = holes.iter().filter(|hole| net.contains(*hole)).copied().collect();
    if holes.iter().any(|hole| hole.contains(&net)) {
        return Some(());
    }
    if inside.is_empty() {
        out.push(net);
        return Some(());
    }
    // A network with a hole inside is longer than one address, so it has two halves.
    if let Ok(halves) = net.subnets(net.prefix_len() + 1) {
        for half in halves {
            subtract_networks(half, &inside, out)?;
        }
    }
    Some(())
}

/// The networks for which the first matching rule says `wanted`; `None` = too many.
pub(super) fn first_match(rules: &[(IpNet, bool)], wanted: bool) -> Option<Vec<IpNet>> {
    let (mut out, mut before) = (Vec::new(), Vec::new());
    for (net, says) in rules {
        if *says == wanted {
            subtract_networks(*net, &before, &mut out)?;
        }
        before.push(*net);
    }
    Some(IpNet::aggregate(&out))
}

/// The networks for which the longest matching prefix says `wanted`; every network is in the rules once. `None` = too
/// many.
pub(super) fn longest_match(rules: &[(IpNet, bool)], wanted: bool) -> Option<Vec<IpNet>> {
    let mut ordered = rules.to_vec();
    // Each network comes behind those that contain it, which wait with the networks directly inside them.
    ordered.sort_unstable();
    let (mut around, mut out) = (Vec::<(IpNet, bool, Vec<IpNet>)>::new(), Vec::new());
    for next in ordered.iter().map(Some).chain([None]) {
        let ends = |(net, ..): &mut (IpNet, _, _)| next.is_none_or(|(inner, _)| !net.contains(inner));
        while let Some((net, says, inside)) = around.pop_if(ends) {
            if says == wanted {
                subtract_networks(net, &inside, &mut out)?;
            }
        }
        if let Some((net, says)) = next {
            around.iter_mut().last().into_iter().for_each(|(.., inside)| inside.push(*net));
            around.push((*net, *says, Vec::new()));
        }
    }
    Some(IpNet::aggregate(&out))
}

/// Addresses of IPv4 as those of IPv6: nginx finds none of its clients in such networks.
const MAPPED: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96);

/// An address or a network.
///
/// # Errors
/// The text is neither.
pub(super) fn parse_networks(text: &str) -> Result<Vec<IpNet>, String> {
    let found = parse_range(text).filter(|_| !text.contains('-'));
    found.ok_or_else(|| format!("`{text}` is not an address or network"))
}

/// An address, a network, or `FIRST-LAST`.
pub(super) fn parse_range(text: &str) -> Option<Vec<IpNet>> {
    let mut nets = split_range(text)?;
    nets.retain(|net| !IpNet::V6(MAPPED).contains(net));
    Some(nets)
}

fn split_range(text: &str) -> Option<Vec<IpNet>> {
    if let Ok(net) = text.parse::<IpNet>() {
        return Some(vec![net.trunc()]);
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(vec![IpNet::from(address)]);
    }
    let (first, last) = text.split_once('-')?;
    match (first.parse().ok()?, last.parse().ok()?) {
        (V4(first), V4(last)) if first <= last => {
            Some(Ipv4Subnets::new(first, last, 0).map(IpNet::V4).collect())
        }
        (V6(first), V6(last)) if first <= last => {
            Some(Ipv6Subnets::new(first, last, 0).map(IpNet::V6).collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[(&str, bool)]) -> Vec<(IpNet, bool)> {
        texts.iter().map(|(text, says)| (text.parse().unwrap(), *says)).collect()
    }

    fn text(nets: Option<Vec<IpNet>>) -> Vec<String> {
        nets.unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_first_rule_decides() {
        let rules = nets(&[("10.1.0.0/16", false), ("10.0.0.0/8", true), ("10.2.0.0/16", false)]);
        let allowed = text(first_match(&rules, true));
        assert!(allowed.contains(&"10.0.0.0/16".to_owned()) && allowed.contains(&"10.128.0.0/9".to_owned()));
        assert!(!allowed.iter().any(|net| net.starts_with("10.1.")));
        assert_eq!(
            text(first_match(&rules, false)),
            ["10.1.0.0/16"],
            "10.2/16 is allowed by the rule before"
        );
    }

    #[test]
    fn the_longest_prefix_decides() {
        let rules = nets(&[("10.0.0.0/8", true), ("10.1.0.0/16", false), ("10.1.2.0/24", true)]);
        let yes = text(longest_match(&rules, true));
        assert!(yes.contains(&"10.1.2.0/24".to_owned()) && !yes.contains(&"10.1.0.0/16".to_owned()));
    }

    #[test]
    fn a_rule_decides_as_for_single_addresses() {
        let mut seed = 1_u32;
        let mut roll = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % below
        };
        for _ in 0..300 {
            let mut rule = |_| {
                let address = std::net::Ipv4Addr::new(10, 0, 0, roll(256) as u8);
                let net = Ipv4Net::new(address, 24 + roll(9) as u8).unwrap().trunc();
                (IpNet::V4(net), roll(2) == 0)
            };
            let rules: std::collections::BTreeMap<IpNet, bool> = (0..12).map(&mut rule).collect();
            let rules: Vec<(IpNet, bool)> = rules.into_iter().rev().collect();
            let (first, longest) = (first_match(&rules, true).unwrap(), longest_match(&rules, true).unwrap());
            for last in 0..=255 {
                let address = std::net::IpAddr::from([10, 0, 0, last]);
                let around: Vec<_> = rules.iter().filter(|(net, _)| net.contains(&address)).collect();
                let has = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&address));
                assert_eq!(has(&first), around.first().is_some_and(|rule| rule.1), "{rules:?} {address}");
                let deepest = around.iter().max_by_key(|(net, _)| net.prefix_len());
                assert_eq!(has(&longest), deepest.is_some_and(|rule| rule.1), "{rules:?} {address}");
            }
        }
    }

    #[test]
    fn ranges_become_networks() {
        assert_eq!(text(Some(parse_range("10.0.0.0-10.0.0.3").unwrap())), ["10.0.0.0/30"]);
        assert_eq!(text(Some(parse_range("::1").unwrap())), ["::1/128"]);
        assert!(parse_range("10.0.0.9-10.0.0.3").is_none() && parse_range("x").is_none());
    }
}

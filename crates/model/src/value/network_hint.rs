//! Finds the probable meaning of a mistyped network, e.g. `10.0.0.0/255.0.0.0` or `10.*`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The text to write instead of `text`, if its meaning is clear.
pub fn suggest_network(text: &str) -> Option<String> {
    let lower = text.trim().to_ascii_lowercase();
    match lower.as_str() {
        _ if is_every_address(&lower) => {
            return Some("write [0.0.0.0/0, \"::/0\"] for every address".to_owned());
        }
        "private" | "private_ranges" | "rfc1918" => {
            return Some("write [10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, \"fc00::/7\"]".to_owned());
        }
        "localhost" | "loopback" => return Some("write [127.0.0.0/8, \"::1\"]".to_owned()),
        _ => {}
    }
    if let Ok(address) = lower.parse::<SocketAddr>() {
        return Some(format!("write {} without the port", address.ip()));
    }
    if let Some((address, prefix)) = lower.split_once('/')
        && let (Ok(address), Ok(bits)) = (address.parse::<IpAddr>(), prefix.parse::<u32>())
    {
        let most = if address.is_ipv4() { 32 } else { 128 };
        return (bits > most).then(|| format!("the prefix is at most {most}"));
    }
    let network = find_masked(&lower).or_else(|| find_stars(&lower))?;
    Some(format!("write {network}"))
}

/// True if other programs mean every address by this word.
pub fn is_every_address(text: &str) -> bool {
    matches!(text, "all" | "any" | "*" | "everyone" | "everybody" | "0/0")
}

/// The length of the prefix that the zeros at the end of an address leave, e.g. 8 for `10.0.0.0`.
pub fn prefix_before_zeros(address: Ipv4Addr) -> usize {
    32 - 8 * address.octets().iter().rev().take_while(|octet| **octet == 0).count()
}

/// `10.0.0.0/255.0.0.0`.
fn find_masked(text: &str) -> Option<String> {
    let (address, mask) = text.split_once('/')?;
    let bits = u32::from(mask.parse::<Ipv4Addr>().ok()?);
    (bits.leading_ones() + bits.trailing_zeros() == 32 || bits == u32::MAX)
        .then_some(())
        .and_then(|()| address.parse::<IpAddr>().ok())
        .map(|address| format!("{address}/{}", bits.leading_ones()))
}

/// `10.*`, `10.0.*.*`, `10.0.0/24` or `10.`.
fn find_stars(text: &str) -> Option<String> {
    let (address, prefix) =
        text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let parts: Vec<&str> = address.split('.').take_while(|part| !matches!(*part, "*" | "" | "x")).collect();
    let octets: Vec<u8> = parts.iter().map(|part| part.parse().ok()).collect::<Option<_>>()?;
    if !(1..=3).contains(&octets.len()) || !address.contains('.') {
        return None;
    }
    let octet = |index: usize| octets.get(index).copied().unwrap_or(0);
    let prefix = match prefix {
        Some(prefix) => prefix.parse::<u8>().ok().filter(|bits| *bits <= 32)?,
        None => 8 * u8::try_from(octets.len()).ok()?,
    };
    Some(format!("{}/{prefix}", Ipv4Addr::new(octet(0), octet(1), octet(2), 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_forms_of_networks() {
        for (text, help) in [
            ("10.0.0.0/255.0.0.0", Some("write 10.0.0.0/8")),
            ("10.0.0.0/255.255.255.255", Some("write 10.0.0.0/32")),
            ("10.*.*.*", Some("write 10.0.0.0/8")),
            ("192.168.*", Some("write 192.168.0.0/16")),
            ("10.0.0/24", Some("write 10.0.0.0/24")),
            ("192.0.2.7:80", Some("write 192.0.2.7 without the port")),
            ("localhost", Some("write [127.0.0.0/8, \"::1\"]")),
            ("10.0.0.0/255.0.255.0", None),
            ("10.0.0.0/33", Some("the prefix is at most 32")),
            ("2001:db8::/129", Some("the prefix is at most 128")),
            ("office", None),
            ("10", None),
        ] {
            assert_eq!(suggest_network(text).as_deref(), help, "{text}");
        }
        let prefix = |text: &str| prefix_before_zeros(text.parse().unwrap());
        assert_eq!(
            ["10.0.0.0", "192.168.0.0", "192.0.2.0", "192.0.2.7", "0.0.0.0"].map(prefix),
            [8, 16, 24, 32, 0]
        );
    }
}

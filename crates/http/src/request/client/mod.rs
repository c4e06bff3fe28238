//! The client's address, behind any number of trusted proxies.

mod hops;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use hops::ElementsFromRight;
use sluicegate_base::ip_set::unmap_network;
use sluicegate_model as model;

/// The address that all peers on unix sockets share if no proxy names a client.
pub const UNIX_CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Most hops read in one request; the walk ends there as at the end of the header.
const HOPS_MAX: usize = 64;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The rules to find the client's address.
#[derive(Debug, Clone)]
pub struct ClientIp {
    trusted: Box<[IpNet]>,
    header: HeaderName,
    syntax: HopSyntax,
    ipv4_mask: u32,
    ipv6_mask: u128,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HopSyntax {
    /// Bare addresses between commas.
    Addresses,
    /// RFC 7239's `for=` parameters.
    Forwarded,
}

/// The origin of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// The unmasked address, an IPv4-mapped one as IPv4; limits count by [`ClientIp::mask_address`].
    pub ip: IpAddr,
    /// The peer is a trusted proxy: its addresses, costs and request ids are accepted.
    pub trusted_peer: bool,
}

impl From<&model::ServerConfig> for ClientIp {
    fn from(server: &model::ServerConfig) -> ClientIp {
        let (header, syntax) = match &server.client_ip {
            model::ClientIpConfig::XForwardedFor => (X_FORWARDED_FOR, HopSyntax::Addresses),
            model::ClientIpConfig::Forwarded => (FORWARDED, HopSyntax::Forwarded),
            model::ClientIpConfig::Header(name) if *name == FORWARDED => (FORWARDED, HopSyntax::Forwarded),
            model::ClientIpConfig::Header(name) => (name.clone(), HopSyntax::Addresses),
        };
        ClientIp {
            trusted: server.trusted_proxies.iter().map(|network| unmap_network(*network)).collect(),
            header,
            syntax,
            ipv4_mask: u32::MAX.checked_shl(32_u32.saturating_sub(server.ipv4_prefix.into())).unwrap_or(0),
            ipv6_mask: u128::MAX.checked_shl(128_u32.saturating_sub(server.ipv6_prefix.into())).unwrap_or(0),
        }
    }
}

impl ClientIp {
    /// The client of a request on a connection from `peer`, which is canonical; `None` is a unix socket, which is
    /// trusted.
    ///
    /// The right-most untrusted hop over all lines of the header wins; if every hop is trusted, the left-most valid
    /// one. A hop that is no address ends the walk, because the hops to its left cannot be trusted.
    #[inline]
    pub fn find_client(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Client {
        match peer {
            Some(ip) if !self.trusts_proxy(ip) => Client { ip, trusted_peer: false },
            trusted => {
                Client { ip: self.walk_hops(trusted.unwrap_or(UNIX_CLIENT), headers), trusted_peer: true }
            }
        }
    }

    /// True if `ip`, in canonical form, is a trusted proxy.
    #[inline]
    pub fn trusts_proxy(&self, ip: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(&ip))
    }

    /// The header that only trusted proxies may set.
    pub fn header(&self) -> &HeaderName {
        &self.header
    }

    /// The network of `ip` that counts as one client.
    #[inline]
    pub fn mask_address(&self, ip: IpAddr) -> IpAddr {
        match ip.to_canonical() {
            IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & self.ipv4_mask)),
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & self.ipv6_mask)),
        }
    }

    /// The length of the prefix by which [`ClientIp::mask_address`] counts clients; `None` = by whole addresses.
    pub fn network_prefix(&self, ip: IpAddr) -> Option<u8> {
        let (bits, all) = match ip.to_canonical() {
            IpAddr::V4(_) => (self.ipv4_mask.count_ones(), 32),
            IpAddr::V6(_) => (self.ipv6_mask.count_ones(), 128),
        };
        (bits < all).then_some(bits as u8)
    }

    /// The network that counts as one client with `ip`.
    pub fn mask_network(&self, ip: IpAddr) -> IpNet {
        let address = self.mask_address(ip);
        let prefix = self.network_prefix(ip);
        prefix.and_then(|prefix| IpNet::new(address, prefix).ok()).unwrap_or_else(|| address.into())
    }

    // Not inline: few peers are proxies.
    #[inline(never)]
    fn walk_hops(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer;
        let mut hops_left = HOPS_MAX;
        for line in headers.get_all(&self.header).iter().rev() {
            let quoting = self.syntax == HopSyntax::Forwarded;
            for hop in ElementsFromRight::new(line.as_bytes(), b',', quoting) {
                if hops_left == 0 {
                    return client;
                }
                hops_left -= 1;
                if hop.is_empty() {
                    continue;
                }
                let address = match self.syntax {
                    HopSyntax::Addresses => hops::parse_address(hop),
                    HopSyntax::Forwarded => hops::parse_forwarded_for(hop),
                };
                let Some(ip) = address else { return client };
                client = ip.to_canonical();
                if !self.trusts_proxy(client) {
                    return client;
                }
            }
        }
        client
    }
}

#[cfg(test)]
mod tests;

//! Reads `listen`: the addresses that clients connect to.

use std::net::SocketAddr;
use std::sync::Arc;

use super::listen_tls;
use crate::schema::tables::listen::listen;
use crate::schema::tables::root::root as root_fields;
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_model::value::names;
use sluicegate_model::{
    ListenAddress, ListenConfig, ListenerPurpose, Parsed, ProxyProtocolMode, ServerConfig, ValueError, codes,
};

/// The limit of systemd.
const SYSTEMD_NAME_MAX: usize = 255;

pub(crate) fn read_listen(root: &FieldReader<'_>, server: &ServerConfig) -> Vec<ListenConfig> {
    let Some(value) = root.find(&root_fields::LISTEN) else {
        // A file for the rate-limit service alone opens no port for requests.
        if root.find(&root_fields::SERVICE).is_some() && root.find(&root_fields::LOCATIONS).is_none() {
            return Vec::new();
        }
        return vec![ListenConfig::with_address(ListenAddress::Port(8080))];
    };
    value.check_filled("write a port, e.g. listen: 8080");
    let mut listens: Vec<ListenConfig> = Vec::new();
    for item in value.one_or_more() {
        listens.extend(read_listener(&item, &listens, server).map(|(listen, _)| listen));
    }
    listens
}

/// One listener beside `known`, and the value of its address.
pub(super) fn read_listener<'a>(
    item: &FieldValue<'a>,
    known: &[ListenConfig],
    server: &ServerConfig,
) -> Option<(ListenConfig, FieldValue<'a>)> {
    let (listen, named) = read_entry(item, known, server)?;
    let is_taken = known.iter().any(|known| collide(&known.address, &listen.address));
    if is_taken && !is_any_port(&listen.address) {
        let message = format!("`{}` is listened on twice", named.written_text());
        named.report_at_value(ValueError::new(codes::ADDRESS, message));
    }
    Some((listen, named))
}

/// True if both need the same socket.
fn collide(one: &ListenAddress, other: &ListenAddress) -> bool {
    let includes = |all: &ListenAddress, other: &ListenAddress| match (all, other) {
        (ListenAddress::Port(port), ListenAddress::Address(other)) => other.port() == *port,
        (ListenAddress::Address(all), ListenAddress::Address(other)) => {
            all.ip().is_unspecified() && all.port() == other.port() && all.is_ipv4() == other.is_ipv4()
        }
        _ => false,
    };
    one == other || includes(one, other) || includes(other, one)
}

fn is_any_port(address: &ListenAddress) -> bool {
    match address {
        ListenAddress::Port(port) => *port == 0,
        ListenAddress::Address(address) => address.port() == 0,
        ListenAddress::Unix(_) | ListenAddress::Systemd(_) => false,
    }
}

/// One entry, and the value of its address; `known` are the entries before it.
fn read_entry<'a>(
    item: &FieldValue<'a>,
    known: &[ListenConfig],
    server: &ServerConfig,
) -> Option<(ListenConfig, FieldValue<'a>)> {
    if !item.is_map() {
        return Some((ListenConfig::with_address(item.parse_with(parse_listen_address)?), item.clone()));
    }
    let fields = item.open_section(&listen::SECTION);
    let written = fields.find_required(&listen::ADDRESS);
    fields.report_unknown();
    let tls = fields.find(&listen::TLS).and_then(|value| listen_tls::read_listen_tls(&value));
    let tls = tls.map(Arc::new);
    let (http2, proxy_protocol) = (fields.read(&listen::HTTP2), fields.read(&listen::PROXY_PROTOCOL));
    let proxy = fields.find(&listen::PROXY_PROTOCOL);
    let (mode_value, mode) = (fields.find(&listen::MODE), fields.read(&listen::MODE));
    let is_taken = |name: &str| known.iter().any(|listen| listen.name.as_deref() == Some(name));
    let take = |name: &str, place| is_taken(name).then_some(place);
    let name = fields.read_unique_name(&listen::NAME, "listeners", None, take);
    let written = written?;
    let address = written.parse_with(parse_listen_address)?;
    if let (Some(value), false) = (mode_value, matches!(address, ListenAddress::Unix(_))) {
        let message = "`mode` is only for unix sockets that the gateway creates";
        let help = "remove it, or listen on unix:/PATH";
        value.refuse_name(codes::ADDRESS, message, help);
    }
    let is_local = matches!(address, ListenAddress::Unix(_) | ListenAddress::Systemd(_));
    if !is_local
        && server.trusted_proxies.is_empty()
        && let (Some(wanted), Some(value)) = (proxy_protocol, proxy)
    {
        // Only `trusted_proxies` and peers on a unix socket may send a PROXY header.
        let help = "name the proxy that sends the header in server.trusted_proxies, e.g. [10.0.0.0/8]";
        match wanted {
            ProxyProtocolMode::Required => {
                let message = "no proxy may send a PROXY header, so every connection would be closed";
                value.refuse(codes::UNDEFINED, message, help);
            }
            ProxyProtocolMode::Optional => {
                let message = "a PROXY header is read from trusted proxies only, and there are none";
                value.warn(codes::NO_EFFECT, message, help);
            }
        }
    }
    let purpose = ListenerPurpose::Requests;
    Some((ListenConfig { address, tls, http2, proxy_protocol, mode, name, purpose }, written))
}

/// `8080`, `:8080`, `127.0.0.1:8080`, `[::1]:8080`, `unix:/run/x.sock`, `systemd:web`.
fn parse_listen_address(text: &str) -> Parsed<ListenAddress> {
    if let Some(path) = text.strip_prefix("unix:") {
        return names::parse_unix_path(path).map(ListenAddress::Unix);
    }
    if let Some(name) = text.strip_prefix("systemd:") {
        return parse_systemd_name(name);
    }
    let digits = text.strip_prefix(':').or_else(|| text.strip_prefix("*:")).unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
        return names::parse_port(digits).map(ListenAddress::Port);
    }
    names::parse_socket_address(text).map(|address: SocketAddr| ListenAddress::Address(address))
}

/// A name as in `FileDescriptorName=` of a systemd socket unit.
fn parse_systemd_name(name: &str) -> Parsed<ListenAddress> {
    let fits = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b':';
    if name.is_empty() || name.len() > SYSTEMD_NAME_MAX || !name.bytes().all(fits) {
        let message = format!("`systemd:{name}` does not name a socket of systemd");
        return Err(ValueError::new(codes::ADDRESS, message)
            .with_help("write systemd:NAME, where FileDescriptorName=NAME stands in the .socket unit"));
    }
    Ok(ListenAddress::Systemd(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn forms_of_an_address() {
        assert_eq!(parse_listen_address("8080").unwrap(), ListenAddress::Port(8080));
        assert_eq!(parse_listen_address(":443").unwrap(), ListenAddress::Port(443));
        assert_eq!(parse_listen_address("*:443").unwrap(), ListenAddress::Port(443));
        assert_eq!(
            parse_listen_address("127.0.0.1:0").unwrap(),
            ListenAddress::Address(SocketAddr::from(([127, 0, 0, 1], 0)))
        );
        assert_eq!(
            parse_listen_address("unix:/run/x.sock").unwrap(),
            ListenAddress::Unix(PathBuf::from("/run/x.sock"))
        );
        for wrong in ["70000", "unix:x", "example.com:80", "", ":", "-1", "8080/tcp"] {
            assert_eq!(parse_listen_address(wrong).unwrap_err().code, codes::ADDRESS, "{wrong}");
        }
        assert_eq!(
            parse_listen_address("systemd:web-1").unwrap(),
            ListenAddress::Systemd("web-1".to_owned())
        );
        for wrong in ["systemd:", "systemd:a:b", "systemd:\u{e4}"] {
            assert_eq!(parse_listen_address(wrong).unwrap_err().code, codes::ADDRESS, "{wrong}");
        }
    }
}

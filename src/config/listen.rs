//! `listen`: where clients connect.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::codes;
use super::fields::{Fields, Value};
use super::model::Listen;
use super::names;
use super::problem::Complaint;
use super::tree::Content;
use super::words::Read;

/// A path of a unix socket fits into 108 bytes with its end mark, by the kernel's own structure.
const UNIX_PATH_MAX: usize = 107;

pub(super) fn read(root: &mut Fields<'_>) -> Vec<Listen> {
    let Some(value) = root.get("listen") else {
        return vec![Listen::Port(8080)];
    };
    let items = value.one_or_more();
    if value.is_empty() {
        value.complain_of_nothing("write a port, e.g. listen: 8080");
    }
    let mut listens: Vec<Listen> = Vec::new();
    for item in items {
        let Some(listen) = read_one(&item) else { continue };
        if listens.contains(&listen) && !any_port(&listen) {
            item.complain(Complaint::new(codes::ADDRESS, format!("`{}` is listened on twice", item.shown())));
        }
        listens.push(listen);
    }
    listens
}

fn any_port(listen: &Listen) -> bool {
    match listen {
        Listen::Port(port) => *port == 0,
        Listen::Address(address) => address.port() == 0,
        Listen::Unix(_) => false,
    }
}

fn read_one(item: &Value<'_>) -> Option<Listen> {
    if !matches!(item.node.content, Content::Map(_)) {
        return item.read(address);
    }
    let mut fields = item.fields();
    let written = fields.get("address");
    if written.is_none() {
        fields.missing("address", "write address: \":8443\" or address: 127.0.0.1:8080");
    }
    fields.later("tls", &[]);
    fields.later("http2", &["false"]);
    fields.later("proxy_protocol", &[]);
    fields.close();
    written.and_then(|value| value.read(address))
}

/// `8080`, `:8080`, `127.0.0.1:8080`, `[::1]:8080`, `unix:/run/x.sock`.
fn address(text: &str) -> Read<Listen> {
    if let Some(path) = text.strip_prefix("unix:") {
        return unix(path);
    }
    if text.starts_with("systemd:") {
        return Err(Complaint::new(codes::NOT_YET, "`systemd:` is not supported yet"));
    }
    let digits = text.strip_prefix(':').or_else(|| text.strip_prefix("*:")).unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
        return names::port(digits).map(Listen::Port);
    }
    names::socket_address(text).map(|address: SocketAddr| Listen::Address(address))
}

fn unix(path: &str) -> Read<Listen> {
    let wrong = |message: &str| Complaint::new(codes::ADDRESS, message);
    if !path.starts_with('/') {
        return Err(wrong("the path of a unix socket starts with /").help(format!("write unix:/{path}")));
    }
    if path.len() > UNIX_PATH_MAX || path.contains('\0') {
        return Err(wrong("the path of a unix socket has at most 107 bytes"));
    }
    Ok(Listen::Unix(PathBuf::from(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_an_address() {
        assert_eq!(address("8080").unwrap(), Listen::Port(8080));
        assert_eq!(address(":443").unwrap(), Listen::Port(443));
        assert_eq!(address("*:443").unwrap(), Listen::Port(443));
        assert_eq!(address("127.0.0.1:0").unwrap(), Listen::Address(SocketAddr::from(([127, 0, 0, 1], 0))));
        assert_eq!(address("unix:/run/x.sock").unwrap(), Listen::Unix(PathBuf::from("/run/x.sock")));
        for wrong in ["70000", "unix:x", "example.com:80", "", ":", "-1", "8080/tcp"] {
            assert_eq!(address(wrong).unwrap_err().code, codes::ADDRESS, "{wrong}");
        }
        assert_eq!(address("systemd:web").unwrap_err().code, codes::NOT_YET);
    }
}

//! `server_name`: the hosts of each server's locations.

use std::collections::HashSet;

use super::scope::{FindingLedger, Scope};
use crate::config::value::names::parse_host_name;

/// The names of a server, as in the field `host`.
#[derive(Debug, Default, Clone)]
pub(super) struct ServerNames {
    pub hosts: Vec<String>,
    /// The value of `$server_name`.
    pub primary: String,
    /// The gateway does not know some of its names.
    pub are_incomplete: bool,
}

/// Reads the names of a server. `taken` holds the names and listeners of servers before it, which win in nginx;
/// `is_everywhere`: it is the default server of all its listeners.
pub(super) fn read_names(
    scope: &Scope<'_>,
    listeners: &[String],
    is_everywhere: bool,
    taken: &mut HashSet<(String, String)>,
    ledger: &FindingLedger,
) -> ServerNames {
    let mut names = ServerNames::default();
    let own = scope.own_level().iter().filter(|directive| directive.name == "server_name");
    for directive in own.clone() {
        let mut left_out = Vec::new();
        for name in directive.args.iter().filter(|name| !matches!(name.as_str(), "" | "_")) {
            let hosts = match name.strip_prefix('.') {
                Some(plain) => vec![plain.to_ascii_lowercase(), format!("*.{plain}").to_ascii_lowercase()],
                None => vec![name.to_ascii_lowercase()],
            };
            if hosts.iter().any(|host| parse_host_name(host.strip_prefix("*.").unwrap_or(host)).is_err()) {
                left_out.push(name.as_str());
                continue;
            }
            for host in hosts {
                let is_new = |listener: &&String| taken.insert((host.clone(), (*listener).clone()));
                match listeners.iter().filter(is_new).count() {
                    0 => ledger.differs(
                        directive,
                        format!("`{host}` belongs to an earlier server; nginx ignores it too"),
                    ),
                    new if new == listeners.len() => names.hosts.push(host),
                    _ => ledger.loses(
                        directive,
                        format!(
                            "at some addresses `{host}` belongs to an earlier server; it is left out at all"
                        ),
                    ),
                }
            }
        }
        let says = format!("the gateway matches no hosts by {}", left_out.join(", "));
        match left_out.as_slice() {
            [] if ledger.is_told(directive) => {}
            [] => ledger.exact(directive, "host"),
            _ if is_everywhere => ledger.exact(directive, format!("{says}: it is the default server")),
            _ => {
                names.are_incomplete = true;
                ledger.loses(
                    directive,
                    format!("{says}: they meet the default server, or get 404 if this one refuses"),
                );
            }
        }
    }
    if let Some(first) = own.clone().find_map(|directive| directive.args.first()) {
        let text = first.strip_prefix(['.', '~']).unwrap_or(first);
        names.primary = if first.starts_with('~') { text.to_owned() } else { text.to_ascii_lowercase() };
    }
    names
}

/// Whether one of the wildcards, given by their endings, takes `host`.
pub(super) fn is_covered(host: &str, wildcards: &HashSet<&str>) -> bool {
    host.match_indices('.').any(|(dot, _)| wildcards.contains(&host[dot..]))
}

//! `server_name`: the hosts of each server's locations.

use std::collections::HashSet;

use super::location_tree::subtree_guards;
use super::parser::Directive;
use super::scope::{FindingLedger, Scope};
use crate::config::value::names::parse_host_name;
use crate::import::ImportFault;

/// The names of a server, as in the field `host`.
#[derive(Debug, Default, Clone)]
pub(super) struct ServerNames {
    pub hosts: Vec<String>,
    /// The value of `$server_name`.
    pub primary: String,
}

/// Reads the names of a server. `taken` holds the names and listeners of servers before it, which win in nginx.
pub(super) fn read_names(
    server: &Directive,
    scope: &Scope<'_>,
    listeners: &[String],
    taken: &mut HashSet<(String, String)>,
    ledger: &FindingLedger,
) -> Result<ServerNames, ImportFault> {
    let mut names = ServerNames::default();
    let own = scope.own_level().iter().filter(|directive| directive.name == "server_name");
    for directive in own {
        let mut left_out = Vec::new();
        for name in &directive.args {
            if names.primary.is_empty() {
                names.primary.clone_from(name);
            }
            let hosts = match name.as_str() {
                "" | "_" => continue,
                regex if regex.starts_with('~') => {
                    left_out.push(name.as_str());
                    continue;
                }
                ending if ending.ends_with(".*") => {
                    left_out.push(name.as_str());
                    continue;
                }
                both if both.starts_with('.') => vec![both[1..].to_owned(), format!("*{both}")],
                one => vec![one.to_owned()],
            };
            for host in hosts {
                let plain = host.strip_prefix("*.").unwrap_or(&host);
                if parse_host_name(plain).is_err() {
                    let message = format!("`{name}` is no name of a server that the gateway knows");
                    return Err(ImportFault::new(&directive.at, message));
                }
                let host = host.to_ascii_lowercase();
                let is_new =
                    listeners.iter().filter(|listener| taken.insert((host.clone(), (*listener).clone())));
                if is_new.count() == listeners.len() && !names.hosts.contains(&host) {
                    names.hosts.push(host);
                } else if !names.hosts.contains(&host) {
                    ledger.differs(
                        directive,
                        format!("`{host}` belongs to an earlier server; nginx ignores it too"),
                    );
                }
            }
        }
        tell_left_out(server, directive, &left_out, ledger);
    }
    Ok(names)
}

fn tell_left_out(server: &Directive, directive: &Directive, left_out: &[&str], ledger: &FindingLedger) {
    if left_out.is_empty() {
        if !ledger.is_told(directive) {
            ledger.exact(directive, "host");
        }
        return;
    }
    let says = format!(
        "the gateway matches no hosts by {}: their requests meet the default server",
        left_out.join(", ")
    );
    if subtree_guards(server) {
        ledger.loses(directive, says);
    } else {
        ledger.skips(directive, says);
    }
}

/// Whether a wildcard is one of `hosts` that takes `name`.
pub(super) fn is_covered(name: &str, hosts: &[String]) -> bool {
    hosts.iter().filter_map(|host| host.strip_prefix('*')).any(|suffix| name.ends_with(suffix))
}

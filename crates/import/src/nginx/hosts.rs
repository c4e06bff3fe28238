//! `server_name`: the hosts of each server's locations.

use std::collections::HashSet;

use super::parser::Directive;
use super::scope::Scope;
use sluicegate_model::value::names::parse_host_name;

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
/// at the `others` it is not the default server.
pub(super) fn read_names(
    server: &Directive,
    scope: &Scope<'_>,
    (default, others): (&[String], &[String]),
    taken: &mut HashSet<(String, String)>,
) -> ServerNames {
    let mut names = ServerNames::default();
    let own = scope.own_level().iter().filter(|directive| directive.name == "server_name");
    let written: Vec<&String> = own.clone().flat_map(|directive| &directive.args).collect();
    if written.is_empty() || written.iter().any(|name| name.is_empty()) {
        taken.extend(default.iter().map(|listener| (String::new(), listener.clone())));
        if others.iter().filter(|listener| taken.insert((String::new(), (*listener).clone()))).count() > 0 {
            names.are_incomplete = true;
            let why = "requests without a host meet the default server, or get 404 if this one refuses";
            server.loses(why);
        }
    }
    for directive in own.clone() {
        let mut left_out = Vec::new();
        for name in directive.args.iter().filter(|name| !name.is_empty()) {
            let hosts = match name.strip_prefix('.') {
                Some(plain) => vec![plain.to_ascii_lowercase(), format!("*.{plain}").to_ascii_lowercase()],
                None => vec![name.to_ascii_lowercase()],
            };
            let plain = hosts[0].strip_prefix("*.").unwrap_or(&hosts[0]);
            // nginx compares texts, so that only the usual one is ever found.
            if name.contains('[') || !parse_host_name(plain).is_ok_and(|usual| usual == plain) {
                left_out.push(name.as_str());
                continue;
            }
            // A name with a dot is ignored if one of its two is taken.
            let mut is_new =
                |listener: &String| hosts.iter().all(|host| taken.insert((host.clone(), listener.clone())));
            match default.iter().chain(others).filter(|listener| is_new(listener)).count() {
                0 => {
                    directive.differs(format!("`{name}` belongs to an earlier server; nginx ignores it too"))
                }
                new if new == default.len() + others.len() => names.hosts.extend(hosts),
                _ => {
                    names.are_incomplete = true;
                    let why = format!(
                        "at some addresses `{name}` belongs to an earlier server; it is left out at all"
                    );
                    directive.loses(why);
                }
            }
        }
        let says = format!("the gateway matches no hosts by {}", left_out.join(", "));
        match left_out.as_slice() {
            [] if directive.is_told() => {}
            [] => directive.exact("host"),
            _ if others.is_empty() => directive.exact(format!("{says}: it is the default server")),
            _ => {
                names.are_incomplete = true;
                directive
                    .loses(format!("{says}: they meet the default server, or get 404 if this one refuses"));
            }
        }
    }
    if let Some(first) = written.first() {
        let text = first.strip_prefix('.').unwrap_or(first);
        names.primary = if first.starts_with('~') { text.to_owned() } else { text.to_ascii_lowercase() };
    }
    names
}

/// True if one of the wildcards, given by their endings, takes `host`.
pub(super) fn is_covered(host: &str, wildcards: &HashSet<&str>) -> bool {
    host.match_indices('.').any(|(dot, _)| wildcards.contains(&host[dot..]))
}

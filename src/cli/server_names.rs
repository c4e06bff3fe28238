//! Warns of host names of servers that do not resolve, for `check` alone: the gateway itself starts without them.

use std::collections::BTreeSet;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use sluicegate_model::{Config, Problem, ServerAddress, UpstreamKind, codes};

/// All look-ups together take no longer; a name without an answer by then gets no warning.
const LOOKUP_MAX: Duration = Duration::from_secs(2);
/// Names that are looked up.
const NAMES_MAX: usize = 32;

/// A warning for each name of a server that does not resolve here. `texts` are gateway.yaml and the included files.
pub(super) fn find_unresolved(config: &Config, texts: &[(&str, String)]) -> Vec<Problem> {
    let servers = config.upstreams.iter().flat_map(|upstream| match &upstream.kind {
        UpstreamKind::Servers(servers) => servers.as_slice(),
        UpstreamKind::Demo => &[],
    });
    let names = servers.filter_map(|server| match &server.address {
        ServerAddress::Tcp { host, .. } if host.parse::<IpAddr>().is_err() => Some(host.clone()),
        _ => None,
    });
    let names: BTreeSet<String> = names.take(NAMES_MAX).collect();
    let mut unresolved = look_up(names);
    unresolved.sort_unstable();
    unresolved.iter().map(|name| warn_of_name(name, texts)).collect()
}

/// The `names` that do not exist.
fn look_up(names: BTreeSet<String>) -> Vec<String> {
    let (sender, receiver) = mpsc::channel();
    let mut waiting = 0;
    for name in names {
        let sender = sender.clone();
        let lookup = move || {
            // The domain never exists (RFC 6761), so nobody needs to be asked.
            let exists = !name.ends_with(".invalid") && (name.as_str(), 80).to_socket_addrs().is_ok();
            // The receiver is gone once the time is over.
            let _ = sender.send((!exists).then_some(name));
        };
        waiting += usize::from(thread::Builder::new().spawn(lookup).is_ok());
    }
    let end = Instant::now() + LOOKUP_MAX;
    let next = |_| receiver.recv_timeout(end.saturating_duration_since(Instant::now())).ok();
    (0..waiting).map_while(next).flatten().collect()
}

fn warn_of_name(name: &str, texts: &[(&str, String)]) -> Problem {
    let place = |(file, (index, line)): (usize, (usize, &str))| {
        let line = line.to_lowercase();
        let byte = line.find(name)?;
        Some((file, index + 1, line[..byte].chars().count() + 1))
    };
    let mut lines =
        (0..).zip(texts).flat_map(|(file, (_, text))| text.lines().enumerate().map(move |line| (file, line)));
    let (file, line, column) = lines.find_map(place).unwrap_or((0, 1, 1));
    Problem {
        code: codes::UNRESOLVED,
        file: if file == 0 { String::new() } else { texts[file].0.to_owned() },
        field: "upstreams".to_owned(),
        line,
        column,
        width: name.chars().count(),
        message: format!("the host `{name}` of a server does not resolve on this machine"),
        suggestion: Some(
            "correct the name, or ignore this where only the gateway's machine knows it".to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_config as config;

    #[test]
    fn only_names_that_do_not_exist_are_found() {
        let text = "upstreams:\n  app: [127.0.0.1:1, localhost:1]\n  \
                    old: [Nowhere.invalid:1]\nlocations:\n  - { path: /, upstream: app }\n  \
                    - { path: /old, upstream: old }\n";
        let config = config::parse(text, "x").unwrap_or_else(|report| panic!("{report}")).config;
        let found = find_unresolved(&config, &[("x", text.to_owned())]);
        let found: Vec<_> = found.iter().map(|one| (one.code, one.line, one.column)).collect();
        assert_eq!(found, [(codes::UNRESOLVED, 3, 9)]);
    }
}

//! `listen` of all servers: the listeners, and which server is the default of each.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::path::Path;

use super::parser::Directive;
use super::scope::Scope;
use crate::ImportFault;
use crate::gateway_file::{ListenPlan, PlannedField};
use crate::yaml_text::{flow_map, quote};

/// The fields of a certificate in `tls`.
type TlsFields = Vec<(&'static str, String)>;

/// All addresses, each with the servers that serve it.
#[derive(Debug, Default)]
pub(super) struct ListenerTable {
    listeners: BTreeMap<String, Listener>,
}

#[derive(Debug, Default)]
struct Listener {
    /// The numbers of servers, in the order of the file.
    servers: BTreeSet<usize>,
    default: Option<usize>,
    tls: bool,
    proxy_protocol: bool,
    certificates: Vec<TlsFields>,
    source: Option<crate::ImportedLine>,
}

impl ListenerTable {
    /// Adds the listeners of a server; `scope` is that of its block.
    pub(super) fn add_server(
        &mut self,
        number: usize,
        server: &Directive,
        scope: &Scope<'_>,
    ) -> Result<(), ImportFault> {
        let own: Vec<&Directive> =
            scope.own_level().iter().filter(|directive| directive.name == "listen").collect();
        if own.is_empty() {
            server.differs_as("server", "without `listen` it is *:80, as for nginx started by root");
            let listener = self.listeners.entry("0.0.0.0:80".to_owned()).or_default();
            listener.servers.insert(number);
            listener.source = Some(server.at.clone());
            listener.tls |= scope.is_on("ssl");
        }
        for directive in own {
            if directive.args.iter().any(|parameter| matches!(parameter.as_str(), "quic" | "http3")) {
                directive.skips("the gateway speaks HTTP/1.1 and HTTP/2 only");
                continue;
            }
            let address = read_address(directive);
            let listener = self.listeners.entry(address).or_default();
            listener.source.get_or_insert_with(|| directive.at.clone());
            if !listener.servers.insert(number) {
                return Err(directive.fault("the server listens on this address twice"));
            }
            listener.tls |= scope.is_on("ssl");
            read_parameters(directive, number, listener)?;
        }
        Ok(())
    }

    /// Reads the certificates of the servers with TLS. Returns the servers that ask clients for certificates in nginx,
    /// but not in the gateway.
    pub(super) fn read_certificates(&mut self, scopes: &[Scope<'_>], folder: &Path) -> HashSet<usize> {
        let mut closed = HashSet::new();
        for listener in self.listeners.values_mut().filter(|listener| listener.tls) {
            let scopes = || listener.servers.iter().map(|number| (*number, &scopes[*number]));
            let mut certificates: Vec<TlsFields> =
                scopes().filter_map(|(_, scope)| read_certificate(scope, folder)).collect();
            // Behind the files, a listener has the same fields for all its certificates.
            let first = certificates.first().map(|fields| fields[2..].to_vec()).unwrap_or_default();
            if certificates.iter().any(|fields| fields[2..] != first) {
                certificates.iter_mut().for_each(|fields| fields.truncate(2));
            }
            let asks = |fields: &TlsFields| fields.iter().any(|(name, _)| *name == "client_ca");
            let all_ask = certificates.len() == listener.servers.len() && certificates.iter().all(asks);
            for (number, verify) in scopes().filter_map(|(number, scope)| Some((number, find_verify(scope)?)))
            {
                if all_ask {
                    verify.differs("tls: { client_ca }: the handshake fails, where nginx answers 400");
                } else {
                    let why =
                        "the gateway asks clients of all servers of an address for certificates, or none";
                    verify.closes(why);
                    closed.insert(number);
                }
            }
            listener.certificates = certificates;
        }
        closed
    }

    /// True if every listener reads PROXY headers, or none does.
    pub(super) fn all_have_proxy_protocol(&self, wanted: bool) -> bool {
        self.listeners.values().all(|listener| listener.proxy_protocol == wanted)
    }

    /// True if all servers listen on the same addresses, so that locations need not name them.
    pub(super) fn are_uniform(&self) -> bool {
        let mut servers =
            self.listeners.values().map(|listener| (&listener.servers, listener.default_server()));
        let first = servers.next();
        servers.all(|other| Some(other) == first)
    }

    /// The names of the listeners of every server: those where it is the default, and the others.
    pub(super) fn names_by_server(&self, servers: usize) -> Vec<(Vec<String>, Vec<String>)> {
        let mut names = vec![(Vec::new(), Vec::new()); servers];
        for (place, listener) in self.listeners.values().enumerate() {
            for number in &listener.servers {
                let (default, others) = &mut names[*number];
                let list = if *number == listener.default_server() { default } else { others };
                list.push(listener_name(place));
            }
        }
        names
    }

    /// The listeners to write; they have names if locations need them.
    pub(super) fn into_plans(self, named: bool) -> Vec<ListenPlan> {
        let plan = |(place, (address, listener)): (usize, (String, Listener))| {
            let mut fields = Vec::new();
            let tls = match listener.certificates.as_slice() {
                // The check refuses it, so that no port with TLS becomes one without.
                [] => "{}".to_owned(),
                [one] => flow_map(one),
                several => {
                    format!("[{}]", several.iter().map(|one| flow_map(one)).collect::<Vec<_>>().join(", "))
                }
            };
            if listener.tls {
                fields.push(PlannedField::plain("tls", tls));
            }
            if listener.proxy_protocol {
                fields.push(PlannedField::plain("proxy_protocol", "required"));
            }
            let name = if named { listener_name(place) } else { String::new() };
            ListenPlan { address, name, fields, source: listener.source }
        };
        let mut plans: Vec<ListenPlan> = self.listeners.into_iter().enumerate().map(plan).collect();
        // Of two that cannot be listened on together the check refuses the last, so that nobody meets other servers.
        plans.sort_by_key(|plan| plan.address.starts_with("0.0.0.0:") || plan.address.starts_with("[::]:"));
        plans
    }
}

fn listener_name(place: usize) -> String {
    format!("listener-{}", place + 1)
}

impl Listener {
    fn default_server(&self) -> usize {
        self.default.or(self.servers.first().copied()).unwrap_or_default()
    }
}

/// The address as in gateway.yaml, or a text that its check refuses.
fn read_address(directive: &Directive) -> String {
    let text = directive.arg(0);
    if text.strip_prefix("unix:").is_some_and(|path| path.starts_with('/')) {
        return text.to_owned();
    }
    if let Ok(port) = text.parse::<u16>() {
        return format!("0.0.0.0:{port}");
    }
    let text = text.strip_prefix("*:").map_or(text.to_owned(), |port| format!("0.0.0.0:{port}"));
    let text = text.strip_prefix("localhost").map_or(text.clone(), |rest| format!("127.0.0.1{rest}"));
    let with_port = |text: &str| format!("{text}:80").parse::<SocketAddr>().ok();
    let address = text.parse::<SocketAddr>().ok().or_else(|| with_port(&text));
    address.map_or(text, |address| address.to_string())
}

fn read_parameters(directive: &Directive, number: usize, listener: &mut Listener) -> Result<(), ImportFault> {
    for parameter in directive.args.iter().skip(1) {
        let name = parameter.split_once('=').map_or(parameter.as_str(), |(name, _)| name);
        match name {
            "default_server" | "default" => listener.default = Some(number),
            "proxy_protocol" => listener.proxy_protocol = true,
            // It holds for all servers of the address.
            "ssl" => listener.tls = true,
            "http2" | "spdy" => {}
            _ if parameter == "ipv6only=off" => {
                directive.loses("the gateway takes clients of IPv6 alone; add a listener for IPv4");
            }
            // The gateway does not need them.
            "reuseport" | "bind" | "deferred" | "ipv6only" | "so_keepalive" | "backlog" | "rcvbuf"
            | "sndbuf" | "setfib" | "fastopen" | "accept_filter" => {}
            _ => {
                let message = format!("`{parameter}` is no parameter of `listen`");
                return Err(directive.fault(message));
            }
        }
    }
    if !directive.is_told() {
        directive.exact("listen");
    }
    Ok(())
}

fn find_verify<'d>(scope: &Scope<'d>) -> Option<&'d Directive> {
    scope.value_of("ssl_verify_client").filter(|directive| directive.arg(0) == "on")
}

/// The certificate of a server, as the fields of `tls`.
fn read_certificate(scope: &Scope<'_>, folder: &Path) -> Option<TlsFields> {
    let path = |directive: &Directive| quote(&folder.join(directive.arg(0)).display().to_string());
    let (cert, key) = (scope.value_of("ssl_certificate")?, scope.value_of("ssl_certificate_key")?);
    for directive in [cert, key] {
        if directive.arg(0).contains('$') || directive.arg(0).contains(':') {
            directive.skips("the gateway chooses certificates by their names, from files");
            return None;
        }
        directive.exact("tls");
    }
    let mut fields = vec![("cert", path(cert)), ("key", path(key))];
    if find_verify(scope).is_some() {
        let ca = scope.value_of("ssl_client_certificate").or(scope.value_of("ssl_trusted_certificate"))?;
        ca.exact("tls: { client_ca }");
        fields.push(("client_ca", path(ca)));
    }
    if let Some(protocols) = scope.value_of("ssl_protocols") {
        let has = |version: &str| protocols.args.iter().any(|word| word == version);
        if has("TLSv1.3") && !has("TLSv1.2") && !has("TLSv1.1") && !has("TLSv1") {
            fields.push(("min_version", "\"1.3\"".to_owned()));
        }
        match has("TLSv1") || has("TLSv1.1") || has("SSLv3") {
            true => protocols.differs("tls: { min_version }: the oldest version is 1.2"),
            false => protocols.exact("tls: { min_version }"),
        }
    }
    Some(fields)
}

//! `upstream` blocks and the targets of `proxy_pass`.

use std::collections::HashMap;

use super::parser::Directive;
use super::scope::Scope;
use super::upstream_fields::{read_balance, read_location_fields};
use super::values::{parse_time_ms, write_time};
use crate::ImportFault;
use crate::gateway_file::{PlannedField, UpstreamPlan};
use crate::yaml_text::{clean_name, flow_map, numbered_names, quote};
use sluicegate_model::value::server_url::parse_server;

/// The target of `proxy_pass`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProxyTarget {
    /// `http`, `https`, `grpc` or `grpcs`.
    pub scheme: String,
    /// A host with or without a port, an upstream, or `unix:/path`.
    pub authority: String,
    /// The path, if there is one.
    pub uri: Option<String>,
}

/// The upstreams of the configuration, and those that are written.
#[derive(Debug)]
pub(super) struct UpstreamBook<'d> {
    /// Blocks by their names in lower case.
    blocks: HashMap<String, &'d Directive>,
    pub planned: Vec<UpstreamPlan>,
    /// The places of names in `planned`.
    places: HashMap<String, usize>,
}

/// The servers of an upstream and the fields that its block gives.
type ServerGroup = (Vec<String>, Vec<PlannedField>);

impl ProxyTarget {
    /// # Errors
    /// Why the target cannot be translated.
    pub(super) fn parse(text: &str, scope: &Scope<'_>) -> Result<ProxyTarget, String> {
        let mut text = text.to_owned();
        if text.contains('$') {
            text = replace_constants(&text, scope)?;
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| format!("`{text}` is no URL"))?;
        if !matches!(scheme, "http" | "https" | "grpc" | "grpcs") {
            return Err(format!("`{scheme}` is no scheme of a server"));
        }
        let uri = match rest.strip_prefix("unix:") {
            Some(socket) => socket.find(':').map(|colon| &socket[colon..]),
            None => rest.find('/').map(|slash| &rest[slash..]),
        };
        let authority = &rest[..rest.len() - uri.map_or(0, str::len)];
        let uri = uri.map(|uri| uri.strip_prefix(':').unwrap_or(uri).to_owned());
        if authority.is_empty() {
            return Err(format!("`{text}` names no server"));
        }
        Ok(ProxyTarget { scheme: scheme.to_owned(), authority: authority.to_owned(), uri })
    }

    fn is_tls(&self) -> bool {
        matches!(self.scheme.as_str(), "https" | "grpcs")
    }

    /// The value of `$proxy_host`.
    pub(super) fn proxy_host(&self) -> &str {
        if self.authority.starts_with("unix:") { "localhost" } else { &self.authority }
    }
}

/// Puts constants of `set` in the place of variables.
fn replace_constants(text: &str, scope: &Scope<'_>) -> Result<String, String> {
    use super::pieces::{TextPart, split_variables};
    let pieces = split_variables(text).ok_or_else(|| format!("`{text}` is no text with variables"))?;
    let mut out = String::new();
    for piece in pieces {
        match piece {
            TextPart::Text(text) => out.push_str(&text),
            TextPart::Variable(name) => {
                let constant =
                    scope.find_set(&name).map(|set| set.arg(1)).filter(|value| !value.contains('$'));
                out.push_str(constant.ok_or_else(|| format!("the gateway chooses no server by ${name}"))?);
            }
        }
    }
    Ok(out)
}

impl<'d> UpstreamBook<'d> {
    pub(super) fn new(http: &'d [Directive]) -> Result<UpstreamBook<'d>, ImportFault> {
        let mut blocks: HashMap<String, &Directive> = HashMap::new();
        for directive in http.iter().filter(|directive| directive.name == "upstream") {
            let name = directive.arg(0);
            if name.is_empty() || directive.block.is_none() {
                return Err(directive.fault("`upstream` takes a name and a block"));
            }
            if blocks.insert(name.to_ascii_lowercase(), directive).is_some() {
                return Err(directive.fault(format!("there are two upstreams `{name}`")));
            }
        }
        Ok(UpstreamBook { blocks, planned: Vec::new(), places: HashMap::new() })
    }

    /// The name of the upstream that stands for a target in a location; `None` = all its servers are down.
    pub(super) fn resolve(
        &mut self,
        target: &ProxyTarget,
        scope: &Scope<'d>,
        directive: &Directive,
        is_tunnel: bool,
    ) -> Result<Option<String>, ImportFault> {
        let block = self.blocks.get(&target.authority.to_ascii_lowercase()).copied();
        let (servers, mut fields) = match block {
            Some(block) => self.read_block(block, target)?,
            None => {
                let server = write_server(&target.authority, target).map_err(|why| directive.fault(why))?;
                (vec![quote(&server)], vec![PlannedField::plain("eject", "none")])
            }
        };
        if servers.is_empty() {
            return Ok(None);
        }
        read_location_fields(scope, target.is_tls(), servers.len(), is_tunnel, &mut fields)?;
        if target.scheme.starts_with("grpc") {
            fields.push(PlannedField::plain("protocol", "http2"));
        }
        let base = upstream_name(block.map_or(&target.authority, |block| block.arg(0)));
        let source = block.map_or(&directive.at, |block| &block.at).clone();
        let known = |name: &str| self.places.get(name).map(|place| &self.planned[*place]);
        let is_same = |plan: &UpstreamPlan| plan.servers == servers && plan.fields == fields;
        let name = numbered_names(&base).find(|name| known(name).is_none_or(is_same)).unwrap_or_default();
        if known(&name).is_none() {
            let again = block.filter(|_| self.planned.iter().any(|plan| plan.source == source));
            if let Some(block) = again.filter(|_| fields.iter().any(|field| field.name == "max_connections"))
            {
                block.loses("it is written once for each set of times, and each counts connections apart");
            }
            self.places.insert(name.clone(), self.planned.len());
            self.planned.push(UpstreamPlan { name: name.clone(), servers, fields, source });
        }
        Ok(Some(name))
    }

    fn read_block(&self, block: &'d Directive, target: &ProxyTarget) -> Result<ServerGroup, ImportFault> {
        let (mut servers, mut written) = (Vec::new(), Vec::new());
        let members = || block.children().iter().filter(|directive| directive.name == "server");
        // Where the others are down, the backups serve all requests.
        let is_spare =
            |server: &Directive| server.args.iter().any(|word| matches!(word.as_str(), "down" | "backup"));
        let has_backup = !members().all(is_spare);
        for directive in members() {
            let server = write_server(directive.arg(0), target).map_err(|why| directive.fault(why))?;
            // The defaults of nginx.
            let (weight, max_fails, fail_timeout_ms) = (1, 1, 10_000);
            let mut options =
                ServerOptions { weight, max_fails, fail_timeout_ms, ..ServerOptions::default() };
            for parameter in directive.args.iter().skip(1) {
                options.read(parameter, directive)?;
            }
            if options.down {
                directive.exact("it is down, so it is left out");
                continue;
            }
            let mut fields = vec![("url", quote(&server))];
            if options.weight != 1 {
                fields.push(("weight", options.weight.to_string()));
            }
            if options.backup && has_backup {
                fields.push(("backup", "true".to_owned()));
            }
            servers.push(if fields.len() == 1 { quote(&server) } else { flow_map(&fields) });
            written.push((directive, options));
            if !directive.is_told() {
                directive.exact("");
            }
        }
        if members().next().is_none() {
            return Err(block.fault("the upstream has no servers"));
        }
        let mut fields = read_balance(block);
        fields.push(write_ejection(&written));
        fields.extend(write_slots(&written));
        block.exact("");
        Ok((servers, fields))
    }
}

/// nginx counts failures within a span, for each server with numbers of its own.
fn write_ejection(servers: &[(&Directive, ServerOptions)]) -> PlannedField {
    let [(first, ServerOptions { max_fails: fails @ 1.., fail_timeout_ms: ms, .. }), _, ..] = servers else {
        return PlannedField::plain("eject", "none");
    };
    for (directive, other) in servers {
        if (other.max_fails, other.fail_timeout_ms) != (*fails, *ms) {
            let says = format!("max_fails and fail_timeout of {} hold for all servers", first.arg(0));
            directive.differs(says);
        }
    }
    let value = format!("{{ errors: {fails}, for: {}, max: 100% }}", write_time((*ms).max(1)));
    PlannedField::new("eject", value, "errors in a row; nginx counts them within fail_timeout")
}

/// `max_conns` of the servers: one number for all.
fn write_slots(servers: &[(&Directive, ServerOptions)]) -> Option<PlannedField> {
    let slots = || servers.iter().map(|(directive, options)| (directive, options.max_conns));
    let least = slots().map(|(_, count)| count).filter(|count| *count > 0).min()?;
    for (directive, count) in slots().filter(|(_, count)| *count != least) {
        let was = if count == 0 { "no max_conns".to_owned() } else { format!("max_conns={count}") };
        directive.loses(format!("{was}; here all servers have the smallest number, {least}"));
    }
    Some(PlannedField::new("max_connections", least.to_string(), "per server"))
}

#[derive(Default)]
struct ServerOptions {
    weight: u64,
    max_conns: u64,
    max_fails: u64,
    fail_timeout_ms: u64,
    backup: bool,
    down: bool,
}

impl ServerOptions {
    fn read(&mut self, parameter: &str, directive: &Directive) -> Result<(), ImportFault> {
        let wrong = || directive.fault(format!("`{parameter}` is no parameter of a server"));
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        match parameter.split_once('=') {
            // The largest weight of the gateway.
            Some(("weight", text)) => self.weight = number(text)?.min(65_535),
            Some(("max_conns", text)) => self.max_conns = number(text)?,
            Some(("max_fails", text)) => self.max_fails = number(text)?,
            Some(("fail_timeout", text)) => self.fail_timeout_ms = parse_time_ms(text).ok_or_else(wrong)?,
            Some(("slow_start" | "route" | "service", _)) => {
                directive.skips(format!("`{parameter}` is not translated"))
            }
            None if parameter == "backup" => self.backup = true,
            None if parameter == "down" => self.down = true,
            None if parameter == "resolve" => {}
            None if parameter == "drain" => directive.skips("`drain` is not translated"),
            _ => return Err(wrong()),
        }
        Ok(())
    }
}

/// A server as in gateway.yaml.
fn write_server(address: &str, target: &ProxyTarget) -> Result<String, String> {
    let server = match address.strip_prefix("unix:") {
        Some(path) => format!("unix:{path}"),
        None if target.is_tls() => format!("https://{address}"),
        None => format!("http://{address}"),
    };
    parse_server(&server).map(|_| server).map_err(|error| format!("`{address}`: {}", error.message))
}

/// A name for an authority.
fn upstream_name(authority: &str) -> String {
    let name: String = clean_name(authority).chars().take(56).collect();
    let name = name.trim_matches('-').to_owned();
    match name.as_str() {
        "" => "upstream".to_owned(),
        "none" | "any" | "auto" | "demo" => format!("{name}-servers"),
        _ => name,
    }
}

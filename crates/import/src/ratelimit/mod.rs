//! Files of envoyproxy/ratelimit: a domain each, with nested descriptors.
//!
//! Every path to a `rate_limit` becomes a limit and a rule of `service.domains`. Its windows are those of the clock,
//! and its key has the entries that may have any value.

mod descriptor;
mod read;
mod rules;
mod translate;
mod tree;

use std::collections::HashMap;

use super::gateway_file::{GatewayFile, ListenPlan, ServicePlan};
use super::source::SourceText;
use super::{ImportFault, ImportReport, ImportedLine, ReadResult};
use read::DomainReader;
use rules::{DomainRules, RULES_MAX};
use sluicegate_config::yaml::tree::Node;
use translate::DomainWriter;

/// The port of envoyproxy/ratelimit, for calls of this host.
const SERVICE_ADDRESS: &str = "127.0.0.1:8081";
const SERVICE_LISTENER: &str = "rls";

/// True if a document is one of envoyproxy/ratelimit.
pub(super) fn is_ratelimit(root: &Node) -> bool {
    (root.has_field("domain") || root.has_field("descriptors")) && !root.has_field("kind")
}

/// True if a text that is not valid YAML is meant as such a document.
pub(super) fn is_meant_as_ratelimit(text: &str) -> bool {
    let has = |names: &[&str]| text.lines().any(|line| names.iter().any(|name| line.starts_with(name)));
    has(&["domain:", "descriptors:"]) && !has(&["kind:"])
}

/// Imports files, each of which has a domain of its own.
pub(super) fn import_ratelimit(files: &[(SourceText, Node)]) -> ReadResult<(GatewayFile, ImportReport)> {
    let mut report = ImportReport::default();
    let mut domains = Vec::new();
    let mut known: HashMap<String, ImportedLine> = HashMap::new();
    let mut reader = DomainReader::new(&mut report);
    for (source, root) in files {
        let domain = reader.read_domain(source, root)?;
        if let Some(first) = known.insert(domain.name.clone(), domain.at.clone()) {
            let message = format!("the domain `{}` is in {first}, too", domain.name);
            return Err(ImportFault::new(&domain.at, message));
        }
        domains.push(domain);
    }
    let mut file = GatewayFile::default();
    let mut writer = DomainWriter::new(&mut file, &mut report);
    let mut count = 0;
    let mut plans = Vec::new();
    for domain in &domains {
        let rules = DomainRules::find(domain).filter(|found| count + found.rules.len() <= RULES_MAX);
        let Some(rules) = rules else {
            let message = format!("the domains need more than the {RULES_MAX} rules that a service may have");
            return Err(ImportFault::new(&domain.at, message));
        };
        count += rules.rules.len();
        plans.push(writer.add_domain(domain, rules));
    }
    // The service is the only listener, so that no port is open for requests.
    let listener = ListenPlan {
        address: SERVICE_ADDRESS.to_owned(),
        name: SERVICE_LISTENER.to_owned(),
        ..ListenPlan::default()
    };
    file.service = Some(ServicePlan { listener: listener.name.clone(), domains: plans });
    file.listen.push(listener);
    Ok((file, report))
}

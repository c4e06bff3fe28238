//! The configuration to write, as far as imports need it.

use std::collections::HashMap;

use super::ImportedLine;
use super::yaml_text::flow_map;

/// A whole gateway.yaml. Values are written already, as YAML in flow style, unless a field says otherwise.
#[derive(Debug, Default)]
pub(super) struct GatewayFile {
    pub listen: Vec<ListenPlan>,
    /// Fields of `server`.
    pub server: Vec<PlannedField>,
    pub upstreams: Vec<UpstreamPlan>,
    pub limits: Vec<NamedLimitPlan>,
    pub service: Option<ServicePlan>,
    pub locations: Vec<LocationPlan>,
    /// The sources of parts where comments on other lines stand.
    pub places: HashMap<ImportedLine, ImportedLine>,
}

/// A field and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PlannedField {
    pub name: String,
    pub value: String,
    pub note: String,
}

impl PlannedField {
    pub(crate) fn new(name: &str, value: impl Into<String>, note: impl Into<String>) -> PlannedField {
        PlannedField { name: name.to_owned(), value: value.into(), note: note.into() }
    }

    /// A field without a note.
    pub(crate) fn plain(name: &str, value: impl Into<String>) -> PlannedField {
        PlannedField::new(name, value, "")
    }

    /// A mapping; `None` if it has no fields.
    pub(crate) fn map(name: &str, fields: &[(impl AsRef<str>, impl AsRef<str>)]) -> Option<PlannedField> {
        (!fields.is_empty()).then(|| PlannedField::plain(name, flow_map(fields)))
    }
}

#[derive(Debug, Default, Clone)]
pub(super) struct ListenPlan {
    pub address: String,
    pub name: String,
    pub fields: Vec<PlannedField>,
    pub source: Option<ImportedLine>,
}

/// A named upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UpstreamPlan {
    pub name: String,
    /// Each one a scalar or a mapping.
    pub servers: Vec<String>,
    pub fields: Vec<PlannedField>,
    pub source: ImportedLine,
}

#[derive(Debug, Clone)]
pub(super) struct NamedLimitPlan {
    pub name: String,
    pub fields: Vec<PlannedField>,
    pub source: ImportedLine,
}

/// The rate-limit service.
#[derive(Debug)]
pub(super) struct ServicePlan {
    /// The name of its listener.
    pub listener: String,
    pub domains: Vec<DomainPlan>,
}

/// A domain of Envoy's rate limit service. Its names, keys and values are not written in YAML yet.
#[derive(Debug)]
pub(super) struct DomainPlan {
    pub name: String,
    pub rules: Vec<DomainRulePlan>,
    pub source: ImportedLine,
}

/// A rule of a domain, for descriptors with exactly these entries.
#[derive(Debug, Default)]
pub(super) struct DomainRulePlan {
    /// Keys, each once, with their values in order.
    pub entries: Vec<(String, Vec<String>)>,
    pub name: Option<String>,
    pub replaces: Vec<String>,
    /// Names of limits; empty = unlimited.
    pub limits: Vec<String>,
    pub source: Option<ImportedLine>,
    pub note: String,
}

/// A location, its path as in the file.
#[derive(Debug, Clone, Default)]
pub(super) struct LocationPlan {
    /// Not written in YAML yet.
    pub path: String,
    pub hosts: Vec<String>,
    pub methods: Vec<String>,
    pub listeners: Vec<String>,
    /// `upstream`, `respond` or `redirect` first, then the rest in the order of the reference.
    pub fields: Vec<PlannedField>,
    pub source: Option<ImportedLine>,
}

/// The fields of a 403, and the former fields of the location as comments.
pub(super) fn close_fields(open: Vec<PlannedField>) -> Vec<PlannedField> {
    let respond = PlannedField::new("respond", "{ status: 403 }", "until who may come in is checked; then:");
    let open = open.into_iter().map(|field| PlannedField { name: format!("# {}", field.name), ..field });
    std::iter::once(respond).chain(open).collect()
}

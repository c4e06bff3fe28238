//! OpenAPI 3 and Swagger 2 documents: their paths become locations, and `x-ratelimit` and the quotas of Cloud Endpoints
//! become limits.

mod quota;
mod route;

use std::collections::HashSet;

use super::gateway_file::{GatewayFile, LocationPlan, NamedLimitPlan, PlannedField, close_fields};
use super::mapping_fields::MappingFields;
use super::source::SourceText;
use super::yaml_text::{as_value, clean_name, flow_map, quote, quoted_list};
use super::{ImportFault, ImportReport, ImportedLine, ReadResult};
use quota::{MANAGEMENT, QUOTA, QuotaLimit};
use sluicegate_config::yaml::tree::{MapKey, Node, NodeContent};

/// Methods of operations. A location with GET takes HEAD, too, so that HEAD comes before it.
const METHODS: [&str; 9] = ["head", "get", "put", "post", "delete", "options", "patch", "trace", "query"];
/// Parts of the names of extensions that may limit, deny or lead requests elsewhere.
const ACTING: [&str; 8] = ["google", "amazon", "kong", "limit", "throttl", "quota", "auth", "secur"];
/// Fields of paths and operations that do so.
const REDIRECTING: [&str; 3] = ["servers", "$ref", "additionalOperations"];
/// A name may have 64 characters; some stay free for a number.
const NAME_LENGTH_MAX: usize = 56;

/// True if a document is one of OpenAPI or Swagger.
pub(super) fn is_openapi(root: &Node) -> bool {
    (root.has_field("openapi") || root.has_field("swagger")) && !root.has_field("kind")
}

/// Imports one document.
pub(super) fn import_openapi(source: &SourceText, root: &Node) -> ReadResult<(GatewayFile, ImportReport)> {
    let document = MappingFields::open(source, root, "the document", "`openapi` and `paths`")?;
    let version = |name: &str| document.text(name).map(Option::unwrap_or_default);
    if !version("openapi")?.starts_with("3.") && version("swagger")? != "2.0" {
        return Err(ImportFault::new(
            &document.at,
            "the document is neither of OpenAPI 3 nor of Swagger 2.0",
        ));
    }
    let mut reader = DocumentReader::default();
    let base = reader.read_servers(&document)?;
    reader.read_security(&document)?;
    reader.read_quotas(&document)?;
    reader.read_paths(&document, &base)?;
    reader.note_unused_quotas();
    Ok((reader.file, reader.report))
}

/// Reads a document into the file to write.
#[derive(Default)]
struct DocumentReader<'d> {
    file: GatewayFile,
    report: ImportReport,
    /// The names of limits.
    names: HashSet<String>,
    /// Those of all operations.
    shared: Vec<String>,
    quotas: Vec<QuotaLimit<'d>>,
    /// The place of API keys in requests, as a part of a key.
    key_place: Option<String>,
    /// Security schemes whose tokens Cloud Endpoints verifies.
    token_schemes: HashSet<&'d str>,
    /// The alternatives of the document's `security`.
    security: &'d [Node],
}

impl<'d> DocumentReader<'d> {
    fn read_paths(&mut self, document: &MappingFields<'d>, base: &str) -> ReadResult<()> {
        let paths = document.mapping("paths")?;
        self.shared =
            [self.read_level(document, "api", MANAGEMENT)?, self.read_level(&paths, "paths", "")?].concat();
        let says = "others get 404, and other methods 405, also OPTIONS of scripts elsewhere: write `cors`";
        self.report.differs(&paths.at, "paths", says);
        let (mut known, mut found) = (HashSet::new(), Vec::new());
        for (key, _) in paths.iter().filter(|(key, _)| !key.name.starts_with("x-")) {
            let why = match route::write_path(base, &key.name) {
                Ok((path, rank)) if known.insert(path.clone()) => {
                    found.push((rank, path, &key.name));
                    continue;
                }
                Ok(_) => "an earlier path has the same requests".to_owned(),
                Err(why) => why,
            };
            self.report.loses(&paths.line_of(key), &key.name, format!("it has no location: {why}"));
        }
        // Of expressions that match the same paths, the first one wins.
        found.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        found.iter().try_for_each(|(_, path, name)| self.read_item(name, &paths.mapping(name)?, path))
    }

    /// Adds the locations of a path: one for all operations with the same limits.
    fn read_item(&mut self, name: &str, item: &MappingFields<'d>, path: &str) -> ReadResult<()> {
        let own = self.read_level(item, &format!("paths{name}"), "")?;
        let shared = [&self.shared[..], &own].concat();
        let mut plans: Vec<LocationPlan> = Vec::new();
        for verb in METHODS.iter().filter(|verb| item.find(verb).is_some()) {
            let (operation, method) = (item.mapping(verb)?, verb.to_ascii_uppercase());
            let shown = format!("{method} {name}");
            let id = operation.text("operationId")?;
            let own = self.read_level(&operation, id.as_deref().unwrap_or(&shown), QUOTA)?;
            let chain = [&shared, &own, &self.charge_metrics(&operation)?].map(|part| &part[..]).concat();
            let upstream = PlannedField::plain("upstream", quote(&self.file.upstreams[0].name));
            let mut fields = vec![upstream, PlannedField::plain("host_header", "upstream")];
            if self.needs_token(&operation)? {
                fields = close_fields(fields);
            }
            fields.extend((!chain.is_empty()).then(|| PlannedField::plain("limits", quoted_list(&chain))));
            self.report.exact(&operation.at, &shown, format!("limits: {}", chain.join(", ")));
            match plans.iter_mut().find(|plan| plan.fields == fields) {
                Some(plan) => plan.methods.push(method),
                None => {
                    let (path, methods, source) = (path.to_owned(), vec![method], Some(operation.at));
                    plans.push(LocationPlan { path, methods, fields, source, ..LocationPlan::default() });
                }
            }
        }
        self.file.locations.extend(plans);
        Ok(())
    }

    /// The limit that `x-ratelimit` among these fields describes. Reports the extensions, and other fields that may
    /// change what happens to requests, that are not read.
    fn read_level(&mut self, fields: &MappingFields<'d>, name: &str, read: &str) -> ReadResult<Vec<String>> {
        for (key, _) in fields.iter().filter(|(key, _)| key.name != "x-ratelimit" && key.name != read) {
            let (at, name) = (fields.line_of(key), key.name.as_str());
            let (is_extension, acts) =
                (name.starts_with("x-"), ACTING.iter().any(|part| name.contains(part)));
            if is_extension && acts || read != MANAGEMENT && REDIRECTING.contains(&name) {
                self.report.loses(&at, name, "not translated: it may limit, deny or lead requests elsewhere");
            } else if is_extension {
                self.report.skips(&at, name, "the gateway does not know the extension");
            }
        }
        let Some((key, node)) = fields.find("x-ratelimit") else { return Ok(Vec::new()) };
        let field = |(key, node): (&MapKey, &Node)| PlannedField::plain(&quote(&key.name), write_value(node));
        let written = match node.content {
            NodeContent::Map(_) => fields.mapping("x-ratelimit")?.iter().map(field).collect(),
            _ => vec![PlannedField::plain("rate", write_value(node))],
        };
        Ok(vec![self.push_limit(name, written, &fields.line_of(key))])
    }

    /// Adds a limit and returns its name: the parts of `base` that fit into one, perhaps with a number.
    fn push_limit(&mut self, base: &str, fields: Vec<PlannedField>, at: &ImportedLine) -> String {
        let name = clean_name(base).split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-");
        let name: String = name.chars().take(NAME_LENGTH_MAX).collect();
        let numbered = (self.names.len()..).map(|number| format!("{name}-{number}"));
        let mut names = std::iter::once(name.clone()).chain(numbered);
        let name = names.find(|name| !name.is_empty() && self.names.insert(name.clone())).unwrap_or_default();
        self.report.exact(at, base, format!("limit {name}"));
        self.file.limits.push(NamedLimitPlan { name: name.clone(), fields, source: at.clone() });
        name
    }
}

/// A value of the document as one of gateway.yaml.
fn write_value(node: &Node) -> String {
    let field = |(key, node): &(MapKey, Node)| (quote(&key.name), write_value(node));
    let items: Vec<String> = node.items().iter().map(write_value).collect();
    match &node.content {
        NodeContent::List(_) => format!("[{}]", items.join(", ")),
        NodeContent::Map(entries) => flow_map(&entries.iter().map(field).collect::<Vec<_>>()),
        _ => {
            let text = node.text().map_or("", |text| &text.written);
            let is_number = text.starts_with(|c: char| c.is_ascii_digit()) && !text.contains('"');
            if is_number { as_value(text).into_owned() } else { quote(text) }
        }
    }
}

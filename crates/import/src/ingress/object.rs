//! Ingress and Service objects of a file with one or several YAML documents.

use std::collections::{BTreeSet, HashMap};

use crate::source::SourceText;
use crate::{ImportFault, ImportReport, ImportedLine};
use sluicegate_config::yaml::tree::{MapKey, Node, parse_document};
use sluicegate_model::Position;

/// The beginning of the annotations of ingress-nginx.
pub(super) const PREFIX: &str = "nginx.ingress.kubernetes.io/";

#[derive(Debug)]
pub(super) struct IngressObject {
    pub name: String,
    pub namespace: String,
    /// The time as in the file.
    pub created: Option<String>,
    pub at: ImportedLine,
    /// Keys and values with their lines.
    pub annotations: Vec<(ImportedLine, String, String)>,
    /// The hosts of its rules, also of those without paths.
    pub hosts: Vec<Option<String>>,
    pub paths: Vec<IngressPath>,
    /// The secrets of `tls`.
    pub tls: Vec<(ImportedLine, String)>,
}

/// A path and the service that it leads to.
#[derive(Debug)]
pub(super) struct IngressPath {
    pub at: ImportedLine,
    pub host: Option<String>,
    pub path: String,
    pub is_exact: bool,
    /// Stands for a `defaultBackend`.
    pub is_default: bool,
    pub service: String,
    /// The number, or the name in the Service.
    pub port: String,
}

/// The ports of services by namespace, service and name of the port.
pub(super) type ServiceTable = HashMap<(String, String, String), u16>;

/// A node and the first line of its document.
#[derive(Clone, Copy)]
struct Place<'n> {
    node: &'n Node,
    offset: usize,
    file: &'n str,
}

impl<'n> Place<'n> {
    fn line_at(&self, position: Position) -> ImportedLine {
        ImportedLine { file: self.file.to_owned(), line: self.offset + position.line }
    }

    fn at(&self) -> ImportedLine {
        self.line_at(self.node.position)
    }

    fn fault(&self, message: impl Into<String>) -> ImportFault {
        ImportFault::new(&self.at(), message)
    }

    fn entries(&self) -> impl Iterator<Item = (&'n MapKey, Place<'n>)> + use<'n> {
        let place = *self;
        place.node.entries().iter().map(move |(key, node)| (key, Place { node, ..place }))
    }

    fn field(&self, name: &str) -> Option<Place<'n>> {
        self.entries().find(|(key, _)| key.name == name).map(|(_, place)| place)
    }

    fn items(&self) -> impl Iterator<Item = Place<'n>> + use<'n> {
        let place = *self;
        place.node.items().iter().map(move |node| Place { node, ..place })
    }

    fn text(&self) -> Option<&'n str> {
        self.node.text().map(|text| text.written.as_str())
    }

    fn text_of(&self, name: &str) -> Option<&'n str> {
        self.field(name)?.text()
    }
}

/// The documents of a text, each with the number of lines before it.
fn split_documents(text: &str) -> Vec<(usize, String)> {
    let (mut documents, mut current, mut start) = (Vec::new(), String::new(), 0);
    for (index, line) in text.lines().enumerate() {
        if line == "---" || line.starts_with("--- ") || line.starts_with("---\t") || line == "..." {
            documents.push((start, std::mem::take(&mut current)));
            start = index + 1;
            continue;
        }
        current.push_str(line);
        current.push('\n');
    }
    documents.push((start, current));
    let is_empty =
        |text: &str| text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'));
    documents.retain(|(_, text)| !is_empty(text));
    documents
}

/// The Ingress objects and the services of a file.
pub(super) fn read_objects(
    source: &SourceText,
    report: &mut ImportReport,
) -> Result<(Vec<IngressObject>, ServiceTable), ImportFault> {
    let (mut objects, mut services) = (Vec::new(), ServiceTable::default());
    for (offset, document) in split_documents(&source.text) {
        let node = parse_document(&document).map_err(|(at, error)| {
            source.fault_at(Position { line: offset + at.line, ..at }, error.message)
        })?;
        let place = Place { node: &node, offset, file: &source.name };
        let items: Vec<Place<'_>> = match place.text_of("kind") {
            Some("List" | "IngressList") => {
                place.field("items").map(|items| items.items().collect()).unwrap_or_default()
            }
            _ => vec![place],
        };
        for item in items {
            match item.text_of("kind") {
                Some("Ingress") => objects.push(read_ingress(item)?),
                Some("Service") => read_service(item, &mut services),
                Some(kind) => report.skips(&item.at(), kind, "only Ingress and Service objects are read"),
                None => return Err(item.fault("no Kubernetes object with `kind`, nor an OpenAPI document")),
            }
        }
    }
    Ok((objects, services))
}

fn name_and_namespace(object: Place<'_>) -> (String, String) {
    let metadata = object.field("metadata");
    let text = |name: &str| metadata.and_then(|metadata| metadata.text_of(name)).map(str::to_owned);
    (
        text("name").unwrap_or_else(|| "ingress".to_owned()),
        text("namespace").unwrap_or_else(|| "default".to_owned()),
    )
}

fn read_service(object: Place<'_>, services: &mut ServiceTable) {
    let (name, namespace) = name_and_namespace(object);
    let ports = object.field("spec").and_then(|spec| spec.field("ports"));
    for port in ports.iter().flat_map(Place::items) {
        if let (Some(port_name), Some(Ok(number))) =
            (port.text_of("name"), port.text_of("port").map(str::parse))
        {
            services.insert((namespace.clone(), name.clone(), port_name.to_owned()), number);
        }
    }
}

fn read_ingress(object: Place<'_>) -> Result<IngressObject, ImportFault> {
    let (name, namespace) = name_and_namespace(object);
    let metadata = object.field("metadata");
    let mut found = IngressObject {
        name,
        namespace,
        created: metadata.and_then(|metadata| metadata.text_of("creationTimestamp")).map(str::to_owned),
        at: object.at(),
        annotations: Vec::new(),
        hosts: Vec::new(),
        paths: Vec::new(),
        tls: Vec::new(),
    };
    let annotations = metadata.and_then(|metadata| metadata.field("annotations"));
    for (key, value) in annotations.iter().flat_map(Place::entries) {
        let at = value.line_at(key.position);
        let Some(text) = value.text() else {
            return Err(ImportFault::new(&at, format!("the annotation `{}` is no text", key.name)));
        };
        found.annotations.push((at, key.name.clone(), text.to_owned()));
    }
    let spec = object.field("spec").ok_or_else(|| object.fault("the Ingress has no `spec`"))?;
    for tls in spec.field("tls").iter().flat_map(Place::items) {
        found.tls.push((tls.at(), tls.text_of("secretName").unwrap_or_default().to_owned()));
    }
    for rule in spec.field("rules").iter().flat_map(Place::items) {
        let host = rule.text_of("host").filter(|host| !host.is_empty()).map(str::to_owned);
        found.hosts.push(host.clone());
        for path in rule.field("http").and_then(|http| http.field("paths")).iter().flat_map(Place::items) {
            found.paths.push(read_path(path, host.clone())?);
        }
    }
    if let Some(backend) = spec.field("defaultBackend") {
        let (service, port) = read_backend(backend)?;
        // With rules it is that of their hosts, else that of any host.
        let named = found.hosts.iter().filter(|host| host.is_some()).cloned().collect::<BTreeSet<_>>();
        let hosts = if found.hosts.is_empty() { BTreeSet::from([None]) } else { named };
        found.paths.extend(hosts.into_iter().map(|host| {
            let (at, path, service, port) = (backend.at(), "/".to_owned(), service.clone(), port.clone());
            IngressPath { at, host, path, is_exact: false, is_default: true, service, port }
        }));
    }
    Ok(found)
}

fn read_path(path: Place<'_>, host: Option<String>) -> Result<IngressPath, ImportFault> {
    let is_exact = match path.text_of("pathType") {
        Some("Exact") => true,
        // For ingress-nginx they are one.
        Some("Prefix" | "ImplementationSpecific") | None => false,
        Some(other) => return Err(path.fault(format!("`{other}` is no pathType"))),
    };
    let backend = path.field("backend").ok_or_else(|| path.fault("the path has no `backend`"))?;
    let (service, port) = read_backend(backend)?;
    let text = path.text_of("path").filter(|text| !text.is_empty()).unwrap_or("/").to_owned();
    if !text.starts_with('/') {
        return Err(path.fault(format!("the path `{text}` does not start with /")));
    }
    Ok(IngressPath { at: path.at(), host, path: text, is_exact, is_default: false, service, port })
}

/// The service and its port, in the form of networking.k8s.io/v1 or the one before.
fn read_backend(backend: Place<'_>) -> Result<(String, String), ImportFault> {
    let wrong = || backend.fault("the backend names no service with a port");
    let (name, port) = match backend.field("service") {
        Some(service) => {
            let port = service.field("port").ok_or_else(wrong)?;
            (service.text_of("name"), port.text_of("number").or(port.text_of("name")))
        }
        None => (backend.text_of("serviceName"), backend.text_of("servicePort")),
    };
    Ok((name.ok_or_else(wrong)?.to_owned(), port.ok_or_else(wrong)?.to_owned()))
}

/// The number of an annotation.
pub(super) fn read_number(at: &ImportedLine, value: &str) -> Result<u64, ImportFault> {
    let number = value.trim().parse::<u64>().ok().filter(|number| *number <= 1_000_000_000);
    number.ok_or_else(|| ImportFault::new(at, format!("`{value}` is not a number")))
}

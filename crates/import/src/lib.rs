//! `import`: writes a gateway.yaml from the configuration of another proxy, with a report of each line's translation.
//!
//! A reader ([`nginx`], [`ingress`], [`openapi`], [`ratelimit`]) fills a [`gateway_file::GatewayFile`] and a
//! [`report::ImportReport`]. Untranslated lines that limit or deny are listed as lost, never left out silently.

#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]
#![warn(clippy::unwrap_used)]

mod gateway_file;
mod gateway_yaml;
mod ingress;
mod mapping_fields;
mod networks;
mod nginx;
mod openapi;
mod ratelimit;
mod report;
mod source;
mod yaml_text;

use std::fmt;
use std::path::{Path, PathBuf};

use gateway_file::GatewayFile;
use sluicegate_config as config;
use sluicegate_config::yaml::tree::{Node, parse_document};
use sluicegate_model::{Problem, codes};
use source::SourceText;

pub use report::{FindingKind, ImportFinding, ImportReport};

/// A written configuration and the report of the lines it was made from.
#[derive(Debug)]
pub struct Imported {
    /// The text of gateway.yaml.
    pub yaml: String,
    /// The translation of each line, lost lines first.
    pub report: ImportReport,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImportedLine {
    /// The name of the file, as messages show it.
    pub file: String,
    /// The number of the line, counted from 1.
    pub line: usize,
}

impl ImportedLine {
    /// The first line of a file.
    fn start_of(file: impl fmt::Display) -> ImportedLine {
        ImportedLine { file: file.to_string(), line: 1 }
    }
}

impl fmt::Display for ImportedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A file that is not understood, with the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportFault {
    /// The line that is not understood.
    pub at: ImportedLine,
    /// The column of YAML, counted in characters from 1.
    pub column: Option<usize>,
    /// The reason, without the place.
    pub message: String,
}

/// What a reader reads, or the first place that is not understood.
type ReadResult<T> = Result<T, ImportFault>;

impl ImportFault {
    fn new(at: &ImportedLine, message: impl Into<String>) -> ImportFault {
        ImportFault { at: at.clone(), column: None, message: message.into() }
    }
}

impl fmt::Display for ImportFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.column {
            Some(column) => write!(f, "{}:{column}: {}", self.at, self.message),
            None => write!(f, "{}: {}", self.at, self.message),
        }
    }
}

/// Imports one file, as [`import_files`] does.
///
/// # Errors
/// The first place that is not understood.
pub fn import_file(path: &Path) -> Result<Imported, ImportFault> {
    import_files(&[path.to_path_buf()])
}

/// Imports an nginx.conf, or YAML or JSON: Ingress objects, an OpenAPI document, or files of envoyproxy/ratelimit, of
/// which there may be several, in folders, too. `-` is YAML from stdin.
///
/// # Errors
/// The first place that is not understood.
pub fn import_files(paths: &[PathBuf]) -> Result<Imported, ImportFault> {
    let mut files = Vec::new();
    for path in paths {
        files.extend(source::list_files(path)?);
    }
    let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let first = files.first().map_or(Path::new(""), PathBuf::as_path);
    let (mut file, mut report) = match files.as_slice() {
        [one] if !source::is_yaml(one) => nginx::import_nginx(one)?,
        files => import_yaml(files)?,
    };
    let yaml = loop {
        report.sort_findings();
        let yaml = gateway_yaml::write_yaml(&file, &report, &shown.join(" "));
        let problems = check_yaml(&yaml, first, &mut report)?;
        let Some((at, problem)) = problems.first() else { break yaml };
        // The last one first, so that the places of the others stay.
        let alike = problems.iter().rev().filter(|(_, other)| other.message == problem.message);
        let left = alike.filter_map(|(_, other)| leave_out_listener(&mut file, other, &mut report)).count();
        if left == 0 {
            let message =
                format!("cannot be written as gateway.yaml: {}: {}", problem.field, problem.message);
            return Err(ImportFault::new(at, message));
        }
    };
    report.sort_findings();
    Ok(Imported { yaml, report })
}

fn import_yaml(paths: &[PathBuf]) -> Result<(GatewayFile, ImportReport), ImportFault> {
    let (mut files, mut bytes) = (Vec::new(), 0);
    for path in paths {
        let source = SourceText::read(path)?;
        bytes += source.text.len() as u64;
        if bytes > source::FILE_BYTES_MAX {
            return Err(ImportFault::new(&source.start(), "with it, the files are larger than 8 MiB"));
        }
        match parse_one_document(&source)? {
            Some(root) if openapi::is_openapi(&root) && paths.len() == 1 => {
                return openapi::import_openapi(&source, &root);
            }
            Some(root) if ratelimit::is_ratelimit(&root) => files.push((source, root)),
            None if paths.len() == 1 => return ingress::import_ingress(&source),
            _ => {
                let message = "of several files, each must be one of envoyproxy/ratelimit, with a `domain`";
                return Err(ImportFault::new(&source.start(), message));
            }
        }
    }
    ratelimit::import_ratelimit(&files)
}

/// The document of a file of OpenAPI or envoyproxy/ratelimit; `None` for anything else, which the reader of Ingress
/// objects names in its errors.
fn parse_one_document(source: &SourceText) -> Result<Option<Node>, ImportFault> {
    match parse_document(&source.text) {
        Ok(root) if openapi::is_openapi(&root) || ratelimit::is_ratelimit(&root) => Ok(Some(root)),
        Err((position, error)) if ratelimit::is_meant_as_ratelimit(&source.text) => {
            Err(source.fault_at(position, error.message))
        }
        _ => Ok(None),
    }
}

/// Takes the listener of a problem out of the file, if one is at fault.
fn leave_out_listener(file: &mut GatewayFile, problem: &Problem, report: &mut ImportReport) -> Option<()> {
    /// The address to try locations at that lose their only listener.
    const INSTEAD: &str = "127.0.0.1:8080";
    let place: usize = problem.field.strip_prefix("listen[")?.split_once(']')?.0.parse().ok()?;
    let source = file.listen.get(place)?.source.clone()?;
    let why = problem.suggestion.iter().fold(problem.message.clone(), |why, more| format!("{why}; {more}"));
    let says = format!("the listener is left out: {why}");
    let is_only = file.listen.len() == 1;
    let listen = &mut file.listen[place];
    let address = std::mem::replace(&mut listen.address, INSTEAD.to_owned());
    // A client without a certificate must not come in by another way.
    if is_only && (address == INSTEAD || listen.fields.iter().any(|field| field.value.contains("client_ca")))
    {
        return None;
    }
    report.loses(&source, &format!("listen {address}"), says);
    file.places.remove(&source);
    if is_only {
        listen.fields.clear();
        return Some(());
    }
    let gone = file.listen.remove(place).name;
    file.locations.retain_mut(|location| {
        let was_bound = !location.listeners.is_empty();
        location.listeners.retain(|name| *name != gone);
        !was_bound || !location.listeners.is_empty()
    });
    Some(())
}

/// The gateway's own check: the problems and their sources. Files that it cannot read here may exist where the
/// gateway will run.
fn check_yaml(
    yaml: &str,
    path: &Path,
    report: &mut ImportReport,
) -> Result<Vec<(ImportedLine, Problem)>, ImportFault> {
    if yaml.len() as u64 > config::FILE_MAX {
        let at = ImportedLine::start_of(path.display());
        let message =
            format!("the gateway.yaml has {} bytes, more than the 1 MiB that the gateway reads", yaml.len());
        return Err(ImportFault::new(&at, message));
    }
    let Err(found) = config::parse(yaml, &path.display().to_string()) else { return Ok(Vec::new()) };
    let (missing, wrong): (Vec<_>, Vec<_>) =
        found.problems.into_iter().partition(|problem| problem.code == codes::UNREADABLE);
    let lines: Vec<&str> = yaml.lines().collect();
    if !wrong.is_empty() {
        let sourced = |problem: Problem| (find_source(&lines, problem.line, path), problem);
        return Ok(wrong.into_iter().map(sourced).collect());
    }
    for problem in missing {
        let at = find_source(&lines, problem.line, path);
        let says = format!("{}; the gateway needs it at its start", problem.message);
        report.differs(&at, &problem.field, says);
    }
    Ok(Vec::new())
}

/// The source that a comment at or above the line of the written file names.
fn find_source(lines: &[&str], line: usize, path: &Path) -> ImportedLine {
    let named = lines[..line.min(lines.len())].iter().rev().find_map(|line| {
        let (file, number) = line.rsplit_once("# ")?.1.split(',').next()?.rsplit_once(':')?;
        Some(ImportedLine { file: file.to_owned(), line: number.trim().parse().ok()? })
    });
    named.unwrap_or_else(|| ImportedLine::start_of(path.display()))
}

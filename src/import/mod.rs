//! `import`: writes a gateway.yaml from the configuration of another proxy, with a report of what became of each line.
//!
//! A reader ([`nginx`], [`ingress`]) fills a [`gateway_file::GatewayFile`] and a [`report::ImportReport`]. What limits
//! or denies and cannot be translated is listed as lost, never left out silently.

mod chain_plan;
mod gateway_file;
mod gateway_yaml;
mod ingress;
mod networks;
mod nginx;
mod report;
mod yaml_text;

use std::fmt;
use std::path::Path;

use crate::config;
use crate::config::codes;

pub use report::{FindingKind, ImportFinding, ImportReport};

/// A written configuration and what became of the lines it was made from.
#[derive(Debug)]
pub struct Imported {
    /// The text of gateway.yaml.
    pub yaml: String,
    pub report: ImportReport,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImportedLine {
    pub file: String,
    pub line: usize,
}

impl fmt::Display for ImportedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A file that is not understood, with the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportFault {
    pub at: ImportedLine,
    pub message: String,
}

impl ImportFault {
    fn new(at: &ImportedLine, message: impl Into<String>) -> ImportFault {
        ImportFault { at: at.clone(), message: message.into() }
    }
}

impl fmt::Display for ImportFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.message)
    }
}

/// Imports an nginx.conf, or Ingress objects if the file's name ends with `.yaml`, `.yml` or `.json`.
///
/// # Errors
/// The first place that is not understood.
pub fn import_file(path: &Path) -> Result<Imported, ImportFault> {
    let kind = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let (file, mut report) = match kind {
        "yaml" | "yml" | "json" => ingress::import_ingress(path)?,
        _ => nginx::import_nginx(path)?,
    };
    let yaml = gateway_yaml::write_yaml(&file, &path.display().to_string());
    check_yaml(&yaml, path, &mut report)?;
    report.sort_findings();
    Ok(Imported { yaml, report })
}

/// The gateway's own check. Files that it cannot read here may exist where the gateway will run.
fn check_yaml(yaml: &str, path: &Path, report: &mut ImportReport) -> Result<(), ImportFault> {
    let Err(found) = config::parse(yaml, &path.display().to_string()) else { return Ok(()) };
    let (missing, wrong): (Vec<_>, Vec<_>) =
        found.problems.into_iter().partition(|problem| problem.code == codes::UNREADABLE);
    let lines: Vec<&str> = yaml.lines().collect();
    if let Some(problem) = wrong.first() {
        let at = find_source(&lines, problem.line, path);
        let message = format!("cannot be written as gateway.yaml: {}: {}", problem.field, problem.message);
        return Err(ImportFault::new(&at, message));
    }
    for problem in missing {
        let at = find_source(&lines, problem.line, path);
        report.differs(
            &at,
            &problem.field,
            "",
            format!("{}; the gateway needs it at its start", problem.message),
        );
    }
    Ok(())
}

/// The source that a comment at or above the line of the written file names.
fn find_source(lines: &[&str], line: usize, path: &Path) -> ImportedLine {
    let named = lines[..line.min(lines.len())].iter().rev().find_map(|line| {
        let (file, number) = line.rsplit_once("# ")?.1.split(',').next()?.rsplit_once(':')?;
        Some(ImportedLine { file: file.to_owned(), line: number.trim().parse().ok()? })
    });
    named.unwrap_or_else(|| ImportedLine { file: path.display().to_string(), line: 1 })
}

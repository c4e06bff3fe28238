//! `gateway.yaml`: read and checked, into the types of [`sluicegate_model`].
//!
//! [`load`] reads a file into a [`Config`] or into all of its [`Problem`]s at once.
//!
//! The steps for a file: its bytes ([`file`]) become a tree with positions ([`yaml::tree`]), `${NAME}` is replaced
//! ([`yaml::substitution`]), included files join the tree ([`file_set`]), the sections are read ([`read`]) through
//! [`yaml::field_reader`] by the tables of [`schema`], and [`lint`] warns of traps. All problems are reported at once.

#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]
#![warn(clippy::unwrap_used)]

pub mod describe;
mod file_set;
mod lint;
mod read;
pub mod schema;
pub mod values;
pub mod yaml;

use std::path::Path;
use std::time::Duration;

pub use file_set::FILE_MAX;
pub use read::tiers::{list_numbers, read_grant, read_set, written_fields};
pub use schema::json_schema::json_schema_text;
pub use schema::reference::markdown_reference;

use file_set::{FileSet, TOO_LARGE, describe_bad_utf8, process_environment};
use read::{operation, sections};
use schema::tables::root::root;
use sluicegate_base::file::{self, FileFingerprint};
use sluicegate_model::{
    AdminConfig, Config, LocationConfig, PathRule, Position, Problem, ProblemReport, ProblemSink, ValueError,
    codes,
};
use values::FileValues;
use yaml::field_value::FieldValue;
use yaml::tree::NodeContent;
use yaml::{substitution, tree};

/// A valid configuration and its warnings.
#[derive(Debug, Clone)]
pub struct LoadedConfig {
    /// The configuration, with defaults for all fields that are not written.
    pub config: Config,
    /// The traps that the file holds, in the order of its lines; none of them makes it invalid.
    pub warnings: Vec<Problem>,
    /// The files that were read, as of [`load_with_files`].
    pub files: Vec<FileFingerprint>,
    /// The paths of included files, as problems show them.
    pub included: Vec<String>,
    /// The first digits of the SHA-256 of the file, as `sha256sum` writes it, or of a list of the set. Files that it
    /// names otherwise are left out, as they may differ from host to host.
    pub file_hash: String,
    /// What the files say, to tell changes.
    pub values: FileValues,
}

impl LoadedConfig {
    /// A note about reading that took `span`, if that is long.
    pub fn note_slow_reading(&self, span: Duration) -> Option<String> {
        let is_regex = |location: &&LocationConfig| matches!(location.path, PathRule::Regex(_));
        let regexes = self.config.locations.iter().filter(is_regex).count();
        (span >= SLOW_READING)
            .then(|| format!("reading took {:.1} s; regular expressions: {regexes}", span.as_secs_f64()))
    }
}

/// Reading that takes longer is worth a line.
const SLOW_READING: Duration = Duration::from_secs(1);

/// Reads and checks the file at `path`.
pub fn load(path: &Path) -> Result<LoadedConfig, ProblemReport> {
    let (loaded, files) = load_with_files(path);
    loaded.map(|loaded| LoadedConfig { files, ..loaded })
}

/// [`load`] with every file that was read for it, even if loading failed: the file itself and those it names.
pub fn load_with_files(path: &Path) -> (Result<LoadedConfig, ProblemReport>, Vec<FileFingerprint>) {
    file::record_reads(|| read_config(path))
}

/// The admin listener of the file at `path`, even if another section is wrong. `None` = it has none, cannot be read,
/// or uses variables that are not set.
pub fn load_admin(path: &Path) -> Option<AdminConfig> {
    let text = String::from_utf8(file::read_capped(path, FILE_MAX).ok()?).ok()?;
    let mut root = tree::parse_document(text.strip_prefix('\u{feff}').unwrap_or(&text)).ok()?;
    let sink = ProblemSink::default();
    let environment = process_environment(&path.display().to_string());
    if let NodeContent::Map(entries) = &mut root.content {
        entries.retain(|(key, _)| key.name == "admin");
    }
    let unset = ProblemSink::default();
    substitution::substitute_all(&mut root, &environment, &unset);
    if unset.has_problems() {
        return None;
    }
    let whole = FieldValue { node: &root, path: String::new(), named_at: Position::START, sink: &sink };
    operation::read_admin(&whole.open_section(&root::SECTION))
}

fn read_config(path: &Path) -> Result<LoadedConfig, ProblemReport> {
    let name = path.display().to_string();
    let bytes = file::read_capped(path, FILE_MAX).map_err(|reason| {
        let help = match reason.starts_with("is larger") {
            true => TOO_LARGE,
            false => "name another file with -c FILE; `sluicegate init` writes a working one",
        };
        let error = ValueError::new(codes::UNREADABLE, format!("the file `{name}` {reason}"));
        ProblemReport::for_file(&name, error.with_help(help))
    })?;
    match String::from_utf8(bytes) {
        Ok(text) => parse(&text, &name),
        Err(error) => {
            let (position, error) = describe_bad_utf8(error.as_bytes(), error.utf8_error().valid_up_to());
            Err(ProblemReport {
                file: name,
                problems: vec![error.at_position(position, "")],
                lines: Default::default(),
            })
        }
    }
}

/// Checks `text`; problems show `file_name`, and relative paths start at its folder.
pub fn parse(text: &str, file_name: &str) -> Result<LoadedConfig, ProblemReport> {
    let set = FileSet::read_all(text, file_name)?;
    let config = sections::read_sections(&set.root, &set.sink);
    let (included, file_hash) = (set.included(), set.short_hash());
    let values = FileValues::list_all(&set.root, &set.sink);
    let (problems, warnings) = set.sink.take_sorted();
    match config {
        Some(config) if problems.is_empty() => {
            Ok(LoadedConfig { config, warnings, files: Vec::new(), included, file_hash, values })
        }
        _ => Err(set.report(problems)),
    }
}

//! `gateway.yaml`: read and checked, into the types of [`sluicegate_model`].
//!
//! [`load`] reads a file into a [`Config`] or into all of its [`Problem`]s at once.
//!
//! The steps for a file: its bytes ([`file`]) become a tree with positions ([`yaml::tree`]), `${NAME}` is replaced
//! ([`yaml::substitution`]), the sections are read ([`read`]) through [`yaml::field_reader`] by the tables of
//! [`schema`], and [`lint`] warns of traps. All problems are reported at once.

#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]
#![warn(clippy::unwrap_used)]

pub mod describe;
mod lint;
mod read;
pub mod schema;
pub mod yaml;

use std::path::Path;
use std::time::Duration;

pub use read::tiers::read_grant;
pub use schema::json_schema::json_schema_text;
pub use schema::reference::markdown_reference;

use read::{operation, sections};
use schema::tables::root::root;
use sluicegate_base::file::{self, FileFingerprint};
use sluicegate_model::diagnostics::redact;
use sluicegate_model::{
    AdminConfig, Config, LocationConfig, PathRule, Position, Problem, ProblemReport, ProblemSink, SourceFile,
    ValueError, codes,
};
use yaml::field_value::FieldValue;
use yaml::substitution::Environment;
use yaml::tree::NodeContent;
use yaml::{foreign_text, substitution, tree};

/// A valid configuration and its warnings.
#[derive(Debug, Clone)]
pub struct LoadedConfig {
    /// The configuration, with defaults for all fields that are not written.
    pub config: Config,
    /// The traps that the file holds, in the order of its lines; none of them makes it invalid.
    pub warnings: Vec<Problem>,
    /// The files that were read, as of [`load_with_files`].
    pub files: Vec<FileFingerprint>,
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

/// Size limit of the configuration file, in bytes.
pub const FILE_MAX: u64 = 1 << 20;

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

/// Checks `text`; problems show `file_name`, and the paths of `${file:PATH}` are relative to its folder.
pub fn parse(text: &str, file_name: &str) -> Result<LoadedConfig, ProblemReport> {
    let environment = process_environment(file_name);
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let report = |mut problems: Vec<Problem>| {
        let lines = redact::redact_lines(text);
        problems.iter_mut().for_each(|problem| foreign_text::name_lookalike(problem, &lines));
        ProblemReport { file: file_name.to_owned(), problems, lines: [(String::new(), lines)].into() }
    };
    if text.len() as u64 > FILE_MAX {
        let error =
            ValueError::new(codes::UNREADABLE, format!("the file `{file_name}` is larger than 1 MiB"));
        return Err(ProblemReport::for_file(file_name, error.with_help(TOO_LARGE)));
    }
    if let Some((position, error)) = foreign_text::find_other_program(text) {
        return Err(report(vec![error.at_position(position, "")]));
    }
    let mut root = tree::parse_document(text)
        .map_err(|(position, error)| report(vec![error.at_position(position, "")]))?;
    let sink = ProblemSink::default();
    sink.add_source(SourceFile {
        first_line: 1,
        name: file_name.to_owned(),
        folder: environment.folder.clone(),
        locations_before: 0,
        owner: Default::default(),
    });
    substitution::substitute_all(&mut root, &environment, &sink);
    let config = sections::read_sections(&root, &environment.folder, &sink);
    let (problems, warnings) = sink.take_sorted();
    match config {
        Some(config) if problems.is_empty() => Ok(LoadedConfig { config, warnings, files: Vec::new() }),
        _ => Err(report(problems)),
    }
}

fn process_environment(file_name: &str) -> Environment<'static> {
    Environment {
        variable: &|name| std::env::var(name).ok(),
        variable_names: std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect(),
        folder: Path::new(file_name).parent().map(Path::to_path_buf).unwrap_or_default(),
    }
}

const TOO_LARGE: &str =
    "1 MiB is the most; long lists of networks and accounts belong into files of their own";

fn describe_bad_utf8(bytes: &[u8], valid_up_to: usize) -> (Position, ValueError) {
    let before = String::from_utf8_lossy(&bytes[..valid_up_to]);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    let message = format!("the file is not UTF-8 text: byte {valid_up_to} cannot be read");
    let encoding = match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "it is UTF-16: save it as UTF-8",
        _ => "save it as UTF-8",
    };
    (Position { line, column, width: 1 }, ValueError::new(codes::NOT_UTF8, message).with_help(encoding))
}

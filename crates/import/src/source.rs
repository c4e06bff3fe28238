//! The text of a file to import, from disk or from stdin.

use std::path::{Path, PathBuf};

use super::{ImportFault, ImportedLine};
use sluicegate_base::file;
use sluicegate_model::Position;

/// The most bytes of a file, and of all files of an nginx configuration together.
pub(super) const FILE_BYTES_MAX: u64 = 8 << 20;
/// More files in one folder are not the configuration of one service.
const FOLDER_FILES_MAX: usize = 1000;
/// The name that stands for stdin.
const STDIN: &str = "-";

/// A file with its text.
#[derive(Debug)]
pub(super) struct SourceText {
    pub name: String,
    pub text: String,
}

impl SourceText {
    /// Reads a regular file of at most 8 MiB, or stdin if the path is `-`.
    pub(crate) fn read(path: &Path) -> Result<SourceText, ImportFault> {
        let name = if path == Path::new(STDIN) { "stdin".to_owned() } else { path.display().to_string() };
        let start = ImportedLine::start_of(&name);
        let bytes = match path == Path::new(STDIN) {
            true => file::read_at_most(std::io::stdin().lock(), FILE_BYTES_MAX),
            false => file::read_capped(path, FILE_BYTES_MAX),
        };
        let bytes = bytes.map_err(|why| ImportFault::new(&start, format!("the file {why}")))?;
        let text = String::from_utf8(bytes).map_err(|_| ImportFault::new(&start, "it is not UTF-8 text"))?;
        Ok(SourceText { name, text })
    }

    pub(crate) fn start(&self) -> ImportedLine {
        ImportedLine::start_of(&self.name)
    }

    pub(crate) fn line_at(&self, position: Position) -> ImportedLine {
        ImportedLine { file: self.name.clone(), line: position.line }
    }

    pub(crate) fn fault_at(&self, position: Position, message: impl Into<String>) -> ImportFault {
        ImportFault { column: Some(position.column), ..ImportFault::new(&self.line_at(position), message) }
    }
}

/// True if the path names YAML or JSON: by its ending, or because it is stdin.
pub(super) fn is_yaml(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    path == Path::new(STDIN) || matches!(ending, "yaml" | "yml" | "json")
}

/// The files that a path stands for: itself, or the YAML files of a folder in the order of their names.
pub(super) fn list_files(path: &Path) -> Result<Vec<PathBuf>, ImportFault> {
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let start = ImportedLine::start_of(path.display());
    let unreadable = |error: std::io::Error| ImportFault::new(&start, format!("it cannot be read: {error}"));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        let is_hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !is_hidden && is_yaml(&file) && file.is_file() {
            files.push(file);
        }
        if files.len() > FOLDER_FILES_MAX {
            return Err(ImportFault::new(
                &start,
                format!("the folder has more than {FOLDER_FILES_MAX} YAML files"),
            ));
        }
    }
    if files.is_empty() {
        return Err(ImportFault::new(&start, "the folder has no .yaml, .yml or .json file"));
    }
    files.sort();
    Ok(files)
}

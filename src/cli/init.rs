//! `init`: writes a file to start from, and the schema by which editors know its fields.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use super::{FAILED, print_error, print_output};
use sluicegate_config as config;

/// The file at the root of the repository, which tests check.
const TEMPLATE: &str = include_str!("../../gateway.yaml");

/// Writes the file; replaces an existing one only with `force`.
pub(super) fn run_init(file: &Path, force: bool) -> ExitCode {
    let name = file.display();
    // The first line of the template names it.
    let schema = file.with_file_name("gateway.schema.json");
    let written =
        write_new(file, TEMPLATE, force).and_then(|()| write_new(&schema, &config::json_schema_text(), true));
    match written {
        Ok(()) => {
            let schema = schema.display();
            print_output(&format!(
                "wrote {name}: check it with `sluicegate check`, serve it with `sluicegate`\n\
                 wrote {schema}: by it, editors complete and explain the fields\n"
            ));
            ExitCode::SUCCESS
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            print_error(&format!("error: {name} already exists; --force overwrites it\n"));
            ExitCode::from(FAILED)
        }
        Err(error) => {
            print_error(&format!("error: cannot write {name}: {error}\n"));
            ExitCode::from(FAILED)
        }
    }
}

fn write_new(file: &Path, text: &str, force: bool) -> io::Result<()> {
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    options.open(file)?.write_all(text.as_bytes())
}

//! `init` and `import`: write a file to start from, or one from the configuration of another proxy.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use super::args::ImportArgs;
use super::{
    CONFIG_INVALID, CommandFault, CommandResult, FAILED, failed, print_error, print_output, print_result,
};
use sluicegate_config as config;
use sluicegate_import::import_files;

/// The file at the root of the repository, which tests check.
const TEMPLATE: &str = include_str!("../../gateway.yaml");

/// Writes the file, and the schema by which editors know its fields; replaces an existing file only with `force`.
pub(super) fn run_init(file: &Path, force: bool) -> CommandResult {
    let name = file.display();
    // The first line of the template names it.
    let schema = file.with_file_name("gateway.schema.json");
    let written =
        write_new(file, TEMPLATE, force).and_then(|()| write_new(&schema, &config::json_schema_text(), true));
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => failed(format!("{name} already exists; --force overwrites it")),
        _ => failed(format!("cannot write {name}: {error}")),
    })?;
    let schema = schema.display();
    print_result(&format!(
        "wrote {name}: check it with `sluicegate check`, serve it with `sluicegate`\n\
         wrote {schema}: by it, editors complete and explain the fields\n"
    ))
}

fn write_new(file: &Path, text: &str, force: bool) -> io::Result<()> {
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    let mut file = if force { File::create(file)? } else { File::create_new(file)? };
    file.write_all(text.as_bytes())
}

/// Writes the file and the report. A line that limits, denies or answers and is not translated makes the code 1, unless
/// `--partial` is given; the file is written all the same, so that it can be completed by hand.
pub(super) fn run_import(args: &ImportArgs) -> CommandResult {
    let imported = import_files(&args.files).map_err(|fault| CommandFault::new(CONFIG_INVALID, fault))?;
    match &args.output {
        None => print_output(&imported.yaml),
        Some(path) => fs::write(path, &imported.yaml)
            .map_err(|error| failed(format!("{} cannot be written: {error}", path.display())))?,
    }
    print_error(&match args.report.as_str() {
        "json" => imported.report.render_json(),
        _ => imported.report.render_text(),
    });
    let is_whole = imported.report.count_lost() == 0 || args.partial;
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

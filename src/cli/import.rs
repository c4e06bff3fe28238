//! `import`: writes a gateway.yaml from the configuration of another proxy, and a report of the conversion.

use std::process::ExitCode;

use super::args::{ImportArgs, ImportReportFormat};
use super::{CONFIG_INVALID, FAILED, print_error, print_output};
use sluicegate_import::import_files;

/// Writes the file and the report. A line that limits, denies or answers and is not translated makes the code 1, unless
/// `--partial` is given; the file is written all the same, so that it can be completed by hand.
pub(super) fn run_import(args: &ImportArgs) -> ExitCode {
    let imported = match import_files(&args.files) {
        Ok(imported) => imported,
        Err(fault) => {
            print_error(&format!("error: {fault}\n"));
            return ExitCode::from(CONFIG_INVALID);
        }
    };
    match &args.output {
        None => print_output(&imported.yaml),
        Some(path) => {
            if let Err(error) = std::fs::write(path, &imported.yaml) {
                print_error(&format!("error: {} cannot be written: {error}\n", path.display()));
                return ExitCode::from(FAILED);
            }
        }
    }
    print_error(&match args.report {
        ImportReportFormat::Text => imported.report.render_text(),
        ImportReportFormat::Json => imported.report.render_json(),
    });
    match imported.report.count_lost() {
        0 => ExitCode::SUCCESS,
        _ if args.partial => ExitCode::SUCCESS,
        _ => ExitCode::from(FAILED),
    }
}

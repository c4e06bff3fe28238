//! `check`: tells every problem of a file, for people or for programs.

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use super::{CONFIG_INVALID, colored, complain, tell, warning_text};
use crate::config::{self, Problem};

#[derive(Serialize)]
struct Findings<'a> {
    file: &'a str,
    valid: bool,
    problems: &'a [Problem],
    warnings: &'a [Problem],
}

/// With `strict` a file with warnings is not valid.
pub(super) fn check(file: &Path, strict: bool, json: bool) -> ExitCode {
    let name = file.display().to_string();
    let outcome = config::load(file);
    let (problems, warnings) = match &outcome {
        Ok(loaded) => (&[][..], &loaded.warnings[..]),
        Err(report) => (&report.problems[..], &[][..]),
    };
    let valid = outcome.is_ok() && (!strict || warnings.is_empty());
    if json {
        let findings = Findings { file: &name, valid, problems, warnings };
        // Only maps with odd keys fail to serialize, and there are none.
        tell(&(serde_json::to_string_pretty(&findings).unwrap_or_default() + "\n"));
    } else {
        warnings.iter().for_each(|warning| complain(&warning_text(warning, &name)));
        match &outcome {
            Err(report) => complain(&format!("{}\n", report.render(colored()))),
            Ok(_) if valid => tell(&format!("{name} is valid\n")),
            Ok(_) => complain(&format!("{name} has warnings, and --strict makes them errors\n")),
        }
    }
    if valid { ExitCode::SUCCESS } else { ExitCode::from(CONFIG_INVALID) }
}

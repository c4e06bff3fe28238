//! `test`: runs scenario files against their configurations, on a virtual clock.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use super::args::TestArgs;
use super::progress::ProgressLine;
use super::{
    CONFIG_INVALID, CommandFault, CommandResult, FAILED, failed, print_error, print_output, render_json,
    usage,
};
use crate::simulate::scenario::{
    FileReport, Scenario, ScenarioFile, ScenarioRunner, TestReport, load_file, render_junit,
};

/// The end of the names of scenario files.
const SUFFIX: &str = "_test.yaml";
const DEFAULT_CONFIG: &str = "gateway.yaml";

/// Runs the named files, or all beside the configuration.
pub(super) fn run_test(config: Option<&Path>, args: &TestArgs) -> CommandResult {
    let files = find_files(config, &args.files).map_err(usage)?;
    // Every file is checked before the first one runs.
    let in_place = config.filter(|_| !args.files.is_empty());
    let Some(loaded) = load_all(&files, in_place) else { return Ok(ExitCode::from(CONFIG_INVALID)) };
    let report = run_all(&loaded, args.filter.as_deref());
    let report = report.map_err(|error| failed(format!("the scenarios cannot be run: {error}")))?;
    if let Some(filter) = args.filter.as_ref().filter(|_| report.passed + report.failed == 0) {
        return Err(usage(format!("no scenario has `{}` in its name", filter.escape_debug())));
    }
    if let Some(path) = &args.junit {
        let written = std::fs::write(path, render_junit(&report));
        written.map_err(|error| failed(format!("cannot write `{}`: {error}", path.display())))?;
    }
    print_output(&if args.json { render_json(&report) } else { report.to_string() });
    Ok(if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// The files to run: those named, or all beside the configuration by name.
fn find_files(config: Option<&Path>, named: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    if !named.is_empty() {
        return Ok(named.to_vec());
    }
    let folder = config.unwrap_or(Path::new(DEFAULT_CONFIG)).parent().unwrap_or(Path::new(""));
    let shown = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let unreadable = |error: io::Error| format!("cannot list the folder `{}`: {error}", shown.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(shown).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        if name.to_str().is_some_and(|name| name.ends_with(SUFFIX)) {
            found.push(folder.join(name));
        }
    }
    found.sort();
    if found.is_empty() {
        return Err(format!(
            "no file in `{}` ends with {SUFFIX}; name one, e.g. limits{SUFFIX}",
            shown.display()
        ));
    }
    Ok(found)
}

/// All files, with `config` in the place of the ones that they name; `None` if one is wrong, which is reported.
fn load_all(files: &[PathBuf], config: Option<&Path>) -> Option<Vec<ScenarioFile>> {
    let mut loaded = Vec::new();
    let mut is_wrong = false;
    for file in files {
        match load_file(file, config) {
            Ok(file) => loaded.push(file),
            Err(report) => {
                is_wrong = true;
                print_error(&CommandFault::from(report).text);
            }
        }
    }
    (!is_wrong).then_some(loaded)
}

fn run_all(files: &[ScenarioFile], filter: Option<&str>) -> io::Result<TestReport> {
    let is_chosen = |scenario: &&Scenario| filter.is_none_or(|filter| scenario.name.contains(filter));
    let all = files.iter().flat_map(|file| &file.scenarios).filter(is_chosen);
    let whole = all.flat_map(|scenario| &scenario.steps).map(|step| step.send).sum();
    let (line, done) = (ProgressLine::start(), Rc::new(Cell::new(0)));
    let done_before = done.clone();
    let runner = ScenarioRunner::new(move |sent| line.show_part(done_before.get() + sent, whole))?;
    let mut report = TestReport::default();
    for file in files {
        let run = |scenario| {
            let report = runner.run_scenario(file, scenario);
            done.set(done.get() + report.requests);
            report
        };
        let scenarios: Vec<_> = file.scenarios.iter().filter(is_chosen).map(run).collect();
        if filter.is_none() || !scenarios.is_empty() {
            let config = file.config_path.display().to_string();
            report.add_file(FileReport { file: file.name.clone(), config, scenarios });
        }
    }
    Ok(report)
}

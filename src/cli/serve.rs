//! `run`: serves a file; and the messages of a start, as text or as JSON lines.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use serde::Deserialize;
use tokio::time::Instant;

use super::{CANNOT_LISTEN, CONFIG_INVALID, FAILED, print_error, use_colors, warning_text};
use crate::process;
use crate::process::{ProcessFault, Startup};
use sluicegate_config::{self as config, LoadedConfig};
use sluicegate_model::{LogFormat, ProblemReport};
use sluicegate_observe::logging;
use sluicegate_observe::stderr_line::StderrLine;

/// Bytes of an invalid file that are searched for the format of the log.
const FILE_MAX: u64 = 1 << 20;

/// A configuration to serve, and its origin.
pub(super) struct ServedConfig<'a> {
    pub loaded: LoadedConfig,
    /// The name of the origin in messages.
    pub source: &'a str,
    pub file: Option<&'a Path>,
    /// A remark for the log.
    pub note: Option<String>,
}

pub(super) fn serve_file(file: &Path) -> ExitCode {
    let startup = match Startup::begin() {
        Ok(startup) => startup,
        Err(fault) => return exit_with_fault(fault),
    };
    let started = Instant::now();
    let source = file.display().to_string();
    match config::load(file) {
        Ok(loaded) => {
            let note = loaded.note_slow_reading(started.elapsed());
            serve_config(startup, ServedConfig { loaded, source: &source, file: Some(file), note })
        }
        Err(report) => {
            print_error(&render_report(&report, logging::is_json_format(find_log_format(file))));
            ExitCode::from(CONFIG_INVALID)
        }
    }
}

pub(super) fn serve_config(startup: Startup, served: ServedConfig<'_>) -> ExitCode {
    let ServedConfig { loaded, source, file, note } = served;
    logging::start_logging(&loaded.config.log);
    if logging::is_json() {
        // The panic may end the process, so its line does not go through the queue of the log.
        std::panic::set_hook(Box::new(|panic| {
            print_error(&StderrLine::new("ERROR", &panic.to_string()).render_json());
        }));
    }
    // All of these wait until the banner is out.
    if let Some(note) = note {
        tracing::warn!("{source}: {note}");
    }
    for warning in &loaded.warnings {
        logging::queue_text(&match logging::is_json() {
            true => StderrLine::from_problem("WARN", warning, source).render_json(),
            false => warning_text(warning, source),
        });
    }
    let source = process::ConfigSource { display_name: source.to_owned(), file: file.map(Path::to_path_buf) };
    match process::run(startup, loaded, source) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => exit_with_fault(fault),
    }
}

pub(super) fn exit_with_fault(fault: ProcessFault) -> ExitCode {
    let (why, code) = match fault {
        ProcessFault::Listen(why) => (why, CANNOT_LISTEN),
        ProcessFault::Run(why) => (why, FAILED),
    };
    logging::flush_lines();
    print_error(&match logging::is_json() {
        true => StderrLine::new("ERROR", &why).render_json(),
        false => format!("error: {why}\n"),
    });
    ExitCode::from(code)
}

fn render_report(report: &ProblemReport, json: bool) -> String {
    if !json {
        return format!("{}\n", report.render(use_colors()));
    }
    let line = |problem| StderrLine::from_problem("ERROR", problem, &report.file).render_json();
    report.problems.iter().map(line).collect()
}

/// The only section that matters for the format of messages.
#[derive(Deserialize)]
struct LogSection {
    log: serde_yaml::Value,
}

/// The format of the log that an invalid file asks for, as far as its section `log` can be read.
fn find_log_format(file: &Path) -> LogFormat {
    let read_section = || {
        // A pipe would be waited for.
        fs::metadata(file).ok().filter(fs::Metadata::is_file)?;
        let mut text = String::new();
        fs::File::open(file).ok()?.take(FILE_MAX).read_to_string(&mut text).ok()?;
        let root: LogSection = serde_yaml::from_str(&text).ok()?;
        let section = serde_json::to_string(&root.log).ok()?;
        let name = file.display().to_string();
        let text = format!("log: {section}\nlocations: [{{ path: /, upstream: demo }}]\n");
        Some(config::parse(&text, &name).ok()?.config.log.format)
    };
    read_section().unwrap_or(LogFormat::Auto)
}

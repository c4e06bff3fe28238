//! `run` and `proxy`: serve a file, or one upstream that the command line configures; and the messages of a start, as
//! text or as JSON lines.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use serde::Deserialize;
use tokio::time::Instant;

use super::args::ProxyArgs;
use super::{
    CANNOT_LISTEN, CONFIG_INVALID, CommandFault, CommandResult, FAILED, WRONG_COMMAND_LINE, print_error,
    warning_text,
};
use crate::process::{self, ConfigSource, ProcessFault, Startup};
use sluicegate_config::{self as config, LoadedConfig};
use sluicegate_model::{LogFormat, Problem, ProblemReport};
use sluicegate_observe::logging;
use sluicegate_observe::stderr_line::StderrLine;

pub(super) fn serve_file(file: &Path) -> CommandResult {
    let startup = Startup::begin()?;
    let started = Instant::now();
    let source = ConfigSource { display_name: file.display().to_string(), file: Some(file.to_owned()) };
    let loaded = config::load(file).map_err(|report| {
        let text = render_report(&report, logging::is_json_format(find_log_format(file)));
        CommandFault { code: CONFIG_INVALID, text }
    })?;
    let note = loaded.note_slow_reading(started.elapsed());
    serve_config(startup, loaded, source, note)
}

/// `note` is a remark for the log.
fn serve_config(
    startup: Startup,
    loaded: LoadedConfig,
    source: ConfigSource,
    note: Option<String>,
) -> CommandResult {
    logging::start_logging(&loaded.config.log);
    if logging::is_json() {
        // The panic may end the process, so its line does not go through the queue of the log.
        std::panic::set_hook(Box::new(|panic| {
            print_error(&StderrLine::new("ERROR", &panic.to_string()).render_json());
        }));
    }
    // All of these wait until the banner is out.
    let name = &source.display_name;
    if let Some(note) = note {
        tracing::warn!("{name}: {note}");
    }
    for warning in &loaded.warnings {
        logging::queue_text(&match logging::is_json() {
            true => StderrLine::from_problem("WARN", warning, name).render_json(),
            false => warning_text(warning, name),
        });
    }
    process::run(startup, loaded, source)?;
    Ok(ExitCode::SUCCESS)
}

impl From<ProcessFault> for CommandFault {
    fn from(fault: ProcessFault) -> CommandFault {
        let (why, code) = match fault {
            ProcessFault::Listen(why) => (why, CANNOT_LISTEN),
            ProcessFault::Run(why) => (why, FAILED),
        };
        logging::flush_lines();
        match logging::is_json() {
            true => CommandFault { code, text: StderrLine::new("ERROR", &why).render_json() },
            false => CommandFault::new(code, why),
        }
    }
}

fn render_report(report: &ProblemReport, json: bool) -> String {
    if !json {
        return CommandFault::from(report).text;
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
        fs::File::open(file).ok()?.take(config::FILE_MAX).read_to_string(&mut text).ok()?;
        let root: LogSection = serde_yaml::from_str(&text).ok()?;
        let section = serde_json::to_string(&root.log).ok()?;
        let name = file.display().to_string();
        let text = format!("log: {section}\nlocations: [{{ path: /, upstream: demo }}]\n");
        Some(config::parse(&text, &name).ok()?.config.log.format)
    };
    read_section().unwrap_or(LogFormat::Auto)
}

/// Shown in place of a file name.
const SOURCE: &str = "the command line";

pub(super) fn run_proxy(args: &ProxyArgs) -> CommandResult {
    let startup = Startup::begin()?;
    let loaded = config::parse(&proxy_yaml(args), SOURCE).map_err(|report| {
        // Positions refer to generated text, so only the messages are shown.
        let line = |problem: &Problem| {
            let help = problem.suggestion.as_ref().map(|help| format!("\n  = help: {help}"));
            format!("error: {}{}\n", problem.message, help.unwrap_or_default())
        };
        CommandFault { code: WRONG_COMMAND_LINE, text: report.problems.iter().map(line).collect() }
    })?;
    serve_config(startup, loaded, ConfigSource { display_name: SOURCE.to_owned(), file: None }, None)
}

/// The YAML that the command line stands for.
pub(super) fn proxy_yaml(args: &ProxyArgs) -> String {
    let is_complete = args.to.contains("://") || args.to.starts_with("unix:") || args.to == "demo";
    let to = match is_complete {
        true => args.to.clone(),
        false => format!("http://{}", args.to),
    };
    let limits: Vec<String> =
        args.limit.iter().map(|rate| format!("{{ key: ip, rate: {} }}", quote_scalar(rate))).collect();
    format!(
        "listen: {}\nadmin: {}\nlocations:\n  - {{ path: /, upstream: {}, limits: [{}] }}\n",
        port_or_scalar(&args.listen),
        port_or_scalar(&args.admin),
        quote_scalar(&to),
        limits.join(", ")
    )
}

/// A bare number stays one, since it is a port.
fn port_or_scalar(text: &str) -> String {
    text.parse::<u16>().map_or_else(|_| quote_scalar(text), |port| port.to_string())
}

/// A double-quoted scalar with exactly `text`: no variable is expanded and nothing is read as YAML.
fn quote_scalar(text: &str) -> String {
    // JSON strings are double-quoted scalars of YAML; strings always serialize.
    serde_json::to_string(&text.replace("${", "$${")).unwrap_or_default()
}

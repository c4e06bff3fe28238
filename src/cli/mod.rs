//! The command line: verbs, output and exit codes.

mod admin_client;
mod args;
mod check;
mod explain;
mod init;
mod proxy;
mod remote;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use tokio::time::Instant;

use crate::config::{self, LoadedConfig, Problem, ProblemReport};
use crate::observe::logging;
use crate::process;
use crate::process::{ProcessFault, Startup};
use args::{CommandLine, PLANNED_VERBS, VERBS, Verb};

const DEFAULT_FILE: &str = "gateway.yaml";

/// Exit codes, part of the documented contract; 0 is [`ExitCode::SUCCESS`].
const FAILED: u8 = 1;
const WRONG_COMMAND_LINE: u8 = 2;
const CONFIG_INVALID: u8 = 3;
const CANNOT_LISTEN: u8 = 4;
const ADMIN_UNREACHABLE: u8 = 5;

/// Runs the command line; `args` begins with the name of the program.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match CommandLine::try_parse_from(args) {
        Ok(line) => run_verb(line),
        Err(error) => {
            // clap distinguishes an error from the answer to --help.
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(WRONG_COMMAND_LINE))
        }
    }
}

fn run_verb(line: CommandLine) -> ExitCode {
    let has_file = line.config.is_some();
    let file = line.config.unwrap_or_else(|| PathBuf::from(DEFAULT_FILE));
    match line.verb {
        None | Some(Verb::Run) => serve_file(&file),
        Some(Verb::Check(how)) => check::run_check(&file, how.strict, how.json),
        Some(Verb::Explain(how)) => explain::run_explain(&file, how),
        Some(Verb::Reload) => remote::run_reload(&file),
        Some(Verb::Status(how)) => remote::run_status(&file, how.json),
        Some(Verb::Proxy(_)) if has_file => exit_with_usage("`proxy` works without a file: leave -c out"),
        Some(Verb::Proxy(how)) => proxy::run_proxy(&how),
        Some(Verb::Init(how)) => init::run_init(&file, how.force),
        Some(Verb::Version) => {
            print_output(&format!("sluicegate {}\n", env!("CARGO_PKG_VERSION")));
            ExitCode::SUCCESS
        }
        Some(Verb::Help) => {
            print_output(&CommandLine::command().render_long_help().to_string());
            ExitCode::SUCCESS
        }
        Some(Verb::Other(words)) => reject_verb(words),
    }
}

/// Rejects a planned or unknown verb.
fn reject_verb(args: Vec<OsString>) -> ExitCode {
    let verb = args.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    if PLANNED_VERBS.contains(&verb.as_str()) {
        return exit_with_usage(&format!("`{verb}` is not supported yet"));
    }
    let near = VERBS.iter().find(|known| strsim::osa_distance(known, &verb) <= 2);
    match near {
        Some(near) => exit_with_usage(&format!("there is no verb `{verb}`; did you mean `{near}`?")),
        None => exit_with_usage(&format!("there is no verb `{verb}`; `sluicegate help` lists them")),
    }
}

fn serve_file(file: &Path) -> ExitCode {
    let startup = match Startup::begin() {
        Ok(startup) => startup,
        Err(fault) => return exit_with_fault(fault),
    };
    match load_file(file) {
        Ok(loaded) => serve_config(startup, loaded, &file.display().to_string(), Some(file)),
        Err(report) => {
            print_error(&format!("{}\n", report.render(use_colors())));
            ExitCode::from(CONFIG_INVALID)
        }
    }
}

/// Loads the file, with a line on stderr if that takes long.
fn load_file(file: &Path) -> Result<LoadedConfig, ProblemReport> {
    let started = Instant::now();
    let loaded = config::load(file)?;
    if let Some(note) = loaded.note_slow_reading(started.elapsed()) {
        print_error(&format!("{}: {note}\n", file.display()));
    }
    Ok(loaded)
}

fn serve_config(startup: Startup, loaded: LoadedConfig, source: &str, file: Option<&Path>) -> ExitCode {
    for warning in &loaded.warnings {
        print_error(&warning_text(warning, source));
    }
    logging::start_logging(&loaded.config.log);
    let source = process::ConfigSource { display_name: source.to_owned(), file: file.map(Path::to_path_buf) };
    match process::run(startup, loaded, source) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => exit_with_fault(fault),
    }
}

fn exit_with_fault(fault: ProcessFault) -> ExitCode {
    let (why, code) = match fault {
        ProcessFault::Listen(why) => (why, CANNOT_LISTEN),
        ProcessFault::Run(why) => (why, FAILED),
    };
    print_error(&format!("error: {why}\n"));
    ExitCode::from(code)
}

fn warning_text(warning: &Problem, file: &str) -> String {
    let Problem { code, line, column, message, suggestion, .. } = warning;
    let help = suggestion.as_ref().map(|help| format!("  = help: {help}\n")).unwrap_or_default();
    format!("warning[{code}]: {message}\n --> {file}:{line}:{column}\n{help}")
}

fn exit_with_usage(why: &str) -> ExitCode {
    print_error(&format!("error: {why}\n"));
    ExitCode::from(WRONG_COMMAND_LINE)
}

/// Colours only on a terminal, and not with NO_COLOR set (no-color.org).
fn use_colors() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Prints a result to stdout; a closed reader is ignored.
fn print_output(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints an error to stderr.
fn print_error(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests;

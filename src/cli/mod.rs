//! The command line: verbs, what they print, and the exit codes.

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

use crate::config::{self, Loaded, Problem};
use crate::observe::logging;
use crate::process;
use crate::process::{Fault, Startup};
use args::{CommandLine, LATER, VERBS, Verb};

const DEFAULT_FILE: &str = "gateway.yaml";

/// The contract's exit codes; 0 is [`ExitCode::SUCCESS`].
const FAILED: u8 = 1;
const WRONG_COMMAND_LINE: u8 = 2;
const CONFIG_INVALID: u8 = 3;
const CANNOT_LISTEN: u8 = 4;
const ADMIN_UNREACHABLE: u8 = 5;

/// Does what the command line says; `args` starts with the name of the program.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match CommandLine::try_parse_from(args) {
        Ok(line) => obey(line),
        Err(error) => {
            // clap knows whether this is an error or an answer to --help.
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(WRONG_COMMAND_LINE))
        }
    }
}

fn obey(line: CommandLine) -> ExitCode {
    let named = line.config.is_some();
    let file = line.config.unwrap_or_else(|| PathBuf::from(DEFAULT_FILE));
    match line.verb {
        None | Some(Verb::Run) => serve_file(&file),
        Some(Verb::Check(how)) => check::check(&file, how.strict, how.json),
        Some(Verb::Explain(how)) => explain::explain(&file, how),
        Some(Verb::Reload) => remote::reload(&file),
        Some(Verb::Status(how)) => remote::status(&file, how.json),
        Some(Verb::Proxy(_)) if named => wrong("`proxy` works without a file: leave -c out"),
        Some(Verb::Proxy(how)) => proxy::proxy(&how),
        Some(Verb::Init(how)) => init::init(&file, how.force),
        Some(Verb::Version) => {
            tell(&format!("sluicegate {}\n", env!("CARGO_PKG_VERSION")));
            ExitCode::SUCCESS
        }
        Some(Verb::Help) => {
            tell(&CommandLine::command().render_long_help().to_string());
            ExitCode::SUCCESS
        }
        Some(Verb::Other(words)) => refuse(words),
    }
}

/// A verb that does not work, or none at all.
fn refuse(words: Vec<OsString>) -> ExitCode {
    let verb = words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    if LATER.contains(&verb.as_str()) {
        return wrong(&format!("`{verb}` is not supported yet"));
    }
    let near = VERBS.iter().find(|known| strsim::osa_distance(known, &verb) <= 2);
    match near {
        Some(near) => wrong(&format!("there is no verb `{verb}`; did you mean `{near}`?")),
        None => wrong(&format!("there is no verb `{verb}`; `sluicegate help` lists them")),
    }
}

fn serve_file(file: &Path) -> ExitCode {
    let startup = match Startup::begin() {
        Ok(startup) => startup,
        Err(fault) => return failed(fault),
    };
    match config::load(file) {
        Ok(loaded) => serve(startup, loaded, &file.display().to_string(), Some(file)),
        Err(report) => {
            complain(&format!("{}\n", report.render(colored())));
            ExitCode::from(CONFIG_INVALID)
        }
    }
}

fn serve(startup: Startup, loaded: Loaded, source: &str, file: Option<&Path>) -> ExitCode {
    for warning in &loaded.warnings {
        complain(&warning_text(warning, source));
    }
    logging::start(&loaded.config.log);
    let source = process::Source { shown: source.to_owned(), file: file.map(Path::to_path_buf) };
    match process::run(startup, loaded, source) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => failed(fault),
    }
}

fn failed(fault: Fault) -> ExitCode {
    let (why, code) = match fault {
        Fault::Listen(why) => (why, CANNOT_LISTEN),
        Fault::Run(why) => (why, FAILED),
    };
    complain(&format!("error: {why}\n"));
    ExitCode::from(code)
}

fn warning_text(warning: &Problem, file: &str) -> String {
    let Problem { code, line, column, message, suggestion, .. } = warning;
    let help = suggestion.as_ref().map(|help| format!("  = help: {help}\n")).unwrap_or_default();
    format!("warning[{code}]: {message}\n --> {file}:{line}:{column}\n{help}")
}

fn wrong(why: &str) -> ExitCode {
    complain(&format!("error: {why}\n"));
    ExitCode::from(WRONG_COMMAND_LINE)
}

/// Colours for people only, and never against their wish (no-color.org).
fn colored() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// To stdout: what was asked for. A reader that has gone away is nobody to complain to.
fn tell(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// To stderr: what went wrong.
fn complain(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests;

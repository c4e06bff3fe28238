//! The command line: verbs, output and exit codes.

mod admin_client;
mod api_key;
mod args;
mod check;
mod command_help;
mod explain;
mod file_argument;
mod issuer_keys;
mod log_verbs;
mod man;
mod operator_args;
mod operator_verbs;
mod progress;
mod remote;
mod serve;
mod server_names;
mod test;
mod top;
mod write_config;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::FromArgMatches;
use serde::Serialize;
use tokio::time::Instant;

use args::{CheckArgs, CommandLine, Verb};
use command_help::build_command;
use file_argument::ConfigInput;
use sluicegate_config::{self as config, LoadedConfig};
use sluicegate_model::{Problem, ProblemReport};

/// Exit codes, part of the documented contract; 0 is [`ExitCode::SUCCESS`].
const FAILED: u8 = 1;
const WRONG_COMMAND_LINE: u8 = 2;
const CONFIG_INVALID: u8 = 3;
const CANNOT_LISTEN: u8 = 4;
const ADMIN_UNREACHABLE: u8 = 5;

/// Why a command fails.
struct CommandFault {
    /// The exit code.
    code: u8,
    /// The lines for stderr.
    text: String,
}

type CommandResult = Result<ExitCode, CommandFault>;

impl CommandFault {
    fn new(code: u8, why: impl Display) -> CommandFault {
        CommandFault { code, text: format!("error: {}\n", why.to_string().trim_end()) }
    }
}

impl From<&ProblemReport> for CommandFault {
    fn from(report: &ProblemReport) -> CommandFault {
        let use_colors = io::stderr().is_terminal() && !is_no_color_set();
        CommandFault { code: CONFIG_INVALID, text: format!("{}\n", report.render(use_colors)) }
    }
}

impl From<ProblemReport> for CommandFault {
    fn from(report: ProblemReport) -> CommandFault {
        CommandFault::from(&report)
    }
}

/// The fault of a wrong command line.
fn usage(why: impl Display) -> CommandFault {
    CommandFault::new(WRONG_COMMAND_LINE, why)
}

/// The fault of a command that fails while it runs.
fn failed(why: impl Display) -> CommandFault {
    CommandFault::new(FAILED, why)
}

/// Runs the command line; `args` begins with the name of the program.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let parsed = build_command().try_get_matches_from(args).and_then(|found| {
        let name = found.subcommand_name().unwrap_or("run").to_owned();
        Ok((name, CommandLine::from_arg_matches(&found)?))
    });
    match parsed {
        Ok((name, line)) => run_verb(&name, line).unwrap_or_else(|fault| {
            print_error(&fault.text);
            ExitCode::from(fault.code)
        }),
        Err(error) => {
            // clap distinguishes an error from the answer to --help.
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(WRONG_COMMAND_LINE))
        }
    }
}

/// `name`: that of the verb.
fn run_verb(name: &str, line: CommandLine) -> CommandResult {
    let CommandLine { config, test, verb } = line;
    if test && verb.is_some() {
        return Err(usage("-t stands for `check` and takes no command: use `sluicegate -t -c FILE`"));
    }
    let file = |why: &str| ConfigInput::choose(config.clone(), None)?.into_file(name, why);
    let running = "the file of the running gateway has a name";
    let reloads = "a reload reads the file again";
    match verb {
        None if test => check::run_check(&ConfigInput::choose(config, None)?, &CheckArgs::default()),
        None => serve::serve_file(&file(reloads)?),
        Some(Verb::Run { file }) => {
            serve::serve_file(&ConfigInput::choose(config, file)?.into_file(name, reloads)?)
        }
        Some(Verb::Check(mut how)) => check::run_check(&ConfigInput::choose(config, how.file.take())?, &how),
        Some(Verb::Explain(how)) => explain::run_explain(&ConfigInput::choose(config, None)?, how),
        Some(Verb::Test(how)) => test::run_test(config.as_deref(), &how),
        Some(Verb::Replay(how)) => log_verbs::run_replay(&ConfigInput::choose(config, None)?, &how),
        Some(Verb::Recommend(_) | Verb::Proxy(_)) if config.is_some() => {
            Err(usage(format!("`{name}` works without a file: leave -c out")))
        }
        Some(Verb::Recommend(how)) => log_verbs::run_recommend(&how),
        Some(Verb::Reload) => remote::run_reload(&file(running)?),
        Some(Verb::Status(how)) => remote::run_status(&file(running)?, how.json),
        Some(Verb::Top(how)) => top::run_top(&file(running)?, &how),
        Some(Verb::Operator(verb)) => operator_verbs::run_operator_verb(&file(running)?, &verb),
        Some(Verb::ApiKey { verb }) => api_key::run_api_key(verb, &file("it names a file beside it")?),
        Some(Verb::Proxy(how)) => serve::run_proxy(&how),
        Some(Verb::Init { force }) => write_config::run_init(&file("it writes a file")?, force),
        Some(Verb::Import(_)) if config.is_some() => {
            Err(usage("`import` reads another proxy's file: name it, and the one to write with -o"))
        }
        Some(Verb::Import(how)) => write_config::run_import(&how),
        Some(Verb::Schema { format }) => print_result(&match format.as_str() {
            "markdown" => config::markdown_reference(),
            _ => config::json_schema_text(),
        }),
        Some(Verb::Completions { shell }) => man::run_completions(shell),
        Some(Verb::Man { dir }) => man::run_man(dir.as_deref()),
        Some(Verb::Version) => print_result(&version()),
        Some(Verb::Other(words)) => Err(usage(reject_verb(&words))),
    }
}

/// Also whether a release was built without a profile, which costs speed: `make dist PGO=no`.
fn version() -> String {
    let slower = if option_env!("SLUICEGATE_PGO") == Some("no") { " (built without a profile)" } else { "" };
    format!("sluicegate {}{slower}\n", env!("CARGO_PKG_VERSION"))
}

fn reject_verb(words: &[OsString]) -> String {
    let verb = words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    let command = command_help::build_command();
    let mut known = command.get_subcommands().map(clap::Command::get_name).chain(["help"]);
    match known.find(|known| strsim::osa_distance(known, &verb) <= 2) {
        Some(near) => format!("there is no verb `{verb}`; did you mean `{near}`?"),
        None if Path::new(&verb).is_file() => {
            format!("there is no verb `{verb}`; `sluicegate run {verb}` serves that file")
        }
        None => format!("there is no verb `{verb}`; `sluicegate help` lists them"),
    }
}

/// Loads the configuration, with a line on stderr if that takes long.
fn load_noted(input: &ConfigInput) -> Result<LoadedConfig, ProblemReport> {
    let started = Instant::now();
    let loaded = input.load()?;
    if let Some(note) = loaded.note_slow_reading(started.elapsed()) {
        print_error(&format!("{}: {note}\n", input.display_name()));
    }
    Ok(loaded)
}

fn warning_text(warning: &Problem, file: &str) -> String {
    let Problem { code, line, column, message, suggestion, .. } = warning;
    let file = warning.file_or(file);
    let help = suggestion.as_ref().map(|help| format!("  = help: {help}\n")).unwrap_or_default();
    format!("warning[{code}]: {message}\n --> {file}:{line}:{column}\n{help}")
}

/// True if the environment asks for no colours (no-color.org).
fn is_no_color_set() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Prints the result of a command that succeeds.
fn print_result(text: &str) -> CommandResult {
    print_output(text);
    Ok(ExitCode::SUCCESS)
}

/// `value` as lines of JSON.
fn render_json(value: &impl Serialize) -> String {
    // Only maps with odd keys fail to serialize, and there are none.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

/// Prints a result to stdout; a closed reader is ignored.
fn print_output(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn print_error(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests;

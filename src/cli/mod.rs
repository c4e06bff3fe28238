//! The command line: verbs, output and exit codes.

mod admin_client;
mod args;
mod check;
mod command_help;
mod explain;
mod file_argument;
mod import;
mod init;
mod log_args;
mod log_verbs;
mod man;
mod operator_args;
mod operator_verbs;
mod proxy;
mod remote;
mod serve;
mod server_names;
mod shown_text;
mod test;
mod top;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::FromArgMatches;
use tokio::time::Instant;

use args::{CheckArgs, CommandLine, SchemaFormat, Verb};
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

/// Runs the command line; `args` begins with the name of the program.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let parsed =
        build_command().try_get_matches_from(args).and_then(|found| CommandLine::from_arg_matches(&found));
    match parsed {
        Ok(line) => run_verb(line).unwrap_or_else(|why| exit_with_usage(&why)),
        Err(error) => {
            // clap distinguishes an error from the answer to --help.
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(WRONG_COMMAND_LINE))
        }
    }
}

/// The error describes a wrong command line.
fn run_verb(line: CommandLine) -> Result<ExitCode, String> {
    let CommandLine { config, test, verb } = line;
    if test && verb.is_some() {
        return Err("-t stands for `check` and takes no command: use `sluicegate -t -c FILE`".to_owned());
    }
    let file = |verb: &str, why: &str| ConfigInput::choose(config.clone(), None)?.into_file(verb, why);
    let running = "the file of the running gateway has a name";
    let reloads = "a reload reads the file again";
    Ok(match verb {
        None if test => check::run_check(&ConfigInput::choose(config, None)?, &CheckArgs::default()),
        None => serve::serve_file(&file("run", reloads)?),
        Some(Verb::Run(how)) => {
            serve::serve_file(&ConfigInput::choose(config, how.file)?.into_file("run", reloads)?)
        }
        Some(Verb::Check(mut how)) => check::run_check(&ConfigInput::choose(config, how.file.take())?, &how),
        Some(Verb::Explain(how)) => explain::run_explain(&ConfigInput::choose(config, None)?, how),
        Some(Verb::Test(how)) => test::run_test(config.as_deref(), &how),
        Some(Verb::Replay(how)) => log_verbs::run_replay(&ConfigInput::choose(config, None)?, &how),
        Some(Verb::Recommend(_)) if config.is_some() => {
            return Err("`recommend` works without a file: leave -c out".to_owned());
        }
        Some(Verb::Recommend(how)) => log_verbs::run_recommend(&how),
        Some(Verb::Reload) => remote::run_reload(&file("reload", running)?),
        Some(Verb::Status(how)) => remote::run_status(&file("status", running)?, how.json),
        Some(Verb::Top(how)) => top::run_top(&file("top", running)?, &how),
        Some(Verb::Operator(verb)) => operator_verbs::run_operator_verb(&file(verb.name(), running)?, &verb),
        Some(Verb::Proxy(_)) if config.is_some() => {
            return Err("`proxy` works without a file: leave -c out".to_owned());
        }
        Some(Verb::Proxy(how)) => proxy::run_proxy(&how),
        Some(Verb::Init(how)) => init::run_init(&file("init", "it writes a file")?, how.force),
        Some(Verb::Import(_)) if config.is_some() => {
            return Err(
                "`import` reads another proxy's file: name it, and the one to write with -o".to_owned()
            );
        }
        Some(Verb::Import(how)) => import::run_import(&how),
        Some(Verb::Schema(how)) => {
            print_output(&match how.format {
                SchemaFormat::Json => config::json_schema_text(),
                SchemaFormat::Markdown => config::markdown_reference(),
            });
            ExitCode::SUCCESS
        }
        Some(Verb::Completions(how)) => man::run_completions(how.shell),
        Some(Verb::Man(how)) => man::run_man(how.dir.as_deref()),
        Some(Verb::Version) => {
            print_output(&format!("sluicegate {}\n", env!("CARGO_PKG_VERSION")));
            ExitCode::SUCCESS
        }
        Some(Verb::Other(words)) => return Err(reject_verb(&words)),
    })
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
    let help = suggestion.as_ref().map(|help| format!("  = help: {help}\n")).unwrap_or_default();
    format!("warning[{code}]: {message}\n --> {file}:{line}:{column}\n{help}")
}

fn exit_with_usage(why: &str) -> ExitCode {
    print_error(&format!("error: {why}\n"));
    ExitCode::from(WRONG_COMMAND_LINE)
}

/// Colours only on a terminal, and not with NO_COLOR set.
fn use_colors() -> bool {
    io::stderr().is_terminal() && !is_no_color_set()
}

/// True if the environment asks for no colours (no-color.org).
fn is_no_color_set() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
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

//! `proxy`: serves one upstream, configured by the command line instead of a file.

use std::process::ExitCode;

use super::args::ProxyArgs;
use super::serve::{ServedConfig, exit_with_fault, serve_config};
use super::{WRONG_COMMAND_LINE, print_error};
use crate::process::Startup;
use sluicegate_config as config;

/// Shown in place of a file name.
const SOURCE: &str = "the command line";

pub(super) fn run_proxy(args: &ProxyArgs) -> ExitCode {
    let startup = match Startup::begin() {
        Ok(startup) => startup,
        Err(fault) => return exit_with_fault(fault),
    };
    match config::parse(&proxy_yaml(args), SOURCE) {
        Ok(loaded) => serve_config(startup, ServedConfig { loaded, source: SOURCE, file: None, note: None }),
        Err(report) => {
            // Positions refer to generated text, so only the messages are shown.
            for problem in &report.problems {
                let help = problem.suggestion.as_ref().map(|help| format!("\n  = help: {help}"));
                print_error(&format!("error: {}{}\n", problem.message, help.unwrap_or_default()));
            }
            ExitCode::from(WRONG_COMMAND_LINE)
        }
    }
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
    match text.parse::<u16>() {
        Ok(port) => port.to_string(),
        Err(_) => quote_scalar(text),
    }
}

/// A double-quoted scalar with exactly `text`: no variable is expanded and nothing is read as YAML.
fn quote_scalar(text: &str) -> String {
    // JSON strings are double-quoted scalars of YAML; strings always serialize.
    serde_json::to_string(&text.replace("${", "$${")).unwrap_or_default()
}

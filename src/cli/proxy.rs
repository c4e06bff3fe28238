//! `proxy`: a gateway in front of one upstream, written on the command line instead of a file.

use std::process::ExitCode;

use super::args::ProxyArgs;
use super::{WRONG_COMMAND_LINE, exit_with_fault, print_error, serve_config};
use crate::config;
use crate::process::Startup;

/// Shown where the name of a file would stand.
const SOURCE: &str = "the command line";

pub(super) fn run_proxy(how: &ProxyArgs) -> ExitCode {
    let startup = match Startup::begin() {
        Ok(startup) => startup,
        Err(fault) => return exit_with_fault(fault),
    };
    match config::parse(&proxy_yaml(how), SOURCE) {
        Ok(loaded) => serve_config(startup, loaded, SOURCE, None),
        Err(report) => {
            // The places are those of a text that nobody has seen: the messages alone are told.
            for problem in &report.problems {
                let help = problem.suggestion.as_ref().map(|help| format!("\n  = help: {help}"));
                print_error(&format!("error: {}{}\n", problem.message, help.unwrap_or_default()));
            }
            ExitCode::from(WRONG_COMMAND_LINE)
        }
    }
}

/// The file that the command line stands for.
pub(super) fn proxy_yaml(how: &ProxyArgs) -> String {
    let is_whole = how.to.contains("://") || how.to.starts_with("unix:") || how.to == "demo";
    let to = match is_whole {
        true => how.to.clone(),
        false => format!("http://{}", how.to),
    };
    let limits: Vec<String> =
        how.limit.iter().map(|rate| format!("{{ key: ip, rate: {} }}", quote_scalar(rate))).collect();
    format!(
        "listen: {}\nadmin: {}\nlocations:\n  - {{ path: /, upstream: {}, limits: [{}] }}\n",
        port_or_scalar(&how.listen),
        port_or_scalar(&how.admin),
        quote_scalar(&to),
        limits.join(", ")
    )
}

/// A bare number stays one: that is how a port is written.
fn port_or_scalar(text: &str) -> String {
    match text.parse::<u16>() {
        Ok(port) => port.to_string(),
        Err(_) => quote_scalar(text),
    }
}

/// A double-quoted scalar that means exactly `text`: nothing in it is replaced or read as YAML.
fn quote_scalar(text: &str) -> String {
    // JSON strings are YAML's double-quoted scalars; strings always serialize.
    serde_json::to_string(&text.replace("${", "$${")).unwrap_or_default()
}

//! `proxy`: a gateway in front of one upstream, written on the command line instead of a file.

use std::process::ExitCode;

use super::args::Proxy;
use super::{WRONG_COMMAND_LINE, complain, failed, serve};
use crate::config;
use crate::process::Startup;

/// Shown where the name of a file would stand.
const SOURCE: &str = "the command line";

pub(super) fn proxy(how: &Proxy) -> ExitCode {
    let startup = match Startup::begin() {
        Ok(startup) => startup,
        Err(fault) => return failed(fault),
    };
    match config::parse(&yaml(how), SOURCE) {
        Ok(loaded) => serve(startup, loaded, SOURCE, None),
        Err(report) => {
            // The places are those of a text that nobody has seen: the messages alone are told.
            for problem in &report.problems {
                let help = problem.suggestion.as_ref().map(|help| format!("\n  = help: {help}"));
                complain(&format!("error: {}{}\n", problem.message, help.unwrap_or_default()));
            }
            ExitCode::from(WRONG_COMMAND_LINE)
        }
    }
}

/// The file that the command line stands for.
pub(super) fn yaml(how: &Proxy) -> String {
    let is_whole = how.to.contains("://") || how.to.starts_with("unix:") || how.to == "demo";
    let to = match is_whole {
        true => how.to.clone(),
        false => format!("http://{}", how.to),
    };
    let limits: Vec<String> =
        how.limit.iter().map(|rate| format!("{{ key: ip, rate: {} }}", quoted(rate))).collect();
    format!(
        "listen: {}\nadmin: {}\nlocations:\n  - {{ path: /, upstream: {}, limits: [{}] }}\n",
        port_or_quoted(&how.listen),
        port_or_quoted(&how.admin),
        quoted(&to),
        limits.join(", ")
    )
}

/// A bare number stays one: that is how a port is written.
fn port_or_quoted(text: &str) -> String {
    match text.parse::<u16>() {
        Ok(port) => port.to_string(),
        Err(_) => quoted(text),
    }
}

/// A double-quoted scalar that means exactly `text`: nothing in it is replaced or read as YAML.
fn quoted(text: &str) -> String {
    // JSON strings are YAML's double-quoted scalars; strings always serialize.
    serde_json::to_string(&text.replace("${", "$${")).unwrap_or_default()
}

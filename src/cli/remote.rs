//! `reload` and `status`: requests to the gateway that runs by the file.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;

use super::admin_client::{AdminFault, OperatorRequest, escape_lines};
use super::{
    ADMIN_UNREACHABLE, CONFIG_INVALID, CommandFault, CommandResult, FAILED, is_no_color_set, print_error,
    print_output, print_result,
};
use sluicegate_config as config;
use sluicegate_model::{AdminConfig, ProblemReport};

/// Makes the running gateway reload its file. An invalid file is sent to it as well: it reports the problems itself,
/// also in its log, and may see other environment variables. But an invalid file may also name another gateway than
/// before, so its problems are printed in any case.
pub(super) fn run_reload(file: &Path) -> CommandResult {
    let (admin, report) = match config::load(file) {
        Ok(loaded) => (loaded.config.admin, None),
        Err(report) => (config::load_admin(file), Some(report)),
    };
    let print_report = || {
        if let Some(report) = &report {
            print_error(&CommandFault::from(report).text);
        }
    };
    if let (None, Some(_)) = (&admin, &report) {
        print_report();
        let why = "nothing was reloaded: the file does not name the admin listener of the running gateway";
        return Err(CommandFault::new(CONFIG_INVALID, why));
    }
    let request = OperatorRequest::with_body("POST", "/reload", String::new());
    match admin.ok_or_else(lacks_admin).and_then(|admin| send_request(&admin, &request, "text/plain")) {
        Ok((200, text)) => {
            print_output(&text);
            print_report();
            Ok(ExitCode::SUCCESS)
        }
        Ok((status, why)) => {
            print_error(&format!("error: nothing was reloaded: {}\n", why.trim_end()));
            let reports_all =
                |report: &ProblemReport| report.problems.iter().all(|found| why.contains(&found.message));
            if !report.as_ref().is_some_and(reports_all) {
                print_report();
            }
            Ok(ExitCode::from(if status == 422 { CONFIG_INVALID } else { FAILED }))
        }
        Err(fault) => {
            print_error(&fault.text);
            print_error(
                "note: a change of `admin` needs a restart: the running gateway may still listen at its old address\n",
            );
            print_report();
            Ok(ExitCode::from(if report.is_some() { CONFIG_INVALID } else { fault.code }))
        }
    }
}

/// Shows the status.
pub(super) fn run_status(file: &Path, json: bool) -> CommandResult {
    let admin = find_admin(file)?;
    let accept = if json { "application/json" } else { "text/plain" };
    match send_request(&admin, &OperatorRequest::get("/status"), accept)? {
        (200, text) if !json && io::stdout().is_terminal() && !is_no_color_set() => {
            let red = |rest: &str| format!("\u{1b}[31mpaused {rest}\u{1b}[0m");
            let mark = |line: &str| line.strip_prefix("paused ").map_or_else(|| line.to_owned(), red);
            print_result(&text.split('\n').map(mark).collect::<Vec<_>>().join("\n"))
        }
        (200, text) => print_result(&text),
        (_, why) => Err(CommandFault::new(FAILED, why)),
    }
}

/// The admin listener of the file, also of an invalid one that names it.
pub(super) fn find_admin(file: &Path) -> Result<AdminConfig, CommandFault> {
    match config::load(file) {
        Ok(loaded) => loaded.config.admin.ok_or_else(lacks_admin),
        Err(report) => config::load_admin(file).ok_or(report.into()),
    }
}

pub(super) fn lacks_admin() -> CommandFault {
    CommandFault::new(ADMIN_UNREACHABLE, "the file has no admin listener")
}

impl From<AdminFault> for CommandFault {
    fn from(fault: AdminFault) -> CommandFault {
        let (code, why) = match fault {
            AdminFault::Rejected(why) => (FAILED, why),
            AdminFault::Unreachable(why) => (ADMIN_UNREACHABLE, why),
        };
        CommandFault::new(code, escape_lines(&why))
    }
}

fn send_request(
    admin: &AdminConfig,
    request: &OperatorRequest,
    accept: &str,
) -> Result<(u16, String), CommandFault> {
    request.send(admin, accept).map_err(|fault| CommandFault::new(ADMIN_UNREACHABLE, fault.why()))
}

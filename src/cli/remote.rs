//! `reload` and `status`: requests to the gateway that runs by the file.

use std::path::Path;
use std::process::ExitCode;

use super::admin_client::{self, AdminFault};
use super::shown_text::escape_lines;
use super::{ADMIN_UNREACHABLE, CONFIG_INVALID, FAILED, print_error, print_output, use_colors};
use sluicegate_config as config;
use sluicegate_model::{AdminConfig, ProblemReport};

/// Makes the running gateway reload its file. An invalid file is sent to it as well: it reports the problems itself,
/// also in its log, and may see other environment variables. But an invalid file may also name another gateway than
/// before, so its problems are printed in any case.
pub(super) fn run_reload(file: &Path) -> ExitCode {
    let (admin, report) = match config::load(file) {
        Ok(loaded) => (loaded.config.admin, None),
        Err(report) => (config::load_admin(file), Some(report)),
    };
    let print_report = || {
        if let Some(report) = &report {
            print_error(&format!("{}\n", report.render(use_colors())));
        }
    };
    if let (None, Some(_)) = (&admin, &report) {
        print_report();
        print_error(
            "error: nothing was reloaded: the file does not name the admin listener of the running gateway\n",
        );
        return ExitCode::from(CONFIG_INVALID);
    }
    match request_admin(admin.as_ref(), "POST", "/reload", "text/plain") {
        Ok((200, text)) => {
            print_output(&text);
            print_report();
            ExitCode::SUCCESS
        }
        Ok((status, why)) => {
            print_error(&format!("error: nothing was reloaded: {}\n", why.trim_end()));
            let reports_all =
                |report: &ProblemReport| report.problems.iter().all(|found| why.contains(&found.message));
            if !report.as_ref().is_some_and(reports_all) {
                print_report();
            }
            ExitCode::from(if status == 422 { CONFIG_INVALID } else { FAILED })
        }
        Err(code) => {
            print_error(
                "note: a change of `admin` needs a restart: the running gateway may still listen at its old address\n",
            );
            print_report();
            if report.is_some() { ExitCode::from(CONFIG_INVALID) } else { code }
        }
    }
}

/// Shows the status.
pub(super) fn run_status(file: &Path, json: bool) -> ExitCode {
    let admin = match load_admin(file) {
        Ok(admin) => admin,
        Err(report) => {
            print_error(&format!("{}\n", report.render(use_colors())));
            return ExitCode::from(CONFIG_INVALID);
        }
    };
    let accept = if json { "application/json" } else { "text/plain" };
    let outcome = request_admin(admin.as_ref(), "GET", "/status", accept);
    match outcome {
        Ok((200, text)) => {
            print_output(&text);
            ExitCode::SUCCESS
        }
        Ok((_, why)) => {
            print_error(&format!("error: {}\n", why.trim_end()));
            ExitCode::from(FAILED)
        }
        Err(code) => code,
    }
}

/// The admin listener of the running gateway. An error is printed.
pub(super) fn find_admin(file: &Path) -> Result<AdminConfig, ExitCode> {
    let fail = |code, why: String| {
        print_error(&format!("{why}\n"));
        ExitCode::from(code)
    };
    load_admin(file)
        .map_err(|report| fail(CONFIG_INVALID, report.render(use_colors())))?
        .ok_or_else(|| fail(ADMIN_UNREACHABLE, "error: the file has no admin listener".to_owned()))
}

/// Prints the reason of a call without an answer.
pub(super) fn exit_with_admin_fault(fault: AdminFault) -> ExitCode {
    let (code, why) = match fault {
        AdminFault::Rejected(why) => (FAILED, why),
        AdminFault::Unreachable(why) => (ADMIN_UNREACHABLE, why),
    };
    print_error(&format!("error: {}\n", escape_lines(why.trim_end())));
    ExitCode::from(code)
}

/// The admin listener of the file, also of an invalid one that names it.
fn load_admin(file: &Path) -> Result<Option<AdminConfig>, ProblemReport> {
    match config::load(file) {
        Ok(loaded) => Ok(loaded.config.admin),
        Err(report) => config::load_admin(file).map(Some).ok_or(report),
    }
}

fn request_admin(
    admin: Option<&AdminConfig>,
    method: &str,
    path: &str,
    accept: &str,
) -> Result<(u16, String), ExitCode> {
    let response = match admin {
        None => Err(AdminFault::Unreachable("the file has no admin listener".to_owned())),
        Some(admin) => admin_client::send_request(admin, method, path, accept, ""),
    };
    response.map_err(|failure| {
        let (AdminFault::Unreachable(why) | AdminFault::Rejected(why)) = failure;
        print_error(&format!("error: {why}\n"));
        ExitCode::from(ADMIN_UNREACHABLE)
    })
}

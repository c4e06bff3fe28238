//! `reload` and `status`: what the gateway that runs by the file is asked.

use std::path::Path;
use std::process::ExitCode;

use super::admin_client::{self, Failure};
use super::{ADMIN_UNREACHABLE, CONFIG_INVALID, FAILED, colored, complain, tell};
use crate::config::{self, Admin, Report};

/// Has the running gateway read its file again. It is asked even where the file is wrong: it says so itself, also in
/// its log, and it may see other variables than we do. But then the file may also name another gateway than it did, so
/// what is wrong with it is told in any case.
pub(super) fn reload(file: &Path) -> ExitCode {
    let (admin, report) = match config::load(file) {
        Ok(loaded) => (loaded.config.admin, None),
        Err(report) => (config::admin_of(file), Some(report)),
    };
    let tell_report = || {
        if let Some(report) = &report {
            complain(&format!("{}\n", report.render(colored())));
        }
    };
    if let (None, Some(_)) = (&admin, &report) {
        tell_report();
        complain(
            "error: nothing was reloaded: so far the file does not say where to ask the running gateway\n",
        );
        return ExitCode::from(CONFIG_INVALID);
    }
    match asked(admin.as_ref(), "POST", "/reload", "text/plain") {
        Ok((200, text)) => {
            tell(&text);
            tell_report();
            ExitCode::SUCCESS
        }
        Ok((status, why)) => {
            complain(&format!("error: nothing was reloaded: {}\n", why.trim_end()));
            let is_told = |report: &Report| report.problems.iter().all(|found| why.contains(&found.message));
            if !report.as_ref().is_some_and(is_told) {
                tell_report();
            }
            ExitCode::from(if status == 422 { CONFIG_INVALID } else { FAILED })
        }
        Err(code) => {
            tell_report();
            if report.is_some() { ExitCode::from(CONFIG_INVALID) } else { code }
        }
    }
}

pub(super) fn status(file: &Path, json: bool) -> ExitCode {
    let admin = match admin_of(file) {
        Ok(admin) => admin,
        Err(report) => {
            complain(&format!("{}\n", report.render(colored())));
            return ExitCode::from(CONFIG_INVALID);
        }
    };
    let accept = if json { "application/json" } else { "text/plain" };
    match asked(admin.as_ref(), "GET", "/status", accept) {
        Ok((200, text)) => {
            tell(&text);
            ExitCode::SUCCESS
        }
        Ok((_, why)) => {
            complain(&format!("error: {}\n", why.trim_end()));
            ExitCode::from(FAILED)
        }
        Err(code) => code,
    }
}

/// The admin listener of the file, whatever else is wrong with it.
fn admin_of(file: &Path) -> Result<Option<Admin>, Report> {
    match config::load(file) {
        Ok(loaded) => Ok(loaded.config.admin),
        Err(report) => config::admin_of(file).map(Some).ok_or(report),
    }
}

fn asked(admin: Option<&Admin>, method: &str, path: &str, accept: &str) -> Result<(u16, String), ExitCode> {
    let asked = match admin {
        None => Err(Failure::Unreachable("the file has no admin listener to ask".to_owned())),
        Some(admin) => admin_client::ask(admin, method, path, accept, ""),
    };
    asked.map_err(|failure| {
        let (Failure::Unreachable(why) | Failure::Refused(why)) = failure;
        complain(&format!("error: {why}\n"));
        ExitCode::from(ADMIN_UNREACHABLE)
    })
}

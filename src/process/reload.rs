//! Taking another configuration over: read whole, opened whole, swapped at once; or nothing changes.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::config_diff;
use super::control::{ControlCommand, ControlThread};
use super::systemd;
use super::worker_thread::WorkerCommand;
use crate::base::clock::Now;
use crate::config::{self, FileFingerprint, LoadedConfig, ProblemReport};
use crate::observe::logging;
use crate::observe::metrics::Metrics;
use crate::operate::admin::AdminResponse;
use crate::proxy::gateway::Gateway;

/// How long reading the file may take; a pipe in its place would be waited for.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Warnings of a file that are logged.
const WARNINGS_MAX: usize = 10;
/// How long files that did not change are left alone though what hindered them may be gone.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Why a configuration is not taken over.
enum ReloadRejection {
    Invalid(ProblemReport),
    /// Valid, but this gateway would have to be another one.
    Unsupported(String),
    /// Valid, and something in the way that may go by itself: a port that somebody else has.
    Blocked(String),
    /// There is nothing to be read.
    NoFile(String),
}

impl ControlThread {
    /// Reads the file again and takes it over, or says why not. What is wrong with files that are no longer as they
    /// were `found` is said of nobody: they are just being written.
    pub async fn reload_config(&self, found: Option<Vec<FileFingerprint>>) -> AdminResponse {
        // Nobody changed them since the last time: what is said again then is not news.
        let again = found.as_ref().is_some_and(|found| *found == *self.files.borrow());
        if !again {
            systemd::notify_reloading();
        }
        let outcome = self.apply_config(!again).await;
        if !again {
            systemd::notify_reloaded();
        }
        match outcome {
            Ok(told) => {
                tracing::info!(generation = self.history.generation(), "reloaded: {told}");
                let json =
                    json!({ "result": "ok", "generation": self.history.generation(), "changes": told });
                AdminResponse::ok(format!("reloaded: {told}\n"), json)
            }
            Err(refusal) => {
                if let Some(found) = found
                    && reread_files(&found).await.is_none_or(|now| now != found)
                {
                    return refusal.into_response();
                }
                let told = refusal.log_message();
                let is_known =
                    || self.history.last_attempt().is_some_and(|last| !last.ok && last.message == told);
                if !again || !is_known() {
                    tracing::error!("the old configuration stays: {told}");
                    self.history.record_rejected(&told, matches!(refusal, ReloadRejection::Blocked(_)));
                }
                refusal.into_response()
            }
        }
    }

    async fn apply_config(&self, tell_warnings: bool) -> Result<String, ReloadRejection> {
        let Some(file) = self.file.clone() else {
            let why = "this gateway was started without a file, so there is nothing to read again";
            return Err(ReloadRejection::NoFile(why.to_owned()));
        };
        let (loaded, files) = read_config(file).await?;
        *self.files.borrow_mut() = files;
        let LoadedConfig { config, warnings, .. } = loaded.map_err(ReloadRejection::Invalid)?;
        for warning in warnings.iter().take(if tell_warnings { WARNINGS_MAX } else { 0 }) {
            tracing::warn!(code = warning.code, line = warning.line, "{}", warning.message);
        }
        let before = self.current.load_full();
        if let Some(why) = before.restart_reason(&config) {
            return Err(ReloadRejection::Unsupported(why));
        }
        // Opened before anything changes, and closed again if the rest fails.
        let prepared = self.listeners.borrow().prepare_change(&config.listen, self.workers.count());
        let prepared = prepared.map_err(ReloadRejection::Blocked)?;
        let gateway = Gateway::build(&config, Some(&before));
        let gateway = Arc::new(gateway.map_err(|error| ReloadRejection::Blocked(error.to_string()))?);
        let told = config_diff::describe_changes(&before.config, &config);

        // From here on nothing can fail.
        gateway.apply_numbers(&Now::read_clock);
        self.current.store(gateway.clone());
        self.workers.send_to_all(|| WorkerCommand::UseGateway(gateway.clone())).await;
        self.update_dependents(&before, &gateway);
        let moves = self.listeners.borrow_mut().apply_change(prepared, self.workers.count());
        self.workers.send_commands(moves.accept).await;
        if moves.recheck {
            self.workers.send_to_all(|| WorkerCommand::RecheckConnections).await;
        }
        for listener in moves.close {
            self.workers.send_to_all(|| WorkerCommand::CloseListener(listener)).await;
        }
        self.history.record_applied(&gateway, &told);
        self.reloaded.notify_waiters();
        Ok(told)
    }

    /// What stands beside the workers follows.
    fn update_dependents(&self, before: &Arc<Gateway>, gateway: &Arc<Gateway>) {
        let (was, server) = (&before.config.server, &gateway.config.server);
        if (was.max_connections, was.connections_per_ip)
            != (server.max_connections, server.connections_per_ip)
        {
            self.connection_limits
                .set_limits(super::raise_descriptor_limit(server.max_connections), server.connections_per_ip);
        }
        logging::apply_level(&gateway.config.log);
        self.with_tasks(|followers| followers.switch_gateway(before, gateway));
    }

    /// Has `metrics`, and those that go on after them, tell what is known here. To be called once.
    pub fn register_metrics(&self, metrics: &Metrics) {
        let crew = self.connection_limits.clone();
        metrics.watch_connections(move || crew.open_count() as u64);
        self.history.clone().register_metrics(metrics);
    }
}

async fn read_config(
    file: PathBuf,
) -> Result<(Result<LoadedConfig, ProblemReport>, Vec<FileFingerprint>), ReloadRejection> {
    let reading = spawn_blocking(move || config::load_with_files(&file));
    match tokio::time::timeout(READ_TIMEOUT, reading).await {
        Ok(Ok(read)) => Ok(read),
        Ok(Err(_)) => Err(ReloadRejection::Unsupported("reading the file panicked".to_owned())),
        Err(_) => {
            Err(ReloadRejection::Unsupported(format!("reading took {} seconds", READ_TIMEOUT.as_secs())))
        }
    }
}

// === impl Refusal ===

impl ReloadRejection {
    /// For the log: of an invalid file the first problem.
    fn log_message(&self) -> String {
        match self {
            ReloadRejection::Unsupported(why)
            | ReloadRejection::Blocked(why)
            | ReloadRejection::NoFile(why) => why.clone(),
            ReloadRejection::Invalid(report) => {
                let (file, more) = (&report.file, report.problems.len().saturating_sub(1));
                let first = report.problems.first().map(|problem| {
                    format!("{file}:{}:{}: {}", problem.line, problem.column, problem.message)
                });
                let first = first.unwrap_or_else(|| format!("{file} is not valid"));
                if more == 0 { first } else { format!("{first} (and {more} more)") }
            }
        }
    }

    fn into_response(self) -> AdminResponse {
        match self {
            ReloadRejection::Invalid(report) => AdminResponse {
                status: StatusCode::UNPROCESSABLE_ENTITY,
                text: format!("{}\n", report.render(false)),
                json: json!({ "result": "invalid", "file": report.file, "problems": report.problems }),
            },
            ReloadRejection::Unsupported(why) | ReloadRejection::Blocked(why) => AdminResponse {
                status: StatusCode::UNPROCESSABLE_ENTITY,
                text: format!("{why}\n"),
                json: json!({ "result": "refused", "message": why }),
            },
            ReloadRejection::NoFile(why) => AdminResponse {
                status: StatusCode::CONFLICT,
                text: format!("{why}\n"),
                json: json!({ "result": "refused", "message": why }),
            },
        }
    }
}

/// The files as they are now.
async fn reread_files(files: &[FileFingerprint]) -> Option<Vec<FileFingerprint>> {
    let files = files.to_vec();
    spawn_blocking(move || files.iter().map(FileFingerprint::read_again).collect()).await.ok()
}

/// Looks at the files again and again, as often as the configuration in force says, and asks for a reload when they
/// changed and were the same at two looks, so that a half-written file is left alone. A content is asked about once,
/// unless something else than the files hindered it.
pub async fn watch_config(control: Rc<ControlThread>, asks: mpsc::Sender<ControlCommand>) {
    let mut known = control.files.borrow().clone();
    let mut judged = known.clone();
    let mut changed: Option<Vec<FileFingerprint>> = None;
    let mut asked = Instant::now();
    loop {
        let taken_over = control.reloaded.notified();
        match control.current.load().config.reload.watch {
            None => taken_over.await,
            // Another configuration may have us look more often.
            Some(every) => drop(tokio::time::timeout(every, taken_over).await),
        }
        let read = control.files.borrow().clone();
        if read != known {
            (known, judged, changed) = (read.clone(), read, None);
        }
        let Some(found) = reread_files(&known).await else { continue };
        let is_hindered = || control.history.last_attempt().is_some_and(|last| last.is_blocked);
        if found == judged {
            changed = None;
            if asked.elapsed() < RETRY_INTERVAL || !is_hindered() {
                continue;
            }
        } else if changed.as_ref() != Some(&found) {
            changed = Some(found);
            continue;
        }
        (asked, judged, changed) = (Instant::now(), found.clone(), None);
        if asks.send(ControlCommand::FilesChanged(found)).await.is_err() {
            return;
        }
    }
}

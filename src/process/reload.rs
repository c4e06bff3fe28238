//! Reloads the configuration: reads all of it, opens all of it, swaps it in at once; or changes nothing.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use sd_notify::NotifyState;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::control_thread::{ControlCommand, ControlThread};
use super::gateway_tasks::{self, SupervisedStore};
use super::{acme, config_diff, systemd};
use crate::operate::admin::AdminError;
use crate::operate::admin::status::Reloaded;
use sluicegate_base::clock::Now;
use sluicegate_base::file::FileFingerprint;
use sluicegate_config::values::Change;
use sluicegate_config::{self as config, LoadedConfig};
use sluicegate_model::ProblemReport;
use sluicegate_observe::logging;
use sluicegate_observe::metrics::{Metrics, values};
use sluicegate_proxy::downstream::worker_thread::WorkerCommand;
use sluicegate_proxy::gateway::Gateway;

/// Time to read the file, which may be a pipe without a writer.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Changed values that a reload tells.
const CHANGES_MAX: usize = 100;
/// Logged warnings per file.
const WARNINGS_MAX: usize = 10;
/// Interval between retries of an unchanged file after a blocked reload.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Why a configuration is not put in force.
enum ReloadRejection {
    Invalid(ProblemReport),
    /// Valid, but the change needs a restart.
    Unsupported(String),
    /// Valid, but blocked by an obstacle that may pass, such as a port that another process has.
    Blocked(String),
    /// There is no file to read.
    NoFile(String),
}

/// True if two messages differ at most in their hints: the process that has a port is searched for a short time only.
fn is_same_problem(one: &str, other: &str) -> bool {
    one.split("; ").next() == other.split("; ").next()
}

impl ControlThread {
    /// Reads the file again and puts it in force, or returns the reason against it. Problems of files that have changed
    /// since they were `found` are not reported: the files are being written.
    pub(super) async fn reload_config(
        &self,
        found: Option<Vec<FileFingerprint>>,
    ) -> Result<Reloaded, AdminError> {
        // The files are unchanged since the last attempt, so the same problem is not reported again.
        let again = found.as_ref().is_some_and(|found| *found == *self.files.borrow());
        if !again {
            systemd::notify_reloading();
        }
        let outcome = self.apply_config(!again).await;
        if !again {
            // The reload is over, with any outcome.
            systemd::send_states(&[NotifyState::Ready]);
        }
        match outcome {
            Ok((changes, mut values)) => {
                let generation = self.history.generation();
                tracing::info!(generation, "reloaded: {changes}");
                let more = values.len().saturating_sub(CHANGES_MAX);
                values.truncate(CHANGES_MAX);
                Ok(Reloaded { result: "ok", generation, changes, values, more })
            }
            Err(rejection) => {
                if let Some(found) = found
                    && reread_files(&found).await.is_none_or(|now| now != found)
                {
                    return Err(rejection.into());
                }
                let message = rejection.log_message();
                let last = self.history.last_attempt();
                let is_known = || {
                    last.is_some_and(|last| {
                        last.shown.result == "failed" && is_same_problem(&last.shown.told, &message)
                    })
                };
                if !again || !is_known() {
                    tracing::error!("the old configuration stays: {message}");
                    let problems = match &rejection {
                        ReloadRejection::Invalid(report) => report.problems.as_slice(),
                        _ => &[],
                    };
                    let is_blocked = matches!(rejection, ReloadRejection::Blocked(_));
                    self.history.record_rejected(&message, problems, is_blocked);
                }
                Err(rejection.into())
            }
        }
    }

    async fn apply_config(&self, log_warnings: bool) -> Result<(String, Vec<Change>), ReloadRejection> {
        let Some(file) = self.file.clone() else {
            let why = "this gateway was started without a file, so there is nothing to read again";
            return Err(ReloadRejection::NoFile(why.to_owned()));
        };
        let started = Instant::now();
        let (loaded, files) = read_config(file).await?;
        *self.files.borrow_mut() = files;
        let loaded = loaded.map_err(ReloadRejection::Invalid)?;
        if let Some(note) = loaded.note_slow_reading(started.elapsed()) {
            tracing::info!("{note}");
        }
        let LoadedConfig { mut config, warnings, file_hash, values, .. } = loaded;
        for warning in warnings.iter().take(if log_warnings { WARNINGS_MAX } else { 0 }) {
            let file = (!warning.file.is_empty()).then_some(&*warning.file);
            tracing::warn!(code = warning.code, file, line = warning.line, "{}", warning.message);
        }
        let before = self.current.load_full();
        if let Some(why) = before.restart_reason(&config) {
            return Err(ReloadRejection::Unsupported(why));
        }
        config.share_certificates(Some(&before.config));
        let filled = config.clone();
        let filling = spawn_blocking(move || acme::fill_certificates(&filled)).await;
        filling.map_err(|_| ReloadRejection::Unsupported("reading certificates panicked".to_owned()))?;
        // Opened before anything changes, and closed again if the rest fails.
        let prepared = self.listeners.borrow().prepare_change(&config.all_listeners(), self.workers.count());
        let prepared = prepared.map_err(ReloadRejection::Blocked)?;
        let lost = before.carry_limit_changes(&mut config);
        before.carry_grants(&mut config, Now::read_clock());
        let gateway = Gateway::build(&config, Some(&before));
        let gateway = Arc::new(gateway.map_err(|error| ReloadRejection::Blocked(error.to_string()))?);
        let mut changes = config_diff::describe_changes(&before.config, &config);
        lost.iter().for_each(|(_, why)| changes.push_str(&format!("; {why}")));

        // Nothing can fail from here on.
        let store = gateway_tasks::supervise_new_store(&before, &gateway);
        if let Some((store, _)) = &store {
            store.wait_probed().await;
        }
        self.end_lost(&lost);
        self.read_unix_ns.set(Now::read_clock().to_unix_ns());
        self.put_in_force(&gateway).await;
        self.update_dependents(&before, &gateway, store);
        let changed = self.listeners.borrow_mut().apply_change(prepared, self.workers.count());
        let (accept, close, recheck) = changed;
        self.workers.send_commands(accept).await;
        if recheck {
            self.workers.send_to_all(|| WorkerCommand::RecheckConnections).await;
        }
        for listener in close {
            self.workers.send_to_all(|| WorkerCommand::CloseListener(listener)).await;
        }
        *self.warnings.borrow_mut() = warnings;
        *self.file_hash.borrow_mut() = file_hash;
        self.history.record_applied(&changes);
        self.reloaded.notify_waiters();
        let changed = self.values.borrow().changes_to(&values);
        *self.values.borrow_mut() = values;
        Ok((changes, changed))
    }

    /// Updates everything beside the workers.
    fn update_dependents(
        &self,
        before: &Arc<Gateway>,
        gateway: &Arc<Gateway>,
        store: Option<SupervisedStore>,
    ) {
        let (was, server) = (&before.config.server, &gateway.config.server);
        if (was.max_connections, was.connections_per_ip)
            != (server.max_connections, server.connections_per_ip)
        {
            self.connection_limits
                .set_limits(super::raise_descriptor_limit(server), server.connections_per_ip);
        }
        logging::apply_level(&gateway.config.log);
        self.with_tasks(|tasks| tasks.switch_gateway(before, gateway, store));
    }

    /// Registers the values known here with `metrics`, and with the metrics that continue them. Call it once.
    pub(super) fn register_metrics(&self, metrics: &Metrics) {
        let limits = self.connection_limits.clone();
        metrics.watch_process(values::CONNECTIONS, Vec::new(), move || limits.open_count() as u64);
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

impl ReloadRejection {
    /// The reason for the log; for an invalid file its first problem.
    fn log_message(&self) -> String {
        match self {
            ReloadRejection::Unsupported(why)
            | ReloadRejection::Blocked(why)
            | ReloadRejection::NoFile(why) => why.clone(),
            ReloadRejection::Invalid(report) => {
                let (file, more) = (&report.file, report.problems.len().saturating_sub(1));
                let first = report.problems.first().map(|problem| {
                    let file = problem.file_or(file);
                    format!("{file}:{}:{}: {}", problem.line, problem.column, problem.message)
                });
                let first = first.unwrap_or_else(|| format!("{file} is not valid"));
                if more == 0 { first } else { format!("{first} (and {more} more)") }
            }
        }
    }
}

impl From<ReloadRejection> for AdminError {
    fn from(rejection: ReloadRejection) -> AdminError {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        match rejection {
            ReloadRejection::Invalid(report) => AdminError {
                status,
                text: format!("{}\n", report.render(false)),
                json: json!({ "result": "invalid", "file": report.file, "problems": report.problems }),
            },
            ReloadRejection::Unsupported(why) | ReloadRejection::Blocked(why) => {
                AdminError::not_reloaded(status, "refused", &why)
            }
            ReloadRejection::NoFile(why) => AdminError::not_reloaded(StatusCode::CONFLICT, "refused", &why),
        }
    }
}

/// The files as they are now.
async fn reread_files(files: &[FileFingerprint]) -> Option<Vec<FileFingerprint>> {
    let files = files.to_vec();
    spawn_blocking(move || files.iter().map(FileFingerprint::read_again).collect()).await.ok()
}

/// Checks the files at the interval of the configuration in force. Requests a reload when they have changed and were
/// equal in two consecutive checks, so that a half-written file is left alone. Each content is tried once, unless
/// something other than the files blocked it.
pub(super) async fn watch_config(control: Rc<ControlThread>, commands: mpsc::Sender<ControlCommand>) {
    let mut known = control.files.borrow().clone();
    let mut tried = known.clone();
    let mut changed: Option<Vec<FileFingerprint>> = None;
    let mut tried_at = Instant::now();
    loop {
        let reloaded = control.reloaded.notified();
        match control.current.load().config.reload.watch {
            None => reloaded.await,
            // Another configuration may set a shorter interval.
            Some(interval) => drop(tokio::time::timeout(interval, reloaded).await),
        }
        let read = control.files.borrow().clone();
        if read != known {
            (known, tried, changed) = (read.clone(), read, None);
        }
        let Some(found) = reread_files(&known).await else { continue };
        let is_blocked = || control.history.last_attempt().is_some_and(|last| last.is_blocked);
        if found == tried {
            changed = None;
            if tried_at.elapsed() < RETRY_INTERVAL || !is_blocked() {
                continue;
            }
        } else if changed.as_ref() != Some(&found) {
            changed = Some(found);
            continue;
        }
        (tried_at, tried, changed) = (Instant::now(), found.clone(), None);
        if commands.send(ControlCommand::FilesChanged(found)).await.is_err() {
            return;
        }
    }
}

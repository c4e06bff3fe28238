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
use super::control::{Ask, Control};
use super::systemd;
use super::worker_thread::Order;
use crate::base::clock::Now;
use crate::config::{self, FileRead, Loaded, Report};
use crate::observe::logging;
use crate::observe::metrics::Metrics;
use crate::operate::admin::Reply;
use crate::proxy::gateway::Gateway;

/// How long reading the file may take; a pipe in its place would be waited for.
const READ_PATIENCE: Duration = Duration::from_secs(10);
/// Warnings of a file that are logged.
const WARNINGS_MAX: usize = 10;
/// How long files that did not change are left alone though what hindered them may be gone.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// Why a configuration is not taken over.
enum Refusal {
    Invalid(Report),
    /// Valid, but this gateway would have to be another one.
    Impossible(String),
    /// Valid, and something in the way that may go by itself: a port that somebody else has.
    Hindered(String),
    /// There is nothing to be read.
    Conflict(String),
}

impl Control {
    /// Reads the file again and takes it over, or says why not. What is wrong with files that are no longer as they
    /// were `found` is said of nobody: they are just being written.
    pub async fn reload(&self, found: Option<Vec<FileRead>>) -> Reply {
        // Nobody changed them since the last time: what is said again then is not news.
        let again = found.as_ref().is_some_and(|found| *found == *self.files.borrow());
        if !again {
            systemd::reloading();
        }
        let outcome = self.take_over(!again).await;
        if !again {
            systemd::reloaded();
        }
        match outcome {
            Ok(told) => {
                tracing::info!(generation = self.history.generation(), "reloaded: {told}");
                let json =
                    json!({ "result": "ok", "generation": self.history.generation(), "changes": told });
                Reply::ok(format!("reloaded: {told}\n"), json)
            }
            Err(refusal) => {
                if let Some(found) = found
                    && look(&found).await.is_none_or(|now| now != found)
                {
                    return refusal.reply();
                }
                let told = refusal.sentence();
                let is_known = || self.history.last().is_some_and(|last| !last.ok && last.told == told);
                if !again || !is_known() {
                    tracing::error!("the old configuration stays: {told}");
                    self.history.refused(&told, matches!(refusal, Refusal::Hindered(_)));
                }
                refusal.reply()
            }
        }
    }

    async fn take_over(&self, tell_warnings: bool) -> Result<String, Refusal> {
        let Some(file) = self.file.clone() else {
            let why = "this gateway was started without a file, so there is nothing to read again";
            return Err(Refusal::Conflict(why.to_owned()));
        };
        let (loaded, files) = read(file).await?;
        *self.files.borrow_mut() = files;
        let Loaded { config, warnings, .. } = loaded.map_err(Refusal::Invalid)?;
        for warning in warnings.iter().take(if tell_warnings { WARNINGS_MAX } else { 0 }) {
            tracing::warn!(code = warning.code, line = warning.line, "{}", warning.message);
        }
        let before = self.current.load_full();
        if let Some(why) = before.refuses(&config) {
            return Err(Refusal::Impossible(why));
        }
        // Opened before anything changes, and closed again if the rest fails.
        let prepared = self.listeners.borrow().prepare(&config.listen, self.workers.count());
        let prepared = prepared.map_err(Refusal::Hindered)?;
        let gateway = Gateway::build(&config, Some(&before));
        let gateway = Arc::new(gateway.map_err(|error| Refusal::Hindered(error.to_string()))?);
        let told = config_diff::told(&before.config, &config);

        // From here on nothing can fail.
        gateway.apply(&Now::read);
        self.current.store(gateway.clone());
        self.workers.tell_all(|| Order::Serve(gateway.clone())).await;
        self.follow(&before, &gateway);
        let moves = self.listeners.borrow_mut().follow(prepared, self.workers.count());
        self.workers.tell(moves.accept).await;
        if moves.recheck {
            self.workers.tell_all(|| Order::Recheck).await;
        }
        for listener in moves.close {
            self.workers.tell_all(|| Order::Close(listener)).await;
        }
        self.history.took_over(&gateway, &told);
        self.taken_over.notify_waiters();
        Ok(told)
    }

    /// What stands beside the workers follows.
    fn follow(&self, before: &Arc<Gateway>, gateway: &Arc<Gateway>) {
        let (was, server) = (&before.config.server, &gateway.config.server);
        if (was.max_connections, was.connections_per_ip)
            != (server.max_connections, server.connections_per_ip)
        {
            self.crew.resize(super::descriptor_bound(server.max_connections), server.connections_per_ip);
        }
        logging::follow(&gateway.config.log);
        self.with_followers(|followers| followers.follow(before, gateway));
    }

    /// Has `metrics`, and those that go on after them, tell what is known here. To be called once.
    pub fn observe(&self, metrics: &Metrics) {
        let crew = self.crew.clone();
        metrics.watch_connections(move || crew.open() as u64);
        self.history.clone().watch(metrics);
    }
}

async fn read(file: PathBuf) -> Result<(Result<Loaded, Report>, Vec<FileRead>), Refusal> {
    let reading = spawn_blocking(move || config::load_noting(&file));
    match tokio::time::timeout(READ_PATIENCE, reading).await {
        Ok(Ok(read)) => Ok(read),
        Ok(Err(_)) => Err(Refusal::Impossible("reading the file panicked".to_owned())),
        Err(_) => Err(Refusal::Impossible(format!("reading took {} seconds", READ_PATIENCE.as_secs()))),
    }
}

// === impl Refusal ===

impl Refusal {
    /// For the log: of an invalid file the first problem.
    fn sentence(&self) -> String {
        match self {
            Refusal::Impossible(why) | Refusal::Hindered(why) | Refusal::Conflict(why) => why.clone(),
            Refusal::Invalid(report) => {
                let (file, more) = (&report.file, report.problems.len().saturating_sub(1));
                let first = report.problems.first().map(|problem| {
                    format!("{file}:{}:{}: {}", problem.line, problem.column, problem.message)
                });
                let first = first.unwrap_or_else(|| format!("{file} is not valid"));
                if more == 0 { first } else { format!("{first} (and {more} more)") }
            }
        }
    }

    fn reply(self) -> Reply {
        match self {
            Refusal::Invalid(report) => Reply {
                status: StatusCode::UNPROCESSABLE_ENTITY,
                text: format!("{}\n", report.render(false)),
                json: json!({ "result": "invalid", "file": report.file, "problems": report.problems }),
            },
            Refusal::Impossible(why) | Refusal::Hindered(why) => Reply {
                status: StatusCode::UNPROCESSABLE_ENTITY,
                text: format!("{why}\n"),
                json: json!({ "result": "refused", "message": why }),
            },
            Refusal::Conflict(why) => Reply {
                status: StatusCode::CONFLICT,
                text: format!("{why}\n"),
                json: json!({ "result": "refused", "message": why }),
            },
        }
    }
}

/// The files as they are now.
async fn look(files: &[FileRead]) -> Option<Vec<FileRead>> {
    let files = files.to_vec();
    spawn_blocking(move || files.iter().map(FileRead::again).collect()).await.ok()
}

/// Looks at the files again and again, as often as the configuration in force says, and asks for a reload when they
/// changed and were the same at two looks, so that a half-written file is left alone. A content is asked about once,
/// unless something else than the files hindered it.
pub async fn watch(control: Rc<Control>, asks: mpsc::Sender<Ask>) {
    let mut known = control.files.borrow().clone();
    let mut judged = known.clone();
    let mut changed: Option<Vec<FileRead>> = None;
    let mut asked = Instant::now();
    loop {
        let taken_over = control.taken_over.notified();
        match control.current.load().config.reload.watch {
            None => taken_over.await,
            // Another configuration may have us look more often.
            Some(every) => drop(tokio::time::timeout(every, taken_over).await),
        }
        let read = control.files.borrow().clone();
        if read != known {
            (known, judged, changed) = (read.clone(), read, None);
        }
        let Some(found) = look(&known).await else { continue };
        let is_hindered = || control.history.last().is_some_and(|last| last.is_hindered);
        if found == judged {
            changed = None;
            if asked.elapsed() < AGAIN_AFTER || !is_hindered() {
                continue;
            }
        } else if changed.as_ref() != Some(&found) {
            changed = Some(found);
            continue;
        }
        (asked, judged, changed) = (Instant::now(), found.clone(), None);
        if asks.send(Ask::Changed(found)).await.is_err() {
            return;
        }
    }
}

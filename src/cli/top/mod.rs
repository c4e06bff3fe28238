//! `top`: the running gateway in the terminal, refreshed each second, or printed once.

mod actions;
mod keyboard;
mod reading;
mod screen;
mod tables;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::thread;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::signal::unix::{SignalKind, signal};

use super::admin_client::{AdminFault, escape_controls};
use super::args::TopArgs;
use super::remote::find_admin;
use super::{CommandResult, failed, is_no_color_set, print_result, render_json};
use keyboard::TopTask;
use reading::{GatewayReading, read_gateway};
use screen::TopScreen;
use sluicegate_model::AdminConfig;

const REFRESH: Duration = Duration::from_secs(1);
/// The longest wait for a key press before the screen is drawn again.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// The news of the thread that asks the gateway.
enum TopNews {
    Reading(Result<GatewayReading, AdminFault>),
    Outcome(String),
}

/// Draws until a key or a signal ends it. Without a terminal, and with `once` or `json`, prints once.
pub(super) fn run_top(file: &Path, args: &TopArgs) -> CommandResult {
    let admin = find_admin(file)?;
    // A gateway that does not answer at first is an error; later it may come back.
    let first = read_gateway(&admin, None)?;
    if args.json {
        return print_result(&render_json(&first.answers));
    }
    if args.once || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return print_result(&tables::render_text(&first));
    }
    let screen = TopScreen::new(first, !args.no_color && !is_no_color_set());
    // The terminal is restored after a panic too.
    let outcome = ratatui::try_init().and_then(|terminal| draw_until_quit(terminal, screen, admin));
    ratatui::restore();
    outcome.map_err(|error| failed(format!("the terminal failed: {error}")))?;
    Ok(ExitCode::SUCCESS)
}

fn draw_until_quit(
    mut terminal: DefaultTerminal,
    mut screen: TopScreen,
    admin: AdminConfig,
) -> io::Result<()> {
    let (ask, tasks) = mpsc::channel();
    let (publish, news) = mpsc::sync_channel(1);
    // The thread ends with the process: it may wait for an answer.
    thread::Builder::new().spawn(move || refresh_reading(&admin, &tasks, &publish))?;
    let is_terminated = watch_termination()?;
    while !is_terminated.load(Relaxed) {
        match news.try_recv() {
            Ok(TopNews::Reading(reading)) => screen.update(reading),
            Ok(TopNews::Outcome(outcome)) => screen.outcome = Some(outcome),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err(io::Error::other("nothing is refreshed any more")),
        }
        terminal.draw(|frame| screen.draw(frame))?;
        if !event::poll(KEY_WAIT)? {
            continue;
        }
        // A change of the size is drawn as well.
        let Event::Key(key) = event::read()? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match screen.press_key(key) {
            Some(TopTask::Quit) => return Ok(()),
            // The receiver ends no earlier than this loop, or the next round sees that it ended.
            Some(task) => drop(ask.send(task)),
            None => {}
        }
    }
    Ok(())
}

/// Becomes true when a signal asks the process to end, which otherwise would leave the terminal as it is.
fn watch_termination() -> io::Result<Arc<AtomicBool>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut terminate, mut hang_up) = {
        let _entered = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?)
    };
    let is_terminated = Arc::new(AtomicBool::new(false));
    let set = is_terminated.clone();
    thread::Builder::new().spawn(move || {
        runtime.block_on(async {
            tokio::select! { _ = terminate.recv() => {}, _ = hang_up.recv() => {} }
        });
        set.store(true, Relaxed);
        // A terminal that is gone never ends the wait for a key.
        thread::sleep(REFRESH);
        ratatui::restore();
        std::process::exit(0);
    })?;
    Ok(is_terminated)
}

/// Reads the gateway once a second and after each task, until nobody receives.
fn refresh_reading(admin: &AdminConfig, tasks: &Receiver<TopTask>, publish: &SyncSender<TopNews>) {
    let mut chosen = None;
    loop {
        let task = match tasks.recv_timeout(REFRESH) {
            Err(RecvTimeoutError::Disconnected) => return,
            task => task.ok(),
        };
        for task in task.into_iter().chain(tasks.try_iter()) {
            let outcome = match task {
                TopTask::Quit => return,
                TopTask::Choose(limit) => {
                    chosen = Some(limit);
                    continue;
                }
                TopTask::Act(action) => action.run(admin),
            };
            let told = outcome.unwrap_or_else(|fault| escape_controls(fault.why()));
            if publish.send(TopNews::Outcome(told.trim_end().to_owned())).is_err() {
                return;
            }
        }
        if publish.send(TopNews::Reading(read_gateway(admin, chosen.as_deref()))).is_err() {
            return;
        }
    }
}

//! Catches signals and translates them into commands.
//!
//! HUP, USR1 and USR2 are caught from the first moment, since by default each of them ends the process: a signal during
//! the start waits until the gateway serves. TERM and INT end a process that does not listen yet; they are caught right
//! before it listens.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::LocalRuntime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::control_thread::ControlCommand;
use sluicegate_proxy::gateway::Gateway;

/// Termination signals within this time count as one: some supervisors signal a process and then its group.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

/// The signals that must not end a starting process.
pub(super) struct EarlySignals {
    hang_up: Signal,
    user_1: Signal,
    user_2: Signal,
}

/// All signals that the process handles.
pub(super) struct Signals {
    early: EarlySignals,
    terminate: Signal,
    interrupt: Signal,
}

/// The receivers of the commands that signals cause.
pub(super) struct SignalRelay {
    pub commands: mpsc::Sender<ControlCommand>,
    pub current: Arc<ArcSwap<Gateway>>,
}

impl EarlySignals {
    /// Catches them from now on, by `runtime`.
    ///
    /// # Errors
    /// A handler cannot be installed.
    pub(super) fn catch_early(runtime: &LocalRuntime) -> io::Result<EarlySignals> {
        let _within = runtime.enter();
        Ok(EarlySignals {
            hang_up: signal(SignalKind::hangup())?,
            user_1: signal(SignalKind::user_defined1())?,
            user_2: signal(SignalKind::user_defined2())?,
        })
    }

    /// Catches TERM and INT as well.
    ///
    /// # Errors
    /// A handler cannot be installed.
    pub(super) fn with_termination(self, runtime: &LocalRuntime) -> io::Result<Signals> {
        let _within = runtime.enter();
        Ok(Signals {
            early: self,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }
}

impl Signals {
    /// Resolves at TERM or INT; relays the commands of the other signals meanwhile.
    pub(super) async fn wait_for_stop(&mut self, relay: &SignalRelay) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.early.hang_up.recv() => relay.send_command(ControlCommand::Reload(None)),
                _ = self.early.user_2.recv() => relay.send_command(ControlCommand::Upgrade),
                _ = self.early.user_1.recv() => relay.current.load().access_log.reopen_file(),
            }
        }
    }

    /// Resolves at a TERM or INT that is distinct from the one at `first`; `None` = there was none so far.
    pub(super) async fn wait_for_second_stop(&mut self, relay: &SignalRelay, mut first: Option<Instant>) {
        loop {
            self.wait_for_stop(relay).await;
            match first {
                None => first = Some(Instant::now()),
                Some(first) if first.elapsed() < SAME_SIGNAL => {}
                Some(_) => return,
            }
        }
    }
}

impl SignalRelay {
    fn send_command(&self, command: ControlCommand) {
        // With a full queue, the waiting commands cover this one.
        if let Err(mpsc::error::TrySendError::Closed(_)) = self.commands.try_send(command) {
            tracing::warn!("this process is shutting down; it starts no reload and no upgrade");
        }
    }
}

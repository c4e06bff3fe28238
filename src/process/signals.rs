//! What signals ask for.
//!
//! HUP, USR1 and USR2 are caught from the first moment on, since by default each of them ends the process: one that
//! comes during the start waits until the gateway serves. TERM and INT end a process that does not listen yet; they
//! are caught right before it does.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::LocalRuntime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::control::ControlCommand;
use crate::proxy::gateway::Gateway;

/// Signals to end within this time are one: some supervisors signal a process and then its group.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

/// The signals that must not end a process that starts.
pub struct EarlySignals {
    hang_up: Signal,
    user_1: Signal,
    user_2: Signal,
}

/// All signals.
pub struct Signals {
    early: EarlySignals,
    terminate: Signal,
    interrupt: Signal,
}

/// The recipients of the requests that signals make.
pub struct SignalRelay {
    pub commands: mpsc::Sender<ControlCommand>,
    pub current: Arc<ArcSwap<Gateway>>,
}

impl EarlySignals {
    /// Catches them from now on, for `runtime` to tell.
    ///
    /// # Errors
    /// When a handler cannot be installed.
    pub fn catch_early(runtime: &LocalRuntime) -> io::Result<EarlySignals> {
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
    /// When a handler cannot be installed.
    pub fn with_termination(self, runtime: &LocalRuntime) -> io::Result<Signals> {
        let _within = runtime.enter();
        Ok(Signals {
            early: self,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }
}

impl Signals {
    /// Resolves at TERM or INT; relays meanwhile what the others ask for.
    pub async fn wait_for_stop(&mut self, relay: &SignalRelay) {
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

    /// Resolves at a TERM or INT that is not the same as the `first`; `None` = there was none so far.
    pub async fn wait_for_second_stop(&mut self, relay: &SignalRelay, mut first: Option<Instant>) {
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
    fn send_command(&self, ask: ControlCommand) {
        // Where many wait already, those do for this one.
        if let Err(mpsc::error::TrySendError::Closed(_)) = self.commands.try_send(ask) {
            tracing::warn!("this process ends; neither a reload nor an upgrade begins here");
        }
    }
}

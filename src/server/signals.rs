//! What signals ask for.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::control::Ask;
use crate::gateway::Gateway;

pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    user_1: Signal,
    user_2: Signal,
    asks: mpsc::Sender<Ask>,
    current: Arc<ArcSwap<Gateway>>,
}

impl Signals {
    pub fn new(asks: mpsc::Sender<Ask>, current: Arc<ArcSwap<Gateway>>) -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            user_1: signal(SignalKind::user_defined1())?,
            user_2: signal(SignalKind::user_defined2())?,
            asks,
            current,
        })
    }

    /// Resolves at TERM or INT; does meanwhile what the others ask for.
    pub async fn stop(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => self.ask(Ask::Reload(None)),
                _ = self.user_2.recv() => self.ask(Ask::Upgrade),
                _ = self.user_1.recv() => self.current.load().access_log.reopen(),
            }
        }
    }

    fn ask(&self, ask: Ask) {
        // Where many wait already, those do for this one.
        if let Err(mpsc::error::TrySendError::Closed(_)) = self.asks.try_send(ask) {
            tracing::warn!("this process ends; neither a reload nor an upgrade begins here");
        }
    }
}

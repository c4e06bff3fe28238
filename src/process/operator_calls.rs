//! The calls of the admin API to the control thread about keys, grants and bans.

use std::rc::{Rc, Weak};

use tokio::sync::mpsc;

use super::control::{ControlCommand, ControlThread};
use super::operator_changes::request_change;
use crate::operate::admin::{ControlFuture, OperatorControl};
use sluicegate_proxy::gateway::heavy_keys::fleet::FleetKeys;
use sluicegate_proxy::gateway::heavy_keys::report::{HeavyBy, HeavyKey, KeyLookupError, RecentRefusal};
use sluicegate_proxy::gateway::{OperatorChange, OperatorFault, OperatorOutcome};

/// The control thread, as long as it runs.
pub struct ControlHandle {
    control: Weak<ControlThread>,
    commands: mpsc::Sender<ControlCommand>,
}

impl ControlHandle {
    pub fn new(control: &Rc<ControlThread>, commands: mpsc::Sender<ControlCommand>) -> ControlHandle {
        ControlHandle { control: Rc::downgrade(control), commands }
    }
}

impl OperatorControl for ControlHandle {
    fn list_heavy_keys(
        &self,
        limit: String,
        by: HeavyBy,
        top: usize,
    ) -> ControlFuture<Result<FleetKeys, KeyLookupError>> {
        let control = self.control.upgrade();
        Box::pin(
            async move { control.ok_or(KeyLookupError::ShuttingDown)?.fleet_keys(&limit, by, top).await },
        )
    }

    fn find_key(&self, limit: String, name: String) -> ControlFuture<Result<HeavyKey, KeyLookupError>> {
        let control = self.control.upgrade();
        Box::pin(async move { control.ok_or(KeyLookupError::ShuttingDown)?.find_key(&limit, &name).await })
    }

    fn list_refusals(&self) -> ControlFuture<Vec<RecentRefusal>> {
        let control = self.control.upgrade();
        Box::pin(async move {
            match control {
                Some(control) => control.recent_refusals().await,
                None => Vec::new(),
            }
        })
    }

    fn make_change(&self, change: OperatorChange) -> ControlFuture<Result<OperatorOutcome, OperatorFault>> {
        let commands = self.commands.clone();
        Box::pin(async move { request_change(&commands, change).await })
    }
}

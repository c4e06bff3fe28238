//! The actions that the admin API asks of the running gateway.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::control_thread::{ControlCommand, ControlThread};
use super::heavy_keys::read_refusals;
use super::operator_changes::request_change;
use crate::operate::admin::status::{Reloaded, Status, StatusToken};
use crate::operate::admin::{ActionFuture, AdminError, GatewayActions};
use sluicegate_proxy::gateway::heavy_keys::fleet::FleetKeys;
use sluicegate_proxy::gateway::heavy_keys::report::{HeavyBy, HeavyKey, KeyLookupError, RecentRefusal};
use sluicegate_proxy::gateway::{Gateway, OperatorChange, OperatorFault, OperatorOutcome};
use sluicegate_store::Session;

/// The control thread, as long as it runs.
pub(super) struct ControlHandle {
    control: Weak<ControlThread>,
    commands: mpsc::Sender<ControlCommand>,
    /// The session of the control thread with the store, beside those of the workers.
    session: RefCell<Option<Rc<Session>>>,
}

impl ControlHandle {
    pub(super) fn new(control: &Rc<ControlThread>, commands: mpsc::Sender<ControlCommand>) -> ControlHandle {
        ControlHandle { control: Rc::downgrade(control), commands, session: RefCell::default() }
    }
}

impl GatewayActions for ControlHandle {
    fn show_status(&self, caller: StatusToken) -> ActionFuture<Result<Status, AdminError>> {
        let control = self.control.upgrade();
        Box::pin(async move { Ok(control.ok_or_else(AdminError::shutting_down)?.read_status(caller).await) })
    }

    fn reload(&self) -> ActionFuture<Result<Reloaded, AdminError>> {
        let commands = self.commands.clone();
        Box::pin(async move {
            let (reply, replied) = oneshot::channel();
            let sent = commands.send(ControlCommand::Reload(Some(reply))).await;
            sent.map_err(|_| AdminError::shutting_down())?;
            replied.await.unwrap_or_else(|_| Err(AdminError::shutting_down()))
        })
    }

    fn open_session(&self) -> Option<(Arc<Gateway>, Option<Rc<Session>>)> {
        let control = self.control.upgrade()?;
        let gateway = control.current.load_full();
        let is_current = |session: &Rc<Session>| {
            gateway.store.as_ref().is_some_and(|store| Arc::ptr_eq(store, &session.store))
        };
        let open = || Some(Session::new(gateway.store.as_ref()?, control.workers.count()));
        let used = self.session.take().filter(is_current).or_else(open);
        self.session.replace(used.clone());
        Some((gateway, used))
    }

    fn list_heavy_keys(
        &self,
        limit: String,
        by: HeavyBy,
        top: usize,
    ) -> ActionFuture<Result<FleetKeys, KeyLookupError>> {
        let control = self.control.upgrade();
        Box::pin(
            async move { control.ok_or(KeyLookupError::ShuttingDown)?.fleet_keys(&limit, by, top).await },
        )
    }

    fn find_key(&self, limit: String, name: String) -> ActionFuture<Result<HeavyKey, KeyLookupError>> {
        let control = self.control.upgrade();
        Box::pin(async move { control.ok_or(KeyLookupError::ShuttingDown)?.find_key(&limit, &name).await })
    }

    fn list_refusals(&self) -> ActionFuture<Vec<RecentRefusal>> {
        let control = self.control.upgrade();
        Box::pin(async move {
            let Some(control) = control else { return Vec::new() };
            read_refusals(&control.workers, &control.current.load_full()).await
        })
    }

    fn make_change(&self, change: OperatorChange) -> ActionFuture<Result<OperatorOutcome, OperatorFault>> {
        let commands = self.commands.clone();
        Box::pin(async move { request_change(&commands, change).await })
    }
}

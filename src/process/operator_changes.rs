//! Makes the changes of operators, one after the other and never during a reload or an upgrade.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::control::{ControlCommand, ControlThread};
use super::worker_thread::WorkerCommand;
use crate::base::clock::Now;
use crate::config::Config;
use crate::proxy::gateway::{Gateway, GrantFault, OperatorChange, OperatorFault, OperatorOutcome};

/// Interval between attempts to remove ended grants, which judge no request any more.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Has the control thread make a change.
///
/// # Errors
/// The reason why it is not made.
pub async fn request_change(
    commands: &mpsc::Sender<ControlCommand>,
    change: OperatorChange,
) -> Result<OperatorOutcome, OperatorFault> {
    let (reply, replied) = oneshot::channel();
    let sent = commands.send(ControlCommand::Change(Box::new(change), reply)).await;
    sent.map_err(|_| OperatorFault::ShuttingDown)?;
    replied.await.unwrap_or(Err(OperatorFault::ShuttingDown))
}

/// Removes what is left of each grant after its end. Never returns.
pub async fn remove_ended_grants(control: Rc<ControlThread>, commands: mpsc::Sender<ControlCommand>) {
    loop {
        let changed = control.gateway_changed.notified();
        let next_end = control.current.load().next_grant_end();
        let ended = async {
            match next_end {
                Some(end) => tokio::time::sleep_until(end.to_instant()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changed => continue,
            () = ended => {}
        }
        match request_change(&commands, OperatorChange::RemoveEnded).await {
            Err(OperatorFault::ShuttingDown | OperatorFault::HandedOver(_)) => return,
            Err(fault) => {
                tracing::warn!(%fault, "ended grants stay for a while");
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            Ok(_) => {}
        }
    }
}

impl ControlThread {
    /// Makes a change of an operator.
    pub async fn apply_change(&self, change: OperatorChange) -> Result<OperatorOutcome, OperatorFault> {
        let (gateway, now) = (self.current.load_full(), Now::read_clock());
        match change {
            OperatorChange::ResetKey { limit, key, tier } => {
                let reset = gateway.reset_key(&limit, &key, tier.as_deref(), now);
                reset.map(OperatorOutcome::KeyReset).map_err(OperatorFault::Reset)
            }
            OperatorChange::Ban(new) => {
                let (ban, replaced) = gateway.add_ban(new, now).map_err(OperatorFault::Ban)?;
                Ok(OperatorOutcome::Banned(ban, replaced))
            }
            OperatorChange::Unban(target) => {
                gateway.lift_ban(&target, now).map(OperatorOutcome::Unbanned).map_err(OperatorFault::Unban)
            }
            OperatorChange::Grant(new) => {
                let built = gateway.config_with_grant(&new, now).map_err(OperatorFault::Grant)?;
                let (config, grant, replaced) = built;
                self.use_grants(&gateway, &config).await.map_err(OperatorFault::Grant)?;
                Ok(OperatorOutcome::Granted(grant, replaced))
            }
            OperatorChange::Revoke { limit, key } => {
                let built = gateway.config_without_grant(&limit, &key, now).map_err(OperatorFault::Grant)?;
                self.use_grants(&gateway, &built.0).await.map_err(OperatorFault::Grant)?;
                Ok(OperatorOutcome::Revoked(built.1))
            }
            OperatorChange::RemoveEnded => {
                let Some(config) = gateway.config_without_ended(now) else {
                    return Ok(OperatorOutcome::RemovedEnded(0));
                };
                let count =
                    |config: &Config| config.limits.iter().map(|limit| limit.grants.len()).sum::<usize>();
                let removed = count(&gateway.config) - count(&config);
                self.use_grants(&gateway, &config).await.map_err(OperatorFault::Grant)?;
                tracing::info!(removed, "grants have ended");
                Ok(OperatorOutcome::RemovedEnded(removed))
            }
        }
    }

    /// Puts the configuration in force with other grants in force. All else continues: only the numbers of single keys
    /// differ, so no task beside the workers is affected.
    async fn use_grants(&self, before: &Gateway, config: &Config) -> Result<(), GrantFault> {
        let gateway = Gateway::build(config, Some(before));
        let gateway = Arc::new(gateway.map_err(|error| GrantFault::Build(error.to_string()))?);
        self.put_in_force(&gateway).await;
        self.history.track_gateway(&gateway);
        Ok(())
    }

    /// Makes all workers use `gateway`. Nothing can fail here.
    pub async fn put_in_force(&self, gateway: &Arc<Gateway>) {
        gateway.apply_numbers(&Now::read_clock);
        self.current.store(gateway.clone());
        self.workers.send_to_all(|| WorkerCommand::UseGateway(gateway.clone())).await;
        self.gateway_changed.notify_waiters();
    }
}

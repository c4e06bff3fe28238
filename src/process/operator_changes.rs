//! Makes the changes of operators, one after the other and never during a reload or an upgrade.

use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::control_thread::{ControlCommand, ControlThread};
use super::entry_sharing::EntrySharing;
use sluicegate_base::clock::Now;
use sluicegate_model::Config;
use sluicegate_proxy::downstream::worker_thread::WorkerCommand;
use sluicegate_proxy::gateway::{
    self, Gateway, GrantFault, KeyResetFault, LostChange, NewGrant, OperatorChange, OperatorFault,
    OperatorOutcome, SharedRates,
};
use sluicegate_store::operator_entries::{EntryFault, OperatorEntry};
use sluicegate_store::{ResetEntry, SharedKey};

/// Interval between attempts to remove ended grants, which judge no request any more.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// The same for changes of other gateways.
const ADOPT_INTERVAL: Duration = Duration::from_secs(1);

/// Has the control thread make a change.
///
/// # Errors
/// The reason why it is not made.
pub(super) async fn request_change(
    commands: &mpsc::Sender<ControlCommand>,
    change: OperatorChange,
) -> Result<OperatorOutcome, OperatorFault> {
    let (reply, replied) = oneshot::channel();
    let sent = commands.send(ControlCommand::Change(Box::new(change), reply)).await;
    sent.map_err(|_| OperatorFault::ShuttingDown)?;
    replied.await.unwrap_or(Err(OperatorFault::ShuttingDown))
}

/// Removes the rest of each grant or pause after its end. Never returns.
pub(super) async fn remove_ended_grants(control: Rc<ControlThread>, commands: mpsc::Sender<ControlCommand>) {
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
                tracing::warn!(%fault, "ended grants or pauses stay for a while");
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            Ok(_) => {}
        }
    }
}

/// Adopts the changes of all gateways each time there are new ones. Never returns.
pub(super) async fn adopt_entries(control: Rc<ControlThread>, commands: mpsc::Sender<ControlCommand>) {
    loop {
        control.entries_changed.notified().await;
        while let Err(fault) = request_change(&commands, OperatorChange::UseEntries).await {
            if matches!(fault, OperatorFault::ShuttingDown | OperatorFault::HandedOver(_)) {
                return;
            }
            tracing::warn!(%fault, "changes of other gateways are not adopted yet");
            tokio::time::sleep(ADOPT_INTERVAL).await;
        }
    }
}

impl ControlThread {
    pub(super) async fn apply_change(
        &self,
        change: OperatorChange,
    ) -> Result<OperatorOutcome, OperatorFault> {
        let (gateway, now) = (self.current.load_full(), Now::read_clock());
        match change {
            OperatorChange::ResetKey { limit, key, tier } => {
                let reset = gateway.reset_key(&limit, &key, tier.as_deref(), now)?;
                if let Some(rates) = reset.in_store {
                    self.reset_in_store(&gateway, &rates, key.shared).await?;
                }
            }
            OperatorChange::Ban(new) => {
                let (target, (ban, replaced)) = (new.target.clone(), gateway.add_ban(new, now)?);
                if let Err(fault) = self.share_entries(gateway.ban_entry(&target, now).as_slice()) {
                    // It was added just now.
                    let _ = gateway.operator_bans.remove_ban(&target, now);
                    return Err(fault);
                }
                return Ok(OperatorOutcome::Banned(ban, replaced));
            }
            OperatorChange::Unban(target) => {
                let ended = gateway.lift_ban(&target, now)?;
                self.end_entries(&[gateway::ban_entry_name(&target).into()])?;
                let (client, until) = (ended.in_store, ended.rejections);
                if let (Some(client), Some(until), Some(bans)) = (client, until, &gateway.bans)
                    && !bans.share_lift(client, until)
                {
                    return Err(OperatorFault::Entry(EntryFault::Full));
                }
                return Ok(OperatorOutcome::Unbanned(ended));
            }
            OperatorChange::Grant(new) => {
                let (config, ..) = gateway.config_with_grant(&new, now)?;
                let told = written_grant(&config, &new);
                self.use_config(&gateway, &config, || self.share_entries(told.as_slice())).await?;
            }
            OperatorChange::Revoke { limit, key } => {
                let (config, _) = gateway.config_without_grant(&limit, &key, now)?;
                let ended = gateway::grant_entry_name(&limit, &key.to_grant_key()).into();
                self.use_config(&gateway, &config, || self.end_entries(&[ended])).await?;
            }
            OperatorChange::ChangeLimits { limits, change } => {
                let is_set = change.numbers.is_some();
                let config = gateway.config_with_change(&limits, change)?;
                let told = gateway::write_changes(&config, &limits, is_set);
                self.use_config(&gateway, &config, || self.share_entries(&told)).await?;
            }
            OperatorChange::EndLimitChanges { limits, is_set, skips_ended } => {
                let config = gateway.config_without_changes(&limits, is_set, skips_ended)?;
                let ended = gateway::write_changes(&gateway.config, &limits, is_set);
                let ended: Vec<Arc<[u8]>> = ended.into_iter().map(|entry| entry.name).collect();
                self.use_config(&gateway, &config, || self.end_entries(&ended)).await?;
            }
            OperatorChange::UseEntries => {
                if let Some(config) = self.read_entries(&gateway) {
                    self.use_config(&gateway, &config, || Ok(())).await?;
                }
            }
            OperatorChange::RemoveEnded => {
                if let Some(config) = gateway.config_without_ended(now) {
                    self.use_config(&gateway, &config, || Ok(())).await?;
                    tracing::info!("changes of limits or grants have ended");
                }
            }
        }
        Ok(OperatorOutcome::Done)
    }

    /// Forgets in the store, and in its home, the counts of a limit for a key, and tells the other gateways.
    async fn reset_in_store(
        &self,
        gateway: &Gateway,
        rates: &SharedRates,
        key: SharedKey,
    ) -> Result<(), OperatorFault> {
        let Some(store) = &gateway.store else { return Ok(()) };
        let SharedRates { limit, rates } = rates;
        if let Some(home) = store.home().filter(|_| limit.is_leased(rates.clone())) {
            let answer = home.open_link().reset_key(limit, rates.clone(), &key).await;
            answer.map_err(KeyResetFault::Store)?;
        }
        let answer = store.open_link().reset_key(limit, rates.clone(), &key).await;
        answer.map_err(KeyResetFault::Store)?;
        let reset = ResetEntry::new(limit, rates.clone(), key);
        // Rejections that were asked for until now may be repeated on no gateway.
        let now = Now::read_clock();
        reset.apply_to([limit], store.debts(), now);
        let id = RandomState::new().hash_one(now);
        let told = self.with_entries(|sharing| reset.put_into(&sharing.entries, id, now));
        Ok(told.unwrap_or(Ok(()))?)
    }

    /// Tells the other gateways of all these changes or of none.
    fn share_entries(&self, entries: &[OperatorEntry]) -> Result<(), OperatorFault> {
        Ok(self.with_entries(|sharing| sharing.entries.put_all(entries)).unwrap_or(Ok(()))?)
    }

    /// Adopts the resets and bans of all gateways. Returns the configuration with their other changes; `None`: it is
    /// the same.
    fn read_entries(&self, gateway: &Gateway) -> Option<Config> {
        let (config, lost) = self.with_entries(|sharing| {
            sharing.use_entries(gateway);
            gateway.config_with_entries(&sharing.entries.list_living(), self.read_unix_ns.get())
        })?;
        self.end_lost(&lost);
        config
    }

    /// Tells the other gateways that changes of limits have ended; those that cannot be told find out by their files.
    pub(super) fn end_lost(&self, lost: &[LostChange]) {
        lost.iter().for_each(|(entry, _)| drop(self.end_entries(&[entry.as_slice().into()])));
    }

    /// Tells the other gateways that all these changes have ended, or none.
    fn end_entries(&self, names: &[Arc<[u8]>]) -> Result<(), OperatorFault> {
        let told = self.with_entries(|sharing| sharing.entries.delete_all(names).map(drop));
        Ok(told.unwrap_or(Ok(()))?)
    }

    /// `None` = there is no store.
    fn with_entries<T>(&self, act: impl FnOnce(&EntrySharing) -> T) -> Option<T> {
        let tasks = self.tasks.borrow();
        tasks.as_ref()?.entry_sharing.as_ref().map(act)
    }

    /// Puts a configuration with other grants or changes of limits in force, unless it cannot be built or `tell` fails.
    /// All else continues: only numbers differ, so no task beside the workers is affected.
    async fn use_config(
        &self,
        before: &Gateway,
        config: &Config,
        tell: impl FnOnce() -> Result<(), OperatorFault>,
    ) -> Result<(), OperatorFault> {
        let gateway = Gateway::build(config, Some(before));
        let gateway = Arc::new(gateway.map_err(|error| GrantFault::Build(error.to_string()))?);
        tell()?;
        self.put_in_force(&gateway).await;
        Ok(())
    }

    /// Makes all workers use `gateway`. Nothing can fail here.
    pub(super) async fn put_in_force(&self, gateway: &Arc<Gateway>) {
        self.history.track_gateway(gateway);
        gateway.apply_numbers(&Now::read_clock);
        self.current.store(gateway.clone());
        self.workers.send_to_all(|| WorkerCommand::UseGateway(gateway.clone())).await;
        self.gateway_changed.notify_waiters();
    }
}

/// The entry of a grant in the configuration that has it.
fn written_grant(config: &Config, new: &NewGrant) -> Option<OperatorEntry> {
    let limit = config.limits.iter().find(|limit| limit.name == new.limit)?;
    let key = new.key.to_grant_key();
    let granted = limit.grants.iter().find(|grant| grant.key == key)?;
    gateway::write_grant(limit, granted)
}

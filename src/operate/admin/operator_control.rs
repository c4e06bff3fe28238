//! The actions of the running gateway behind the endpoints about keys, grants and bans.

use std::pin::Pin;

use sluicegate_proxy::gateway::heavy_keys::fleet::FleetKeys;
use sluicegate_proxy::gateway::heavy_keys::report::{HeavyBy, HeavyKey, KeyLookupError, RecentRefusal};
use sluicegate_proxy::gateway::{OperatorChange, OperatorFault, OperatorOutcome};

/// The result of an action, when it is there.
pub type ControlFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// Finds keys in the running gateway, and makes the changes of operators.
pub trait OperatorControl {
    /// The keys of a limit that ask most or are refused most, the heaviest first; those of all gateways that count it
    /// together.
    fn list_heavy_keys(
        &self,
        limit: String,
        by: HeavyBy,
        top: usize,
    ) -> ControlFuture<Result<FleetKeys, KeyLookupError>>;

    /// The key of a limit with this name.
    fn find_key(&self, limit: String, name: String) -> ControlFuture<Result<HeavyKey, KeyLookupError>>;

    /// The last refusals, the latest first.
    fn list_refusals(&self) -> ControlFuture<Vec<RecentRefusal>>;

    fn make_change(&self, change: OperatorChange) -> ControlFuture<Result<OperatorOutcome, OperatorFault>>;
}

/// A gateway that has ended.
pub(super) struct StoppedControl;

impl OperatorControl for StoppedControl {
    fn list_heavy_keys(
        &self,
        _: String,
        _: HeavyBy,
        _: usize,
    ) -> ControlFuture<Result<FleetKeys, KeyLookupError>> {
        Box::pin(async { Err(KeyLookupError::ShuttingDown) })
    }

    fn find_key(&self, _: String, _: String) -> ControlFuture<Result<HeavyKey, KeyLookupError>> {
        Box::pin(async { Err(KeyLookupError::ShuttingDown) })
    }

    fn list_refusals(&self) -> ControlFuture<Vec<RecentRefusal>> {
        Box::pin(async { Vec::new() })
    }

    fn make_change(&self, _: OperatorChange) -> ControlFuture<Result<OperatorOutcome, OperatorFault>> {
        Box::pin(async { Err(OperatorFault::ShuttingDown) })
    }
}

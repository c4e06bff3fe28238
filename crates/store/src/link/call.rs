//! Calls of scripts, and their redirects.

use tokio::time::Instant;

use super::fault::StoreFault;
use super::server_link::{CallFailure, CallOutcome, ScriptCall};
use super::{KeyGroup, Link};
use crate::{LuaScript, PackedCall};

/// The number of servers that one call tries. Two are enough unless a key moves on meanwhile.
const HOPS_MAX: usize = 3;

// === impl Link ===

impl Link {
    /// Runs `script`, loading it if it is missing. The call is sent again only if the server said that it did not
    /// run.
    ///
    /// # Errors
    /// Any fault of the store, within the configured timeout.
    pub async fn call_script(
        &self,
        group: KeyGroup,
        script: &LuaScript,
        packed: &PackedCall,
    ) -> Result<Vec<u8>, StoreFault> {
        self.try_script(group, script, packed).await.map_err(|failure| failure.fault)
    }

    /// Calls a script like [`Link::call_script`], for a caller that may wait on for the reply.
    ///
    /// # Errors
    /// Any fault of the store, within the configured timeout.
    pub async fn try_script(
        &self,
        group: KeyGroup,
        script: &LuaScript,
        packed: &PackedCall,
    ) -> Result<Vec<u8>, CallFailure> {
        let deadline = Instant::now() + self.store.timeout;
        let call = ScriptCall { store: &self.store, script, packed, deadline };
        let result = self.follow_redirects(group, &call).await;
        self.store.counts.record_result(&result.as_ref().map_err(|failure| failure.fault));
        result
    }

    /// Runs the call, following redirects from server to server.
    async fn follow_redirects(&self, group: KeyGroup, call: &ScriptCall<'_>) -> Result<Vec<u8>, CallFailure> {
        let mut asking = false;
        let mut link = self.link_of(group).ok_or(StoreFault::Down)?;
        for _ in 0..HOPS_MAX {
            match link.run_call(call, asking).await {
                CallOutcome::Answered(bytes) => return Ok(bytes),
                CallOutcome::Failed(failure) => return Err(failure),
                CallOutcome::TryAgain => break,
                CallOutcome::Redirected(address, once) => {
                    self.store.doubt_topology();
                    let address = address.resolve_from(&link.server.address);
                    link = self.link_to(&address, (!once).then_some(group)).ok_or(StoreFault::Moving)?;
                    asking = once;
                }
            }
        }
        self.store.doubt_topology();
        Err(StoreFault::Moving.into())
    }
}

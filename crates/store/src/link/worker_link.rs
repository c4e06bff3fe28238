//! The links of one worker to the servers of the store: calls of scripts, and their redirects.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use tokio::time::Instant;

use super::fault::{StoreAddress, StoreFault};
use super::server::StoreServer;
use super::server_link::{CallFailure, CallOutcome, ScriptCall, ServerLink};
use super::topology::Topology;
use super::{KeyGroup, Store};
use crate::{LuaScript, PackedCall};

/// The number of servers that one call tries. Two are enough unless a key moves on meanwhile.
const HOPS_MAX: usize = 3;

/// The connections of one worker.
pub struct Link {
    store: Arc<Store>,
    view: RefCell<TopologyView>,
}

/// The servers as a worker knows them, and its links to them, at the same indices.
struct TopologyView {
    topology: Arc<Topology>,
    links: Vec<Rc<ServerLink>>,
}

// === impl Store ===

impl Store {
    /// The connections of the calling worker; they live on its runtime.
    pub fn open_link(self: &Arc<Store>) -> Link {
        Link {
            store: self.clone(),
            view: RefCell::new(TopologyView::from_topology(self.topology.load_full(), &[])),
        }
    }

    /// Calls of `script` about `group`, through a link of their own. The script is loaded on every connection.
    pub fn script_caller(
        self: &Arc<Store>,
        group: KeyGroup,
        script: LuaScript,
    ) -> impl AsyncFn(&PackedCall) -> Result<Vec<u8>, StoreFault> {
        let link = self.open_link();
        self.load_script(&script);
        async move |packed: &PackedCall| link.call_script(group, &script, packed).await
    }
}

// === impl Link ===

impl Link {
    /// The store that the link leads to.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

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
        self.call_with_late_reply(group, script, packed).await.map_err(|failure| failure.fault)
    }

    /// Calls a script like [`Link::call_script`], but the reply can still be read after the deadline.
    ///
    /// # Errors
    /// Any fault of the store, within the configured timeout.
    pub(crate) async fn call_with_late_reply(
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

    /// The link to a server that a redirect named; if `group` is given, the server owns it from now on.
    fn link_to(&self, address: &StoreAddress, group: Option<KeyGroup>) -> Option<Rc<ServerLink>> {
        self.refresh_view();
        let view = self.view.borrow();
        let index = view.topology.servers.iter().position(|server| server.address == *address)?;
        if let Some(group) = group {
            view.topology.move_slot(group.0, index);
        }
        view.links.get(index).cloned()
    }

    fn link_of(&self, group: KeyGroup) -> Option<Rc<ServerLink>> {
        self.refresh_view();
        let view = self.view.borrow();
        view.links.get(view.topology.owner_of(group.0)?).cloned()
    }

    /// Takes over a changed topology; connections to servers that stay are kept.
    fn refresh_view(&self) {
        let current = self.store.topology.load();
        let mut view = self.view.borrow_mut();
        if !Arc::ptr_eq(&current, &view.topology) {
            *view = TopologyView::from_topology(Arc::clone(&current), &view.links);
        }
    }
}

// === impl TopologyView ===

impl TopologyView {
    fn from_topology(topology: Arc<Topology>, known: &[Rc<ServerLink>]) -> TopologyView {
        let link = |server: &Arc<StoreServer>| {
            let same = known.iter().find(|link| Arc::ptr_eq(&link.server, server));
            same.cloned().unwrap_or_else(|| Rc::new(ServerLink::new(server.clone())))
        };
        TopologyView { links: topology.servers.iter().map(link).collect(), topology }
    }
}

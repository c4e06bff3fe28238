//! Bounds the connections of the admin listener. At the bound the longest unused one is closed for a new one, so that
//! strangers with idle connections cannot lock operators out.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// All open connections.
#[derive(Default)]
pub(super) struct AdminConnections {
    open: RefCell<Vec<Rc<AdminConnection>>>,
    /// Notified when a connection ends or has answered a request.
    changed: Notify,
}

/// A connection is closed after this time: scrapers reconnect.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(300);

pub(super) struct AdminConnection {
    /// The moment at which it is closed.
    ends_at: Cell<Instant>,
    /// `None` while a request is answered.
    unused_since: Cell<Option<Instant>>,
    /// Closes the connection; set once.
    pub abort: OnceCell<AbortHandle>,
}

/// Counts a connection as open until it is dropped.
pub(super) struct ConnectionGuard {
    all: Rc<AdminConnections>,
    pub own: Rc<AdminConnection>,
}

/// Marks a connection as in use until it is dropped.
pub(super) struct InUseGuard(Rc<ConnectionGuard>);

impl AdminConnections {
    /// Waits until fewer than `most` are open. Closes the longest unused one; if none is unused, all are about to
    /// answer.
    pub(super) async fn make_room(&self, most: usize) {
        while self.open.borrow().len() >= most {
            if let Some(abort) = self.longest_unused() {
                abort.abort();
            }
            self.changed.notified().await;
        }
    }

    fn longest_unused(&self) -> Option<AbortHandle> {
        let open = self.open.borrow();
        let unused = open.iter().filter_map(|one| Some((one.unused_since.get()?, one.abort.get()?)));
        unused.min_by_key(|(since, _)| *since).map(|(_, abort)| abort.clone())
    }

    pub(super) fn track_connection(self: &Rc<AdminConnections>) -> ConnectionGuard {
        let unused_since = Cell::new(Some(Instant::now()));
        let own = Rc::new(AdminConnection {
            ends_at: Cell::new(Instant::now() + CONNECTION_TIMEOUT),
            unused_since,
            abort: OnceCell::new(),
        });
        self.open.borrow_mut().push(own.clone());
        ConnectionGuard { all: self.clone(), own }
    }
}

impl AdminConnection {
    /// Lets the connection last for `time` from now.
    pub(super) fn extend_for(&self, time: Duration) {
        self.ends_at.set(self.ends_at.get().max(Instant::now() + time));
    }

    /// Closes the connection at once.
    pub(super) fn close(&self) {
        if let Some(abort) = self.abort.get() {
            abort.abort();
        }
    }

    /// Resolves when the connection has lasted long enough.
    pub(super) async fn wait_for_end(&self) {
        while Instant::now() < self.ends_at.get() {
            tokio::time::sleep_until(self.ends_at.get()).await;
        }
    }
}

impl ConnectionGuard {
    /// Marks the connection as in use until the guard is dropped, together with the body of the answer.
    pub(super) fn mark_in_use(self: Rc<ConnectionGuard>) -> InUseGuard {
        self.own.unused_since.set(None);
        InUseGuard(self)
    }
}

impl Drop for InUseGuard {
    fn drop(&mut self) {
        self.0.own.unused_since.set(Some(Instant::now()));
        self.0.all.changed.notify_one();
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.all.open.borrow_mut().retain(|one| !Rc::ptr_eq(one, &self.own));
        self.all.changed.notify_one();
    }
}

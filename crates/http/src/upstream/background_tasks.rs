//! The background tasks of upstreams: health checks and DNS refreshes.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::{Upstream, health};

/// The tasks of all upstreams; they end when this is dropped.
#[must_use = "the tasks end when this is dropped"]
pub struct BackgroundTasks(JoinSet<()>);

impl BackgroundTasks {
    /// Starts the tasks of `upstreams` on the current runtime.
    pub fn spawn_all(upstreams: &[Arc<Upstream>]) -> BackgroundTasks {
        let mut tasks = JoinSet::new();
        for upstream in upstreams {
            upstream.clear_stale_flags();
            for server in &upstream.servers {
                if let Some(health) = &upstream.health {
                    tasks.spawn(health::watch_server(server.clone(), health.clone()));
                }
                if let Some(name) = &server.state.dns_name {
                    tasks.spawn(name.clone().refresh_forever(server.dns_refresh));
                }
            }
        }
        BackgroundTasks(tasks)
    }

    /// Replaces all tasks by those of `upstreams`.
    pub fn restart_all(&mut self, upstreams: &[Arc<Upstream>]) {
        // Abort first, or a stale check could set a state that no event ends.
        self.0.abort_all();
        *self = BackgroundTasks::spawn_all(upstreams);
    }
}

//! What is done for upstreams beside the requests: health checks, and looking names up again.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::{Upstream, health};

/// The tasks that look after upstreams; they end when this is dropped.
#[must_use = "dropped at once, nobody looks after the upstreams"]
pub struct BackgroundTasks(JoinSet<()>);

impl BackgroundTasks {
    /// Starts looking after `upstreams`, within the runtime that this is called in.
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

    /// Looks after `upstreams` instead.
    pub fn restart_all(&mut self, upstreams: &[Arc<Upstream>]) {
        // First of all, lest a check of before brings a state that nobody ends.
        self.0.abort_all();
        *self = BackgroundTasks::spawn_all(upstreams);
    }
}

//! What is done for upstreams beside the requests: health checks, and looking names up again.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::{Upstream, health};

/// The tasks that look after upstreams; they end when this is dropped.
#[must_use = "dropped at once, nobody looks after the upstreams"]
pub struct Care(JoinSet<()>);

impl Care {
    /// Starts looking after `upstreams`, within the runtime that this is called in.
    pub fn of(upstreams: &[Arc<Upstream>]) -> Care {
        let mut tasks = JoinSet::new();
        for upstream in upstreams {
            upstream.forget_what_is_off();
            for server in &upstream.servers {
                if let Some(health) = &upstream.health {
                    tasks.spawn(health::watch(server.clone(), health.clone()));
                }
                if let Some(name) = &server.standing.name {
                    tasks.spawn(name.clone().follow(server.dns_refresh));
                }
            }
        }
        Care(tasks)
    }

    /// Looks after `upstreams` instead.
    pub fn follow(&mut self, upstreams: &[Arc<Upstream>]) {
        // First of all, lest a check of before brings a state that nobody ends.
        self.0.abort_all();
        *self = Care::of(upstreams);
    }
}

//! The outages of the store: when they began, and how long they lasted.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::Store;
use super::server::StoreServer;
use sluicegate_base::clock::Now;

/// The longest wait of a start for the first probes.
const PROBED_TIMEOUT: Duration = Duration::from_secs(1);
const PROBED_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The outages of the servers of one store so far, as this process saw them. One lasts as long as any server does not
/// answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutageReport {
    /// All of them, with the one that lasts.
    pub count: u64,
    /// The beginning of the present outage; `None` = the store is reachable.
    pub since: Option<Now>,
    /// The start and the end of the last one that is over.
    pub last: Option<(Now, Now)>,
}

// === impl OutageReport ===

impl OutageReport {
    fn record_state(&mut self, is_down: bool, now: Now) {
        match (is_down, self.since) {
            (true, None) => {
                self.count += 1;
                self.since = Some(now);
            }
            (false, Some(since)) => {
                self.last = Some((since, now));
                self.since = None;
            }
            _ => {}
        }
    }
}

// === impl Store ===

impl Store {
    /// Records whether all servers answer; call it when that may have changed. A server that was not probed yet is no
    /// outage.
    pub(super) fn record_reachability(&self) {
        let topology = self.topology.load();
        let is_down =
            topology.servers.iter().any(|server| server.is_probed.load(Relaxed) && server.breaker.is_open());
        self.outages.lock().record_state(is_down || topology.servers.is_empty(), Now::read_clock());
    }

    /// Waits until every server has answered the first probe, or has failed it; a second at most.
    pub async fn wait_probed(&self) {
        let probed = async {
            let is_probed = |server: &Arc<StoreServer>| server.is_probed.load(Relaxed);
            loop {
                let topology = self.topology.load_full();
                if !topology.servers.is_empty() && topology.servers.iter().all(is_probed) {
                    return;
                }
                sleep(PROBED_POLL_INTERVAL).await;
            }
        };
        let _ = timeout(PROBED_TIMEOUT, probed).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_counted_once_and_has_a_length() {
        let mut log = OutageReport::default();
        let at = |second: u64| Now((1 << 60) + second * 1_000_000_000);
        log.record_state(false, at(1));
        assert_eq!(log, OutageReport::default());
        log.record_state(true, at(2));
        log.record_state(true, at(3));
        assert_eq!(log, OutageReport { count: 1, since: Some(at(2)), last: None });
        log.record_state(false, at(5));
        log.record_state(false, at(6));
        assert_eq!(log, OutageReport { count: 1, since: None, last: Some((at(2), at(5))) });
        log.record_state(true, at(9));
        assert_eq!(log, OutageReport { count: 2, since: Some(at(9)), last: Some((at(2), at(5))) });
    }
}

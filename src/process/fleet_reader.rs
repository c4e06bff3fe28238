//! Reads the reports of all gateways of a store, on demand and at most every two seconds.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use sluicegate_store::node_reports::{NodeReport, read_node_reports};
use sluicegate_store::{Link, Store};

/// Gateways publish as often.
const CACHE_TIME: Duration = Duration::from_secs(2);
/// The time for all calls of one reading, each of which has the timeout of the store besides.
const READ_TIMEOUT: Duration = Duration::from_millis(500);
/// Characters of a text in a report, which any gateway of the store may have written.
const TEXT_MAX: usize = 64;

/// The last reading; callers meanwhile wait for it.
#[derive(Default)]
pub(super) struct FleetReader(Mutex<Option<FleetReading>>);

struct FleetReading {
    link: Link,
    at: Instant,
    /// `None` = the store did not answer.
    reports: Option<Rc<[NodeReport]>>,
}

impl FleetReader {
    /// The reports of all gateways, this one included; `None` = the store does not answer.
    pub(super) async fn read_reports(&self, store: &Arc<Store>) -> Option<Rc<[NodeReport]>> {
        let mut last = self.0.lock().await;
        let known = last.take().filter(|last| Arc::ptr_eq(last.link.store(), store));
        let reading = match known {
            Some(known) if known.at.elapsed() < CACHE_TIME => known,
            known => {
                let link = known.map_or_else(|| store.open_link(), |known| known.link);
                let read = tokio::time::timeout(READ_TIMEOUT, read_node_reports(&link)).await;
                let reports = read.ok().and_then(Result::ok);
                let reports = reports.map(|reports| reports.into_iter().map(clean_report).collect());
                FleetReading { link, at: Instant::now(), reports }
            }
        };
        let reports = reading.reports.clone();
        *last = Some(reading);
        reports
    }
}

/// Leaves nothing in the texts that a terminal would obey.
fn clean_report(mut report: NodeReport) -> NodeReport {
    for text in [&mut report.name, &mut report.version, &mut report.file_hash] {
        *text = text.chars().filter(|letter| !letter.is_control()).take(TEXT_MAX).collect();
    }
    report
}

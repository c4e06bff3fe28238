//! The reports about the upstream to adaptive concurrency limits.

use super::ForwardFault;
use super::fault::ExchangeResult;
use sluicegate_admission::chain::ChainPermit;
use sluicegate_base::clock::Now;
use sluicegate_http::request::body::BodyOutcomeCell;
use sluicegate_limit::SlotOutcome;

/// Reports the upstream's latency to adaptive limits. Degraded requests are not reported, because they go to another
/// upstream than the limit protects. A client that leaves drops this, which reports the request as abandoned.
pub(super) struct LatencyFeedback<'a> {
    /// `None` = nothing (more) to report.
    pub charged_chain: Option<&'a ChainPermit>,
    pub body_outcome: Option<&'a BodyOutcomeCell>,
    pub sent: Now,
}

impl LatencyFeedback<'_> {
    /// Reports the outcome. Statuses 502 to 504 count as overload, not as quick responses; other errors come too
    /// quickly to be a measure of latency.
    pub(super) fn report_outcome(mut self, outcome: ExchangeResult, now: Now) {
        let Some(permit) = self.charged_chain.take() else { return };
        let result = match outcome {
            Ok(status) => match status.as_u16() {
                502..=504 => SlotOutcome::Failed,
                500.. => return,
                _ => match self.request_sent_at() {
                    Some(sent_at) => SlotOutcome::Answered(now.ns_since(sent_at)),
                    // The upstream responded before it had the whole request.
                    None => return,
                },
            },
            Err(
                ForwardFault::Client(_)
                | ForwardFault::BadResponse
                | ForwardFault::Full
                | ForwardFault::QueueTimeout
                | ForwardFault::TooManyWaiting,
            ) => return,
            // The client was still sending, so it may have caused the fault.
            Err(ForwardFault::LocationTimeout | ForwardFault::ResponseTimeout | ForwardFault::Broken(_))
                if self.request_sent_at().is_none() =>
            {
                return;
            }
            Err(_) => SlotOutcome::Failed,
        };
        permit.report_outcome(result, now);
    }

    /// When the upstream had the whole request: the time that a client takes to send its body is not the upstream's.
    fn request_sent_at(&self) -> Option<Now> {
        self.body_outcome.map_or(Some(self.sent), |body| body.ended_at())
    }
}

impl Drop for LatencyFeedback<'_> {
    fn drop(&mut self) {
        if let Some(permit) = self.charged_chain.take()
            && let Some(sent_at) = self.request_sent_at()
        {
            let now = Now::read_clock();
            permit.report_outcome(SlotOutcome::Abandoned(now.ns_since(sent_at)), now);
        }
    }
}

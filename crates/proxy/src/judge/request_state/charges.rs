//! Settles the charges of a request that depend on its response, as soon as the response decides them.

use std::task::Waker;

use bytes::Bytes;
use http::StatusCode;
use http_body::Frame;

use crate::judge::request_state::RequestState;
use crate::reject::CLIENT_GONE;
use sluicegate_admission::chain::{ChainPermit, Extender, FinalCharges, Overrun};
use sluicegate_admission::settlement::{FinalCharge, ResponseReading};
use sluicegate_base::clock::Now;

impl RequestState {
    /// Keeps the permit of the limits, and prepares to read the response if one of them charges by it.
    #[inline(always)]
    pub fn hold_permit(&mut self, permit: ChainPermit) {
        // First, because each further move of a permit copies it.
        self.permits.chain = Some(permit);
        if self.chain().reading_plan.is_some() {
            self.start_reading();
        }
    }

    #[cold]
    fn start_reading(&mut self) {
        let plan = self.chain().reading_plan.clone();
        if let (Some(plan), Some(permit)) = (plan, &self.permits.chain) {
            permit.count_reservations();
            let prices = self.judgement.prices.take().unwrap_or_default();
            self.response.reading = Some(Box::new(ResponseReading::new(plan, self.identity.is_grpc, prices)));
        }
    }

    /// The status of the final response is known: settles the charges that it decides.
    #[inline(always)]
    pub fn settle_by_final_status(&mut self, status: StatusCode) {
        if self.response.reading.is_some() {
            self.settle_by_status(status);
        }
    }

    #[cold]
    fn settle_by_status(&mut self, status: StatusCode) {
        if let (Some(reading), Some(permit)) = (&mut self.response.reading, &mut self.permits.chain) {
            reading.set_status(status);
            let settlements = permit.settle_by_head(reading, Now::read_clock());
            self.count_settlements(&settlements);
        }
    }

    /// Reads a part of the body that is passed on, and charges the costs in it.
    pub fn read_frame(&mut self, frame: &Frame<Bytes>, is_last: bool, waker: &Waker) -> Overrun {
        let Some(reading) = &mut self.response.reading else { return Overrun::None };
        match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => reading.read_data(data),
            (None, Some(trailers)) => reading.read_grpc_code(trailers),
            (None, None) => {}
        }
        if is_last {
            self.settle_complete();
            return Overrun::None;
        }
        self.extend_reservations(waker)
    }

    /// Takes the units of the response beyond the reservation, of the limits that cut responses. `waker` is woken when
    /// the store has answered.
    pub fn extend_reservations(&mut self, waker: &Waker) -> Overrun {
        let (Some(reading), Some(permit)) = (&self.response.reading, &self.permits.chain) else {
            return Overrun::None;
        };
        if !reading.may_cut() {
            return Overrun::None;
        }
        let (bytes, session, now) =
            (self.response.bytes_sent, self.worker.session.as_ref(), Now::read_clock());
        let overrun = permit.extend_reservations(&Extender { reading, bytes, session, waker, now });
        if let Overrun::UsedUp(limit) = overrun {
            self.judgement.limit = Some(limit);
        }
        overrun
    }

    /// The last piece of the response is about to be passed on: settles all other charges that depend on it.
    #[inline(always)]
    pub fn settle_complete(&mut self) {
        if self.response.reading.is_some() {
            self.settle_whole();
        }
    }

    #[cold]
    fn settle_whole(&mut self) {
        if let (Some(reading), Some(permit)) = (&mut self.response.reading, &mut self.permits.chain) {
            reading.mark_complete();
            let settlements = permit.settle_charges(reading, self.response.bytes_sent, Now::read_clock());
            self.count_settlements(&settlements);
        }
    }

    /// Settles the charges that still depend on the response, and releases the slots.
    pub(super) fn end_permit(&mut self) {
        let Some(mut permit) = self.permits.chain.take() else { return };
        if self.outcome.status != CLIENT_GONE && !std::thread::panicking() {
            permit.keep_charges();
        }
        if let Some(reading) = &mut self.response.reading {
            reading.mark_over();
            let settlements = permit.settle_charges(reading, self.response.bytes_sent, Now::read_clock());
            self.count_settlements(&settlements);
        }
    }

    fn count_settlements(&mut self, settlements: &FinalCharges) {
        if !settlements.is_empty() {
            let metrics = &self.worker.gateway.metrics;
            for settled in settlements {
                let FinalCharge { limit, charged, source, overrun, .. } = *settled;
                metrics.count_charge(self.worker.id, limit, source as usize, charged, overrun);
            }
            // The head may decide for a later limit of the chain first.
            let known = self.response.settlement.as_ref().map_or(u16::MAX, |known| known.limit_index);
            if let Some(first) = settlements.first().filter(|first| first.limit_index < known) {
                self.response.settlement = Some(Box::new(*first));
            }
        }
    }
}

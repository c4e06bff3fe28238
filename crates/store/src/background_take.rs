//! Units that a worker asks the store for in the background, for a response that streams meanwhile.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::session::{Session, StoreAnswer, StoreOutbox, StoreQuestion};
use super::shared_limit::SharedLimit;
use super::{ScriptOp, SharedKey};
use sluicegate_base::clock::Now;
use sluicegate_limit::{LimitOutcome, Units};

/// Units to take from some rates of a limit, from all or from none.
#[derive(Clone)]
pub struct WantedUnits {
    /// The limit that counts the units.
    pub limit: Arc<SharedLimit>,
    /// The key that is charged.
    pub key: SharedKey,
    /// The indices of the rates in [`SharedLimit::rules`].
    pub rates: SmallVec<[usize; 2]>,
    /// The units to take from each of these rates.
    pub units: Units,
}

/// The answer of the store.
pub enum TakeOutcome {
    /// The rates with the marks of their charges.
    Taken(SmallVec<[(usize, u64); 2]>),
    /// Fewer units are left than were wanted: this many.
    Refused(u64),
    /// There was no answer in time. Units that the store has charged are given back if the answer comes late.
    Failed,
}

/// A question on its way. Dropping it gives back the units that the store still grants.
pub struct BackgroundTake {
    /// The units that were asked for.
    pub cost: u64,
    outcome: oneshot::Receiver<TakeOutcome>,
    outbox: Arc<StoreOutbox>,
    wanted: WantedUnits,
}

impl Session {
    /// Asks the store for units on the runtime of this worker; the answer wakes `waker`.
    pub fn start_take(self: &Rc<Session>, wanted: WantedUnits, waker: &Waker) -> BackgroundTake {
        let (sender, outcome) = oneshot::channel();
        let (session, asked) = (self.clone(), wanted.clone());
        tokio::task::spawn_local(async move {
            if let Err(outcome) = sender.send(session.take_units(&asked).await) {
                asked.give_back(&session.outbox, &outcome);
            }
        });
        let (outbox, cost) = (self.outbox.clone(), wanted.units.cost);
        let mut take = BackgroundTake { cost, outcome, outbox, wanted };
        // Only a question that was polled wakes the waker.
        take.poll_outcome(waker);
        take
    }

    async fn take_units(&self, wanted: &WantedUnits) -> TakeOutcome {
        let sent = Now::read_clock();
        let question = |rate: &usize| {
            let mut question = StoreQuestion::new(&wanted.limit, *rate, wanted.key, &wanted.units);
            question.note_debts(&self.outbox.debts, sent);
            question
        };
        let questions: SmallVec<[StoreQuestion<'_>; 2]> = wanted.rates.iter().map(question).collect();
        let answers = self.ask_store(ScriptOp::Take, &questions).await;
        let (mut marks, mut left) = (SmallVec::new(), None::<u64>);
        for (rate, answer) in wanted.rates.iter().zip(&answers) {
            let StoreAnswer::Answered { answer, .. } = answer else { return TakeOutcome::Failed };
            // In an outage the share begins with the present remainder, not with that at the time of the request.
            wanted.limit.record_answer(*rate, &wanted.units, sent, answer);
            if answer.decision.outcome == LimitOutcome::Reject {
                let remaining = answer.decision.remaining;
                left = Some(left.map_or(remaining, |left| left.min(remaining)));
            }
            marks.push((*rate, answer.mark));
        }
        left.map_or(TakeOutcome::Taken(marks), TakeOutcome::Refused)
    }
}

// === impl WantedUnits ===

impl WantedUnits {
    fn give_back(&self, outbox: &StoreOutbox, outcome: &TakeOutcome) {
        let TakeOutcome::Taken(marks) = outcome else { return };
        for (rate, mark) in marks {
            let question = StoreQuestion::new(&self.limit, *rate, self.key, &self.units);
            outbox.queue_refund(question.to_refund(*mark));
        }
    }
}

// === impl BackgroundTake ===

impl BackgroundTake {
    /// The outcome, once; `None` before the answer, which wakes the waker then.
    pub fn poll_outcome(&mut self, waker: &Waker) -> Option<TakeOutcome> {
        match Pin::new(&mut self.outcome).poll(&mut Context::from_waker(waker)) {
            Poll::Ready(outcome) => Some(outcome.unwrap_or(TakeOutcome::Failed)),
            Poll::Pending => None,
        }
    }
}

impl Drop for BackgroundTake {
    fn drop(&mut self) {
        self.outcome.close();
        if let Ok(outcome) = self.outcome.try_recv() {
            self.wanted.give_back(&self.outbox, &outcome);
        }
    }
}

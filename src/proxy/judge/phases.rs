//! The phases of a request until it is admitted or rejected, as types: received, asking the store, waiting, admitted.
//!
//! Each phase owns the request and its state, and yields the next one. Dropping a phase gives back everything that it
//! holds: the client hung up, or the future was dropped. Only this module makes an [`Admitted`].

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use http::Response;
use http_body::Body;

use super::facts::{RequestFacts, RequestHead};
use super::head;
use super::mode::ChargeRequest;
use super::rejected;
use super::rejected::Conclusion;
use crate::admission::chain::{
    ChainRejection, ChainVerdict, Charge, PendingStore, Queued, TurnTaken, UndecidedLimit, WaitingRequest,
};
use crate::base::clock::Now;
use crate::config::{LimitId, LocationId};
use crate::net::deadline::GatewayDeadline;
use crate::proxy::gateway::Action;
use crate::proxy::inbound::InboundRequest;
use crate::proxy::limit_report;
use crate::proxy::reject::{LimitCause, LimitRejection, Rejection};
use crate::proxy::rejection_response::RequestTexts;
use crate::proxy::request_state::{RequestState, Verdict};

/// A request with its state, in every phase before it is admitted or rejected.
pub struct Received {
    pub inbound: Box<InboundRequest>,
    pub state: Box<RequestState>,
}

/// The next phase of a request.
pub enum Judged {
    Admit(Admitted),
    AskStore(Box<AskingStore>),
    Wait(Box<Waiting>),
    Reject(Rejected),
}

/// A request that was judged and may be forwarded, or answered in place of its rejection by a limit.
pub struct Admitted {
    inbound: Box<InboundRequest>,
    state: Box<RequestState>,
    route: LocationId,
}

/// A rejected request with its response.
pub struct Rejected {
    pub response: Response<Bytes>,
    pub inbound: Box<InboundRequest>,
    pub state: Box<RequestState>,
}

/// A request that the local limits accepted; the store is still to be asked.
pub struct AskingStore {
    received: Received,
    pending: PendingStore<Charge>,
    route: Result<LocationId, Rejection>,
}

/// A request in the queues of its limits.
pub struct Waiting {
    received: Received,
    queued: Queued,
    route: Result<LocationId, Rejection>,
}

// === impl Received ===

impl Received {
    /// Judges the request by its head.
    #[inline]
    pub fn judge(self) -> Judged {
        let Received { mut inbound, mut state } = self;
        let worker = state.worker.clone();
        let token = worker.read_token(inbound.request.headers(), state.started);
        let selects_listeners = worker.gateway.locations.selects_listeners();
        let listener = if selects_listeners { state.connection.listener_name() } else { None };
        let listener = listener.as_ref().map(|name| name.as_str());
        let scheme = state.connection.scheme;
        let head = RequestHead::of_inbound(&inbound, state.client, scheme, listener, state.started);
        let mut facts = RequestFacts::new(head, inbound.request.body().size_hint(), token.as_ref());
        let mut verdict = None;
        worker.heavy_keys.begin_request();
        let judged = {
            let RequestState { connection, in_flight, decisions, .. } = &mut *state;
            let mut mode = ChargeRequest { worker: &worker, connection, in_flight };
            head::judge(&worker.gateway, &mut facts, &mut mode, decisions, &mut verdict)
        };
        facts.record_in(&mut state);
        let (summary, target) = (facts.summary, facts.target.take());
        let rejection = match (judged, &verdict) {
            (Err(rejection), _) => rejection,
            (Ok(()), Some(ChainVerdict::Reject(rejection))) => {
                // The rates had accepted it, so the timeout runs.
                if rejection.late {
                    state.start_timeout();
                }
                rejected::translate_counted(&state, rejection)
            }
            (Ok(()), _) => {
                let route = facts.route_or_rejection();
                (inbound.summary, inbound.target) = (summary, target);
                state.start_timeout();
                let mut received = Received { inbound, state };
                return match verdict {
                    None => received.admit(route),
                    // Moved once, because each move of a permit copies it.
                    Some(ChainVerdict::Admit(permit)) => {
                        received.state.chain_permit = Some(permit);
                        received.admit_by_limits(route)
                    }
                    Some(verdict) => received.apply_verdict(verdict, route),
                };
            }
        };
        let conclusion = rejected::conclude_rejection(&mut state, &facts.texts(), &rejection);
        (inbound.summary, inbound.target) = (summary, target);
        Received { inbound, state }.apply_conclusion(conclusion)
    }

    /// The next phase by the verdict of the chain.
    #[inline]
    fn apply_verdict<P: Into<PendingStore<Charge>>>(
        mut self,
        verdict: ChainVerdict<P>,
        route: Result<LocationId, Rejection>,
    ) -> Judged {
        match verdict {
            ChainVerdict::Admit(permit) => {
                self.state.chain_permit = Some(permit);
                self.admit_by_limits(route)
            }
            ChainVerdict::AskStore(pending) => {
                self.state.keep_units();
                Judged::AskStore(Box::new(AskingStore { received: self, pending: pending.into(), route }))
            }
            ChainVerdict::Wait(queued) => {
                limit_report::count_accepted(&self.state);
                self.state.keep_units();
                self.state.verdict = Verdict::Wait;
                self.state.limit = Some(queued.limit().id);
                Judged::Wait(Box::new(Waiting { received: self, queued, route }))
            }
            ChainVerdict::Reject(rejection) => {
                let rejection = rejected::translate_counted(&self.state, &rejection);
                self.reject(&rejection)
            }
        }
    }

    /// The limits admit the request at once; their permit is in its state.
    #[inline]
    fn admit_by_limits(mut self, route: Result<LocationId, Rejection>) -> Judged {
        limit_report::count_accepted(&self.state);
        limit_report::count_slots(&mut self.state);
        self.admit(route)
    }

    /// The end of judging: the limits admit the request, and a location serves it or not.
    #[inline]
    fn admit(mut self, route: Result<LocationId, Rejection>) -> Judged {
        match route {
            Ok(route) => Judged::Admit(Admitted { inbound: self.inbound, state: self.state, route }),
            Err(rejection) => {
                // The charges stay: probing for locations costs as much as using one.
                if let Some(permit) = &mut self.state.chain_permit {
                    permit.keep_charges();
                }
                self.reject(&rejection)
            }
        }
    }

    /// Rejects the request after its head was judged.
    #[cold]
    fn reject(mut self, rejection: &Rejection) -> Judged {
        let conclusion = {
            let texts = RequestTexts::read_again(&self.inbound);
            rejected::conclude_rejection(&mut self.state, &texts, rejection)
        };
        self.apply_conclusion(conclusion)
    }

    #[inline]
    fn apply_conclusion(self, conclusion: Conclusion) -> Judged {
        let Received { inbound, state } = self;
        match conclusion {
            Conclusion::Respond(response) => Judged::Reject(Rejected { response, inbound, state }),
            Conclusion::Degrade(route) => Judged::Admit(Admitted { inbound, state, route }),
        }
    }
}

// === impl Admitted ===

impl Admitted {
    pub fn state(&self) -> &RequestState {
        &self.state
    }

    pub fn state_mut(&mut self) -> &mut RequestState {
        &mut self.state
    }

    pub fn inbound(&self) -> &InboundRequest {
        &self.inbound
    }

    /// Whether an upstream answers the request; otherwise its location does.
    pub fn targets_upstream(&self) -> bool {
        if self.state.is_preflight() {
            return false;
        }
        let action = &self.state.worker.gateway.routes[self.route.0].action;
        self.state.degraded.is_some() || matches!(action, Action::Upstream(_))
    }

    /// The request, its state and its location.
    #[inline]
    pub fn into_parts(self) -> (Box<InboundRequest>, Box<RequestState>, LocationId) {
        (self.inbound, self.state, self.route)
    }
}

// === impl AskingStore ===

impl AskingStore {
    /// Asks the store about the limits that are counted there.
    pub async fn ask_store(self) -> Judged {
        let AskingStore { mut received, pending, route } = self;
        let worker = received.state.worker.clone();
        let mut undecided = Vec::new();
        let verdict = match &worker.session {
            Some(session) => {
                let waiting_size = || received.inbound.waiting_bytes();
                let waiter = WaitingRequest::new(&worker.gateway.waiting, &waiting_size);
                pending.ask(session, waiter, &mut received.state.decisions, &mut undecided).await
            }
            // Cannot fail: a gateway with shared limits has a store, and its workers a session with it.
            None => unreachable!("shared limits have a session"),
        };
        note_fallbacks(&mut received.state, &undecided);
        received.apply_verdict(verdict, route)
    }
}

// === impl Waiting ===

/// Why a request leaves its queue, unless its client hangs up.
#[expect(clippy::large_enum_variant, reason = "one value, taken apart where it is made")]
enum WaitEnd {
    Turn(TurnTaken),
    /// The queue rejected it.
    Rejected(ChainRejection),
    TimedOut,
}

impl Waiting {
    /// Waits for the request's turn in every queue, then takes its slots. The body is not read meanwhile. If the
    /// client hangs up, the future never ends.
    pub async fn wait_for_turn(self) -> Judged {
        let Waiting { mut received, queued, route } = self;
        let limit = queued.limit().id;
        let end = wait_in_queue(&received.state, queued).await;
        let state = &mut *received.state;
        let Some(end) = end else {
            // This ends the task at its next await; until then the request must have no response.
            state.watch.abort_now();
            return std::future::pending().await;
        };
        let now = Now::read_clock();
        state.wait_ns = now.ns_since(state.started);
        state.worker.gateway.metrics.observe_wait(state.worker.id, limit, state.wait_ns);
        let turn = match end {
            WaitEnd::Turn(turn) => turn,
            WaitEnd::Rejected(rejection) => {
                limit_report::mark_rejected(state, &rejection);
                let rejection = rejected::translate_rejection(&rejection);
                return received.reject(&rejection);
            }
            WaitEnd::TimedOut => return received.reject(&queued_too_long(limit)),
        };
        if let Err(rejection) = route {
            turn.keep_charges();
            return received.reject(&rejection);
        }
        let mut undecided = Vec::new();
        let worker = state.worker.clone();
        let taken = turn.take_slots(now, worker.session.as_deref(), &mut undecided).await;
        note_fallbacks(state, &undecided);
        match taken {
            Ok(permit) => {
                received.state.chain_permit = Some(permit);
                limit_report::count_slots(&mut received.state);
                received.admit(route)
            }
            Err(rejection) => received.reject(&rejected::translate_rejection(&rejection)),
        }
    }
}

/// Waits for the turn or the timeout of the location, which the sweep of deadlines tells this task. `None`: the client
/// hung up.
async fn wait_in_queue(state: &RequestState, queued: Queued) -> Option<WaitEnd> {
    let mut turn = pin!(queued.wait_turn());
    let mut hangup = pin!(state.connection.wait_for_hangup());
    std::future::poll_fn(|cx| {
        if let Poll::Ready(turn) = turn.as_mut().poll(cx) {
            return Poll::Ready(Some(turn.map_or_else(WaitEnd::Rejected, WaitEnd::Turn)));
        }
        if state.watch.fired_deadline() == Some(GatewayDeadline::Request) {
            return Poll::Ready(Some(WaitEnd::TimedOut));
        }
        hangup.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// Remembers that a fallback judged in the store's place.
fn note_fallbacks(state: &mut RequestState, undecided: &[UndecidedLimit]) {
    state.used_fallback |= undecided.iter().any(|one| one.fallback.is_some());
}

/// The rejection after the location's timeout passed in a queue.
fn queued_too_long(limit: LimitId) -> Rejection {
    let cause = LimitCause::QueuedTooLong;
    Rejection::Limit(LimitRejection { limit, rate: 0, cause, retry_after_ns: None })
}

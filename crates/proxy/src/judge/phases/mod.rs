//! The phases of a request until it is admitted or rejected, as types: received, its key being fetched, its body being
//! read, asking the store, waiting for its turn, pausing with its upstream, admitted.
//!
//! Each phase owns the request and its state, and yields the next one. Dropping a phase gives back everything that it
//! holds: the client hung up, or the future was dropped. Only this module makes an [`Admitted`].

mod asking;
mod call;
mod descriptors;
mod waiting;

pub use descriptors::{LookedAt, look_at_descriptors};

use std::future::ready;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use http::{Request, Response};
use http_body::Body;

use super::body_reading;
use super::conclusion::{self, Conclusion};
use super::facts::{BodyView, RequestFacts, RequestHead};
use super::head::{self, JudgeProgress};
use super::mode::ChargeRequest;
use super::pushback::{self, PausePlace, Waited};
use super::quotas;
use crate::gateway::auth::AuthOutcome;
use crate::gateway::worker::Worker;
use crate::judge::conclusion::RequestTexts;
use crate::judge::inbound::InboundRequest;
use crate::judge::limit_report;
use crate::judge::request_state::{RequestState, Verdict};
use crate::reject::{Fault, Rejection};
use sluicegate_admission::chain::{
    ChainVerdict, Charge, PendingStore, Queued, UndecidedLimit, WaitingPlace, WaitingRequest,
};
use sluicegate_base::clock::Now;
use sluicegate_http::request::body::RequestBody;
use sluicegate_http::request::headers::hop_by_hop;
use sluicegate_http::request::source::{BodyPlan, BodyValues, KeySet, Token};
use sluicegate_model::{BodyUse, LocationId};

/// A request with its state, in every phase before it is admitted or rejected.
pub struct Received {
    /// The request as the client sent it.
    pub inbound: Box<InboundRequest>,
    /// The state of the request.
    pub state: Box<RequestState>,
}

/// The next phase of a request.
pub enum NextPhase {
    /// The request may be forwarded.
    Admit(Admitted),
    /// The body has to be read first.
    ReadBody(Box<ReadingBody>),
    /// The keys of its token are fetched first.
    AwaitKeys(Box<AwaitingKeys>),
    /// The auth service of the location has to be asked.
    Ask(Box<AskingService>),
    /// The local limits accepted the request, and the store has to be asked.
    AskStore(Box<AskingStore>),
    /// The request waits in the queues of its limits.
    Wait(Box<Waiting>),
    /// The request waits until its upstream no longer pauses.
    Pause(Box<Paused>),
    /// The request is rejected.
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
    /// The response in place of an upstream's.
    pub response: Response<Bytes>,
    /// The request, with a body that may be unread.
    pub inbound: Box<InboundRequest>,
    /// The state of the request.
    pub state: Box<RequestState>,
}

/// A request that cannot be judged without its body.
pub struct ReadingBody {
    received: Received,
    plan: Arc<BodyPlan>,
    body_use: BodyUse,
}

/// A request with a token whose key may come by a fetch.
pub struct AwaitingKeys {
    received: Received,
    keys: Arc<KeySet>,
    /// Counted out when it no longer waits.
    place: WaitingPlace,
}

/// A request that its first limits admitted; its auth service is still to be asked.
pub struct AskingService {
    received: Received,
    route: LocationId,
}

/// A request that the local limits accepted; the store is still to be asked.
pub struct AskingStore {
    received: Received,
    pending: PendingStore<Charge>,
    route: Result<LocationId, Rejection>,
    /// The longest wait that it accepts, ns.
    max_wait_ns: u64,
}

/// A request in the queues of its limits.
pub struct Waiting {
    received: Received,
    queued: Queued,
    route: Result<LocationId, Rejection>,
}

/// A request that its limits admitted while its upstream pauses.
pub struct Paused {
    received: Received,
    pause: PausePlace,
    /// Counted out when it no longer waits.
    _place: WaitingPlace,
    route: LocationId,
}

/// Sends a question to the auth service of a location.
pub type AskService =
    fn(Rc<Worker>, LocationId, Request<RequestBody>) -> LocalBoxFuture<'static, AuthOutcome>;

const NOT_ASKED: AuthOutcome = AuthOutcome::Failed("calls ask no auth service");

// === impl Received ===

impl Received {
    /// Judges the request by its head.
    #[inline]
    pub fn judge(self) -> NextPhase {
        self.judge_with(None, true)
    }

    /// Judges the request again, by keys that were fetched, the answer of the auth service, or the values of its body.
    #[inline(never)]
    fn judge_again(self, values: Option<&BodyValues>) -> NextPhase {
        self.judge_with(values, false)
    }

    /// Judges the request by its head and the values of its body; `None` = it was not read yet. A copy for each of
    /// both, because the first one must not pay for the second.
    #[inline(always)]
    fn judge_with(self, values: Option<&BodyValues>, is_first: bool) -> NextPhase {
        let Received { mut inbound, mut state } = self;
        let worker = state.worker.clone();
        let token = worker.read_token(inbound.request.headers(), state.judged_at);
        let selects_listeners = worker.gateway.locations.selects_listeners;
        let listener = if selects_listeners { state.connection.listener_name() } else { None };
        let listener = listener.as_ref().map(|name| name.as_str());
        let scheme = state.connection.scheme;
        let head =
            RequestHead::of_inbound(&inbound, state.identity.client, scheme, listener, state.judged_at);
        let body = inbound.request.body().size_hint();
        let mut facts = RequestFacts::new(head, body, token.as_ref());
        facts.body_view = values.map_or(BodyView::Unread, BodyView::Read);
        facts.may_await_keys = is_first;
        if let Some(auth) = &state.auth {
            (facts.answer, facts.is_question_charged) = (auth.answer.clone(), auth.is_charged);
        }
        let mut verdict = None;
        worker.heavy_keys.begin_request();
        let judged = {
            let RequestState { connection, permits, judgement, .. } = &mut *state;
            let mut mode = ChargeRequest { worker: &worker, connection, in_flight: &mut permits.in_flight };
            head::judge(&worker.gateway, &mut facts, &mut mode, &mut judgement.decisions, &mut verdict)
        };
        facts.record_in(&mut state);
        quotas::note_judged(&mut state, verdict.as_ref());
        if let Ok(JudgeProgress::AwaitsAnswer) = judged {
            state.begin_question();
        }
        let (summary, target) = (facts.summary, facts.target.take());
        // The timeout runs while keys are fetched, the service is asked, and the body is read.
        let starts_timeout = is_first;
        let rejection = match (judged, &verdict) {
            (Err(rejection), _) => rejection,
            (Ok(JudgeProgress::AwaitsBody(body_use)), _) => {
                return Received { inbound, state }.start_reading(body_use);
            }
            (Ok(JudgeProgress::AwaitsKeys), _) => {
                let keys = token.as_ref().and_then(Token::awaited_keys).cloned();
                return Received { inbound, state }.start_waiting_for_keys(keys);
            }
            (Ok(_), Some(ChainVerdict::Reject(rejection))) => {
                // The rates had accepted it, so the timeout runs.
                if rejection.late && starts_timeout {
                    state.start_timeout();
                }
                conclusion::translate_counted(&state, rejection)
            }
            (Ok(_), _) => {
                let route = facts.route_or_rejection();
                (inbound.summary, inbound.target) = (summary, target);
                if starts_timeout {
                    state.start_timeout();
                }
                let mut received = Received { inbound, state };
                return match verdict {
                    None => received.admit(route),
                    // Moved once, because each move of a permit copies it.
                    Some(ChainVerdict::Admit(permit)) => {
                        received.state.hold_permit(permit);
                        received.admit_by_limits(route)
                    }
                    Some(verdict) => received.apply_verdict(verdict, route, u64::MAX),
                };
            }
        };
        let conclusion = conclusion::conclude_rejection(&mut state, &facts.texts(), &rejection);
        (inbound.summary, inbound.target) = (summary, target);
        Received { inbound, state }.apply_conclusion(conclusion)
    }

    /// The next phase of a request that awaits its body.
    #[cold]
    fn start_reading(self, body_use: BodyUse) -> NextPhase {
        let state = &self.state;
        state.start_timeout();
        match state.worker.gateway.body_plan_for(state.route).cloned() {
            Some(plan) => NextPhase::ReadBody(Box::new(ReadingBody { received: self, plan, body_use })),
            // Cannot fail: without a plan, no request awaits its body.
            None => unreachable!("a body is read by a plan"),
        }
    }

    /// The next phase of a request that awaits a key; without room to wait it is judged as it is.
    #[cold]
    fn start_waiting_for_keys(self, keys: Option<Arc<KeySet>>) -> NextPhase {
        self.state.start_timeout();
        let waiting_size = || self.inbound.waiting_bytes();
        let waiting = &self.state.worker.gateway.load.waiting;
        match keys.zip(WaitingRequest::new(waiting, &waiting_size).take_place::<Charge>()) {
            Some((keys, place)) => {
                NextPhase::AwaitKeys(Box::new(AwaitingKeys { received: self, keys, place }))
            }
            None => self.judge_again(None),
        }
    }

    /// The next phase by the verdict of the chain; `max_wait_ns`: the longest wait that the request accepts.
    #[inline]
    fn apply_verdict<P: Into<PendingStore<Charge>>>(
        mut self,
        verdict: ChainVerdict<P>,
        route: Result<LocationId, Rejection>,
        max_wait_ns: u64,
    ) -> NextPhase {
        match verdict {
            ChainVerdict::Admit(permit) => {
                self.state.hold_permit(permit);
                self.admit_by_limits(route)
            }
            ChainVerdict::AskStore(pending) => {
                self.state.keep_units();
                let pending = pending.into();
                NextPhase::AskStore(Box::new(AskingStore { received: self, pending, route, max_wait_ns }))
            }
            ChainVerdict::Wait(queued) => {
                limit_report::count_accepted(&self.state);
                self.state.keep_units();
                self.state.outcome.verdict = Verdict::Wait;
                self.state.judgement.limit = Some(queued.limit().id);
                NextPhase::Wait(Box::new(Waiting { received: self, queued, route }))
            }
            ChainVerdict::Reject(rejection) => {
                let rejection = conclusion::translate_counted(&self.state, &rejection);
                self.reject(&rejection)
            }
        }
    }

    /// The limits admit the request at once; their permit is in its state.
    #[inline]
    fn admit_by_limits(mut self, route: Result<LocationId, Rejection>) -> NextPhase {
        limit_report::count_accepted(&self.state);
        limit_report::count_slots(&mut self.state);
        self.admit(route)
    }

    /// The end of judging: the limits admit the request, and a location serves it or not.
    #[inline]
    fn admit(mut self, route: Result<LocationId, Rejection>) -> NextPhase {
        match route {
            Ok(route) if self.state.awaits_answer() => self.start_asking(route),
            Ok(route) if self.state.permits.pause.is_some() => self.try_pass(route),
            Ok(route) => NextPhase::Admit(Admitted { inbound: self.inbound, state: self.state, route }),
            Err(rejection) => {
                // The charges stay: probing for locations costs as much as using one.
                if let Some(permit) = &mut self.state.permits.chain {
                    permit.keep_charges();
                }
                self.reject(&rejection)
            }
        }
    }

    /// Lets the request pass to an upstream that may push back, unless it pauses.
    #[cold]
    fn try_pass(self, route: LocationId) -> NextPhase {
        let Received { inbound, state } = self;
        match pushback::try_pass(&state, route) {
            Ok(None) => NextPhase::Admit(Admitted { inbound, state, route }),
            Ok(Some(pause)) => {
                let gateway = &state.worker.gateway;
                let waiting_size = || inbound.waiting_bytes();
                match WaitingRequest::new(&gateway.load.waiting, &waiting_size).take_place::<Charge>() {
                    Some(place) => {
                        let received = Received { inbound, state };
                        NextPhase::Pause(Box::new(Paused { received, pause, _place: place, route }))
                    }
                    None => Received { inbound, state }.reject(&Fault::TooManyWaiting.into()),
                }
            }
            Err(rejection) => Received { inbound, state }.reject(&rejection),
        }
    }

    /// Rejects the request after its head was judged.
    #[cold]
    fn reject(mut self, rejection: &Rejection) -> NextPhase {
        let conclusion = {
            let texts = RequestTexts::read_again(&self.inbound);
            conclusion::conclude_rejection(&mut self.state, &texts, rejection)
        };
        self.apply_conclusion(conclusion)
    }

    #[inline]
    fn apply_conclusion(self, conclusion: Conclusion) -> NextPhase {
        let Received { inbound, state } = self;
        match conclusion {
            Conclusion::Respond(response) => NextPhase::Reject(Rejected { response, inbound, state }),
            Conclusion::Degrade(route) => {
                let mut received = Received { inbound, state };
                pushback::redirect_to_degraded(&mut received.state);
                received.admit(Ok(route))
            }
        }
    }
}

// === impl NextPhase ===

impl NextPhase {
    /// [`NextPhase::conclude`] for a call: boxed where it waits, because the future of each call is copied and most do
    /// not.
    ///
    /// # Errors
    /// As [`NextPhase::conclude`].
    pub async fn conclude_call(self) -> Result<Admitted, Rejected> {
        match self {
            NextPhase::Admit(admitted) => Ok(admitted),
            NextPhase::Reject(rejected) => Err(rejected),
            // Calls ask no auth service: the proxy that calls has its own.
            waits => Box::pin(waits.conclude(|_, _, _| Box::pin(ready(NOT_ASKED)))).await,
        }
    }

    /// Runs the phases until the request is admitted or rejected; `ask` sends a question to an auth service. If the
    /// client hangs up, the future never ends.
    ///
    /// # Errors
    /// The rejection, with its response.
    pub async fn conclude(mut self, ask: AskService) -> Result<Admitted, Rejected> {
        loop {
            self = match self {
                NextPhase::Admit(admitted) => return Ok(admitted),
                NextPhase::Reject(rejected) => return Err(rejected),
                NextPhase::ReadBody(reading) => reading.read_body().await,
                NextPhase::AwaitKeys(awaiting) => awaiting.await_keys().await,
                NextPhase::Ask(asking) => asking.ask_service(ask).await,
                NextPhase::AskStore(asking) => asking.ask_store().await,
                NextPhase::Wait(waiting) => waiting.wait_for_turn().await,
                NextPhase::Pause(paused) => paused.wait_out_pause().await,
            };
        }
    }
}

// === impl Admitted ===

impl Admitted {
    /// The state of the request.
    pub fn state(&self) -> &RequestState {
        &self.state
    }

    /// The state of the request, to be changed while it is forwarded.
    pub fn state_mut(&mut self) -> &mut RequestState {
        &mut self.state
    }

    /// The request as the client sent it.
    pub fn inbound(&self) -> &InboundRequest {
        &self.inbound
    }

    /// True if an upstream answers the request; otherwise its location does.
    pub fn targets_upstream(&self) -> bool {
        let gateway = &self.state.worker.gateway;
        !self.state.is_preflight() && self.state.upstream(gateway, self.route).is_some()
    }

    /// The request, its state and the location that serves it.
    #[inline]
    pub fn into_parts(self) -> (Box<InboundRequest>, Box<RequestState>, LocationId) {
        (self.inbound, self.state, self.route)
    }
}

// === impl ReadingBody ===

impl ReadingBody {
    /// Reads the beginning of the body, and judges the request again.
    pub async fn read_body(self) -> NextPhase {
        let ReadingBody { mut received, plan, body_use } = self;
        let read =
            body_reading::read_values(&mut received.state, &mut received.inbound, &plan, body_use).await;
        received.state.judged_at = Now::read_clock();
        match read {
            Ok(values) => received.judge_again(Some(&values)),
            Err(fault) => {
                let mut judged = received.reject(&fault.into());
                if let NextPhase::Reject(Rejected { response, inbound, .. }) = &mut judged
                    && matches!(inbound.request.body(), RequestBody::Consumed)
                {
                    // The rest of the body would be read as the next request.
                    hop_by_hop::set_connection_close(response.headers_mut());
                }
                judged
            }
        }
    }
}

// === impl AwaitingKeys ===

impl AwaitingKeys {
    /// Waits for the fetch of the keys, and judges the request again. If the client hangs up, the future never ends.
    pub async fn await_keys(self) -> NextPhase {
        let AwaitingKeys { mut received, keys, place } = self;
        let waited = pushback::wait_or_leave(&received.state, keys.wait_for_fetch()).await;
        drop(place);
        received.state.judged_at = Now::read_clock();
        match waited {
            Some(Waited::Done(())) => received.judge_again(None),
            Some(Waited::TimedOut) => received.reject(&Fault::LocationTimeout.into()),
            None => waiting::hang_up(&received.state).await,
        }
    }
}

// === impl AskingStore ===

impl AskingStore {
    /// Asks the store about the limits that are counted there.
    pub async fn ask_store(self) -> NextPhase {
        let AskingStore { mut received, pending, route, max_wait_ns } = self;
        let worker = received.state.worker.clone();
        let mut undecided = Vec::new();
        let verdict = match &worker.session {
            Some(session) => {
                let waiting_size = || received.inbound.waiting_bytes();
                let pause_ns = route.as_ref().map_or(0, |route| pushback::pause_ns(&received.state, *route));
                let waiter =
                    WaitingRequest::new(&worker.gateway.load.waiting, &waiting_size).with_pause(pause_ns);
                let waiter = waiter.with_max_wait(max_wait_ns);
                pending.ask(session, waiter, &mut received.state.judgement.decisions, &mut undecided).await
            }
            // Cannot fail: a gateway with shared limits has a store, and its workers a session with it.
            None => unreachable!("shared limits have a session"),
        };
        note_fallbacks(&mut received.state, &undecided);
        quotas::note_answered(&mut received.state, &undecided);
        received.apply_verdict(verdict, route, max_wait_ns)
    }
}

/// Remembers that a fallback judged in the store's place.
fn note_fallbacks(state: &mut RequestState, undecided: &[UndecidedLimit]) {
    state.outcome.used_fallback |= undecided.iter().any(|one| one.fallback.is_some());
}

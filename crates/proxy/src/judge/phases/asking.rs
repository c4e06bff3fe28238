//! The phase of a request about which an auth service is asked.

use std::rc::Rc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{Request, Response};

use super::{AskService, AskingService, NextPhase, Received, waiting};
use crate::gateway::auth::{AuthOutcome, ScriptedService};
use crate::gateway::worker::Worker;
use crate::judge::facts::RequestHead;
use crate::judge::pushback::{self, Waited};
use crate::judge::question;
use crate::reject::Fault;
use sluicegate_http::request::body::RequestBody;
use sluicegate_model::LocationId;
use sluicegate_observe::metrics::AuthResult;

impl Received {
    /// The next phase of a request about which the service is asked.
    #[cold]
    pub(super) fn start_asking(mut self, route: LocationId) -> NextPhase {
        self.state.keep_question_charges();
        NextPhase::Ask(Box::new(AskingService { received: self, route }))
    }
}

impl AskingService {
    /// Asks the service, and judges the request again by its answer. If the client hangs up, the future never ends.
    pub(super) async fn ask_service(self, ask: AskService) -> NextPhase {
        let AskingService { mut received, route } = self;
        let worker = received.state.worker.clone();
        let outcome = {
            let Some(_waiter) = worker.auth.begin_wait() else {
                return received.end_unanswered(route, "too many requests wait for auth services");
            };
            let asked = received.ask_or_share(&worker, route, ask);
            match pushback::wait_or_leave(&received.state, asked).await {
                Some(Waited::Done(outcome)) => outcome,
                Some(Waited::TimedOut) => return received.reject(&Fault::LocationTimeout.into()),
                None => return waiting::hang_up(&received.state).await,
            }
        };
        match outcome {
            AuthOutcome::Allowed(answer) => {
                received.state.end_question(answer);
                received.judge_again(None)
            }
            AuthOutcome::Refused(refusal) => received.refuse(&refusal),
            AuthOutcome::Failed(reason) => received.end_unanswered(route, reason),
        }
    }
}

impl Received {
    /// The outcome of a question about this request, or about an equal one at the same time.
    async fn ask_or_share(&self, worker: &Rc<Worker>, route: LocationId, ask: AskService) -> AuthOutcome {
        let (question, key) = self.prepare_question(worker, route);
        let asked = key.and_then(|key| worker.auth.find_asked(key));
        if let Some(asked) = asked {
            let outcome = asked.await;
            if outcome.is_shared() {
                return count_outcome(worker, outcome, AuthResult::Shared);
            }
        }
        let asking = ask(worker.clone(), route, question);
        let outcome = match key.filter(|key| worker.auth.find_asked(*key).is_none()) {
            Some(key) => {
                // The equal requests that come before its answer share it.
                let asker = worker.clone();
                let keeping = async move {
                    let outcome = asking.await;
                    asker.auth.finish(route, key, &outcome);
                    outcome
                };
                worker.auth.share(key, Box::pin(keeping)).await
            }
            None => asking.await,
        };
        count_outcome(worker, outcome, AuthResult::Allowed)
    }

    fn prepare_question(&self, worker: &Worker, route: LocationId) -> (Request<RequestBody>, Option<u128>) {
        let (inbound, state) = (&self.inbound, &self.state);
        let scheme = state.identity.scheme;
        let head = RequestHead::of_inbound(inbound, state.identity.client, scheme, None, state.judged_at);
        let Some(auth) = &worker.gateway.routes[route.0].auth else {
            // Cannot fail: only requests of such a location are asked about.
            unreachable!("the location has an auth service");
        };
        let mut question = question::build_question(auth, &head, scheme);
        if let Some(scripted) = inbound.request.extensions().get::<ScriptedService>() {
            question.extensions_mut().insert(scripted.clone());
        }
        (question, question::hash_request(&worker.gateway.keys, (route, auth), &head, scheme))
    }

    /// Passes the refusal of the service on to the client.
    fn refuse(self, refusal: &Response<Bytes>) -> NextPhase {
        let mut refused = self.reject(&Fault::AuthRefused.into());
        if let NextPhase::Reject(rejected) = &mut refused {
            let response = &mut rejected.response;
            *response.status_mut() = refusal.status();
            *response.body_mut() = refusal.body().clone();
            for name in [CONTENT_TYPE, CONTENT_LENGTH] {
                response.headers_mut().remove(name);
            }
            for (name, value) in refusal.headers() {
                response.headers_mut().append(name.clone(), value.clone());
            }
        }
        refused
    }

    /// Rejects a request about which there is no decision.
    fn end_unanswered(mut self, route: LocationId, reason: &'static str) -> NextPhase {
        self.state.outcome.error = Some(reason);
        let worker = &self.state.worker;
        worker.gateway.metrics.count_auth(worker.id, AuthResult::Failed);
        let auth = self.state.worker.gateway.routes[route.0].auth.as_ref();
        match auth.is_some_and(|auth| auth.config.denies_on_failure) {
            true => self.reject(&Fault::AuthDenied.into()),
            false => self.reject(&Fault::AuthUnavailable.into()),
        }
    }
}

/// Counts an outcome; `admitted` is the result if it admits.
fn count_outcome(worker: &Worker, outcome: AuthOutcome, admitted: AuthResult) -> AuthOutcome {
    let result = match outcome {
        AuthOutcome::Allowed(_) => admitted,
        AuthOutcome::Refused(_) => AuthResult::Refused,
        // Counted where the request ends.
        AuthOutcome::Failed(_) => return outcome,
    };
    worker.gateway.metrics.count_auth(worker.id, result);
    outcome
}

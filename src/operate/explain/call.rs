//! Explains the decision on a call of the rate-limit service that names limits.

use http_body::SizeHint;

use super::limits::LookMode;
use super::{AccountExplanation, Explanation, VerdictExplanation, describe, verdict};
use sluicegate_admission::chain::{Decisions, WaitingRequest};
use sluicegate_base::clock::Now;
use sluicegate_http::request::client::Client;
use sluicegate_http::request::source::{Token, TokenVerifier};
use sluicegate_proxy::gateway::Gateway;
use sluicegate_proxy::judge::inbound::InboundRequest;
use sluicegate_proxy::judge::{self, BodyView, CallMode, RequestFacts, RequestHead};
use sluicegate_proxy::service::calls::Described;
use sluicegate_store::Session;

/// Explains a call, which is the body of a `/check`.
///
/// # Errors
/// A sentence on the fault for which `/check` would refuse the call.
pub(super) async fn explain_call(
    gateway: &Gateway,
    session: Option<&Session>,
    call: &serde_json::Value,
    now: Now,
) -> Result<Explanation, String> {
    let Described { request, ip, terms } = Described::read_named(call.to_string().as_bytes(), gateway)?;
    let inbound = InboundRequest::new(request);
    let verifier = gateway.callers.tokens.as_ref().map(TokenVerifier::new);
    let headers = inbound.request.headers();
    let claims = &terms.stated.claims;
    let token = verifier.as_ref().map(|verifier| Token::with_claims(verifier, headers, claims));
    let client = Client { ip, trusted_peer: false };
    let head = RequestHead::of_inbound(&inbound, client, terms.scheme, None, now);
    let mut facts = RequestFacts::new(head, SizeHint::with_exact(0), token.as_ref());
    facts.body_view = terms.stated.body.as_ref().map_or(BodyView::Absent, BodyView::Read);
    let places = gateway.calls.places_of(terms.limits.as_deref().unwrap_or_default());
    let (mut decisions, mut verdict) = (Decisions::new(), None);
    let look = LookMode::for_call(places.clone());
    let mut mode = CallMode { request: look, terms: &terms, places: Some(&places) };
    let judged = judge::judge_named(gateway, &mut facts, &mut mode, &mut decisions, &mut verdict);
    let mut look = mode.request;
    let waiting_size = || facts.waiting_bytes();
    let waiter = WaitingRequest::new(&gateway.load.waiting, &waiting_size).with_max_wait(terms.max_wait_ns);
    let planned = look.finish_chain(session, waiter, verdict, &mut decisions).await;
    let outcome = judged.and(planned);
    let route = Some(gateway.call_route());
    let chain = gateway.chain_for(route);
    look.add_counters(chain, &decisions, now);
    let named = terms.limits.iter().flatten().map(|id| gateway.limits[id.0].name.to_string());
    let account = match (&terms.stated.account, facts.account()) {
        (Some(stated), _) => Some(AccountExplanation {
            name: Some(describe::escape_bytes(stated)),
            from: "the call".to_owned(),
            token_not_accepted: false,
        }),
        (None, Some(_)) => describe::explain_account(gateway, &facts),
        (None, None) => None,
    };
    let limits = chain.chain.limits();
    let not_judged = places.iter().skip(look.limits.len());
    let rejection = outcome.as_ref().err();
    let mut explanation = Explanation {
        named_limits: named.collect(),
        ban_left_ms: describe::ban_left_ms(rejection),
        ban: describe::explain_ban(gateway, &facts, rejection),
        account,
        tier: facts.tier.as_ref().map(|tier| tier.as_str().to_owned()),
        limits_not_judged: not_judged.map(|place| limits[usize::from(*place)].name.to_string()).collect(),
        limits: look.limits,
        ..Explanation::default()
    };
    explanation.verdict = match outcome {
        Ok(wait) => VerdictExplanation {
            then: wait.map(|_| "admitted".to_owned()),
            ..verdict::explain_wait(chain, wait)
        },
        Err(rejection) => verdict::explain_rejected(gateway, &rejection, route, false),
    };
    Ok(explanation)
}

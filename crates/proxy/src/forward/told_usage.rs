//! The answer of a location that tells callers what is left of their limits.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, Method, Response, StatusCode};
use serde_json::json;

use crate::gateway::usage::CountedKey;
use crate::gateway::worker::Worker;
use crate::gateway::{ChainPlace, Gateway};
use crate::judge::Caller;
use crate::judge::request_state::RequestState;
use sluicegate_admission::chain::LimitDemand;
use sluicegate_base::clock::Now;
use sluicegate_http::request::access::AccessDecision;
use sluicegate_http::request::account::Tier;
use sluicegate_http::request::client::Client;
use sluicegate_http::request::key::{KeyInput, LimitKeys};
use sluicegate_http::upstream::fnv1a;
use sluicegate_limit::steps::KEY_NAME_MAX;
use sluicegate_model::{KeyPart, LimitId, MissingKey, TierRules};
use sluicegate_store::SharedKey;

/// The answer to a caller that asks what is left, or that it knows the answer already.
pub(super) async fn tell_caller(
    worker: &Worker,
    shown: &[LimitId],
    state: &RequestState,
    headers: &HeaderMap,
) -> Response<Bytes> {
    let (gateway, client, now) = (&*worker.gateway, state.identity.client, Now::read_clock());
    // The state has the text of an account that is no UTF-8 with replacements, under which others may count.
    let account = state.identity.account().filter(|name| !name.is_empty() && !name.contains('\u{fffd}'));
    let tier = state.identity.tier.as_ref().map_or(TierRules::DEFAULT, Tier::as_str);
    // The other parts are in no key of a limit that is shown.
    let subject = KeyInput {
        ip: gateway.clients.mask_address(client.ip),
        ip_key: None,
        account: account.map(str::as_bytes),
        tier,
        path: b"",
        query: None,
        location: None,
        host: "",
        method: &Method::GET,
        headers: &HeaderMap::new(),
        trusted_peer: client.trusted_peer,
        token: None,
        body: None,
    };
    let access = gateway.access_for(state.route).map(|access| access.decide_access(client.ip));
    let shown = if access == Some(AccessDecision::Bypassed) { &[] } else { shown };
    let find_key = |limit: &LimitId| find_key(gateway, *limit, client, subject, now);
    let keys: Vec<CountedKey> = shown.iter().filter_map(find_key).collect();
    let limits = gateway.read_usage(worker.session.as_deref(), &keys, now).await;
    render_answer(json!({ "account": account, "tier": tier, "limits": limits }).to_string(), headers)
}

/// The key of a caller; `None` = the limit leaves it out, or counts it together with others.
fn find_key(
    gateway: &Gateway,
    id: LimitId,
    client: Client,
    subject: KeyInput<'_>,
    now: Now,
) -> Option<CountedKey> {
    let limit = &gateway.limits[id.0];
    let is_missing = subject.account.is_none() && limit.config.key.contains(&KeyPart::Account);
    if is_missing && limit.config.missing_key == MissingKey::Shared {
        return None;
    }
    // A limit of other methods is shown as well.
    let method = limit.config.methods.first().unwrap_or(subject.method);
    let caller = Caller::stated(client, now, KeyInput { method, ..subject });
    let place = ChainPlace { keys: LimitKeys::from_limit(&limit.config), own_variant: 0 };
    let (units, shared) = match caller.build_demand(&gateway.keys, limit, &place).ok()?.with_cost(1) {
        LimitDemand::Units(units) => (units, SharedKey([0; 16])),
        LimitDemand::Shared(units, shared) => (units, shared),
        LimitDemand::Skip | LimitDemand::MissingKey => return None,
    };
    let naming = gateway.key_naming();
    let name = || naming.render_full(&place.keys.count_key, &subject, units.key.id, KEY_NAME_MAX);
    (!units.unenforced).then(|| CountedKey { limit: id, units, shared, name: name() })
}

fn render_answer(told: String, request: &HeaderMap) -> Response<Bytes> {
    let tag = format!("\"{:016x}\"", fnv1a(told.as_bytes()));
    let is_same = |one: &str| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag;
    let known = request.get_all(IF_NONE_MATCH).iter().filter_map(|tags| tags.to_str().ok());
    let is_known = known.flat_map(|tags| tags.split(',')).any(|one| is_same(one.trim()));
    let mut response = Response::new(Bytes::new());
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else {
        *response.body_mut() = told.into();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    // Cannot fail: hex digits in quotes.
    headers.extend(HeaderValue::try_from(tag).ok().map(|tag| (ETAG, tag)));
    response
}

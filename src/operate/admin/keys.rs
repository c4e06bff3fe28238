//! The endpoints of `/limits/{limit}/keys`: shows the heaviest keys of a limit and single ones, and resets a key or
//! grants it other numbers for a while.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use super::answer::{AdminError, Answer, Change};
use super::changed_limits::{BURST, QUEUE, RATE, SLOTS, WAIT};
use super::endpoint::{
    AdminRequest, AnswerForm, AnswerFormat, Answered, BodyFormat, Endpoint, Parameter, ParameterKind, error,
    ok,
};
use super::examples;
use super::key_status::{KeyStatus, find_account, find_units};
use crate::operate::text_table::{or_dash, render_table};
use sluicegate_admission::operator_bans::{BanFault, UnbanFault};
use sluicegate_base::clock::Now;
use sluicegate_base::json_shape::JsonShape::{Nullable, Text};
use sluicegate_base::json_shape::{JsonField, JsonObject, JsonShaped, always, json_object, maybe};
use sluicegate_http::request::key::NamedKey;
use sluicegate_model::{LimitConfig, LimitId, read_duration};
use sluicegate_proxy::gateway::heavy_keys::report::{HeavyBy, HeavyKey, KeyLookupError, find_counted_limit};
use sluicegate_proxy::gateway::usage::CountedKey;
use sluicegate_proxy::gateway::{
    Gateway, GrantFault, KeyRef, KeyResetFault, LimitChangeFault, NewGrant, OperatorChange, OperatorFault,
};
use sluicegate_store::SharedKey;

json_object! {
    pub(super) struct KeyList as "KeyList" {
        limit: String = "The name of the limit.",
        by: &'static str = "The order: the keys with most of these come first." in ["refused", "asked"],
        gateways: usize = "The gateways whose keys are added up; 1 for a limit that each counts alone.",
        keys: Vec<KeyStatus> = "The keys.",
    }
}

static RESET: JsonObject = JsonObject::named("Reset").with(&[maybe(
    "tier",
    Nullable(&Text),
    "Resets only the numbers of this tier; else all of them.",
)]);

const LENGTH: JsonField =
    always("for", Text, "How long, e.g. `1h`; at most 30 days, or 366 for windows of the calendar.");
static NEW_GRANT: JsonObject = JsonObject::named("NewGrant").with(&[LENGTH, RATE, BURST, QUEUE, WAIT, SLOTS]);
pub(super) const LIMIT: Parameter =
    Parameter::in_path("limit", ParameterKind::Text, "per-ip", "The name of the limit.");
const KEY: Parameter = Parameter::in_path(
    "key",
    ParameterKind::TextWithSlashes,
    "ip=192.0.2.7",
    "The name of the key, as `part=value`, percent-encoded; slashes may stand plain.",
);

const KEY_FORM: AnswerForm = AnswerForm::Json(KeyStatus::SHAPE, examples::KEY);
const KEY_TEXT: AnswerForm =
    AnswerForm::Text("key           asked/s  refused/s\nip=192.0.2.7  42.0     32.1\n");
const KEY_FORMS: &[AnswerForm] = &[KEY_TEXT, KEY_FORM];
const KEY_LIST_FORMS: &[AnswerForm] = &[KEY_TEXT, AnswerForm::Json(KeyList::SHAPE, examples::KEY_LIST)];
const CHANGED: AnswerFormat = ok("The key after the change.", &[KEY_FORM]);
pub(super) const NO_LIMIT: AnswerFormat = error(404, "There is no such limit.");
pub(super) const STOPPING: AnswerFormat = error(503, "The process is shutting down.");

pub(super) const LIST_KEYS: Endpoint = Endpoint {
    name: "list_keys",
    path: "/limits/{limit}/keys",
    summary: "The keys of a limit that are refused most, or that ask most.",
    parameters: &[
        LIMIT,
        Parameter::in_query(
            ("by", "refused"),
            ParameterKind::Words(&["refused", "asked"]),
            "asked",
            "The order: the keys with most refused or most asked units first.",
        ),
        Parameter::in_query(("top", "20"), ParameterKind::Integer(1, 100), "50", "The most keys to list."),
    ],
    answers: &[
        ok("The keys.", KEY_LIST_FORMS),
        NO_LIMIT,
        error(409, "Names of keys are not kept, because `state.heavy_hitters` is `none`."),
        STOPPING,
    ],
    handler: |request| Box::pin(list_keys(request)),
    ..Endpoint::READ
};

pub(super) const SHOW_KEY: Endpoint = Endpoint {
    name: "show_key",
    path: "/limits/{limit}/keys/{key}",
    summary: "One key of a limit.",
    parameters: &[
        LIMIT,
        KEY,
        Parameter::in_query(
            ("tier", ""),
            ParameterKind::Text,
            "gold",
            "The tier of the caller, where the limit has other numbers for it.",
        ),
    ],
    answers: &[
        ok("The key.", KEY_FORMS),
        NO_LIMIT,
        error(409, "Names of keys are not kept, so that a hash names none."),
        STOPPING,
    ],
    handler: |request| Box::pin(show_key(request)),
    ..Endpoint::READ
};

pub(super) const RESET_KEY: Endpoint = Endpoint {
    name: "reset_key",
    path: "/limits/{limit}/keys/{key}/reset",
    summary: "Forgets what a key has used; requests that wait keep their turn.",
    parameters: &[LIMIT, KEY],
    body: Some(BodyFormat { object: &RESET, required: false, example: examples::RESET }),
    answers: &[
        CHANGED,
        NO_LIMIT,
        error(409, "It limits concurrency, or the key shares a counter with others."),
        error(503, "Redis does not answer, or the process is shutting down."),
    ],
    handler: |request| Box::pin(reset_key(request)),
    ..Endpoint::CHANGE
};

pub(super) const GRANT_KEY: Endpoint = Endpoint {
    name: "grant_key",
    path: "/limits/{limit}/keys/{key}/grant",
    summary: "Counts a key by other numbers for a while; its ordinary counters stand still.",
    parameters: &[LIMIT, KEY],
    body: Some(BodyFormat { object: &NEW_GRANT, required: true, example: examples::NEW_GRANT }),
    answers: &[CHANGED, NO_LIMIT, error(409, "There are too many grants."), STOPPING],
    handler: |request| Box::pin(grant_key(request)),
    ..Endpoint::CHANGE
};

pub(super) const REVOKE_GRANT: Endpoint = Endpoint {
    name: "revoke_grant",
    method: "DELETE",
    path: "/limits/{limit}/keys/{key}/grant",
    summary: "Ends the grant of a key.",
    parameters: &[LIMIT, KEY],
    answers: &[
        CHANGED,
        error(404, "There is no such limit, or the key has no grant."),
        error(409, "Too many changes wait for Redis."),
        STOPPING,
    ],
    handler: |request| Box::pin(revoke_grant(request)),
    ..Endpoint::CHANGE
};

async fn list_keys(request: AdminRequest) -> Answered {
    let limit = request.path_value("limit").to_owned();
    let (by, word) = match request.query_value("by") {
        "asked" => (HeavyBy::Asked, "asked"),
        _ => (HeavyBy::Refused, "refused"),
    };
    let found = request.state.actions.list_heavy_keys(limit.clone(), by, request.query_number("top")).await?;
    let (gateway, now) = (request.state.gateway(), Now::read_clock());
    let (id, sees_accounts) = (find_limit(&gateway, &limit)?, request.caller.sees_accounts);
    let keys: Vec<KeyStatus> =
        found.keys.iter().map(|key| KeyStatus::of_key(&gateway, id, key, None, sees_accounts, now)).collect();
    let mut text = match keys.is_empty() {
        true => format!(
            "no key of {limit} {} lately\n",
            if word == "asked" { "has asked" } else { "was refused" }
        ),
        false => render_keys(&keys, &gateway.limits[id.0].config),
    };
    if found.gateways > 1 {
        text.push_str(&format!("added up over {} gateways\n", found.gateways));
    }
    Ok(Answer::forms(text, &KeyList { limit, by: word, gateways: found.gateways, keys }))
}

async fn show_key(request: AdminRequest) -> Answered {
    let tier = Some(request.query_value("tier")).filter(|tier| !tier.is_empty());
    let found = FoundKey::find(&request).await?;
    let opened = request.state.actions.open_session();
    let (gateway, session) = opened.ok_or(KeyLookupError::ShuttingDown)?;
    let (limit, now) = (find_limit(&gateway, &found.limit)?, Now::read_clock());
    let mut status = found.read_status(&gateway, tier)?;
    if let Some(units) = find_units(&gateway.limits[limit.0], &found.key, tier, now) {
        let shared = found.key.shared.unwrap_or(SharedKey([0; 16]));
        let counted = CountedKey { limit, units, shared, name: status.key.clone() };
        status.usage = gateway.read_usage(session.as_deref(), &[counted], now).await;
    }
    let mut text = render_keys(std::slice::from_ref(&status), &gateway.config.limits[limit.0]);
    if let Some(leased) = &status.leased {
        text.push_str(&format!("{leased}\n"));
    }
    for class in &status.classes {
        text.push_str(&format!("class {} has {} left\n", class.class, or_dash(class.remaining)));
    }
    if let Some(ban) = &status.ban {
        text.push_str(&format!("ban with {ban}\n"));
    }
    Ok(Answer::forms(text, &status))
}

fn render_keys(keys: &[KeyStatus], limit: &LimitConfig) -> String {
    let rows = keys.iter().map(|key| {
        [
            key.key.clone(),
            format!("{:.1}", key.asked_per_s),
            format!("{:.1}", key.refused_per_s),
            or_dash(key.remaining),
            or_dash(key.reset_s.map(|seconds| format!("{seconds:.1} s"))),
            or_dash(key.waiting),
            or_dash(key.grant.as_ref().map(|grant| format!("{}, {:.0} s left", grant.numbers, grant.left_s))),
        ]
    });
    let refused = match limit {
        LimitConfig { dry_run: true, .. } => "would refuse/s",
        LimitConfig { enforce: Some(_), .. } => "refused or spared/s",
        _ => "refused/s",
    };
    let header = ["key", "asked/s", refused, "remaining", "next in", "waiting", "grant"];
    render_table(header, rows, usize::MAX).trim_start().to_owned()
}

/// The key that the path names.
struct FoundKey {
    limit: String,
    key: HeavyKey,
    sees_accounts: bool,
}

impl FoundKey {
    async fn find(request: &AdminRequest) -> Result<FoundKey, AdminError> {
        let limit = request.path_value("limit").to_owned();
        let name = request.path_value("key").to_owned();
        let mut key = request.state.actions.find_key(limit.clone(), name.clone()).await?;
        // The kept name of a busy key may be cut, and the account tells where its windows begin.
        if find_account(key.shown_name(true)).is_none() && find_account(&name).is_some() {
            key.account_name = Some(name);
        }
        Ok(FoundKey { limit, key, sees_accounts: request.caller.sees_accounts })
    }

    fn read_status(&self, gateway: &Gateway, tier: Option<&str>) -> Result<KeyStatus, AdminError> {
        let id = find_limit(gateway, &self.limit)?;
        Ok(KeyStatus::of_key(gateway, id, &self.key, tier, self.sees_accounts, Now::read_clock()))
    }

    fn to_key_ref(&self, gateway: &Gateway) -> KeyRef {
        KeyRef {
            name: self.key.name.clone(),
            key: self.key.key,
            shared: self.key.shared.unwrap_or_else(|| self.hash_shared(gateway)),
        }
    }

    /// The key in the store, in which the limit may be counted after a reload. That of a key shown as a hash is not
    /// known.
    fn hash_shared(&self, gateway: &Gateway) -> SharedKey {
        let parsed = find_counted_limit(gateway, &self.limit).and_then(|(limit, _)| {
            gateway.key_naming().parse_name(&self.limit, &limit.spec, &self.key.name).ok()
        });
        match parsed {
            Some(NamedKey::Known(parsed)) => SharedKey(parsed.shared_key()),
            _ => SharedKey([0; 16]),
        }
    }
}

/// Makes the change that `build` returns, and answers with the key after it. `shown`: its part in the audit line.
async fn change_key(
    request: &AdminRequest,
    tier: Option<&str>,
    build: impl FnOnce(&FoundKey, KeyRef) -> OperatorChange,
    shown: impl Fn(&KeyStatus) -> Value,
) -> Answered {
    let found = FoundKey::find(request).await?;
    let gateway = request.state.gateway();
    let before = found.read_status(&gateway, tier)?;
    request.state.actions.make_change(build(&found, found.to_key_ref(&gateway))).await?;
    let after = found.read_status(&request.state.gateway(), tier)?;
    let target = format!("limit {}, key {}", found.limit, found.key.name);
    let change = Change { target, before: shown(&before), after: shown(&after) };
    Ok(Answer::json(&after).with_change(change))
}

async fn reset_key(request: AdminRequest) -> Answered {
    let tier = request.body_text("tier")?;
    request.endpoint.check_members(&request.body)?;
    let build = |found: &FoundKey, key| OperatorChange::ResetKey {
        limit: found.limit.clone(),
        key,
        tier: tier.map(str::to_owned),
    };
    let left = |status: &KeyStatus| json!({ "remaining": status.remaining, "waiting": status.waiting });
    change_key(&request, tier, build, left).await
}

async fn grant_key(request: AdminRequest) -> Answered {
    let mut numbers = request.body.clone();
    let lasts = match numbers.remove("for") {
        Some(Value::String(text)) => read_length(&request, &text)?,
        Some(_) => return Err(request.endpoint.reject_body("`for` is not a text")),
        None => return Err(request.endpoint.reject_body("a grant needs an end: `for`")),
    };
    let build = |found: &FoundKey, key| {
        OperatorChange::Grant(NewGrant {
            limit: found.limit.clone(),
            key,
            numbers: Value::Object(numbers).to_string(),
            lasts,
            reason: request.reason.clone().unwrap_or_default(),
            by: request.caller.name.to_string(),
        })
    };
    change_key(&request, None, build, |status| json!(status.grant)).await
}

async fn revoke_grant(request: AdminRequest) -> Answered {
    let build = |found: &FoundKey, key| OperatorChange::Revoke { limit: found.limit.clone(), key };
    change_key(&request, None, build, |status| json!(status.grant)).await
}

/// The length of a grant or of a ban.
pub(super) fn read_length(request: &AdminRequest, text: &str) -> Result<Duration, AdminError> {
    read_duration(text).map_err(|why| request.endpoint.reject_body(&format!("`for`: {why}")))
}

pub(super) fn find_limit(gateway: &Gateway, name: &str) -> Result<LimitId, AdminError> {
    gateway.find_limit(name).ok_or_else(|| KeyLookupError::NoLimit(name.to_owned()).into())
}

impl From<KeyLookupError> for AdminError {
    fn from(error: KeyLookupError) -> AdminError {
        let status = match error {
            KeyLookupError::NoLimit(_) => StatusCode::NOT_FOUND,
            KeyLookupError::NotKept => StatusCode::CONFLICT,
            KeyLookupError::Name(_) => StatusCode::BAD_REQUEST,
            KeyLookupError::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
        };
        AdminError::new(status, &error.to_string())
    }
}

impl From<OperatorFault> for AdminError {
    fn from(fault: OperatorFault) -> AdminError {
        let status = match fault {
            OperatorFault::Reset(KeyResetFault::UnknownLimit)
            | OperatorFault::Limit(LimitChangeFault::Missing(_))
            | OperatorFault::Grant(GrantFault::UnknownLimit | GrantFault::NotGranted)
            | OperatorFault::Unban(UnbanFault::NotBanned) => StatusCode::NOT_FOUND,
            OperatorFault::Reset(KeyResetFault::UnknownTier)
            | OperatorFault::Grant(GrantFault::Numbers(_) | GrantFault::Length | GrantFault::Text)
            | OperatorFault::Limit(LimitChangeFault::Invalid(_))
            | OperatorFault::Ban(BanFault::Length | BanFault::Text) => StatusCode::BAD_REQUEST,
            OperatorFault::Reset(KeyResetFault::Store(_))
            | OperatorFault::HandedOver(_)
            | OperatorFault::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::CONFLICT,
        };
        AdminError::new(status, &fault.to_string())
    }
}

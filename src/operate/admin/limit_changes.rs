//! The endpoints that change whole limits: `/pause`, `/resume` and `/limits/{limit}/numbers`.

use serde_json::{Value, json};

use super::answer::{AdminError, Answer, Change};
use super::changed_limits::{LimitChanges, NEW_NUMBERS};
use super::endpoint::{AdminRequest, AnswerForm, AnswerFormat, Answered, BodyFormat, Endpoint, error, ok};
use super::examples;
use super::keys::{LIMIT, STOPPING, find_limit, read_length};
use sluicegate_admission::operator_bans::DEFAULT_LENGTH;
use sluicegate_base::clock::{Now, duration_ns};
use sluicegate_base::json_shape::JsonShape::{List, Nullable, Text};
use sluicegate_base::json_shape::{JsonObject, JsonShaped, maybe};
use sluicegate_model::{LimitChange, LimitConfig, WrittenNumbers};
use sluicegate_proxy::gateway::{FOREVER_NS, Gateway, OperatorChange};

static NEW_PAUSE: JsonObject = JsonObject::named("NewPause").with(&[
    maybe("for", Nullable(&Text), "How long, e.g. `1h`; 10 minutes without, and at most 30 days."),
    maybe("limits", Nullable(&List(&Text)), "Names of limits, where the path has none; without them all."),
]);

const MISSING: AnswerFormat = error(404, "There is no such limit, or it is not changed so.");
const TOO_MANY: AnswerFormat = error(409, "Too many limits are changed, or too many changes wait for Redis.");
const LIST: AnswerForm = AnswerForm::Json(Vec::<LimitChanges>::SHAPE, "");
const ONE: AnswerForm = AnswerForm::Json(LimitChanges::SHAPE, examples::LIMIT_NUMBERS);
const TEXT: AnswerForm = AnswerForm::Text("per-ip acts; numbers {\"rate\":\"10/s\"}\n");

pub(super) const PAUSE_LIMIT: Endpoint = Endpoint {
    name: "pause_limit",
    path: "/limits/{limit}/pause",
    summary: "Lets a limit judge and count without acting for a while.",
    parameters: &[LIMIT],
    body: Some(BodyFormat { object: &NEW_PAUSE, required: false, example: examples::NEW_PAUSE }),
    answers: &[ok("The limit after the change.", &[TEXT, ONE]), MISSING, TOO_MANY, STOPPING],
    handler: |request| Box::pin(change_limits(request)),
    ..Endpoint::CHANGE
};
pub(super) const RESUME_LIMIT: Endpoint = Endpoint {
    name: "resume_limit",
    path: "/limits/{limit}/resume",
    summary: "Ends a pause.",
    ..PAUSE_LIMIT
};
pub(super) const PAUSE_LIMITS: Endpoint = Endpoint {
    name: "pause_limits",
    path: "/pause",
    summary: "Pauses all limits, or those that the body names.",
    parameters: &[],
    answers: &[ok("The limits after the change.", &[TEXT, LIST]), MISSING, TOO_MANY, STOPPING],
    ..PAUSE_LIMIT
};
pub(super) const RESUME_LIMITS: Endpoint =
    Endpoint { name: "resume_limits", path: "/resume", summary: "Ends pauses likewise.", ..PAUSE_LIMITS };
pub(super) const SET_NUMBERS: Endpoint = Endpoint {
    name: "set_numbers",
    method: "PUT",
    path: "/limits/{limit}/numbers",
    summary: "Sets numbers of a limit in place of all that were set before; counters stay.",
    body: Some(BodyFormat { object: &NEW_NUMBERS, required: true, example: examples::NEW_NUMBERS }),
    ..PAUSE_LIMIT
};
pub(super) const UNSET_NUMBERS: Endpoint = Endpoint {
    name: "unset_numbers",
    method: "DELETE",
    summary: "Ends set numbers.",
    body: None,
    ..SET_NUMBERS
};
pub(super) const SHOW_NUMBERS: Endpoint = Endpoint {
    name: "show_numbers",
    path: SET_NUMBERS.path,
    summary: "The numbers of the file, and those set in their place.",
    parameters: &[LIMIT],
    answers: &[ok("The numbers.", &[TEXT, ONE]), MISSING],
    handler: |request| Box::pin(std::future::ready(show_numbers(&request))),
    ..Endpoint::READ
};

fn show_numbers(request: &AdminRequest) -> Answered {
    let gateway = request.state.gateway();
    let limit = &gateway.config.limits[find_limit(&gateway, request.path_value("limit"))?.0];
    let numbers = LimitChanges::of_limit(&gateway, limit);
    Ok(Answer::forms(format!("{}\n", numbers.sentence), &numbers))
}

async fn change_limits(request: AdminRequest) -> Answered {
    request.endpoint.check_members(&request.body)?;
    let (name, before) = (request.endpoint.name, request.state.gateway());
    let (is_set, ends) = (name.ends_with("numbers"), name.starts_with("resume") || name.starts_with("unset"));
    let limits = read_names(&request, &before, ends)?;
    let change = match ends {
        true => {
            // One of all pauses may have ended just now.
            let is_all = request.body.get("limits").is_none_or(Value::is_null);
            let skips_ended = is_all && request.path_value("limit").is_empty();
            OperatorChange::EndLimitChanges { limits: limits.clone(), is_set, skips_ended }
        }
        false => {
            OperatorChange::ChangeLimits { limits: limits.clone(), change: read_change(&request, is_set)? }
        }
    };
    request.state.actions.make_change(change).await?;
    let list = |gateway: &Gateway| LimitChanges::list(gateway, |limit| limits.contains(&limit.name));
    let (target, before, after) = (limits.join(", "), list(&before), list(&request.state.gateway()));
    let change = Change { target: format!("limit {target}"), before: json!(before), after: json!(after) };
    let text = after.iter().map(|limit| format!("{}\n", limit.sentence)).collect();
    let answer = match after.as_slice() {
        [limit] if !request.path_value("limit").is_empty() => Answer::forms(text, limit),
        all => Answer::forms(text, &all),
    };
    Ok(answer.with_change(change))
}

/// The limit of the path, the limits of the body, or all that can be changed; shadows never act.
fn read_names(request: &AdminRequest, gateway: &Gateway, ends: bool) -> Result<Vec<String>, AdminError> {
    let wrong = |_| request.endpoint.reject_body("`limits` is not a list of names");
    let names = request.body.get("limits").cloned().unwrap_or_default();
    let names: Option<Vec<String>> = serde_json::from_value(names).map_err(wrong)?;
    Ok(match (request.path_value("limit"), names) {
        ("", None) => {
            let can_change =
                |limit: &&LimitConfig| limit.pause.is_some() || !ends && limit.shadow_of.is_none();
            gateway.config.limits.iter().filter(can_change).map(|limit| limit.name.clone()).collect()
        }
        ("", Some(names)) => names,
        (limit, _) => vec![limit.to_owned()],
    })
}

/// The change in the body, for any limit.
fn read_change(request: &AdminRequest, is_set: bool) -> Result<LimitChange, AdminError> {
    let length = request.body_text("for")?.map(|text| read_length(request, text)).transpose()?;
    let usual = if is_set { FOREVER_NS } else { duration_ns(DEFAULT_LENGTH) };
    let (at_unix_ns, mut numbers) = (Now::read_clock().to_unix_ns(), request.body.clone());
    let until_unix_ns = at_unix_ns.saturating_add(length.map_or(usual, duration_ns));
    let (by, reason) = (request.caller.name.to_string(), request.reason.clone().unwrap_or_default());
    numbers.remove("for");
    let (fields, file_said) = (Value::Object(numbers).to_string(), String::new());
    let numbers = is_set.then_some(WrittenNumbers { fields, file_said, at_unix_ns });
    Ok(LimitChange { limit: String::new(), until_unix_ns, by, reason, numbers })
}

//! The endpoints about keys of limits, as rows of the table.

use super::answer_formats::{error, not_found, ok};
use super::endpoint::Handler::Waiting;
use super::endpoint::ParameterPlace::{Path, Query};
use super::endpoint::{AnswerForm, AnswerFormat, BodyFormat, Endpoint, Parameter, ParameterKind, box_answer};
use super::key_status::KeyStatus;
use super::keys::KeyList;
use super::{examples, keys, shapes};
use sluicegate_base::json_shape::JsonShaped;

const LIMIT: Parameter = Parameter {
    name: "limit",
    place: Path,
    kind: ParameterKind::Text,
    example: "per-ip",
    sentence: "The name of the limit.",
};
const KEY: Parameter = Parameter {
    name: "key",
    place: Path,
    kind: ParameterKind::TextWithSlashes,
    example: "ip=192.0.2.7",
    sentence: "The name of the key, as `part=value`, percent-encoded; slashes may stand plain.",
};

const KEY_FORM: AnswerForm = AnswerForm::Json(KeyStatus::SHAPE, examples::KEY);
const KEY_TEXT: AnswerForm =
    AnswerForm::Text("key           asked/s  refused/s\nip=192.0.2.7  42.0     32.1\n");
const KEY_FORMS: &[AnswerForm] = &[KEY_TEXT, KEY_FORM];
const KEY_LIST_FORMS: &[AnswerForm] = &[KEY_TEXT, AnswerForm::Json(KeyList::SHAPE, examples::KEY_LIST)];
const CHANGED: AnswerFormat = ok("The key after the change.", &[KEY_FORM]);
const NO_LIMIT: AnswerFormat = not_found("There is no such limit.");
const STOPPING: AnswerFormat = error(503, "The process is shutting down.");

pub(super) const LIST_KEYS: Endpoint = Endpoint {
    name: "list_keys",
    path: "/limits/{limit}/keys",
    summary: "The keys of a limit that are refused most, or that ask most.",
    parameters: &[
        LIMIT,
        Parameter {
            name: "by",
            place: Query { default: "refused" },
            kind: ParameterKind::Words(&["refused", "asked"]),
            example: "asked",
            sentence: "The order: the keys with most refused or most asked units first.",
        },
        Parameter {
            name: "top",
            place: Query { default: "20" },
            kind: ParameterKind::Integer(1, 100),
            example: "50",
            sentence: "The most keys to list.",
        },
    ],
    answers: &[
        ok("The keys.", KEY_LIST_FORMS),
        NO_LIMIT,
        error(409, "Names of keys are not kept, because `state.heavy_hitters` is `none`."),
        STOPPING,
    ],
    handler: Waiting(|request| box_answer(keys::list_keys(request))),
    ..Endpoint::READ
};

pub(super) const SHOW_KEY: Endpoint = Endpoint {
    name: "show_key",
    path: "/limits/{limit}/keys/{key}",
    summary: "One key of a limit.",
    parameters: &[
        LIMIT,
        KEY,
        Parameter {
            name: "tier",
            place: Query { default: "" },
            kind: ParameterKind::Text,
            example: "gold",
            sentence: "The tier of the caller, where the limit has other numbers for it.",
        },
    ],
    answers: &[
        ok("The key.", KEY_FORMS),
        NO_LIMIT,
        error(409, "Names of keys are not kept, so that a hash names none."),
        STOPPING,
    ],
    handler: Waiting(|request| box_answer(keys::show_key(request))),
    ..Endpoint::READ
};

pub(super) const RESET_KEY: Endpoint = Endpoint {
    name: "reset_key",
    path: "/limits/{limit}/keys/{key}/reset",
    summary: "Forgets what a key has used; requests that wait keep their turn.",
    parameters: &[LIMIT, KEY],
    body: Some(BodyFormat { object: &shapes::RESET, required: false, example: examples::RESET }),
    answers: &[
        CHANGED,
        NO_LIMIT,
        error(409, "It limits concurrency, or the key shares a counter with others."),
        error(503, "Redis does not answer, or the process is shutting down."),
    ],
    handler: Waiting(|request| box_answer(keys::reset_key(request))),
    ..Endpoint::CHANGE
};

pub(super) const GRANT_KEY: Endpoint = Endpoint {
    name: "grant_key",
    path: "/limits/{limit}/keys/{key}/grant",
    summary: "Counts a key by other numbers for a while; its ordinary counters stand still.",
    parameters: &[LIMIT, KEY],
    body: Some(BodyFormat { object: &shapes::NEW_GRANT, required: true, example: examples::NEW_GRANT }),
    answers: &[CHANGED, NO_LIMIT, error(409, "There are too many grants."), STOPPING],
    handler: Waiting(|request| box_answer(keys::grant_key(request))),
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
        not_found("There is no such limit, or the key has no grant."),
        error(409, "Too many changes wait for Redis."),
        STOPPING,
    ],
    handler: Waiting(|request| box_answer(keys::revoke_grant(request))),
    ..Endpoint::CHANGE
};

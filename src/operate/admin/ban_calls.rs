//! The calls about bans, as rows of the table.

use super::answer_formats::{error, not_found, ok};
use super::call::Handler::{Immediate, Waiting};
use super::call::ParameterPlace::Path;
use super::call::{AnswerForm, BodyFormat, Call, CallAccess, Parameter, ParameterKind, box_answer};
use super::json_shape::JsonShape;
use super::{bans, key_shapes};

const BAN_FORMS: &[AnswerForm] =
    &[AnswerForm::Json(&JsonShape::Object(&key_shapes::BAN), key_shapes::BAN_EXAMPLE)];
const ENDED_FORMS: &[AnswerForm] =
    &[AnswerForm::Json(&JsonShape::Object(&key_shapes::ENDED_BANS), key_shapes::ENDED_BANS_EXAMPLE)];
const LIST_FORMS: &[AnswerForm] = &[
    AnswerForm::Text("banned          by   left   reason\n203.0.113.0/24  ops  540 s  scraping\n"),
    AnswerForm::Json(&JsonShape::Object(&key_shapes::BAN_LIST), key_shapes::BAN_LIST_EXAMPLE),
];

pub(super) const LIST_BANS: Call = Call {
    name: "list_bans",
    method: "GET",
    path: "/bans",
    summary: "All active bans.",
    parameters: &[],
    body: None,
    answers: &[ok("The bans.", LIST_FORMS)],
    access: CallAccess::Read,
    handler: Immediate(bans::list_bans),
};

pub(super) const BAN_CLIENT: Call = Call {
    name: "ban_client",
    method: "POST",
    path: "/bans",
    summary: "Bans an address, a network or an account for a while; a ban of the same one is replaced.",
    parameters: &[],
    body: Some(BodyFormat {
        object: &key_shapes::NEW_BAN,
        required: true,
        example: key_shapes::NEW_BAN_EXAMPLE,
    }),
    answers: &[
        ok("The ban.", BAN_FORMS),
        error(409, "There are too many bans."),
        error(503, "The process is shutting down."),
    ],
    access: CallAccess::Change,
    handler: Waiting(|request| box_answer(bans::ban_client(request))),
};

pub(super) const UNBAN_CLIENT: Call = Call {
    name: "unban_client",
    method: "DELETE",
    path: "/bans/{banned}",
    summary: "Lifts the bans of exactly this address, network or account, and forgets its strikes.",
    parameters: &[Parameter {
        name: "banned",
        place: Path,
        kind: ParameterKind::TextWithSlashes,
        example: "203.0.113.0/24",
        sentence: "As `GET /bans` shows it, percent-encoded; slashes may stand plain.",
    }],
    body: None,
    answers: &[
        ok("It is not banned any more.", ENDED_FORMS),
        not_found("It is not banned."),
        error(409, "It is banned as a part of a network, or too many changes wait for Redis."),
        error(503, "The process is shutting down."),
    ],
    access: CallAccess::Change,
    handler: Waiting(|request| box_answer(bans::unban_client(request))),
};

//! The endpoints about bans, as rows of the table.

use super::answer_formats::{error, not_found, ok};
use super::bans::{BanList, BanStatus, EndedBanList};
use super::endpoint::Handler::{Immediate, Waiting};
use super::endpoint::ParameterPlace::Path;
use super::endpoint::{AnswerForm, BodyFormat, Endpoint, Parameter, ParameterKind, box_answer};
use super::{bans, examples, shapes};
use sluicegate_base::json_shape::JsonShaped;

const BAN_FORMS: &[AnswerForm] = &[AnswerForm::Json(BanStatus::SHAPE, examples::BAN)];
const ENDED_FORMS: &[AnswerForm] = &[AnswerForm::Json(EndedBanList::SHAPE, examples::ENDED_BANS)];
const LIST_FORMS: &[AnswerForm] = &[
    AnswerForm::Text("banned          by   left   reason\n203.0.113.0/24  ops  540 s  scraping\n"),
    AnswerForm::Json(BanList::SHAPE, examples::BAN_LIST),
];

pub(super) const LIST_BANS: Endpoint = Endpoint {
    name: "list_bans",
    path: "/bans",
    summary: "All active bans.",
    answers: &[ok("The bans.", LIST_FORMS)],
    handler: Immediate(bans::list_bans),
    ..Endpoint::READ
};

pub(super) const BAN_CLIENT: Endpoint = Endpoint {
    name: "ban_client",
    path: "/bans",
    summary: "Bans an address, a network or an account for a while; a ban of the same one is replaced.",
    body: Some(BodyFormat { object: &shapes::NEW_BAN, required: true, example: examples::NEW_BAN }),
    answers: &[
        ok("The ban.", BAN_FORMS),
        error(409, "There are too many bans."),
        error(503, "The process is shutting down."),
    ],
    handler: Waiting(|request| box_answer(bans::ban_client(request))),
    ..Endpoint::CHANGE
};

pub(super) const UNBAN_CLIENT: Endpoint = Endpoint {
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
    answers: &[
        ok("It is not banned any more.", ENDED_FORMS),
        not_found("It is not banned."),
        error(409, "It is banned as a part of a network, or too many changes wait for Redis."),
        error(503, "The process is shutting down."),
    ],
    handler: Waiting(|request| box_answer(bans::unban_client(request))),
    ..Endpoint::CHANGE
};

//! The endpoints of `/bans`: shows, starts and lifts bans.

use std::time::Duration;

use http::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use serde_json::json;

use super::answer::{AdminError, Answer, Change};
use super::endpoint::{
    AdminRequest, AnswerForm, Answered, BodyFormat, Endpoint, Parameter, ParameterKind, error, ok,
};
use super::examples;
use super::key_status::{KeyStatus, seconds};
use super::keys::read_length;
use crate::operate::text_table::{or_dash, render_table};
use sluicegate_admission::ban_target::BanTarget;
use sluicegate_admission::operator_bans::{DEFAULT_LENGTH, NewBan};
use sluicegate_base::clock::Now;
use sluicegate_base::json_shape::JsonShape::{Nullable, Text};
use sluicegate_base::json_shape::{JsonObject, JsonShaped, json_object, maybe};
use sluicegate_model::{Amount, KeyPart, LimitId};
use sluicegate_proxy::gateway::{ActiveBan, BanOrigin, EndedBans, OperatorChange, OperatorOutcome};

/// The shortest prefixes of networks: a shorter one is rather a slip than a client.
const PREFIX_MIN_V4: u8 = 8;
const PREFIX_MIN_V6: u8 = 16;

json_object! {
    pub(super) struct BanList as "BanList" {
        active: usize = "The number of bans in the list.",
        unnamed: usize = "The number of further active bans; only hashes of their clients are known here.",
        bans: Vec<BanStatus> = "The bans, those of operators first.",
    }

    pub(super) struct BanStatus as "Ban" {
        banned: String = "An address, a network, or `account=NAME`.",
        by: String = "The operator, or `automatic` after too many rejections.",
        reason: Option<String> = "The reason that the operator gave.",
        left_s: f64 = "Seconds until it ends.",
        at_ms: Option<u64> = "When an operator began it, in milliseconds since 1970.",
    }

    pub(super) struct EndedBanList as "EndedBans" {
        ended: Vec<BanStatus> = "The bans that were lifted, as they were.",
        // These limits go on counting during a ban.
        left: Vec<UnitsLeft> = "What the limits by this client alone leave it.",
    }

    struct UnitsLeft as "UnitsLeft" {
        limit: String = "Its name.",
        key: String = "The client as a key of the limit.",
        remaining: Option<Amount> = "As in `Key`.",
        reset_s: Option<f64> = "As in `Key`.",
    }
}

static NEW_BAN: JsonObject = JsonObject::named("NewBan").with(&[
    maybe("ip", Text, "An address, or a network of at least /8, or /16 of IPv6; or else:"),
    maybe("account", Text, "The name of an account."),
    maybe("for", Nullable(&Text), "How long, e.g. `1h`; 10 minutes without, and at most 366 days."),
]);

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
    handler: |request| Box::pin(list_bans(request)),
    ..Endpoint::READ
};

pub(super) const BAN_CLIENT: Endpoint = Endpoint {
    name: "ban_client",
    path: "/bans",
    summary: "Bans an address, a network or an account for a while; a ban of the same one is replaced.",
    body: Some(BodyFormat { object: &NEW_BAN, required: true, example: examples::NEW_BAN }),
    answers: &[
        ok("The ban.", BAN_FORMS),
        error(409, "There are too many bans."),
        error(503, "The process is shutting down."),
    ],
    handler: |request| Box::pin(ban_client(request)),
    ..Endpoint::CHANGE
};

pub(super) const UNBAN_CLIENT: Endpoint = Endpoint {
    name: "unban_client",
    method: "DELETE",
    path: "/bans/{banned}",
    summary: "Lifts the bans of exactly this address, network or account, and forgets its strikes.",
    parameters: &[Parameter::in_path(
        "banned",
        ParameterKind::TextWithSlashes,
        "203.0.113.0/24",
        "As `GET /bans` shows it, percent-encoded; slashes may stand plain.",
    )],
    answers: &[
        ok("It is not banned any more.", ENDED_FORMS),
        error(404, "It is not banned."),
        error(409, "It is banned as a part of a network, or too many changes wait for Redis."),
        error(503, "The process is shutting down."),
    ],
    handler: |request| Box::pin(unban_client(request)),
    ..Endpoint::CHANGE
};

impl BanStatus {
    fn of_ban(ban: &ActiveBan, now: Now) -> BanStatus {
        let (by, reason, at_ms) = match &ban.origin {
            BanOrigin::Operator { at, by, reason } => {
                let reason = Some(reason.clone()).filter(|reason| !reason.is_empty());
                (by.clone(), reason, Some(at.to_unix_ns() / 1_000_000))
            }
            BanOrigin::Rejections { .. } => ("automatic".to_owned(), None, None),
        };
        let left_s = seconds(ban.until.ns_since(now));
        BanStatus { banned: ban.target.to_string(), by, reason, left_s, at_ms }
    }
}

async fn list_bans(request: AdminRequest) -> Answered {
    let (gateway, now) = (request.state.gateway(), Now::read_clock());
    let bans: Vec<BanStatus> = gateway.list_bans(now).iter().map(|ban| BanStatus::of_ban(ban, now)).collect();
    let rows = bans.iter().map(|ban| {
        let left = format!("{:.0} s", ban.left_s);
        [ban.banned.clone(), ban.by.clone(), left, or_dash(ban.reason.as_deref())]
    });
    let table = render_table(["banned", "by", "left", "reason"], rows, usize::MAX);
    let unnamed = gateway.active_bans(now).saturating_sub(bans.len());
    let mut text = table.trim_start().to_owned();
    match unnamed {
        0 if bans.is_empty() => text.push_str("nobody is banned\n"),
        0 => {}
        _ => text.push_str(&format!("and {unnamed} whose names are not known here\n")),
    }
    Ok(Answer::forms(text, &BanList { active: bans.len(), unnamed, bans }))
}

async fn ban_client(request: AdminRequest) -> Answered {
    let (target, lasts) = read_ban(&request)?;
    let new = NewBan {
        target,
        lasts,
        reason: request.reason.clone().unwrap_or_default(),
        by: request.caller.name.to_string(),
    };
    match request.state.actions.make_change(OperatorChange::Ban(new)).await? {
        OperatorOutcome::Banned(ban, replaced) => {
            let now = Now::read_clock();
            let status = BanStatus::of_ban(&ban, now);
            let before = json!(replaced.map(|ban| BanStatus::of_ban(&ban, now)));
            let change = Change { target: status.banned.clone(), before, after: json!(status) };
            Ok(Answer::json(&status).with_change(change))
        }
        _ => Err(AdminError::shutting_down()),
    }
}

/// The target and the length of a ban in the body.
fn read_ban(request: &AdminRequest) -> Result<(BanTarget, Duration), AdminError> {
    request.endpoint.check_members(&request.body)?;
    let target = match (request.body_text("ip")?, request.body_text("account")?) {
        (Some(ip), None) => read_network(ip).map_err(|why| request.endpoint.reject_body(&why))?,
        (None, Some(account)) => format!("account={account}")
            .parse()
            .map_err(|_| request.endpoint.reject_body("the name of an account has 1 to 1024 bytes"))?,
        _ => return Err(request.endpoint.reject_body("a ban has either an `ip` or an `account`")),
    };
    let lasts = request.body_text("for")?.map_or(Ok(DEFAULT_LENGTH), |text| read_length(request, text))?;
    Ok((target, lasts))
}

/// An address or a network that is not too large.
fn read_network(text: &str) -> Result<BanTarget, String> {
    let network = match text.parse() {
        Ok(BanTarget::Network(network)) => network,
        _ => return Err(format!("`{}` is neither an address nor a network", text.escape_debug())),
    };
    let (least, version) =
        if network.addr().is_ipv4() { (PREFIX_MIN_V4, "IPv4") } else { (PREFIX_MIN_V6, "IPv6") };
    if network.prefix_len() < least {
        return Err(format!("{network} is too large: a banned network of {version} has at least /{least}"));
    }
    Ok(BanTarget::Network(network))
}

async fn unban_client(request: AdminRequest) -> Answered {
    let text = request.path_value("banned");
    let target: BanTarget = text.parse().map_err(|error| {
        let why = format!("`{}`: {error}", text.escape_debug());
        AdminError::new(StatusCode::BAD_REQUEST, &why)
    })?;
    let (gateway, now) = (request.state.gateway(), Now::read_clock());
    let mut bans: Vec<ActiveBan> =
        gateway.list_bans(now).into_iter().filter(|ban| ban.target == target).collect();
    let made = request.state.actions.make_change(OperatorChange::Unban(target.clone())).await?;
    if let OperatorOutcome::Unbanned(EndedBans { rejections: Some(until), .. }) = made
        && !bans.iter().any(|ban| matches!(ban.origin, BanOrigin::Rejections { .. }))
    {
        // Another gateway began it, so its name was not known here.
        let origin = BanOrigin::Rejections { repeats: 0 };
        bans.push(ActiveBan { target: target.clone(), until, origin });
    }
    let before: Vec<BanStatus> = bans.iter().map(|ban| BanStatus::of_ban(ban, now)).collect();
    let change = Change { target: target.to_string(), before: json!(before), after: json!([]) };
    let (part, name) = match &target {
        BanTarget::Network(network) => (KeyPart::Ip, format!("ip={}", BanTarget::Network(*network))),
        BanTarget::Account(name) => {
            (KeyPart::Account, format!("account={}", percent_encode(name.as_bytes(), NON_ALPHANUMERIC)))
        }
    };
    let mut left = Vec::new();
    for (index, limit) in
        gateway.config.limits.iter().enumerate().filter(|(_, limit)| limit.key == [part.clone()])
    {
        // A limit by other networks than this one has no such key.
        if let Ok(key) = request.state.actions.find_key(limit.name.clone(), name.clone()).await {
            let KeyStatus { key, remaining, reset_s, .. } =
                KeyStatus::of_key(&gateway, LimitId(index), &key, None, request.caller.sees_accounts, now);
            left.push(UnitsLeft { limit: limit.name.clone(), key, remaining, reset_s });
        }
    }
    Ok(Answer::json(&EndedBanList { ended: before, left }).with_change(change))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_bounded() {
        let read = |text: &str| read_network(text).map(|target| target.to_string());
        for (text, target) in [
            ("192.0.2.7", "192.0.2.7"),
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("2001:db8::/16", "2001::/16"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(target));
        }
        for text in ["0.0.0.0/0", "10.0.0.0/7", "::/0", "2000::/15", "::ffff:0.0.0.0/96"] {
            assert!(read(text).unwrap_err().contains("is too large"), "{text}");
        }
        for text in ["", "account=a", "example.com", "10.0.0.0/33"] {
            assert!(read(text).unwrap_err().contains("neither an address nor a network"), "{text}");
        }
    }
}

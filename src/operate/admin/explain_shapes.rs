//! The JSON objects of `/explain`.

use super::json_shape::JsonShape::{Any, Count, Flag, List, Nullable, Object, Text, Words};
use super::json_shape::{JsonObject, always, maybe};

/// The request to explain.
pub(super) static QUERY: JsonObject = JsonObject {
    name: "ExplainRequest",
    fields: &[
        maybe("method", Text, "The method, in capitals; absent only with `call`."),
        maybe("url", Text, "A path with or without a query, or a URL; absent only with `call`."),
        maybe("ip", Text, "The address of the peer; 127.0.0.1 if absent."),
        maybe("headers", List(&Text), "Header lines, `Name: value` each."),
        maybe(
            "listener",
            Nullable(&Text),
            "The name of the listener; else the first one of the URL's scheme.",
        ),
        maybe("data", Nullable(&Text), "The body, for limits that read it."),
        maybe("call", Any, "The body of a `/check` that names limits, in place of a request."),
    ],
};

pub(super) static EXPLANATION: JsonObject = JsonObject {
    name: "Explanation",
    fields: &[
        maybe("named_limits", List(&Text), "The limits that a call names; absent for a request."),
        maybe("client", Object(&CLIENT), "The client, behind trusted proxies; absent for a call."),
        maybe("host", Text, "The host; absent when it cannot be read."),
        maybe("path", Text, "The normalised path; absent when there is none."),
        maybe(
            "arrival",
            Object(&ARRIVAL),
            "Where the request comes in; absent if no location depends on it.",
        ),
        maybe("location", Object(&LOCATION), "The location that serves the request."),
        always("passed_over", List(&Object(&LOCATION)), "Locations that match but do not serve the request."),
        maybe("access", Text, "The decision of the access rules."),
        maybe("ban_left_ms", Count, "Milliseconds left of the client's ban."),
        maybe("ban", Object(&BAN), "The ban, if an operator set it."),
        maybe("stop", Object(&STOP), "The stop by its upstream."),
        maybe("queue", Object(&QUEUE), "The queue in front of its servers; absent without one."),
        maybe("token", Object(&TOKEN), "Whether the client's token is accepted."),
        maybe("account", Object(&ACCOUNT), "The account."),
        maybe("tier", Text, "The tier of the account."),
        always("limits", List(&Object(&LIMIT)), "The chain, in the order of judging."),
        maybe(
            "limits_not_judged",
            List(&Text),
            "The limits that do not judge it, because it is decided before.",
        ),
        always("verdict", Object(&VERDICT), "The decision."),
    ],
};

static QUEUE: JsonObject = JsonObject {
    name: "ExplainedQueue",
    fields: &[
        always("upstream", Text, "The upstream."),
        always("waiting", Count, "Requests that wait now."),
        always("size", Count, "The most requests that may wait."),
    ],
};

static STOP: JsonObject = JsonObject {
    name: "ExplainedStop",
    fields: &[
        always("upstream", Text, "The upstream."),
        maybe("status", Count, "The status that began it; absent if it said that nothing is left."),
        always("left_ms", Count, "Milliseconds left; 0 while the pace climbs after it."),
        always("until_ms", Count, "Its end, in milliseconds since 1970."),
        always("wait_ms", Count, "Milliseconds until this request may pass, behind those that wait."),
    ],
};

static CLIENT: JsonObject = JsonObject {
    name: "ExplainedClient",
    fields: &[
        always("ip", Text, "Its address."),
        always("peer", Text, "The address of the peer."),
        always("trusted_peer", Flag, "Whether the peer is a trusted proxy."),
        always("why", Text, "Why this address counts."),
    ],
};

static ARRIVAL: JsonObject = JsonObject {
    name: "ExplainedArrival",
    fields: &[always("scheme", Text, "http or https."), maybe("listener", Text, "The name of the listener.")],
};

static LOCATION: JsonObject = JsonObject {
    name: "ExplainedLocation",
    fields: &[
        always("index", Count, "Its index in the file, from 0."),
        always("location", Text, "The location."),
        always("why", Text, "Why it serves the request, or why not."),
    ],
};

static BAN: JsonObject = JsonObject {
    name: "ExplainedBan",
    fields: &[
        always("target", Text, "An address, a network or `account=NAME`."),
        always("by", Text, "The name of the operator's token."),
        always("reason", Text, "The operator's reason."),
    ],
};

static TOKEN: JsonObject = JsonObject {
    name: "ExplainedToken",
    fields: &[always("accepted", Flag, "Whether its claims are used."), maybe("why", Text, "Why not.")],
};

static ACCOUNT: JsonObject = JsonObject {
    name: "ExplainedAccount",
    fields: &[
        always("name", Nullable(&Text), "Null if the request has none."),
        always("from", Text, "The source of the account."),
    ],
};

static LIMIT: JsonObject = JsonObject {
    name: "ExplainedLimit",
    fields: &[
        always("name", Text, "Its name."),
        always("does", Text, "The limit as a sentence."),
        always("dry_run", Flag, "Whether it only counts."),
        maybe("unenforced", Flag, "True if it is a dry run for this key, which is not in its share."),
        maybe("skipped", Text, "Why it does not count the request."),
        maybe("problem", Text, "Why it cannot count the request."),
        maybe("body", Text, "What is missing for a limit that reads the body."),
        maybe("counts_by", Text, "The key."),
        maybe("grant", Object(&GRANT), "The other numbers that an operator granted the key."),
        maybe("cost", Count, "The units that the request takes."),
        maybe("reserves", Count, "The units that it reserves; its response settles them."),
        maybe("without_redis", Text, "The fallback in force, if Redis does not answer."),
        always("counters", List(&Object(&COUNTER)), "One for each rate."),
    ],
};

static GRANT: JsonObject = JsonObject {
    name: "ExplainedGrant",
    fields: &[
        always("left_ms", Count, "Milliseconds until it ends."),
        always("by", Text, "The name of the operator's token."),
        always("reason", Text, "The operator's reason."),
    ],
};

static COUNTER: JsonObject = JsonObject {
    name: "ExplainedCounter",
    fields: &[
        maybe("rate", Text, "The rate; absent for slots."),
        always("remaining", Count, "Units that still fit."),
        always("of", Count, "Units that fit when nothing is used."),
        always("reset_ms", Count, "Milliseconds until one more fits."),
        always("outcome", Words(&["admit", "wait", "reject"]), "The decision."),
        always("wait_ms", Count, "Milliseconds in the queue."),
        maybe("retry_after_ms", Count, "Milliseconds until the request would fit."),
    ],
};

static VERDICT: JsonObject = JsonObject {
    name: "ExplainedVerdict",
    fields: &[
        always("outcome", Words(&["admit", "wait", "reject", "degrade"]), "The decision."),
        maybe("status", Count, "The status of a rejection."),
        maybe("limit", Text, "The limit that decides."),
        maybe("cause", Text, "The cause, as logs and metrics name it."),
        maybe("retry_after", Text, "The `Retry-After` of the answer, in seconds."),
        maybe("retry_after_ms", Count, "The same, exactly."),
        maybe("wait_ms", Count, "Milliseconds in a queue."),
        maybe("position", Count, "The position in a queue for slots, from 1; its wait is not known."),
        maybe("then", Text, "What happens to the request."),
    ],
};

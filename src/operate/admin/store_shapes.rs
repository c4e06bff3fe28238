//! The JSON objects about Redis, and the gateways that share it.

use super::json_shape::JsonShape::{Count, Flag, List, Nullable, Number, Object, Text, Words};
use super::json_shape::{JsonObject, always};

pub(super) static STATUS_REDIS: JsonObject = JsonObject {
    name: "StatusRedis",
    fields: &[
        always("reachable", Flag, "Whether every server answers."),
        always("unreachable_since_ms", Nullable(&Count), "Since when not, in milliseconds since 1970."),
        always("outages", Count, "Outages since the start, with the present one."),
        always("last_outage", Nullable(&Object(&OUTAGE)), "The last one that is over."),
        always("gateways", Count, "Gateways that use it, as last counted."),
        always("servers", List(&Object(&STORE_SERVER)), "Its servers."),
        always(
            "nodes",
            Nullable(&List(&Object(&NODE))),
            "What those gateways report, by name; null while it does not answer.",
        ),
    ],
};

static OUTAGE: JsonObject = JsonObject {
    name: "Outage",
    fields: &[
        always("began_at_ms", Count, "When it began, in milliseconds since 1970."),
        always("lasted_s", Number, "Its length, in seconds."),
    ],
};

static STORE_SERVER: JsonObject = JsonObject {
    name: "RedisServer",
    fields: &[
        always("server", Text, "Its host and port."),
        always(
            "role",
            Nullable(&Words(&["primary"])),
            "Its role, as a Sentinel or a Cluster names it; null for a single server.",
        ),
        always("up", Flag, "Whether calls are made to it."),
        always(
            "breaker",
            Words(&["closed", "recovering", "open"]),
            "Whether all, some or no calls are made to it.",
        ),
        always("calls", Count, "Calls that were made to it."),
        always("mean_ms", Nullable(&Number), "Their mean time; null without calls."),
        always(
            "evicts_by",
            Nullable(&Text),
            "The policy by which it may drop counters; null if it drops none.",
        ),
    ],
};

static NODE: JsonObject = JsonObject {
    name: "Node",
    fields: &[
        always("name", Text, "The name of its host."),
        always("version", Text, "The version of its program."),
        always(
            "file_hash",
            Text,
            "The first 12 digits of the SHA-256 of its gateway.yaml in force; empty without a file.",
        ),
        always("started_at_ms", Count, "When it began to serve, in milliseconds since 1970."),
        always("own", Flag, "Whether it is the gateway that answers."),
        always(
            "file_differs",
            Nullable(&Flag),
            "Whether its file differs from that of the gateway that answers; null without a file.",
        ),
    ],
};

pub(super) static EVENT_REDIS: JsonObject = JsonObject {
    name: "RedisState",
    fields: &[
        always("reachable", Flag, "Whether every server answers."),
        always("outages", Count, "Outages since the start, with the present one."),
        always("nodes", Count, "Gateways that use it, as last counted."),
    ],
};

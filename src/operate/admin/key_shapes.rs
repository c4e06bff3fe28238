//! The JSON objects of keys, grants and bans, with examples.

use super::json_shape::JsonShape::{Any, Count, List, Nullable, Number, Object, Text, Words};
use super::json_shape::{JsonObject, always, maybe};

pub(super) static KEY_LIST: JsonObject = JsonObject {
    name: "KeyList",
    fields: &[
        always("limit", Text, "The name of the limit."),
        always("by", Words(&["refused", "asked"]), "The order: the keys with most of these come first."),
        always(
            "gateways",
            Count,
            "The gateways whose keys are added up; 1 for a limit that each counts alone.",
        ),
        always("keys", List(&Object(&KEY)), "The keys."),
    ],
};

pub(super) static KEY: JsonObject = JsonObject {
    name: "Key",
    fields: &[
        always("key", Text, "Its name, e.g. `ip=192.0.2.7`."),
        always("asked_per_s", Number, "Units that it asked per second, faded with a half-life of a minute."),
        always("refused_per_s", Number, "Units that it was refused, likewise."),
        always("error_per_s", Number, "The greatest amount by which either rate may be too low."),
        always("remaining", Nullable(&Count), "Units that it has left; null without a limit, or if unknown."),
        always("reset_s", Nullable(&Number), "Seconds until one more unit fits."),
        always("waiting", Nullable(&Count), "Units that wait in its queue; null if unknown."),
        always("grant", Nullable(&Object(&GRANT)), "Other numbers that an operator granted it."),
        always("ban", Nullable(&Text), "The address, network or account to ban; null if the key names none."),
    ],
};

static GRANT: JsonObject = JsonObject {
    name: "Grant",
    fields: &[
        always("numbers", Text, "Its rates or slots, in words."),
        always("left_s", Number, "Seconds until it ends."),
        always("reason", Nullable(&Text), "The reason that the operator gave."),
        always("by", Text, "The operator: the name of a token."),
    ],
};

pub(super) static RESET: JsonObject = JsonObject {
    name: "Reset",
    fields: &[maybe("tier", Nullable(&Text), "Resets only the numbers of this tier; else all of them.")],
};

pub(super) static NEW_GRANT: JsonObject = JsonObject {
    name: "NewGrant",
    fields: &[
        always("for", Text, "How long, e.g. `1h`; at most 30 days."),
        maybe("rate", Any, "The rate, or a list of rates, e.g. `100/s`."),
        maybe("burst", Any, "The burst, or one for each rate."),
        maybe("queue", Any, "The length of the queue, or one for each rate."),
        maybe("max_wait", Text, "The longest wait in the queue."),
        maybe("max_concurrent", Any, "The requests in flight."),
    ],
};

// === Bans ===

pub(super) static BAN_LIST: JsonObject = JsonObject {
    name: "BanList",
    fields: &[
        always("active", Count, "The number of bans in the list."),
        always(
            "unnamed",
            Count,
            "The number of further active bans; only hashes of their clients are known here.",
        ),
        always("bans", List(&Object(&BAN)), "The bans, those of operators first."),
    ],
};

pub(super) static BAN: JsonObject = JsonObject {
    name: "Ban",
    fields: &[
        always("banned", Text, "An address, a network, or `account=NAME`."),
        always("by", Text, "The operator, or `automatic` after too many rejections."),
        always("reason", Nullable(&Text), "The reason that the operator gave."),
        always("left_s", Number, "Seconds until it ends."),
        always("at_ms", Nullable(&Count), "When an operator began it, in milliseconds since 1970."),
    ],
};

pub(super) static ENDED_BANS: JsonObject = JsonObject {
    name: "EndedBans",
    fields: &[
        always("ended", List(&Object(&BAN)), "The bans that were lifted, as they were."),
        always("left", List(&Object(&UNITS_LEFT)), "What the limits by this client alone leave it."),
    ],
};

static UNITS_LEFT: JsonObject = JsonObject {
    name: "UnitsLeft",
    fields: &[
        always("limit", Text, "Its name."),
        always("key", Text, "The client as a key of the limit."),
        always("remaining", Nullable(&Count), "As in `Key`."),
        always("reset_s", Nullable(&Number), "As in `Key`."),
    ],
};

pub(super) static NEW_BAN: JsonObject = JsonObject {
    name: "NewBan",
    fields: &[
        maybe("ip", Text, "An address, or a network of at least /8, or /16 of IPv6; or else:"),
        maybe("account", Text, "The name of an account."),
        maybe("for", Nullable(&Text), "How long, e.g. `1h`; 10 minutes without, and at most 366 days."),
    ],
};

pub(super) const BAN_LIST_EXAMPLE: &str = r#"{
  "active": 2, "unnamed": 0,
  "bans": [
    { "banned": "203.0.113.0/24", "by": "ops", "reason": "scraping", "left_s": 540.0, "at_ms": 1767225600000 },
    { "banned": "192.0.2.7", "by": "automatic", "reason": null, "left_s": 31.5, "at_ms": null }
  ]
}"#;

pub(super) const BAN_EXAMPLE: &str = r#"{
  "banned": "203.0.113.0/24", "by": "ops", "reason": "scraping", "left_s": 600.0, "at_ms": 1767225600000
}"#;

pub(super) const ENDED_BANS_EXAMPLE: &str = r#"{
  "ended": [{ "banned": "192.0.2.7", "by": "automatic", "reason": null, "left_s": 31.5, "at_ms": null }],
  "left": [{ "limit": "per-ip", "key": "ip=192.0.2.7", "remaining": 0, "reset_s": 0.062 }]
}"#;

pub(super) const NEW_BAN_EXAMPLE: &str = r#"{"ip": "203.0.113.0/24", "for": "10m", "reason": "scraping"}"#;

// === Examples of keys ===

pub(super) const KEY_LIST_EXAMPLE: &str = r#"{
  "limit": "per-ip", "by": "refused", "gateways": 1,
  "keys": [
    { "key": "ip=192.0.2.7", "asked_per_s": 42.0, "refused_per_s": 32.1, "error_per_s": 0.0, "remaining": 0,
      "reset_s": 0.062, "waiting": 0, "grant": null, "ban": "192.0.2.7" }
  ]
}"#;

pub(super) const KEY_EXAMPLE: &str = r#"{
  "key": "ip=192.0.2.7", "asked_per_s": 42.0, "refused_per_s": 32.1, "error_per_s": 0.0, "remaining": 200,
  "reset_s": 0.0, "waiting": 0,
  "grant": { "numbers": "100 requests per second, burst 200", "left_s": 3600.0, "reason": "a demo", "by": "ops" },
  "ban": "192.0.2.7"
}"#;

pub(super) const RESET_EXAMPLE: &str = r#"{"reason": "a false alarm"}"#;

pub(super) const NEW_GRANT_EXAMPLE: &str =
    r#"{"rate": "100/s", "burst": 200, "for": "1h", "reason": "a demo"}"#;

//! A limit with its numbers in the file and the changes by operators, and the fields of numbers.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::key_status::seconds;
use sluicegate_base::json_shape::JsonShape::{Any, Nullable, Text};
use sluicegate_base::json_shape::{JsonField, JsonObject, json_object, maybe};
use sluicegate_config::list_numbers;
use sluicegate_model::{LimitChange, LimitConfig};
use sluicegate_proxy::gateway::{FOREVER_NS, Gateway};

json_object! {
    pub(crate) struct LimitChanges as "LimitNumbers" {
        limit: String = "Its name.",
        file: Value = "The numbers of the file, as fields.",
        set: Option<Value> = "Those set in their place, with `left_s` (null: until they are unset), `by` and `reason`.",
        paused: Option<Value> = "The pause, with `left_s`, `by` and `reason`; null without one.",
        pub(crate) sentence: String = "All this in words, and where and how long it holds.",
    }
}

pub(super) const RATE: JsonField = maybe("rate", Any, "The rate, or a list of rates, e.g. `100/s`.");
pub(super) const BURST: JsonField = maybe("burst", Any, "The burst, or one for each rate.");
pub(super) const QUEUE: JsonField = maybe("queue", Any, "The length of the queue, or one for each rate.");
pub(super) const WAIT: JsonField = maybe("max_wait", Text, "The longest wait in the queue.");
pub(super) const SLOTS: JsonField = maybe("max_concurrent", Any, "The requests in flight.");
const TERM: JsonField =
    maybe("for", Nullable(&Text), "How long, e.g. `2h`; until they are unset without it.");
pub(super) static NEW_NUMBERS: JsonObject =
    JsonObject::named("NewNumbers").with(&[TERM, RATE, BURST, QUEUE, WAIT, SLOTS]);

/// The end, the operator and the reason of a change.
pub(super) fn describe_end(change: &LimitChange) -> Value {
    let left_s = Some(change.left_ns()).filter(|left| *left < FOREVER_NS / 2).map(seconds);
    json!({ "left_s": left_s, "by": change.by, "reason": change.reason })
}

impl LimitChanges {
    pub(crate) fn list(gateway: &Gateway, is_listed: impl Fn(&LimitConfig) -> bool) -> Vec<LimitChanges> {
        let limits = gateway.config.limits.iter().filter(|limit| is_listed(limit));
        limits.map(|limit| LimitChanges::of_limit(gateway, limit)).collect()
    }

    pub(super) fn of_limit(gateway: &Gateway, limit: &LimitConfig) -> LimitChanges {
        let fields = list_numbers(limit.in_file()).into_iter();
        let fields = fields.filter(|(name, _)| NEW_NUMBERS.fields.iter().any(|field| field.name == *name));
        let value = |text: String| serde_json::from_str(&text).unwrap_or(Value::String(text));
        let file: Map<String, Value> = fields.map(|(name, text)| (name.to_owned(), value(text))).collect();
        let state = if limit.in_file().dry_run { "never acts, as a dry run" } else { "acts" };
        let (file, mut sentence) = (Value::Object(file), format!("{} {state}", limit.name));
        let paused = limit.pause.as_ref().map(|pause| {
            let left =
                humantime::format_duration(Duration::from_secs(pause.left_ns().div_ceil(1_000_000_000)));
            sentence = format!("{} is paused for {left}, by {}: {}", limit.name, pause.by, pause.reason);
            describe_end(pause)
        });
        let set = limit.set.as_ref().and_then(|set| {
            let fields = &set.numbers.as_ref()?.fields;
            sentence.push_str(&format!("; numbers {fields}, in the file {file}"));
            let mut shown: Map<String, Value> = serde_json::from_str(fields).ok()?;
            shown.extend(describe_end(set).as_object()?.clone());
            Some(Value::Object(shown))
        });
        if limit.shared.is_none() {
            sentence.push_str("; changes hold on this gateway alone, because it is not counted in Redis");
            if gateway.config.state.snapshot.is_none() {
                sentence.push_str(", and a restart forgets them, because there is no state.snapshot");
            }
        }
        LimitChanges { limit: limit.name.clone(), file, set, paused, sentence }
    }
}

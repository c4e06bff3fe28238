//! Tells the steps of quotas that keys have reached: as events, and in the metrics.

use std::sync::Arc;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

use super::usage::{UsageEntry, UsageStep};
use super::{Gateway, StepEvent};
use sluicegate_base::clock::Now;
use sluicegate_limit::Limit;
use sluicegate_limit::steps::{StepNote, StepNotes};
use sluicegate_model::{KeyPart, LimitConfig, QuotaStep};

// === impl Gateway ===

impl Gateway {
    /// The notes about steps of each limit with steps.
    pub(super) fn step_notes(&self) -> impl Iterator<Item = (&Arc<Limit>, &Arc<StepNotes>)> {
        self.limits.iter().zip(&self.shared).filter(|(limit, _)| !limit.config.steps.is_empty()).map(
            |(limit, shared)| (limit, shared.as_ref().map_or(&limit.step_notes, |shared| &shared.step_notes)),
        )
    }

    /// Records the steps that keys have reached since the last call.
    pub fn tell_steps(&self) {
        for (limit, notes) in self.step_notes() {
            for note in notes.take() {
                for step in limit.config.steps_in(note.fired) {
                    notes.count_told(step.at);
                    self.tell_step(limit, &note, step);
                }
            }
        }
    }

    /// A name with hashes in place of the values that tell who a client is.
    pub fn hide_values(&self, config: &LimitConfig, name: &str) -> String {
        let Some(hasher) = self.access_log.hasher() else { return name.to_owned() };
        let hide = |(piece, part): (&str, &KeyPart)| match (piece.split_once('='), part) {
            (Some((label, value)), KeyPart::Account | KeyPart::Source(_) | KeyPart::Mcp(_))
                if !label.starts_with("missing:") && !value.starts_with('#') =>
            {
                let value: Vec<u8> = percent_decode_str(value).collect();
                format!("{label}=#{:016x}", hasher.hash_value(&value))
            }
            _ => piece.to_owned(),
        };
        name.split(',').zip(&config.key).map(hide).collect::<Vec<_>>().join(",")
    }

    fn tell_step(&self, limit: &Limit, note: &StepNote, step: &QuotaStep) {
        let (config, now) = (&limit.config, Now::read_clock());
        let key = note.name.to_string();
        let usage = Some(note.usage);
        // The rate of a grant or a tier that is gone is told as the limit's own.
        let rate = if config.locate_rate(note.rate).is_some() { note.rate } else { 0 };
        let Some(mut entry) = UsageEntry::of(config, rate, key.clone(), usage, (now, None)) else { return };
        entry.step = Some(UsageStep::of(step));
        let tier = config.variant_grant(note.variant).is_none().then(|| config.variant_tier(note.variant));
        let subject = match key.split_once('=') {
            Some((_, value)) if !key.contains(',') => value,
            _ => &key,
        };
        let text = format!("{subject} reached {} % of {}", step.percent(), config.name);
        let mut data = match json!(entry) {
            Value::Object(data) => data,
            _ => Map::new(),
        };
        data.insert("tier".to_owned(), json!(tier.flatten()));
        data.insert("gateway".to_owned(), json!(rustix::system::uname().nodename().to_string_lossy()));
        data.insert("text".to_owned(), json!(text));
        self.step_events.record(StepEvent {
            unix_ms: now.to_unix_ns() / 1_000_000,
            data,
            masked_key: self.hide_values(config, &key),
        });
    }
}

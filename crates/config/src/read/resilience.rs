//! Reads `queue`, `retries`, `health`, `eject` and `obey` of an upstream.

use super::keys;
use crate::schema::tables::upstreams::{eject, health, obey, retries, server_queue, upstream};
use crate::yaml::field_reader::FieldReader;
use sluicegate_model::diagnostics::codes;
use sluicegate_model::diagnostics::problem::ValueError;
use sluicegate_model::upstream::{
    EjectConfig, HealthConfig, ObeyConfig, RetryConfig, RetryReasons, ServerQueueConfig, StatusRanges,
};

pub(crate) fn read_queue(upstream: &FieldReader<'_>) -> Option<ServerQueueConfig> {
    upstream.read_section_or_none(&upstream::QUEUE, |fields| ServerQueueConfig {
        size: fields.read(&server_queue::SIZE),
        max_wait: fields.read(&server_queue::MAX_WAIT),
    })
}

pub(crate) fn read_retries(upstream: &FieldReader<'_>) -> RetryConfig {
    let retries = upstream.read_section_or_none(&upstream::RETRIES, |fields| {
        let when = fields.find(&retries::WHEN);
        RetryConfig {
            // The table bounds it by 10.
            attempts: fields.read(&retries::ATTEMPTS) as u32,
            when: match when {
                Some(when) if when.is_word("none") => RetryReasons::default(),
                _ => RetryReasons::from_reasons(&fields.read_list(&retries::WHEN).concat()),
            },
            budget: fields.read(&retries::BUDGET),
            per_try: fields.read(&retries::PER_TRY),
            total: fields.read(&retries::TOTAL),
        }
    });
    retries.unwrap_or(RetryConfig::OFF)
}

pub(crate) fn read_health(upstream: &FieldReader<'_>) -> Option<HealthConfig> {
    upstream.read_section_or_none(&upstream::HEALTH, |fields| {
        if let Some(status) = fields.find(&health::STATUS).filter(|status| status.is_empty()) {
            status.report_empty("write e.g. 200-399");
        }
        HealthConfig {
            path: fields.read(&health::PATH),
            interval: fields.read(&health::INTERVAL),
            timeout: fields.read(&health::TIMEOUT),
            status: StatusRanges(fields.read_list(&health::STATUS)),
            rise: fields.read(&health::RISE),
            fall: fields.read(&health::FALL),
        }
    })
}

pub(crate) fn read_eject(upstream: &FieldReader<'_>) -> Option<EjectConfig> {
    upstream.read_section_or_none(&upstream::EJECT, |fields| EjectConfig {
        errors: fields.read(&eject::ERRORS),
        span: fields.read(&eject::SPAN),
        max: fields.read(&eject::MAX),
        status: StatusRanges(fields.read_list(&eject::STATUS)),
    })
}

pub(crate) fn read_obey(upstream: &FieldReader<'_>) -> Option<ObeyConfig> {
    upstream.read_section_or_none(&upstream::OBEY, |fields| {
        let status = StatusRanges(fields.read_list(&obey::STATUS));
        if let Some(value) = fields.find(&obey::STATUS)
            && status.0.iter().any(|(first, _)| *first < 400)
        {
            let message = "a response below 400 is no refusal: it would stop the requests behind it";
            let help = "write statuses of 400 to 599; RateLimit fields are read in every response";
            value.report_at_value(ValueError::new(codes::STATUS, message).with_help(help));
        }
        ObeyConfig { status, at_most: fields.read(&obey::AT_MOST), key: keys::read_key(fields, &obey::KEY) }
    })
}

//! `CL.THROTTLE key max_burst count_per_period period [quantity]`.

use std::net::IpAddr;

use super::Command;
use crate::gateway::worker::Worker;
use sluicegate_base::clock::Now;
use sluicegate_http::net::resp::ReplyWriter;
use sluicegate_limit::throttle::{TableFull, ThrottleAnswer, ThrottleFault, ThrottleTerms};
use sluicegate_observe::access_log::line::CallRecord;
use sluicegate_observe::metrics::CallResult;

/// Bytes of a key.
const KEY_MAX: usize = 4_096;

const USAGE: &str = "ERR wrong number of arguments: \
                     CL.THROTTLE key max_burst count_per_period period [quantity]";

/// Why a call names no limit: an error, or the name of an argument and its text, which is no integer.
type BadCall<'a> = (&'static str, Option<&'a [u8]>);

pub(super) fn answer_throttle(
    command: &Command<'_>,
    peer: Option<IpAddr>,
    worker: &Worker,
    reply: &mut ReplyWriter<'_>,
) {
    let count = |result| worker.gateway.calls.counts.count_call(worker.id, result);
    let (key, terms) = match read_call(command) {
        Ok(call) => call,
        Err(bad) => {
            count(CallResult::ThrottleBad);
            return match bad {
                (text, None) => reply.write_error(text),
                (name, Some(text)) => {
                    reply.write_error_about(&format!("ERR {name} is not an integer of 64 bits:"), text)
                }
            };
        }
    };
    let (gateway, now) = (&worker.gateway, Now::read_clock());
    let judged = gateway.calls.throttles.judge_call(&gateway.keys.hash_name(key), &terms, now);
    let (result, verdict) = match &judged {
        Ok(ThrottleAnswer { is_limited: false, .. }) => (CallResult::ThrottleAdmitted, "admit"),
        Ok(_) => (CallResult::ThrottleRejected, "reject"),
        Err(TableFull) => (CallResult::ThrottleFault, "too_many_keys"),
    };
    count(result);
    if worker.log.is_sampled() {
        worker.log.write_call(&CallRecord {
            unix_us: worker.wall_clock.unix_ns(now) / 1_000,
            ip: peer,
            protocol: "resp",
            call: "throttle",
            verdict,
            key,
            retry_after_ns: judged.as_ref().ok().and_then(|answer| answer.retry_after_ns),
        });
    }
    match judged {
        Ok(answer) => {
            let numbers = answer.reply_numbers();
            reply.begin_array(numbers.len());
            numbers.into_iter().for_each(|number| reply.write_integer(number));
        }
        Err(TableFull) => reply.write_error("ERR too many keys: state.max_keys of them are in use"),
    }
}

fn read_call<'a>(command: &Command<'a>) -> Result<(&'a [u8], ThrottleTerms), BadCall<'a>> {
    if !(4..=5).contains(&command.argument_count()) {
        return Err((USAGE, None));
    }
    let key = command.argument(0).filter(|key| key.len() <= KEY_MAX);
    let key = key.ok_or(("ERR key is longer than 4096 bytes", None))?;
    let number = |index, name| match command.argument(index) {
        Some(text) => {
            std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or((name, Some(text)))
        }
        None => Ok(1),
    };
    let (max_burst, count) = (number(1, "max_burst")?, number(2, "count_per_period")?);
    let (period, quantity) = (number(3, "period")?, number(4, "quantity")?);
    let terms =
        ThrottleTerms::new(max_burst, count, period, quantity).map_err(|fault| (terms_error(fault), None))?;
    Ok((key, terms))
}

fn terms_error(fault: ThrottleFault) -> &'static str {
    match fault {
        ThrottleFault::OutOfRange("max_burst") => "ERR max_burst is not within 0 and 9223372036854775806",
        ThrottleFault::OutOfRange("quantity") => "ERR quantity is negative",
        ThrottleFault::OutOfRange("period") => "ERR period is not at least 1 second",
        ThrottleFault::OutOfRange(_) => "ERR count_per_period is not at least 1",
        ThrottleFault::TooFast => "ERR count_per_period is more than one per nanosecond of the period",
        ThrottleFault::TooSlow => {
            "ERR max_burst and period are too long: the burst takes more than 292 years to come back"
        }
    }
}

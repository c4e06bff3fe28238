//! Reads the entries of chains that use a limit with other numbers, such as `{ use: per-ip, burst: 5 }`.

use super::algorithm::{check_cost, check_drain_time};
use super::rates::{RateForm, read_amounts};
use crate::schema::field::{Field, OneOrMore, ParseScalar};
use crate::schema::kinds::OrWord;
use crate::schema::tables::limits::{chain_view, limit};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_model::{
    Algorithm, LeakyBucketRate, LimitConfig, Rate, Reserve, TokenBucketRate, ValueError, ViewId, codes,
    did_you_mean,
};

/// The most different numbers of one limit: each has prepared header fields and responses.
const VIEWS_MAX: usize = 64;

/// True if an entry of a chain is a view, and not a limit that is written there.
pub(crate) fn is_view(item: &FieldValue<'_>) -> bool {
    let has = |name: &str| item.node.has_field(name);
    let is_misspelt = || {
        let near = |name: &str| did_you_mean(name, [chain_view::USE.name]).is_some();
        let mut keys = item.node.entries().iter().map(|(key, _)| &key.name);
        keys.any(|key| !limit::SECTION.has_field(key) && near(key))
    };
    has(chain_view::USE.name) || !has(limit::RATE.name) && !has(limit::MAX_CONCURRENT.name) && is_misspelt()
}

/// Reads the numbers of a view of `config`, laid over the limit's own.
pub(crate) fn read_view_numbers(fields: &FieldReader<'_>, config: &LimitConfig) -> Option<Algorithm> {
    let [burst, queue] = [chain_view::BURST.name, chain_view::QUEUE.name];
    let [max_wait, slots] = [chain_view::MAX_WAIT.name, chain_view::MAX_CONCURRENT.name];
    let own_fields = [burst, queue, max_wait, slots];
    let written = || own_fields.iter().filter_map(|name| fields.find_by_name(name));
    if written().next().is_none() {
        if fields.whole.entries().len() > 1 {
            // A misspelt one is reported already.
            return None;
        }
        let name = &config.name;
        let message = format!("this place has no number of its own for the limit `{name}`");
        let help = format!("write e.g. {{ use: {name}, burst: 5 }}, or the name alone: limits: {name}");
        fields.whole.refuse_name(codes::MISSING, message, help);
        return None;
    }
    match &config.algorithm {
        Algorithm::TokenBucket { rates } => {
            let help = "in a token_bucket no request waits: write a burst";
            let is_sound = report_foreign(fields, &[queue, max_wait, slots], config, help);
            let own = rates.iter().map(|one| (one.rate, one.burst, 0));
            let fits = |value: &FieldValue<'_>, burst| check_reserve(value, config, burst);
            let bursts = read_own_amounts(fields, config, (&chain_view::BURST, "burst"), own, fits)?;
            let rates = rates.iter().zip(bursts).map(|(one, burst)| TokenBucketRate { burst, ..*one });
            is_sound.then(|| Algorithm::TokenBucket { rates: rates.collect() })
        }
        Algorithm::LeakyBucket { rates, max_wait: own_wait } => {
            // It spaces the departures of all waiters for the key, wherever they came from.
            let help =
                "the departures of all waiting requests are spaced by one burst: write queue or max_wait";
            let is_sound = report_foreign(fields, &[burst, slots], config, help);
            let max_wait = fields.read(&chain_view::MAX_WAIT).unwrap_or(*own_wait);
            let own = rates.iter().map(|one| (one.rate, one.queue, one.burst));
            let field = (&chain_view::QUEUE, "burst + queue");
            let queues = read_own_amounts(fields, config, field, own, |_, _| true)?;
            let rates = rates.iter().zip(queues).map(|(one, queue)| LeakyBucketRate { queue, ..*one });
            is_sound.then(|| Algorithm::LeakyBucket { rates: rates.collect(), max_wait })
        }
        Algorithm::Concurrency { min, max, queue: own_queue, max_wait: own_wait } => {
            let help = "no request waits for these slots: write max_concurrent";
            let is_sound = report_foreign(fields, &[burst, queue, max_wait], config, help);
            let max = fields.read(&chain_view::MAX_CONCURRENT).unwrap_or(*max);
            let (min, queue, max_wait) = (*min, *own_queue, *own_wait);
            is_sound.then_some(Algorithm::Concurrency { min, max, queue, max_wait })
        }
        _ => None,
    }
}

/// The numbers of a view where its limit has others now: the rates are those of the limit. `None` = the limit has more
/// or fewer of them.
pub(crate) fn follow_limit(view: &Algorithm, own: &Algorithm) -> Option<Algorithm> {
    let mut view = view.clone();
    match (&mut view, own) {
        (Algorithm::TokenBucket { rates }, Algorithm::TokenBucket { rates: own }) => {
            rates.iter_mut().zip(own).for_each(|(one, own)| one.rate = own.rate);
        }
        (Algorithm::LeakyBucket { rates, .. }, Algorithm::LeakyBucket { rates: own, .. }) => {
            rates.iter_mut().zip(own).for_each(|(one, own)| (one.rate, one.burst) = (own.rate, own.burst));
        }
        _ => {}
    }
    (view.rate_count() == own.rate_count()).then_some(view)
}

/// True if a limit can be used with other numbers; otherwise reports the reason at `name`.
pub(crate) fn check_viewed_limit(name: &FieldValue<'_>, config: &LimitConfig) -> bool {
    let (reason, help) = match &config.algorithm {
        _ if config.shares.is_some() => (
            "has shares, which are parts of one number for all places".to_owned(),
            "write the name alone, or a limit of its own",
        ),
        _ if config.leased => (
            "is leased: gateways hold units of one bucket for all places".to_owned(),
            "write the name alone, or a limit of its own",
        ),
        Algorithm::TokenBucket { .. } => return true,
        Algorithm::LeakyBucket { .. } if config.fair_by.is_empty() => return true,
        Algorithm::Concurrency { min: None, queue: 0, .. } => return true,
        Algorithm::LeakyBucket { .. } => (
            "has fair_by: its waiting requests take turns in a queue of one length".to_owned(),
            "write the name alone, or a limit of its own",
        ),
        Algorithm::Concurrency { .. } => (
            "has a queue, or follows the latency of the upstream, as one for all places".to_owned(),
            "write the name alone, or a limit of its own",
        ),
        other => (
            format!("is a {}, which has neither a burst nor a queue in time", other.word()),
            "only a token_bucket, a leaky_bucket or a concurrency has other numbers at a place: write the name alone, \
             or a limit of its own",
        ),
    };
    let message = format!("the limit `{}` {reason}", config.name);
    name.refuse(codes::FOREIGN_FIELD, message, help);
    false
}

/// Checks the views of a limit that has other numbers now.
pub(crate) fn check_views(value: &FieldValue<'_>, config: &LimitConfig) {
    if config.views.is_empty() || !check_viewed_limit(value, config) {
        return;
    }
    for (rate, bucket) in config.views.iter().flat_map(Algorithm::rate_quotas) {
        let _ = check_drain_time(value, rate, bucket, RateForm::of_limit(config))
            && check_cost(&config.cost, Some(value), bucket, "the bucket of a place");
    }
}

/// Reports the fields of a limit that no place of a chain has for itself; whether there are none.
pub(crate) fn report_limit_fields(fields: &FieldReader<'_>) -> bool {
    let mut is_sound = true;
    for (key, value) in fields.whole.entries() {
        if !limit::SECTION.has_field(&key.name) || chain_view::SECTION.has_field(&key.name) {
            continue;
        }
        is_sound = false;
        let message = format!("`{}` belongs to the limit, not to a place that uses it", key.name);
        let help =
            "a place has its own burst, queue, max_wait or max_concurrent; write the rest under limits";
        value.refuse_name(codes::FOREIGN_FIELD, message, help);
    }
    is_sound
}

/// The variant of `config` with these numbers, which is added if it is new; `None` = they are the limit's own.
pub(crate) fn add_view(
    item: &FieldValue<'_>,
    config: &mut LimitConfig,
    numbers: Algorithm,
) -> Option<ViewId> {
    if numbers == config.algorithm {
        let name = &config.name;
        let message = format!("these are the limit's own numbers, so that `use` has no effect for `{name}`");
        let error = ValueError::new(codes::NO_EFFECT, message);
        item.warn_at_name(error.with_help(format!("write limits: {name}")));
        return None;
    }
    if let Some(known) = config.views.iter().position(|view| *view == numbers) {
        return Some(ViewId(known));
    }
    if config.views.len() >= VIEWS_MAX {
        let message = format!("the limit `{}` has more than {VIEWS_MAX} different numbers", config.name);
        item.refuse_name(codes::NUMBER, message, "write another limit");
        return None;
    }
    config.views.push(numbers);
    Some(ViewId(config.views.len() - 1))
}

fn report_foreign(fields: &FieldReader<'_>, names: &[&str], config: &LimitConfig, help: &str) -> bool {
    let found: Vec<FieldValue<'_>> = names.iter().filter_map(|name| fields.find_by_name(name)).collect();
    for value in &found {
        let field = value.path.rsplit('.').next().unwrap_or_default();
        let message = format!(
            "`{field}` of the limit `{}`, a {}, is the same everywhere",
            config.name,
            config.algorithm.word()
        );
        value.refuse_name(codes::FOREIGN_FIELD, message, help);
    }
    found.is_empty()
}

/// The amounts of `field`, or the limit's `own` ones. Each is a part of a bucket with its rate and the `rest` of that
/// bucket, which must fit; `fits` is asked too.
fn read_own_amounts<S: ParseScalar<Parsed = u64>>(
    fields: &FieldReader<'_>,
    config: &LimitConfig,
    (field, what): (&Field<OneOrMore<OrWord<S>>>, &str),
    own: impl ExactSizeIterator<Item = (Rate, u64, u64)>,
    fits: impl Fn(&FieldValue<'_>, u64) -> bool,
) -> Option<Vec<u64>> {
    let form = RateForm::of_limit(config);
    let amounts = read_amounts(fields, field, own.len(), form)?;
    let value = fields.find(field);
    let value = value.as_ref().unwrap_or(&fields.whole);
    let read = own.zip(amounts).map(|((rate, own, rest), amount)| {
        let amount = amount.unwrap_or(own);
        let bucket = rest.saturating_add(amount);
        let fits = check_drain_time(value, rate, bucket, form)
            && check_cost(&config.cost, Some(value), bucket, what)
            && fits(value, amount);
        fits.then_some(amount)
    });
    read.collect()
}

/// A reservation above the burst would never pass.
fn check_reserve(value: &FieldValue<'_>, config: &LimitConfig, burst: u64) -> bool {
    let Some(Reserve::Units(units)) = config.charge.as_ref().map(|charge| &charge.reserve) else {
        return true;
    };
    if *units > burst {
        let form = RateForm::of_limit(config);
        let (units, burst) = (form.show_amount(*units), form.show_amount(burst));
        let message = format!("a reservation of {units} can never pass: burst is {burst}");
        let help = format!("write a burst of at least {units}");
        value.refuse(codes::LIMIT_NUMBERS, message, help);
        return false;
    }
    true
}

//! Reads the guaranteed shares of a limit.

use std::sync::Arc;

use crate::describe::show_percent;
use crate::schema::tables::limits::limit;
use crate::schema::tables::shares::{share_class, shares};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_model::value::names;
use sluicegate_model::{
    Algorithm, CLASSES_MAX, Cost, KeyPart, LimitConfig, Mention, ShareClass, Shares, ValueError, codes,
};

/// The shares of a limit; `None` after an error, or if it has none.
pub(crate) fn read_shares(fields: &FieldReader<'_>) -> Option<Arc<Shares>> {
    let value = fields.find(&limit::SHARES).filter(|value| !value.is_word("none"))?;
    let form = "a mapping such as { by: tier, classes: { gold: { least: 50% } } }, or none";
    let (by, classes, lend) = value.open_map(&shares::SECTION, form)?.read_all(|fields| {
        let by = fields.read_required(&shares::BY);
        if let (Some(KeyPart::Source(source)), Some(value)) = (&by, fields.find(&shares::BY)) {
            value.mention(Mention::Source(source.clone()));
        }
        let classes = fields.find_required(&shares::CLASSES);
        let classes = classes.and_then(|classes| read_classes(&classes, by.as_ref()));
        (by, classes, fields.read(&shares::LEND))
    });
    Some(Arc::new(Shares { by: by?, classes: classes?, lend }))
}

/// The classes; that of all other requests is the last one.
fn read_classes(value: &FieldValue<'_>, by: Option<&KeyPart>) -> Option<Vec<ShareClass>> {
    let help = "write e.g. classes: { gold: { least: 50% } }";
    if !value.is_map() || value.entries().is_empty() {
        value.refuse_name(codes::MISSING, "shares need classes by name", help);
        return None;
    }
    let (mut classes, mut default) = (Vec::new(), None);
    for (key, class) in value.entries() {
        class.accept_name(names::check_class_name(&key.name));
        let is_default = key.name == Shares::DEFAULT;
        if by == Some(&KeyPart::Tier) && !is_default {
            class.sink.record_mention(class.named_at, &class.path, Mention::Tier(key.name.clone()));
        }
        let read = read_class(&key.name, &class)?;
        match is_default {
            true => default = Some(read),
            false => classes.push(read),
        }
    }
    if classes.len() > CLASSES_MAX {
        let message =
            format!("a limit has at most {CLASSES_MAX} classes by name, and this one has {}", classes.len());
        value.refuse_name(codes::NUMBER, message, "let some of them share the class `default`");
        return None;
    }
    let others = || ShareClass { name: Shares::DEFAULT.to_owned(), least: 0, most: Shares::WHOLE };
    classes.push(default.unwrap_or_else(others));
    let sum: u64 = classes.iter().map(|class| u64::from(class.least)).sum();
    if sum > Shares::WHOLE.into() {
        let message = format!("the floors add up to {}, which is more than the limit", show_percent(sum));
        value.refuse_name(codes::LIMIT_NUMBERS, message, "write `least` so that they add up to at most 100%");
        return None;
    }
    Some(classes)
}

fn read_class(name: &str, value: &FieldValue<'_>) -> Option<ShareClass> {
    value.open_map(&share_class::SECTION, "a mapping such as { least: 50% }")?.read_all(|fields| {
        let (least, most) = (fields.read(&share_class::LEAST), fields.read(&share_class::MOST));
        if least > most {
            let message = format!(
                "`least` of class `{name}` is {}, above its `most` of {}",
                show_percent(least.into()),
                show_percent(most.into())
            );
            value.refuse_name(codes::LIMIT_NUMBERS, message, "write the smaller one as least");
        }
        if most == 0 {
            let message = format!("class `{name}` is never admitted with a `most` of 0%");
            value.refuse_name(codes::LIMIT_NUMBERS, message, "write a greater one");
        }
        (least <= most && most > 0).then(|| ShareClass { name: name.to_owned(), least, most })
    })
}

/// Reports a limit of which no class can have a guaranteed share, and parts of it that hold no request.
pub(crate) fn check_shares(fields: &FieldReader<'_>, config: &LimitConfig, numbers: &[&Algorithm]) {
    let (Some(value), Some(shares)) = (fields.find(&limit::SHARES), &config.shares) else { return };
    let refuse = |message: &str, help: &str| value.refuse_name(codes::FOREIGN_FIELD, message, help);
    let is_windows =
        matches!(config.algorithm, Algorithm::FixedWindow { .. } | Algorithm::SlidingWindow { .. });
    let is_slots = matches!(config.algorithm, Algorithm::Concurrency { .. });
    if config.shares_counters() {
        refuse(
            "windows of the calendar and steps have no shares",
            "remove shares, or write a period such as 30d",
        );
    } else if matches!(config.algorithm, Algorithm::SlidingLog { .. }) {
        refuse("a sliding_log has no shares", "write algorithm: sliding_window, or remove shares");
    } else if config.warm_up.is_some() {
        refuse("a rate that warms up has no shares", "remove one of shares and warm_up");
    } else if is_windows && config.charge.is_some() {
        refuse(
            "windows that responses settle have no shares",
            "write algorithm: token_bucket, or remove one of shares and charge",
        );
    } else if shares.by == KeyPart::Tier && config.tiers.iter().any(|(_, own)| own.is_some()) {
        let help = "write `none` for tiers without a limit, and the shares of the others here";
        refuse("tiers with numbers of their own are counted apart, so they share nothing", help);
    } else if shares.lend < Shares::WHOLE && !is_slots {
        refuse("`lend` is for slots: what a rate leaves unused flows on", "remove lend");
    } else if let Some(error) = find_small_part(config, numbers) {
        value.report_at_name(error);
    }
}

/// The first class of a limit with a part of `numbers` that holds no request.
pub(crate) fn find_small_part(config: &LimitConfig, numbers: &[&Algorithm]) -> Option<ValueError> {
    let cost = match (&config.cost, &config.charge) {
        (Cost::Units(units), None) => *units,
        _ => 1,
    };
    let classes = config.shares.iter().flat_map(|shares| &shares.classes);
    let mut parts = classes.flat_map(|class| numbers.iter().map(move |numbers| (class, numbers)));
    parts.find_map(|(class, numbers)| check_parts(class, numbers, cost).err())
}

/// # Errors
/// The part of a class holds less than one request of `cost`.
fn check_parts(class: &ShareClass, numbers: &Algorithm, cost: u64) -> Result<(), ValueError> {
    // The reserve of a bucket is the half of the class's part of it.
    let (word, reserve, sizes): (&str, u64, Vec<u64>) = match numbers {
        Algorithm::TokenBucket { rates } => ("burst", 2, rates.iter().map(|one| one.burst).collect()),
        Algorithm::LeakyBucket { .. } | Algorithm::Concurrency { min: Some(_), .. } => return Ok(()),
        Algorithm::Concurrency { max, .. } => ("max_concurrent", 1, vec![u64::from(*max)]),
        windows => ("rate", 1, windows.rate_quotas().iter().map(|(_, quota)| *quota).collect()),
    };
    let part = |size: u64, part: u32| u128::from(size) * u128::from(part);
    let wanted = u128::from(cost) * u128::from(Shares::WHOLE);
    let smallest = |part: u32, halves: u64| (wanted * u128::from(halves)).div_ceil(part.max(1).into());
    for size in sizes {
        let too_small = match class {
            ShareClass { least, .. } if *least > 0 && part(size, *least) < wanted * u128::from(reserve) => {
                Some(("floor", smallest(*least, reserve)))
            }
            // Slots and windows are rounded up, so that a small part of them still holds a request of 1.
            ShareClass { most, .. }
                if class.most_of(size) < cost || reserve > 1 && part(size, *most) < wanted =>
            {
                Some(("`most`", smallest(*most, 1)))
            }
            _ => None,
        };
        if let Some((what, least)) = too_small {
            let message = format!("the {what} of class `{}` holds less than one request", class.name);
            let help = format!("write a {word} of at least {least}, or a greater share");
            return Err(ValueError::new(codes::LIMIT_NUMBERS, message).with_help(help));
        }
    }
    Ok(())
}

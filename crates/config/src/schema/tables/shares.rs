//! The fields of guaranteed shares.

use crate::schema::field::{Shape, section};
use crate::schema::kinds::{SHARE, Special, Text};
use sluicegate_model::value::money::parse_decimal;
use sluicegate_model::value::words::parse_word_or;
use sluicegate_model::value::{names, scalars};
use sluicegate_model::{KeyPart, Parsed, ValueError, ValueSource, codes};

section! {
    /// The guaranteed shares of a limit.
    mod shares = "limits.NAME.shares";
    /// The fact of a request that names its class: the account, the tier, the name of the location, a header of
    /// trusted proxies or a claim of a verified token.
    BY: Text<KeyPart> = Text::new("account, tier, location, header:NAME or jwt:CLAIM", parse_share_source),
        "by", required, "tier";
    /// The classes by name, at most 16. All other requests are in the class `default`.
    CLASSES: Special = Special(|| Shape::Map("classes", Box::new(Shape::Section(&share_class::SECTION)))),
        "classes", required, "{ gold: { least: 50% }, default: { most: 60% } }";
    /// concurrency: the part of the slots kept for a class that others may use while it does not.
    LEND: Text<u32> = Text::new("a percentage", parse_part).matching(SHARE), "lend", "100%", "80%";
}

section! {
    /// A class of callers of a limit with shares.
    mod share_class = "limits.NAME.shares.classes.CLASS";
    /// The part of the limit that other classes cannot use up.
    LEAST: Text<u32> = Text::new("a percentage", parse_part).matching(SHARE), "least", "0%", "50%";
    /// The part of the limit beyond which the class has nothing, even if others leave the rest unused.
    MOST: Text<u32> = Text::new("a percentage", parse_part).matching(SHARE), "most", "100%", "80%";
}

fn parse_share_source(text: &str) -> Parsed<KeyPart> {
    let help = || format!("write {}", shares::BY.value.says);
    match names::parse_source(text) {
        Some(Ok(source @ (ValueSource::Header(_) | ValueSource::Jwt(_)))) => Ok(KeyPart::Source(source)),
        Some(Err(error)) => Err(error),
        Some(Ok(_)) => {
            let message = format!("`{text}` names no class of callers");
            Err(ValueError::new(codes::NAME, message).with_help(help()))
        }
        None => {
            let words =
                [KeyPart::Account, KeyPart::Tier, KeyPart::Location].map(|part| (part.words().0, part));
            parse_word_or(&words, text, help)
        }
    }
}

/// A percentage with up to four decimals, in millionths.
pub(super) fn parse_part(text: &str) -> Parsed<u32> {
    scalars::parse_percent(text)?;
    let millionths = text.strip_suffix('%').and_then(|number| parse_decimal(number).ok());
    let part = millionths.filter(|number| number % 100 == 0).map(|number| (number / 100) as u32);
    part.ok_or_else(|| {
        ValueError::new(codes::PERCENT, format!("`{text}` has more than four decimals"))
            .with_help("write e.g. 12.5%")
    })
}

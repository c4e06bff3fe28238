//! Header names and values that live as long as the process, so that a clone touches no shared counter.

use std::collections::HashSet;
use std::sync::LazyLock;

use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;

/// Every interned text. It grows only with distinct configurations, never with requests.
static INTERNED: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);

/// `value`, interned; a value that is not plain ASCII is only cloned.
pub(super) fn intern_value(value: &HeaderValue) -> HeaderValue {
    match value.to_str() {
        Ok(text) => HeaderValue::from_static(intern_text(text)),
        Err(_) => value.clone(),
    }
}

/// `name`, interned.
pub(super) fn intern_name(name: &HeaderName) -> HeaderName {
    HeaderName::from_static(intern_text(name.as_str()))
}

fn intern_text(text: &str) -> &'static str {
    let mut known = INTERNED.lock();
    if let Some(kept) = known.get(text) {
        return kept;
    }
    let kept: &'static str = Box::leak(text.into());
    known.insert(kept);
    kept
}

/// A number as a header value; small ones are prepared.
#[inline]
pub(super) fn number_value(number: u64) -> HeaderValue {
    const PREPARED_NUMBERS: u64 = 121;
    static VALUES: LazyLock<Vec<HeaderValue>> =
        LazyLock::new(|| (0..PREPARED_NUMBERS).map(|n| intern_value(&HeaderValue::from(n))).collect());
    match usize::try_from(number).ok().and_then(|index| VALUES.get(index)) {
        Some(value) => value.clone(),
        None => HeaderValue::from(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_kept_once() {
        let one = intern_text("equal-texts-are-kept-once");
        assert!(std::ptr::eq(one, intern_text("equal-texts-are-kept-once")));
    }

    #[test]
    fn numbers_are_exact_on_both_sides_of_the_ready_ones() {
        for n in [0, 1, 120, 121, u64::MAX] {
            assert_eq!(number_value(n).to_str().unwrap(), n.to_string());
        }
    }
}

//! Numbers at the edges of their range, exact in millionths.

use super::super::*;
use super::documents::Random;
use super::scan;
use super::values::{FoundJson, collect};

/// Servers read them as an infinity or as they are.
#[test]
fn numbers_beyond_a_double_are_numbers() {
    let digits = format!("{}.5", "9".repeat(2_000));
    for number in ["1e309", "-1e309", "1e99999999999", "1.8e308", "184467440737095516155.5e288", &digits] {
        assert_eq!(read_number(number), None, "{number}");
        assert!(scan([number.as_bytes()]).is_some(), "{number}");
    }
    for number in ["01e309", "1e309x", "1e309e", "1.e309"] {
        assert_eq!(scan([number.as_bytes()]), None, "{number}");
    }
}

/// The number in millionths, by moving digits about.
fn shift_digits(number: &str) -> Option<u128> {
    let (mantissa, exponent) = number.split_once('e').unwrap_or((number, "0"));
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let places = whole.len() as i64 + exponent.parse::<i64>().unwrap() + 6;
    let digits = format!("{whole}{part}");
    let digit = |at: i64| {
        usize::try_from(at).ok().and_then(|at| digits.as_bytes().get(at)).map_or(0, |byte| byte - b'0')
    };
    let mut value = 0u128;
    for at in 0..places {
        value = value.checked_mul(10)?.checked_add(u128::from(digit(at)))?;
    }
    let is_between = (places.max(0)..digits.len() as i64).any(|at| digit(at) != 0);
    Some(value + u128::from(is_between)).filter(|value| *value <= u128::from(u64::MAX) * 1_000_000)
}

fn read_number(number: &str) -> Option<u128> {
    let mut paths = JsonPaths::default();
    let path = paths.add_member("a").unwrap();
    let document = format!("{{\"a\":{number}}}");
    match collect(&paths, [document.as_bytes()]).1.values[path] {
        Some(FoundJson::Number { millionths, .. }) => millionths,
        _ => panic!("no number in {document}"),
    }
}

#[test]
fn numbers_are_exact_in_millionths() {
    for (number, millionths) in [
        ("0", Some(0)),
        ("-0", Some(0)),
        ("-0.0e5", Some(0)),
        ("-1", None),
        ("-1e-9", None),
        ("1", Some(1_000_000)),
        ("0.1", Some(100_000)),
        ("0.1234567", Some(123_457)),
        ("0.123456000000000000000000000000000000000000000000000000000001", Some(123_457)),
        ("123456789012345678901234567890123456789012345678901234567890e-59", Some(1_234_568)),
        ("1e-400", Some(1)),
        ("1e19", Some(10u128.pow(25))),
        ("18446744073709551615", Some(u128::from(u64::MAX) * 1_000_000)),
        ("18446744073709551615.0000001", None),
        ("18446744073709551616", None),
        ("1e300", None),
        ("0.00000000000000000001e20", Some(1_000_000)),
        ("0e99999999999", Some(0)),
    ] {
        assert_eq!(read_number(number), millionths, "{number}");
    }
    let mut random = Random(3);
    for _ in 0..20_000 {
        let mut digits =
            || -> String { (0..1 + random.below(30)).map(|_| random.pick(&["0", "1", "9"])).collect() };
        let (whole, part) = (format!("1{}", digits()), digits());
        let whole = if part.starts_with('0') { "0" } else { &whole };
        let number = format!("{whole}.{part}e{}", random.below(80) as i64 - 40);
        assert_eq!(read_number(&number), shift_digits(&number), "{number}");
    }
}

//! Times and sizes of nginx.

use super::parser::Directive;
use crate::ImportFault;
use sluicegate_model::value::byte_rate::show_size;

/// Milliseconds: `60`, `60s`, `1m30s`, `500ms`.
pub(super) fn parse_time_ms(text: &str) -> Option<u64> {
    let (mut rest, mut sum) = (text, 0_u64);
    if text.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number = rest.get(..digits)?.parse::<u64>().ok()?;
        let behind = &rest[digits..];
        let unit_end = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let unit = match behind[..unit_end].trim() {
            "ms" => 1,
            "" | "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            "M" => 30 * 86_400_000,
            "y" => 365 * 86_400_000,
            _ => return None,
        };
        sum = sum.checked_add(number.checked_mul(unit)?)?;
        rest = &behind[unit_end..];
    }
    Some(sum)
}

/// Bytes: `1024`, `8k`, `1m`, `2g`.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// The value of `max_body` for a size of `client_max_body_size`.
pub(crate) fn write_body_size(bytes: u64) -> String {
    if bytes == 0 { "none".to_owned() } else { show_size(bytes) }
}

/// A duration of gateway.yaml.
pub(super) fn write_time(ms: u64) -> String {
    if ms.is_multiple_of(1000) { format!("{}s", ms / 1000) } else { format!("{ms}ms") }
}

/// The time that a directive names.
pub(super) fn time_of(directive: &Directive) -> Result<u64, ImportFault> {
    parse_time_ms(directive.arg(0))
        .ok_or_else(|| directive.fault(format!("`{}` is not a time", directive.arg(0))))
}

/// The size that a directive names.
pub(super) fn size_of(directive: &Directive) -> Result<u64, ImportFault> {
    parse_size(directive.arg(0))
        .ok_or_else(|| directive.fault(format!("`{}` is not a size", directive.arg(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes() {
        assert_eq!(parse_time_ms("1m30s"), Some(90_000));
        assert_eq!(parse_time_ms("60"), Some(60_000));
        assert_eq!((parse_time_ms("5x"), parse_time_ms(""), parse_time_ms("s")), (None, None, None));
        assert_eq!((parse_size("8k"), parse_size("1G"), parse_size("x")), (Some(8192), Some(1 << 30), None));
        assert_eq!(write_time(1500), "1500ms");
    }
}

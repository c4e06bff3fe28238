//! A number of a JSON document, read digit by digit.

/// Millionths in a whole.
const WHOLE: u128 = 1_000_000;
const NUMBER_MAX: u128 = u64::MAX as u128 * WHOLE;
/// Digits are kept until there are this many; it is far more than the largest number has in millionths.
const DIGITS_FULL: u128 = 10u128.pow(37);

/// A number while its digits come.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NumberScan {
    step: NumberStep,
    negative: bool,
    /// The value is `digits` × 10^`scale` × 10^exponent, and a little more if digits were left out.
    digits: u128,
    scale: i32,
    left_out: bool,
    exponent: i32,
    exponent_negative: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum NumberStep {
    #[default]
    Sign,
    Zero,
    Integer,
    Point,
    Fraction,
    ExponentMark,
    ExponentSign,
    Exponent,
}

/// The state of a number after the bytes that were pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberEnd {
    /// More bytes may come.
    Open,
    /// The next byte stands behind the number.
    Whole,
    Invalid,
}

// === impl NumberScan ===

impl NumberScan {
    /// `first` is a minus sign or a digit.
    pub(super) fn new(first: u8) -> NumberScan {
        let mut number = NumberScan { negative: first == b'-', ..NumberScan::default() };
        if !number.negative {
            number.push(&[first]);
        }
        number
    }

    /// Takes the bytes of the number; returns their count.
    pub(super) fn push(&mut self, bytes: &[u8]) -> (usize, NumberEnd) {
        use NumberStep::*;
        for (at, &byte) in bytes.iter().enumerate() {
            self.step = match (self.step, byte) {
                (Sign, b'0') => Zero,
                (Sign, b'1'..=b'9') | (Integer, b'0'..=b'9') => Integer,
                (Zero | Integer, b'.') => Point,
                (Point | Fraction, b'0'..=b'9') => Fraction,
                (Zero | Integer | Fraction, b'e' | b'E') => ExponentMark,
                (ExponentMark, b'+' | b'-') => ExponentSign,
                (ExponentMark | ExponentSign | Exponent, b'0'..=b'9') => Exponent,
                (Zero, b'0'..=b'9') => return (at, NumberEnd::Invalid),
                _ if self.is_whole() => return (at, NumberEnd::Whole),
                _ => return (at, NumberEnd::Invalid),
            };
            match self.step {
                Integer | Fraction => self.push_digit(byte - b'0', self.step == Fraction),
                Exponent => {
                    self.exponent = self.exponent.saturating_mul(10).saturating_add(i32::from(byte - b'0'));
                }
                ExponentSign => self.exponent_negative = byte == b'-',
                _ => {}
            }
        }
        (bytes.len(), NumberEnd::Open)
    }

    fn push_digit(&mut self, digit: u8, in_fraction: bool) {
        if self.digits < DIGITS_FULL {
            self.digits = self.digits * 10 + u128::from(digit);
            self.scale = self.scale.saturating_sub(i32::from(in_fraction));
        } else {
            self.left_out |= digit != 0;
            self.scale = self.scale.saturating_add(i32::from(!in_fraction));
        }
    }

    /// True if the number may end here.
    pub(super) fn is_whole(&self) -> bool {
        use NumberStep::*;
        matches!(self.step, Zero | Integer | Fraction | Exponent)
    }

    /// The value in millionths, rounded up. `None`: it is negative or larger than the largest `u64`.
    pub(super) fn millionths(&self) -> Option<u128> {
        if self.digits == 0 {
            return Some(0);
        }
        if self.negative {
            return None;
        }
        let exponent = if self.exponent_negative { -self.exponent } else { self.exponent };
        let power = self.scale.saturating_add(exponent).saturating_add(6);
        let shift = 10u128.checked_pow(power.unsigned_abs());
        let value = match shift {
            // The number is less than a millionth, or beyond all bounds.
            None => (power < 0).then_some(1)?,
            Some(shift) if power < 0 => {
                let is_between = self.left_out || !self.digits.is_multiple_of(shift);
                self.digits / shift + u128::from(is_between)
            }
            Some(shift) => self.digits.checked_mul(shift)?,
        };
        Some(value).filter(|value| *value <= NUMBER_MAX)
    }
}

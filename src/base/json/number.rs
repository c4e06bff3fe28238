//! A number of a JSON document, read digit by digit.

use std::cmp::Ordering;

/// Millionths in a whole.
const WHOLE: u128 = 1_000_000;
const NUMBER_MAX: u128 = u64::MAX as u128 * WHOLE;
/// Digits are kept until there are this many; it is far more than the largest number has in millionths.
const DIGITS_FULL: u128 = 10u128.pow(37);
/// The digits of the least number that a double rounds to infinity, 2^1024 - 2^970; the first stands for 10^308.
pub(super) const BEYOND_DOUBLE: &[u8; 309] = b"\
    1797693134862315807937289714053034150799341327100378269361737789804449682927647509466490179775872070\
    9633028641669288791094655554785194040263065748867150582068190890200070838367627385484581771153176447\
    5730270069855571366959622842914819860834936475292719074168444365510704342711559699508093042880177904\
    174497792";

/// A number while its digits come.
#[derive(Debug, Clone, Copy)]
pub(super) struct NumberScan {
    step: NumberStep,
    negative: bool,
    /// The value is `digits` × 10^`scale` × 10^exponent, and a little more if digits were left out.
    digits: u128,
    scale: i32,
    left_out: bool,
    exponent: i32,
    exponent_negative: bool,
    double: DoubleRange,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NumberStep {
    Sign,
    Zero,
    Integer,
    Point,
    Fraction,
    ExponentMark,
    ExponentSign,
    Exponent,
}

/// The size of the number beside [`BEYOND_DOUBLE`]: `serde_json` refuses what a double cannot hold.
#[derive(Debug, Clone, Copy)]
struct DoubleRange {
    /// Digits from the first that is not zero.
    length: usize,
    /// The power of ten that the first of them stands for, without the exponent.
    power: i32,
    /// How these digits compare with as many of the other number.
    order: Ordering,
}

/// How a number stands behind the bytes that were pushed.
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
        let mut number = NumberScan {
            step: NumberStep::Sign,
            negative: first == b'-',
            digits: 0,
            scale: 0,
            left_out: false,
            exponent: 0,
            exponent_negative: false,
            double: DoubleRange { length: 0, power: 0, order: Ordering::Equal },
        };
        if !number.negative {
            number.push(&[first]);
        }
        number
    }

    /// Takes the bytes of the number and says how many they are.
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
                Exponent => self.push_exponent(byte - b'0'),
                ExponentSign => self.exponent_negative = byte == b'-',
                _ => {}
            }
        }
        (bytes.len(), NumberEnd::Open)
    }

    fn push_digit(&mut self, digit: u8, in_fraction: bool) {
        self.double.push_digit(digit, in_fraction);
        if self.digits < DIGITS_FULL {
            self.digits = self.digits * 10 + u128::from(digit);
            self.scale = self.scale.saturating_sub(i32::from(in_fraction));
        } else {
            self.left_out |= digit != 0;
            self.scale = self.scale.saturating_add(i32::from(!in_fraction));
        }
    }

    fn push_exponent(&mut self, digit: u8) {
        self.exponent = self.exponent.saturating_mul(10).saturating_add(i32::from(digit));
    }

    fn add_exponent(&self, scale: i32) -> i32 {
        let exponent = self.exponent;
        if self.exponent_negative { scale.saturating_sub(exponent) } else { scale.saturating_add(exponent) }
    }

    /// Whether the number may end here.
    pub(super) fn is_whole(&self) -> bool {
        use NumberStep::*;
        matches!(self.step, Zero | Integer | Fraction | Exponent) && self.is_in_range()
    }

    fn is_in_range(&self) -> bool {
        let power = self.add_exponent(self.double.power);
        match power.cmp(&308) {
            Ordering::Equal => {
                self.double.order.is_lt()
                    || self.double.length < BEYOND_DOUBLE.len() && self.double.order.is_eq()
            }
            order => self.double.length == 0 || order.is_lt(),
        }
    }

    /// The value in millionths, rounded up. `None`: it is negative or larger than the largest `u64`.
    pub(super) fn millionths(&self) -> Option<u128> {
        if self.digits == 0 {
            return Some(0);
        }
        if self.negative {
            return None;
        }
        let power = self.add_exponent(self.scale).saturating_add(6);
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

// === impl DoubleRange ===

impl DoubleRange {
    fn push_digit(&mut self, digit: u8, in_fraction: bool) {
        let is_first = self.length == 0;
        if is_first && digit == 0 {
            self.power = self.power.saturating_sub(i32::from(in_fraction));
            return;
        }
        match in_fraction {
            true if is_first => self.power = self.power.saturating_sub(1),
            false if !is_first => self.power = self.power.saturating_add(1),
            _ => {}
        }
        let other = BEYOND_DOUBLE.get(self.length);
        self.order = self.order.then(other.map_or(Ordering::Equal, |other| (digit + b'0').cmp(other)));
        self.length = self.length.saturating_add(1);
    }
}

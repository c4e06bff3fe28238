//! Fractions in lowest terms.

/// Both numbers divided by their greatest common divisor.
pub fn reduce_fraction(numerator: u64, denominator: u64) -> (u64, u64) {
    let divisor = greatest_divisor(numerator, denominator).max(1);
    (numerator / divisor, denominator / divisor)
}

/// The greatest common divisor, by Euclid's algorithm; 0 of two zeros.
pub fn greatest_divisor(one: u64, other: u64) -> u64 {
    let (mut divisor, mut rest) = (one, other);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    divisor
}

//! Fractions in lowest terms.

/// Both numbers divided by their greatest common divisor (Euclid's algorithm).
pub fn reduce_fraction(numerator: u64, denominator: u64) -> (u64, u64) {
    let (mut divisor, mut rest) = (numerator, denominator);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    let divisor = divisor.max(1);
    (numerator / divisor, denominator / divisor)
}

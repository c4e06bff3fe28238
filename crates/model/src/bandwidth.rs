//! The typed model of `bandwidth`.

use std::time::Duration;

use super::key::KeyPart;
use crate::value::scalars::Rate;

/// The pace of response bodies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BandwidthConfig {
    /// The units are bytes.
    pub rate: Rate,
    /// Bytes that an idle bucket passes at once; the minimum is those of 10 ms.
    pub burst: u64,
    /// A missing part falls back to the client's address.
    pub key: Vec<KeyPart>,
}

impl BandwidthConfig {
    /// Whole bytes that leave within `span`.
    pub fn bytes_within(&self, span: Duration) -> u64 {
        let bytes = u128::from(self.rate.units.get()).saturating_mul(span.as_nanos())
            / self.rate.period.as_nanos().max(1);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

//! A recommendation: for programs as JSON, for people as text.

use std::fmt;

use serde::Serialize;

use crate::operate::text_table::{self, show_count};

/// Keys that are left out to tell how much they weigh, where at least ten times as many are known.
pub(super) const HEAVIEST_KEYS: usize = 5;

/// The recommended limits for a key.
#[derive(Debug, Clone, Serialize)]
pub struct Recommendation {
    /// The key, as `gateway.yaml` writes it.
    pub key: String,
    /// "99.9%"
    pub spare: String,
    /// Keys that were told apart, at most a million.
    pub keys: u64,
    /// Keys that are spared: never rejected by any point of the curve.
    pub spared: u64,
    /// All requests of the log, those without the key included.
    pub requests: u64,
    /// The tried rates around the data, at least five of each period.
    pub curve: Vec<CurvePoint>,
    /// The point of the curve by which a client can send least in a minute.
    pub suggested: CurvePoint,
    /// The share of the key with most requests in those of all keys, from 0 to 1.
    pub heaviest_share: f64,
    /// The suggestion without the five keys with most requests; `None` = there are few keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_heaviest: Option<CurvePoint>,
    /// A client that sends ten times as much as the heaviest spared one, in the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ten_times: Option<HeavyClient>,
    /// The suggested limit as YAML.
    pub paste: String,
    /// The bounds of the result, a sentence each.
    pub notes: Vec<String>,
}

/// The smallest burst at a rate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CurvePoint {
    /// "10/s"
    pub rate: String,
    /// The smallest burst that rejects no request of a spared key.
    pub burst: u64,
    /// The rate in requests per second.
    #[serde(skip)]
    pub per_s: f64,
}

/// A client that sends far more than any spared one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeavyClient {
    /// Requests that the client sends.
    pub sends: u64,
    /// The most requests that get through the suggested limit.
    pub passes: u64,
    /// The time in which they are sent, in seconds.
    pub seconds: f64,
}

impl Recommendation {
    /// The weight of the heaviest keys, which the default spares with the others.
    pub fn describe_heaviest(&self) -> String {
        let without = self.without_heaviest.as_ref();
        let without =
            without.map(|CurvePoint { rate, burst, .. }| format!("{rate}, burst {}", show_count(*burst)));
        describe_heaviest(self.heaviest_share, without.as_deref())
    }
}

/// The weight of the heaviest keys; `without` = what is recommended without them.
pub(super) fn describe_heaviest(share: f64, without: Option<&str>) -> String {
    let without = without.map(|numbers| format!("; without the {HEAVIEST_KEYS} heaviest: {numbers}"));
    format!("one key makes {:.0} % of all requests{}", share * 100.0, without.unwrap_or_default())
}

impl fmt::Display for Recommendation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Recommendation { key, spare, keys, spared, requests, curve, suggested, .. } = self;
        let [requests, keys, spared] = [*requests, *keys, *spared].map(show_count);
        writeln!(f, "requests  {requests}, by {keys} keys ({key})")?;
        writeln!(f, "spared    {spared} keys, at least {spare}: none of their requests is rejected")?;
        writeln!(f, "heaviest  {}", self.describe_heaviest())?;
        let rows = curve.iter().map(|point| {
            let mark = if point.rate == suggested.rate { "suggested" } else { "" };
            [point.rate.clone(), show_count(point.burst), mark.to_owned()]
        });
        f.write_str(&text_table::render_table(["rate", "smallest burst", ""], rows, usize::MAX))?;
        if let Some(HeavyClient { sends, passes, seconds }) = self.ten_times {
            let [sends, passes] = [sends, passes].map(show_count);
            writeln!(
                f,
                "\na client ten times the heaviest spared one: {sends} requests in {seconds:.0} s, of which at most \
                 {passes} get through the suggested limit"
            )?;
        }
        writeln!(f, "\n{}", self.paste)?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

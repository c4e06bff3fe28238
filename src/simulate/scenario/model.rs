//! The typed model of a scenario file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use ipnet::IpNet;

use crate::operate::explain::Query;
use sluicegate_model::Config;

/// One checked scenario file with the configuration that it tests.
#[derive(Debug)]
pub struct ScenarioFile {
    /// The name as it was given.
    pub name: String,
    /// The path of the configuration under test.
    pub config_path: PathBuf,
    /// The configuration under test.
    pub config: Config,
    /// The start of each scenario, since 1970.
    pub start: Duration,
    /// The scenarios in the order of the file.
    pub scenarios: Vec<Scenario>,
}

/// Traffic, and the expected decisions of the gateway about it.
#[derive(Debug)]
pub struct Scenario {
    /// The name, which no other scenario of the file has.
    pub name: String,
    /// Counted from 1.
    pub line: usize,
    /// The steps in the order of time.
    pub steps: Vec<ScenarioStep>,
}

/// Equal requests of a scenario.
#[derive(Debug)]
pub struct ScenarioStep {
    /// Counted from 1.
    pub line: usize,
    /// Time since the start of the scenario.
    pub at: Duration,
    /// The number of requests, at least one.
    pub send: u64,
    /// Zero = all at once.
    pub every: Duration,
    /// The first of its requests.
    pub query: Query,
    /// Networks, at least one; each request comes from the next address.
    pub from: Vec<IpNet>,
    pub hold: Duration,
    pub answer: Arc<StepAnswer>,
    /// `None` = the auth service is not scripted, and admits every request.
    pub auth: Option<StepAnswer>,
    pub expect: StepExpectation,
}

/// The response of the scripted upstream.
#[derive(Debug, Default)]
pub struct StepAnswer {
    pub status: StatusCode,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: Bytes,
}

/// The expected outcome of the requests of a step; `None` = anything.
#[derive(Debug, Default)]
pub struct StepExpectation {
    pub admitted: Option<ExpectedRange>,
    pub rejected: Option<ExpectedRange>,
    pub waited: Option<ExpectedRange>,
    pub degraded: Option<ExpectedRange>,
    /// Limits, or causes of the access log; empty = anything.
    pub by: Vec<String>,
    /// Nanoseconds.
    pub retry_after: Option<ExpectedRange>,
    /// Nanoseconds.
    pub waited_max: Option<ExpectedRange>,
    pub status: Option<ExpectedStatus>,
    /// The step that the last request was told, or `none`.
    pub step: Option<&'static str>,
}

/// A range with both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpectedRange {
    pub least: u64,
    pub most: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExpectedStatus {
    /// The status of every rejected request, or of every request if none was rejected.
    Every(u16),
    /// The number of requests by status; no request got another one.
    Counts(Vec<(u16, ExpectedRange)>),
}

impl StepExpectation {
    pub fn is_empty(&self) -> bool {
        let ranges = [self.admitted, self.rejected, self.waited, self.degraded];
        ranges.iter().chain([&self.retry_after, &self.waited_max]).all(Option::is_none)
            && self.by.is_empty()
            && self.status.is_none()
            && self.step.is_none()
    }
}

impl ExpectedRange {
    pub fn contains(self, value: u64) -> bool {
        (self.least..=self.most).contains(&value)
    }

    /// True if a time fits when it is rounded up to milliseconds, as responses show it.
    pub fn contains_span(self, ns: u64) -> bool {
        self.least <= ns.div_ceil(1_000_000).saturating_mul(1_000_000) && ns <= self.most
    }
}

//! The requests of the steps, in the order in which they are sent.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Request, Response};
use ipnet::IpNet;

use super::model::{Scenario, ScenarioStep, StepAnswer};
use crate::operate::explain::ParsedQuery;
use sluicegate_base::clock::duration_ns;
use sluicegate_http::net::deadline::ListenerTerms;
use sluicegate_http::request::body::RequestBody;
use sluicegate_model::ListenConfig;
use sluicegate_proxy::gateway::auth::ScriptedService;
use sluicegate_proxy::service::pipeline::ArrivingConnection;

/// The requests of all steps by time; of the same moment, by step.
pub(super) struct StepSchedule<'s> {
    steps: &'s [ScenarioStep],
    /// The next request of each step: its moment, its step and its index.
    next: BinaryHeap<Reverse<(u64, usize, u64)>>,
}

/// A request to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ScheduledRequest {
    /// Time since the start of the scenario.
    pub at_ns: u64,
    pub step: usize,
    pub index: u64,
}

/// The common parts of all requests of a step.
pub(super) struct RequestTemplate {
    query: ParsedQuery,
    listener: Option<Arc<ListenerTerms>>,
    body: Bytes,
    from: Vec<IpNet>,
    service: Option<ScriptedService>,
}

// === impl StepSchedule ===

impl<'s> StepSchedule<'s> {
    pub(super) fn new(scenario: &'s Scenario) -> StepSchedule<'s> {
        let first = |(step, of): (usize, &ScenarioStep)| Reverse((duration_ns(of.at), step, 0));
        StepSchedule { steps: &scenario.steps, next: scenario.steps.iter().enumerate().map(first).collect() }
    }
}

impl Iterator for StepSchedule<'_> {
    type Item = ScheduledRequest;

    fn next(&mut self) -> Option<ScheduledRequest> {
        let mut first = self.next.peek_mut()?;
        let Reverse((at_ns, step, index)) = *first;
        let of = &self.steps[step];
        if index + 1 < of.send {
            *first = Reverse((at_ns + duration_ns(of.every), step, index + 1));
        } else {
            std::collections::binary_heap::PeekMut::pop(first);
        }
        Some(ScheduledRequest { at_ns, step, index })
    }
}

// === impl RequestTemplate ===

impl RequestTemplate {
    /// # Errors
    /// As [`ParsedQuery::parse_query`].
    pub(super) fn new(step: &ScenarioStep, listen: &[ListenConfig]) -> Result<RequestTemplate, String> {
        let mut query = ParsedQuery::parse_query(&step.query, listen)?;
        let body = Bytes::from(query.data.take().unwrap_or_default());
        if !body.is_empty() {
            query.headers.entry(CONTENT_LENGTH).or_insert(HeaderValue::from(body.len()));
        }
        let listener = query.listener.take().map(|name| {
            let terms = ListenerTerms::default();
            terms.set_name(Some(Arc::new(name)));
            Arc::new(terms)
        });
        let mut answer = step.auth.as_ref().map_or_else(Response::default, StepAnswer::to_response);
        *answer.headers_mut() = std::mem::take(&mut query.answer);
        let is_scripted = step.auth.is_some() || !answer.headers().is_empty();
        let service = is_scripted.then(|| ScriptedService(Arc::new(answer)));
        Ok(RequestTemplate { query, listener, body, from: step.from.clone(), service })
    }

    pub(super) fn make_request(&self, index: u64) -> (Request<RequestBody>, ArrivingConnection) {
        let mut request = Request::new(RequestBody::at_hand(self.body.clone()));
        *request.method_mut() = self.query.method.clone();
        *request.uri_mut() = self.query.uri.clone();
        *request.headers_mut() = self.query.headers.clone();
        if let Some(service) = &self.service {
            request.extensions_mut().insert(service.clone());
        }
        let peer = Some(self.address(index));
        (request, ArrivingConnection { peer, scheme: self.query.scheme, listener: self.listener.clone() })
    }

    /// The networks take turns, and in each of them the addresses.
    pub(super) fn address(&self, index: u64) -> IpAddr {
        let networks = self.from.len() as u64;
        let (turn, network) = (index / networks, &self.from[(index % networks) as usize]);
        let bits = network.max_prefix_len() - network.prefix_len();
        let offset = if bits >= 64 { turn } else { turn % (1 << bits) };
        match network.addr() {
            IpAddr::V4(first) => IpAddr::V4((u32::from(first) | offset as u32).into()),
            IpAddr::V6(first) => IpAddr::V6((u128::from(first) | u128::from(offset)).into()),
        }
    }
}

// === impl StepAnswer ===

impl StepAnswer {
    pub(super) fn to_response(&self) -> Response<Bytes> {
        let mut response = Response::new(self.body.clone());
        *response.status_mut() = self.status;
        for (name, value) in &self.headers {
            response.headers_mut().append(name.clone(), value.clone());
        }
        response
    }
}

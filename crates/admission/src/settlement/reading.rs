//! The parts of a response that the limits of a chain need, collected while it passes.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use smallvec::SmallVec;

use super::extensions::Extensions;
use sluicegate_base::json_pointer::JsonPointer;
use sluicegate_http::request::body::BodyOutcomeCell;
use sluicegate_http::request::headers::grpc;
use sluicegate_http::response::{LlmParts, LlmUsage, MeterPlan, ResponseMeter};
use sluicegate_model::{
    ChargeConfig, ChargedUnits, LimitConfig, LlmWeights, OverrunAction, Price, Pricing, RequestPrice,
    ResponseSet,
};

/// The parts of responses that the limits of a chain read; made once per chain.
pub struct ReadingPlan {
    headers: Vec<HeaderName>,
    /// The parts of bodies that are read; `None` = nothing.
    meter: Option<Arc<MeterPlan>>,
    cuts: bool,
}

/// The known facts of one response so far, and of the request before it.
pub struct ResponseReading {
    plan: Arc<ReadingPlan>,
    /// A server may have seen the request, or the gateway answered it itself.
    reached_server: Cell<bool>,
    /// `None`: no head, or a fault in its place.
    status: Option<StatusCode>,
    is_grpc: bool,
    grpc_code: Cell<Option<u8>>,
    /// Millionths, by [`ReadingPlan::headers`].
    header_numbers: RefCell<SmallVec<[Option<u64>; 1]>>,
    /// `None` before the head, and if nothing is read from bodies.
    meter: RefCell<Option<ResponseMeter>>,
    /// One for each list of prices in the chain.
    prices: Vec<RequestPrice>,
    /// `None` = the body was read whole, before it was judged, or there is none.
    request_body: Option<BodyOutcomeCell>,
    read_before: u64,
    /// The last byte was passed on.
    is_complete: bool,
    /// Nothing more will come.
    is_over: bool,
    /// Units that the limits have taken for it beyond the reservations.
    extensions: RefCell<Extensions>,
}

/// The tokens of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenCount {
    pub usage: LlmUsage,
    /// As far as the response says them.
    pub said: LlmUsage,
    /// The response says all of them.
    pub is_said: bool,
    /// The response is lost, cut or unclear, and the server may have used more than it tells.
    pub is_broken: bool,
}

/// Bytes of text that a token stands for, on average.
const BYTES_PER_TOKEN: u64 = 4;

// === impl ReadingPlan ===

impl ReadingPlan {
    /// The plan for a chain of these limits; `None`: none of them listens to responses.
    pub fn for_limits<'a>(limits: impl Iterator<Item = &'a LimitConfig>) -> Option<Arc<ReadingPlan>> {
        let charges: Vec<&ChargeConfig> = limits.filter_map(|limit| limit.charge.as_ref()).collect();
        let (mut headers, mut pointers, mut llm) = (Vec::new(), Vec::new(), LlmParts::Nothing);
        for units in charges.iter().flat_map(|charge| &charge.units) {
            match units {
                ChargedUnits::Header(name) => headers.push(name.clone()),
                ChargedUnits::Json(pointer) => pointers.push(pointer.clone()),
                ChargedUnits::Llm(_) => llm = llm.max(LlmParts::Usage),
                ChargedUnits::Money(_) => llm = LlmParts::UsageAndModel,
                ChargedUnits::Request | ChargedUnits::Bytes => {}
            }
        }
        let reads_body = llm != LlmParts::Nothing || !pointers.is_empty();
        let meter = reads_body.then(|| MeterPlan::new(llm, &pointers));
        let plan = ReadingPlan {
            headers,
            meter: meter.flatten().map(Arc::new),
            cuts: charges.iter().any(|charge| charge.over == OverrunAction::Cut),
        };
        (!charges.is_empty()).then(|| Arc::new(plan))
    }
}

// === impl ResponseReading ===

impl ResponseReading {
    /// The reading of a request with these prices before its response; `is_grpc` makes it look for a gRPC code.
    pub fn new(plan: Arc<ReadingPlan>, is_grpc: bool, prices: Vec<RequestPrice>) -> ResponseReading {
        ResponseReading {
            plan,
            reached_server: Cell::new(false),
            status: None,
            is_grpc,
            grpc_code: Cell::new(None),
            header_numbers: RefCell::default(),
            meter: RefCell::default(),
            prices,
            request_body: None,
            read_before: 0,
            is_complete: false,
            is_over: false,
            extensions: RefCell::default(),
        }
    }

    /// Takes the extensions out, which are put back or settled.
    pub(crate) fn take_extensions(&self) -> Extensions {
        self.extensions.take()
    }

    pub(crate) fn keep_extensions(&self, extensions: Extensions) {
        self.extensions.replace(extensions);
    }

    /// True if bodies are read, so that servers must not compress them.
    pub fn reads_body(&self) -> bool {
        self.plan.meter.is_some()
    }

    /// True if a response may be cut when nothing is left.
    pub fn may_cut(&self) -> bool {
        self.plan.cuts
    }

    /// Keeps the counter of the request's bytes; `read_before` of them were read to judge it.
    pub fn watch_request(&mut self, body: Option<BodyOutcomeCell>, read_before: u64) {
        (self.request_body, self.read_before) = (body, read_before);
    }

    /// Begins an attempt: from now on a server may have seen the request. Returns whether one may have before.
    pub fn begin_attempt(&self) -> bool {
        self.header_numbers.borrow_mut().clear();
        self.meter.replace(None);
        self.grpc_code.set(None);
        self.reached_server.replace(true)
    }

    /// The server certainly saw nothing of the attempt; `before` as of [`ResponseReading::begin_attempt`].
    pub fn cancel_attempt(&self, before: bool) {
        self.reached_server.set(before);
    }

    pub(crate) fn reached_server(&self) -> bool {
        self.reached_server.get()
    }

    /// Reads the head of a response as the server sent it. Another attempt may follow.
    pub fn read_head(&self, headers: &HeaderMap) {
        let numbers = self.plan.headers.iter().map(|name| single_number(headers, name));
        *self.header_numbers.borrow_mut() = numbers.collect();
        let begin_meter = |plan: &Arc<MeterPlan>| {
            ResponseMeter::new(plan.clone(), headers.get(CONTENT_TYPE), headers.get(CONTENT_ENCODING))
        };
        self.meter.replace(self.plan.meter.as_ref().map(begin_meter));
        self.read_grpc_code(headers);
    }

    /// Sets the status of the final response, of a server or of the gateway itself.
    pub fn set_status(&mut self, status: StatusCode) {
        self.reached_server.set(true);
        self.status = Some(status);
    }

    /// Reads a piece of the body that is passed on.
    pub fn read_data(&mut self, data: &[u8]) {
        if let Some(meter) = self.meter.get_mut() {
            meter.scan(data);
        }
    }

    /// The whole response was passed on.
    pub fn mark_complete(&mut self) {
        (self.is_complete, self.is_over) = (true, true);
    }

    /// The response is over, whole or not.
    pub fn mark_over(&mut self) {
        self.is_over = true;
    }

    /// True if nothing that follows the head changes the cost of the response.
    pub fn head_decides(&self, charge: &ChargeConfig) -> bool {
        let needs_code = |set: &ResponseSet| !set.grpc_codes.is_empty();
        let awaits_code = self.lacks_grpc_code()
            && (needs_code(&charge.clear) || charge.when.as_ref().is_some_and(needs_code));
        let is_in_head =
            |units: &ChargedUnits| matches!(units, ChargedUnits::Request | ChargedUnits::Header(_));
        !awaits_code && charge.units.iter().all(is_in_head)
    }

    /// Reads the gRPC code, which the trailers may have, or the head.
    pub fn read_grpc_code(&self, headers: &HeaderMap) {
        if self.is_grpc
            && let Some(code) = grpc::response_code(headers)
        {
            self.grpc_code.set(Some(code));
        }
    }

    /// The final status; `None` if the client left before it, or a fault came in its place.
    pub fn status(&self) -> Option<StatusCode> {
        self.status
    }

    pub(crate) fn grpc_code(&self) -> Option<u8> {
        self.grpc_code.get()
    }

    /// True if the call ended before its code was known.
    pub fn lacks_grpc_code(&self) -> bool {
        self.is_grpc && self.grpc_code.get().is_none()
    }

    /// The number in a header, in millionths.
    pub(super) fn header_number(&self, name: &HeaderName) -> Option<u64> {
        let index = self.plan.headers.iter().position(|other| other == name)?;
        *self.header_numbers.borrow().get(index)?
    }

    /// The number in the JSON of the body, in millionths.
    pub(super) fn json_number(&self, pointer: &JsonPointer) -> Option<u128> {
        let index = self.plan.meter.as_ref()?.find_pointer(pointer)?;
        self.meter.borrow().as_ref()?.read_number(index)
    }

    /// The price by the model of the response, or else of the request; `None` = the request was not judged by these
    /// prices.
    pub(super) fn find_price(&self, pricing: &Arc<Pricing>) -> Option<Price> {
        let price = self.prices.iter().find(|price| price.is_by(pricing))?;
        Some(price.of_response(self.meter.borrow().as_ref().and_then(ResponseMeter::read_model)))
    }

    /// The tokens of the request and of the delivered body: as the response says, and estimated where it does not.
    pub(super) fn count_tokens(&self) -> TokenCount {
        let reading = self.meter.borrow().as_ref().map(ResponseMeter::read).unwrap_or_default();
        let said = reading.usage;
        let request_bytes = self.request_body.as_ref().map_or(self.read_before, |body| body.bytes_read());
        // Errors, and answers to no prompt, as lists of models, are written by no model.
        let is_prompted = !self.is_error() && request_bytes > 0;
        let is_written = is_prompted || !self.is_error() && !reading.is_document;
        let unsaid_text = match said.output {
            Some(_) if self.is_complete => 0,
            Some(_) => reading.text_bytes_after_usage,
            None if is_written => reading.text_bytes.saturating_add(reading.unread_bytes),
            None => reading.text_bytes,
        };
        let is_ended = self.is_complete || reading.is_final;
        let is_said = is_ended && said.input.is_some() && said.output.is_some() && unsaid_text == 0;
        let output = said.output.unwrap_or(0).saturating_add(unsaid_text.div_ceil(BYTES_PER_TOKEN));
        let input = said.input.unwrap_or_else(|| request_bytes.div_ceil(BYTES_PER_TOKEN));
        TokenCount {
            usage: LlmUsage { input: Some(input), output: Some(output), ..said },
            said,
            is_said,
            is_broken: !is_said && self.is_broken(is_prompted && reading.is_unclear),
        }
    }

    /// True if the server had a request to begin with, and its response does not tell the used units.
    fn is_broken(&self, is_unclear: bool) -> bool {
        let has_begun = |body: &BodyOutcomeCell| body.ended_at().is_some() || body.bytes_read() > 0;
        let is_sent = self.request_body.as_ref().is_none_or(has_begun);
        // The gateway's own responses have no meter.
        let is_answered = self.status.is_some() && self.meter.borrow().is_none();
        let is_timeout = self.status == Some(StatusCode::GATEWAY_TIMEOUT);
        let is_lost = self.status.is_none() || !self.is_complete || is_timeout;
        self.is_over && is_sent && !is_answered && (is_lost || is_unclear)
    }

    fn is_error(&self) -> bool {
        self.status.is_some_and(|status| status.is_client_error() || status.is_server_error())
    }
}

/// The number of a header that occurs once, in millionths.
fn single_number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => parse_millionths(value),
        _ => None,
    }
}

/// A decimal number without a sign or an exponent, in millionths, rounded up.
fn parse_millionths(value: &HeaderValue) -> Option<u64> {
    let text = value.to_str().ok()?.trim();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    if whole.is_empty() || !is_digits(whole) || !is_digits(fraction) || text.ends_with('.') {
        return None;
    }
    let kept = &fraction[..fraction.len().min(6)];
    let exact: u64 = format!("{kept:0<6}").parse().ok()?;
    let rounds_up = fraction[kept.len()..].bytes().any(|digit| digit != b'0');
    let whole: u64 = whole.parse().ok()?;
    whole.checked_mul(LlmWeights::ONE)?.checked_add(exact)?.checked_add(rounds_up.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &'static str) -> Option<u64> {
        parse_millionths(&HeaderValue::from_static(text))
    }

    #[test]
    fn numbers_in_headers_are_decimals() {
        for (text, number) in [
            ("0", 0),
            ("7", 7_000_000),
            (" 12.5 ", 12_500_000),
            ("0.000001", 1),
            ("0.0000001", 1),
            ("1.0000000", 1_000_000),
            ("18446744073709", 18_446_744_073_709_000_000),
        ] {
            assert_eq!(parsed(text), Some(number), "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_numbers() {
        for text in ["", "-1", "+1", "1e3", "1.", ".5", "0x1", "1,5", "1 2", "NaN", "18446744073710", "1.-1"]
        {
            assert_eq!(parsed(text), None, "{text}");
        }
    }
}

//! The bodies that clients of other APIs read: of OpenAI, of Anthropic and of JSON-RPC.

use http::StatusCode;

use super::prepared_response::{ResponseContent, RetryHint};
use super::template::{CompiledTemplate, Escape, RareValue, TemplateBuilder};
use sluicegate_model::TemplateVar;

/// The code of a request that is refused whenever it comes, and of a fault of the gateway (JSON-RPC 2.0).
const INVALID_REQUEST: i32 = -32600;
const INTERNAL_ERROR: i32 = -32603;

impl ResponseContent {
    /// The error object of OpenAI.
    pub(super) fn openai_body(&self) -> CompiledTemplate {
        let (kind, code) = match self.status {
            StatusCode::TOO_MANY_REQUESTS => ("requests", "\"rate_limit_exceeded\""),
            StatusCode::UNAUTHORIZED => ("invalid_request_error", "\"invalid_api_key\""),
            status if status.is_server_error() => ("server_error", "\"server_error\""),
            _ => ("invalid_request_error", "null"),
        };
        let behind = format!("\",\"type\":\"{kind}\",\"param\":null,\"code\":{code}}}}}");
        self.enclose_message("{\"error\":{\"message\":\"", &behind).finish()
    }

    /// The error object of Anthropic.
    pub(super) fn anthropic_body(&self) -> CompiledTemplate {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        let before = format!("{{\"type\":\"error\",\"error\":{{\"type\":\"{kind}\",\"message\":\"");
        let mut out = self.enclose_message(&before, "\"},\"request_id\":\"");
        out.push_slot(TemplateVar::RequestId);
        out.push_verbatim("\"}");
        out.finish()
    }

    /// The error response of JSON-RPC; `code` is that of rejections after which a wait helps.
    pub(super) fn rpc_body(&self, code: i32) -> CompiledTemplate {
        let helps_wait = self.retry_hint != RetryHint::Never;
        let code = match self.rpc_code {
            Some(own) => own,
            None if helps_wait => code,
            None if self.status.is_server_error() => INTERNAL_ERROR,
            None => INVALID_REQUEST,
        };
        let mut out = TemplateBuilder::new(Escape::Json);
        out.push_verbatim("{\"jsonrpc\":\"2.0\",\"id\":");
        out.push_rare(RareValue::RpcId);
        out.push_verbatim(&format!(",\"error\":{{\"code\":{code},\"message\":\""));
        out.push_parts(&self.message);
        out.push_verbatim("\"");
        if helps_wait {
            out.push_verbatim(",\"data\":{\"retry_after_ms\":");
            out.push_slot(TemplateVar::RetryAfterMs);
            out.push_verbatim("}");
        }
        out.push_verbatim("}}");
        out.finish()
    }
}

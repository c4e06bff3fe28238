//! The responses in the place of upstreams that want no requests now, each prepared when it is needed first.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use parking_lot::RwLock;

use super::RejectContext;
use super::location_responses::try_again_text;
use super::prepared_response::{NO_KIND, PreparedResponse, ResponseContent, RetryHint, SectionStyle};
use super::rejection::StopRejection;
use super::template::TemplatePart;
use sluicegate_model::{Config, OnReject, OnRejectPatch, UpstreamId};

/// The responses of one location; at most one for each upstream and each status from 400 to 599.
pub(super) struct StopResponses {
    on_reject: OnReject,
    /// The names of all upstreams.
    upstreams: Box<[String]>,
    prepared: RwLock<HashMap<(UpstreamId, StatusCode), Arc<PreparedResponse>>>,
}

impl StopResponses {
    /// `None` if no upstream is obeyed.
    pub(super) fn new(config: &Config, patch: &OnRejectPatch) -> Option<StopResponses> {
        config.upstreams.iter().any(|upstream| upstream.obey.is_some()).then(|| StopResponses {
            on_reject: config.on_reject.merge_patch(patch),
            upstreams: config.upstreams.iter().map(|upstream| upstream.name.clone()).collect(),
            prepared: RwLock::default(),
        })
    }

    pub(super) fn render_response(
        &self,
        stop: &StopRejection,
        context: &RejectContext<'_>,
        grpc: bool,
    ) -> Response<Bytes> {
        let key = (stop.upstream, stop.status);
        let known = self.prepared.read().get(&key).cloned();
        let response = known.unwrap_or_else(|| {
            let response = Arc::new(self.prepare_response(stop));
            self.prepared.write().insert(key, response.clone());
            response
        });
        response.render_response(context, Some(stop.retry_after_ns), grpc)
    }

    fn prepare_response(&self, stop: &StopRejection) -> PreparedResponse {
        let name = self.upstreams.get(stop.upstream.0).map_or("", String::as_str);
        let mut message = vec![TemplatePart::Text(format!("Upstream {name} takes no requests now"))];
        message.extend(try_again_text());
        let is_rate = stop.status == StatusCode::TOO_MANY_REQUESTS;
        PreparedResponse::new(
            &SectionStyle::new(&self.on_reject),
            &ResponseContent {
                status: self.on_reject.status.unwrap_or(stop.status),
                kind: NO_KIND,
                detail: format!("upstream {name} takes no requests now"),
                message,
                limit: None,
                retry_hint: RetryHint::Exact,
                grpc_status: if is_rate { "8" } else { "14" },
                challenge: None,
            },
        )
    }
}

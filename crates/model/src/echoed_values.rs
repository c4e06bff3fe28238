//! The values of a request's body that responses of the gateway contain.

use super::reject::{Degrade, OnReject, RejectBody};
use super::template::{TemplateConfig, TemplatePiece};
use super::{ActionConfig, Config, LocationConfig};
use sluicegate_base::json_pointer::JsonPointer;

/// A value of a request's body that a response of the gateway contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EchoedValue {
    /// The `id` of a JSON-RPC message.
    RpcId,
    /// The value at this place.
    At(JsonPointer),
}

impl Config {
    /// The values of bodies in the responses of a location, or in those to requests without one.
    pub fn echoed_values(&self, location: Option<&LocationConfig>) -> Vec<EchoedValue> {
        let own = location.map_or(&[][..], |location| &location.limits);
        let patch = location.map(|location| location.on_reject.clone()).unwrap_or_default();
        let mut echoed = Vec::new();
        self.on_reject.merge_patch(&patch).add_echoed(&mut echoed);
        for &limit in self.server.limits.iter().chain(own) {
            self.on_reject_at(&self.limits[limit], Some(&patch)).add_echoed(&mut echoed);
        }
        if let Some(ActionConfig::Respond { body, .. }) = location.map(|location| &location.action) {
            body.add_echoed(&mut echoed);
        }
        echoed
    }
}

impl OnReject {
    fn add_echoed(&self, echoed: &mut Vec<EchoedValue>) {
        match &self.body {
            RejectBody::JsonRpc { .. } => echoed.push(EchoedValue::RpcId),
            RejectBody::Template { template, .. } => template.add_echoed(echoed),
            _ => {}
        }
        if let Some(Degrade::Canned(canned)) = &self.degrade {
            canned.body.add_echoed(echoed);
        }
    }
}

impl TemplateConfig {
    fn add_echoed(&self, echoed: &mut Vec<EchoedValue>) {
        echoed.extend(self.0.iter().filter_map(|piece| match piece {
            TemplatePiece::JsonValue(pointer) => Some(EchoedValue::At(pointer.clone())),
            _ => None,
        }));
    }
}

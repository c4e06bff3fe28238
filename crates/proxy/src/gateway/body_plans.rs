//! Finds out which parts of the bodies of a location's requests are read.

use std::sync::Arc;

use sluicegate_http::request::source::BodyPlan;
use sluicegate_model::{BODY_PEEK_AUTO, BandwidthConfig, BodyUse, Config, LimitConfig, LocationConfig};

/// The plan for the requests of a location, or for those without one; `None` = nothing is read.
pub fn build_body_plan(config: &Config, location: Option<&LocationConfig>) -> Option<Arc<BodyPlan>> {
    let own = location.map_or(&[][..], |location| &location.limits);
    let limits = || config.server.limits.iter().chain(own).map(|&limit| &config.limits[limit]);
    let bandwidth = location.and_then(|location| location.bandwidth.as_ref());
    let of_caller = || config.account.body_pointers();
    let of_bandwidth = || bandwidth.into_iter().flat_map(BandwidthConfig::body_pointers);
    let claims = || limits().filter_map(LimitConfig::body_reserve);
    let must_fit = of_caller().chain(of_bandwidth()).next().is_some();
    if !must_fit && limits().all(|limit| limit.body_use() == BodyUse::Unused) {
        return None;
    }
    let peek_bytes = location.map_or(BODY_PEEK_AUTO, LocationConfig::body_peek_bytes);
    let mut plan = BodyPlan::new(peek_bytes, must_fit, of_caller().next().is_some());
    let of_limits = limits().flat_map(LimitConfig::body_pointers);
    let pointers = of_caller().chain(of_limits).chain(of_bandwidth());
    pointers.chain(claims().flat_map(|claim| &claim.from)).for_each(|pointer| plan.add_pointer(pointer));
    Some(Arc::new(plan))
}

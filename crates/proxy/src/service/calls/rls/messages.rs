//! The messages of Envoy's rate limit service (`envoy.service.ratelimit.v3`) and of `grpc.health.v1`. Fields that are
//! missing here are unknown to this service, and readers skip them.

use prost::{Enumeration, Message};

#[derive(Clone, PartialEq, Message)]
pub(in crate::service::calls) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// 0 = not set.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::service::calls) struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<DescriptorEntry>,
    /// Hits in place of those of the whole request.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<UInt64Value>,
    /// The hits are given back.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::service::calls) struct DescriptorEntry {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(in crate::service::calls) struct UInt64Value {
    #[prost(uint64, tag = "1")]
    pub value: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::service::calls) struct RateLimitResponse {
    #[prost(enumeration = "RlsCode", tag = "1")]
    pub overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderToAdd>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::service::calls) struct DescriptorStatus {
    #[prost(enumeration = "RlsCode", tag = "1")]
    pub code: i32,
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<CurrentLimit>,
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<ProtoDuration>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::service::calls) struct CurrentLimit {
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    #[prost(enumeration = "LimitUnit", tag = "2")]
    pub unit: i32,
    #[prost(string, tag = "3")]
    pub name: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(in crate::service::calls) struct ProtoDuration {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::service::calls) struct HeaderToAdd {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(in crate::service::calls) enum RlsCode {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(in crate::service::calls) enum LimitUnit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::service::calls) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub service: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(in crate::service::calls) struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(in crate::service::calls) enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

// === impl ProtoDuration ===

impl ProtoDuration {
    /// Rounded up to milliseconds.
    pub(super) fn from_ns(ns: u64) -> ProtoDuration {
        let ms = ns.div_ceil(1_000_000);
        // Cannot overflow: the quotients are far below the types.
        ProtoDuration { seconds: (ms / 1_000) as i64, nanos: (ms % 1_000 * 1_000_000) as i32 }
    }
}

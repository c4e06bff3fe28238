//! stand-in
use http::{HeaderMap, HeaderValue};
pub struct Via<'a> { pub peer: &'a HeaderValue, pub trusted: bool, pub proto: &'static str }
pub fn rewrite(h: &mut HeaderMap, v: &Via<'_>) { h.insert("x-forwarded-for", v.peer.clone()); }

//! stand-in
use std::net::IpAddr;
use http::{HeaderMap, Method};
use crate::config;
use crate::table::Key;
pub struct Keys;
pub struct KeySpec;
pub struct Subject<'a> { pub ip: IpAddr, pub account: Option<&'a [u8]>, pub path: &'a [u8], pub query: Option<&'a str>, pub location: usize, pub host: &'a str, pub method: &'a Method, pub headers: &'a HeaderMap }
pub enum KeyOutcome { Key(Key), Skip, Missing, Duplicate }
impl Keys { pub fn new() -> Self { Keys }
 pub fn key(&self, _s: &KeySpec, subject: &Subject<'_>) -> KeyOutcome { let id = match subject.ip { IpAddr::V4(v) => u128::from(u32::from(v)), IpAddr::V6(v) => u128::from(v) }; KeyOutcome::Key(Key { id: id.wrapping_mul(0x9e3779b97f4a7c15f39cc0605cedc835), prefix: 0 }) } }
impl KeySpec { pub fn compile(_: &config::Limit) -> Self { KeySpec } }

//! Closed-loop load.

use std::time::Duration;

use crate::child::{self, Result};
use crate::peers::Bench;

/// The results of one run of wrk.
pub struct Load {
    pub requests: u64,
    pub per_second: f64,
    pub not_2xx: u64,
    pub socket_errors: bool,
}

/// Sends as many requests as 64 connections can in `secs` seconds.
pub fn wrk(bench: &Bench, port: u16, secs: u64) -> Result<Load> {
    let (duration, url) = (format!("-d{secs}s"), format!("http://127.0.0.1:{port}/"));
    let limit = Duration::from_secs(secs + 20);
    let output = child::run(bench.load_core, &["wrk", "-t1", "-c64", &duration, &url], limit)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let behind = |mark: &str| text.lines().find_map(|line| line.trim().strip_prefix(mark)).map(str::trim);
    let requests = text
        .lines()
        .find_map(|line| line.trim().split_once(" requests in "))
        .and_then(|(count, _)| count.parse().ok());
    let (Some(requests), Some(per_second)) = (requests, behind("Requests/sec:")) else {
        return Err(format!("wrk: {text}{}", String::from_utf8_lossy(&output.stderr)).into());
    };
    Ok(Load {
        requests,
        per_second: per_second.parse()?,
        not_2xx: behind("Non-2xx or 3xx responses:").map_or(Ok(0), str::parse)?,
        socket_errors: behind("Socket errors:").is_some(),
    })
}

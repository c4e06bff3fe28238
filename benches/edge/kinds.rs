//! The kinds of load, and the programs that generate them.

use std::time::Duration;

use crate::Bench;
use crate::child::{self, Result};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// HTTP/2 in clear: 16 connections with 10 streams each.
    H2c,
    /// HTTP/1.1 over TLS, 64 persistent connections.
    Tls,
    TlsH2,
    /// A full TLS handshake for each request.
    Handshake,
    /// A TCP connection for each request.
    Close,
    /// 1 MiB responses; nginx buffers as by default.
    Body,
    /// The same, with nginx's buffering off.
    Unbuffered,
}

/// The host of requests for large responses.
const LARGE: &str = "Host: large.test";

/// The result of one run.
pub struct Load {
    pub requests: u64,
    pub per_second: f64,
    pub failed: bool,
}

impl Kind {
    pub const ALL: [Self; 7] =
        [Self::H2c, Self::Tls, Self::TlsH2, Self::Handshake, Self::Close, Self::Body, Self::Unbuffered];

    pub fn name(self) -> &'static str {
        match self {
            Self::H2c => "h2c",
            Self::Tls => "tls",
            Self::TlsH2 => "tls-h2",
            Self::Handshake => "handshake",
            Self::Close => "close",
            Self::Body => "body",
            Self::Unbuffered => "unbuffered",
        }
    }

    /// The project's limit, as a multiple of nginx's CPU time.
    pub fn target(self) -> &'static str {
        match self {
            Self::H2c => "0.70",
            Self::Tls => "1.00",
            Self::TlsH2 => "0.85",
            Self::Handshake => "0.80",
            Self::Close => "1.15",
            Self::Body => "0.50",
            Self::Unbuffered => "0.90",
        }
    }

    pub fn is_tls(self) -> bool {
        matches!(self, Self::Tls | Self::TlsH2 | Self::Handshake)
    }

    /// Runs the load against `port` for `secs` seconds.
    pub fn load(self, bench: &Bench, port: u16, secs: u64) -> Result<Load> {
        let scheme = if self.is_tls() { "https" } else { "http" };
        let url = format!("{scheme}://127.0.0.1:{port}/");
        let seconds = secs.to_string();
        let wrk_time = format!("-d{secs}s");
        let close = "Connection: close";
        let h2load = |words: &[&str]| run_h2load(bench, words, &seconds, secs, &url);
        match self {
            Self::H2c | Self::TlsH2 => h2load(&["-c", "16", "-m", "10"]),
            Self::Tls => h2load(&["--h1", "-c", "64"]),
            Self::Handshake | Self::Close => {
                run_wrk(bench, &["-t1", "-c32", &wrk_time, "-H", close, &url], secs)
            }
            Self::Body | Self::Unbuffered => {
                run_wrk(bench, &["-t1", "-c16", &wrk_time, "-H", LARGE, &url], secs)
            }
        }
    }
}

fn run(bench: &Bench, argv: &[&str], secs: u64) -> Result<String> {
    let output = child::run(bench.load_core, argv, Duration::from_secs(secs + 20))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text + &String::from_utf8_lossy(&output.stderr))
}

fn run_wrk(bench: &Bench, words: &[&str], secs: u64) -> Result<Load> {
    let argv: Vec<&str> = ["wrk"].iter().chain(words).copied().collect();
    let text = run(bench, &argv, secs)?;
    let requests = text
        .lines()
        .find_map(|line| line.trim().split_once(" requests in "))
        .and_then(|(count, _)| count.parse::<u64>().ok());
    let requests = requests.ok_or_else(|| format!("wrk: {text}"))?;
    let failed = text.contains("Non-2xx") || text.contains("Socket errors");
    Ok(Load { requests, per_second: requests as f64 / secs as f64, failed })
}

fn run_h2load(bench: &Bench, words: &[&str], seconds: &str, secs: u64, url: &str) -> Result<Load> {
    let ends = ["-t1", "-D", seconds, url];
    let argv: Vec<&str> = ["h2load"].iter().chain(words).chain(&ends).copied().collect();
    let text = run(bench, &argv, secs)?;
    let behind = |mark: &str| text.lines().find_map(|line| line.strip_prefix(mark));
    let ok = behind("status codes: ").and_then(|rest| rest.split_once(" 2xx")?.0.trim().parse::<u64>().ok());
    let requests = ok.ok_or_else(|| format!("h2load: {text}"))?;
    let failed = !behind("requests: ").is_some_and(|rest| rest.contains(" 0 failed, 0 errored, 0 timeout"));
    Ok(Load { requests, per_second: requests as f64 / secs as f64, failed })
}

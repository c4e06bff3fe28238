//! The kinds of load, and the programs that generate them.

use std::time::Duration;

use crate::bench::Bench;
use crate::child::{self, Result};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// HTTP/1.1, 64 persistent connections, bodies of 128 bytes.
    Plain,
    /// The same with a limit per client address that always admits.
    Passing,
    /// A limit per client address that rejects nearly all.
    Rejecting,
    /// Bodies of 1 KiB.
    Small,
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

/// The result of one run.
pub struct Load {
    pub requests: u64,
    pub per_second: f64,
    /// Answers other than 2xx and 3xx.
    refused: u64,
    pub failed: bool,
}

impl Kind {
    /// What is measured of the client's side alone.
    pub const EDGE: [Self; 7] =
        [Self::H2c, Self::Tls, Self::TlsH2, Self::Handshake, Self::Close, Self::Body, Self::Unbuffered];
    /// What is measured beside all proxies.
    pub const PEERS: [Self; 8] = [
        Self::Plain,
        Self::Passing,
        Self::Rejecting,
        Self::H2c,
        Self::Tls,
        Self::TlsH2,
        Self::Small,
        Self::Body,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "none",
            Self::Passing => "pass",
            Self::Rejecting => "reject",
            Self::Small => "small",
            Self::H2c => "h2c",
            Self::Tls => "tls",
            Self::TlsH2 => "tls-h2",
            Self::Handshake => "handshake",
            Self::Close => "close",
            Self::Body => "body",
            Self::Unbuffered => "unbuffered",
        }
    }

    /// Its name in tables for readers.
    pub fn title(self) -> &'static str {
        match self {
            Self::Small => "1 KiB",
            Self::Body => "1 MiB",
            _ => self.name(),
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
            Self::Plain | Self::Passing | Self::Rejecting | Self::Small => "",
        }
    }

    /// The host of its requests. It chooses the backend and the limit of the gateway, which has no other way to tell
    /// its listeners apart.
    pub fn host(self) -> &'static str {
        match self {
            Self::Passing => "pass.test",
            Self::Rejecting => "reject.test",
            Self::Small => "small.test",
            Self::Body | Self::Unbuffered => "large.test",
            _ => "bench.test",
        }
    }

    pub fn is_tls(self) -> bool {
        matches!(self, Self::Tls | Self::TlsH2 | Self::Handshake)
    }

    /// Whether a client of HTTP/1.1 without TLS can ask its listener.
    pub fn is_probed(self) -> bool {
        !self.is_tls() && self != Self::H2c
    }

    /// Runs the load against `port` for `secs` seconds.
    pub fn load(self, bench: &Bench, port: u16, secs: u64) -> Result<Load> {
        let scheme = if self.is_tls() { "https" } else { "http" };
        let url = format!("{scheme}://127.0.0.1:{port}/");
        let seconds = secs.to_string();
        let wrk_time = format!("-d{secs}s");
        let close = "Connection: close";
        let host = format!("Host: {}", self.host());
        let h2load = |words: &[&str]| run_h2load(bench, words, &seconds, secs, &url);
        let wrk =
            |connections, field| run_wrk(bench, &["-t1", connections, &wrk_time, "-H", field, &url], secs);
        let load = match self {
            Self::H2c | Self::TlsH2 => h2load(&["-c", "16", "-m", "10"]),
            Self::Tls => h2load(&["--h1", "-c", "64"]),
            Self::Handshake | Self::Close => wrk("-c32", close),
            Self::Body | Self::Unbuffered => wrk("-c16", &host),
            Self::Plain | Self::Passing | Self::Rejecting | Self::Small => wrk("-c64", &host),
        }?;
        let expected =
            if self == Self::Rejecting { load.refused * 10 >= load.requests * 9 } else { load.refused == 0 };
        Ok(Load { failed: load.failed || !expected, ..load })
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
    let refused = text.lines().find_map(|line| line.trim().strip_prefix("Non-2xx or 3xx responses:"));
    let refused = refused.map_or(Ok(0), |count| count.trim().parse())?;
    let failed = text.contains("Socket errors");
    Ok(Load { requests, per_second: requests as f64 / secs as f64, refused, failed })
}

fn run_h2load(bench: &Bench, words: &[&str], seconds: &str, secs: u64, url: &str) -> Result<Load> {
    let ends = ["-t1", "-D", seconds, url];
    let argv: Vec<&str> = ["h2load"].iter().chain(words).chain(&ends).copied().collect();
    let text = run(bench, &argv, secs)?;
    let behind = |mark: &str| text.lines().find_map(|line| line.strip_prefix(mark));
    let ok = behind("status codes: ").and_then(|rest| rest.split_once(" 2xx")?.0.trim().parse::<u64>().ok());
    let requests = ok.ok_or_else(|| format!("h2load: {text}"))?;
    let failed = !behind("requests: ").is_some_and(|rest| rest.contains(" 0 failed, 0 errored, 0 timeout"));
    Ok(Load { requests, per_second: requests as f64 / secs as f64, refused: 0, failed })
}

//! The state of the running gateway, on one screen for people and complete for programs; and the result of a reload.

use std::fmt;
use std::time::Duration;

use super::changed_limits::LimitChanges;
use crate::operate::text_table::{or_dash, render_table};
use sluicegate_base::json_shape::json_object;
use sluicegate_config::values::Change;
use sluicegate_http::upstream::{QueueStatus, ServerStatus, UpstreamStatus};
use sluicegate_model::Problem;

/// The most rows of a table on the screen; JSON has all.
const ROWS_MAX: usize = 8;

json_object! {
    /// The state of the gateway. `Display` renders it for people.
    pub struct Status as "Status" {
        pub version: &'static str = "The version of the program.",
        pub pid: u32 = "The process.",
        pub file: Option<String> = "The file of the configuration.",
        pub uptime_s: u64 = "Seconds since the process began to serve.",
        pub generation: u64 = "The number of the configuration in force, counted from 1.",
        pub workers: usize = "Worker threads.",
        pub token: StatusToken = "The caller.",
        pub listening: Vec<String> = "The addresses of the listeners.",
        pub connections: usize = "Open client connections.",
        pub in_flight: u64 = "Requests in flight.",
        pub rejections: RejectionRate = "Rejections of all limits and bans.",
        pub bans: Option<StatusBans> = "Null without bans.",
        pub shared_limits: Vec<SharedTrouble> = "Shared limits that other gateways count differently.",
        pub redis: Option<RedisStatus> = "Null without Redis.",
        pub issuers: Vec<IssuerStatus> = "Issuers of tokens whose keys are fetched.",
        pub files: Vec<FileTrouble> = "Files of `account`, prices and certificates that are not as they should be.",
        pub snapshot: Option<SnapshotStatus> = "Null without a snapshot.",
        pub last_reload: Option<LastReload> = "Null before the first reload.",
        pub warnings: Vec<Problem> = "The warnings about the file in force, at most 100.",
        pub certificates: Vec<CertificateStatus> = "The files of certificates, the earliest end first.",
        pub acme: Vec<AcmeStatus> = "Certificates that the gateway orders.",
        pub history: HistoryStatus = "The history that `GET /history` shows.",
        pub paused: Vec<LimitChanges> = "The limits that operators have paused.",
        pub limits: Vec<StatusLimit> = "All limits; GET /limits has more about them.",
        pub upstreams: Vec<UpstreamStatus> = "All upstreams.",
    }

    /// The caller of the admin API.
    #[derive(Clone)]
    pub struct StatusToken as "StatusToken" {
        pub name: String = "The name of its token; `loopback` without tokens.",
        pub allow: &'static str = "Its rights." in ["all", "read", "numbers"],
    }

    /// A file of certificates.
    pub struct CertificateStatus as "Certificate" {
        pub usage: &'static str = "Its use." as "use" in ["listener", "client_ca", "upstream", "upstream_ca"],
        pub name: String = "The listener or the upstream.",
        pub file: String = "Its path.",
        pub expires_at: u64 = "The earliest end of a certificate in it, in seconds since 1970.",
        pub days_left: u64 = "Whole days until then; 0 for an expired one.",
        pub expired: bool = "Whether the end has passed.",
    }

    /// A certificate that the gateway orders.
    #[derive(Clone)]
    pub struct AcmeStatus as "StatusAcme" {
        pub domains: Vec<String> = "Its host names.",
        pub directory: String = "The directory of its authority.",
        pub file: String = "The file of the certificate.",
        pub issued: bool = "Whether there is one; until then clients get a self-signed one, or an older one.",
        pub next_order_at: u64 = "When it is ordered or renewed, in seconds since 1970; 0 for at once.",
        pub next_order_in_s: u64 = "Seconds until then.",
        pub error: Option<String> = "Why the last order failed; null after a success.",
    }

    /// The memory of the history.
    pub struct HistoryStatus as "HistoryStatus" {
        pub bytes: usize = "Bytes of memory, at most 16 MiB.",
    }

    /// The rejections of all limits and bans together.
    pub struct RejectionRate as "RejectionRate" {
        pub per_s: f64 = "Rejections per second.",
        pub over_s: f64 = "The seconds that the rate is of.",
    }

    /// The bans, and the requests that they reject.
    pub struct StatusBans as "StatusBans" {
        pub active: usize = "Clients that are banned.",
        pub rejected: u64 = "Requests rejected because of a ban, since the start.",
        pub rejected_per_s: f64 = "The same per second.",
    }

    /// A shared limit that other gateways count differently.
    pub struct SharedTrouble as "SharedTrouble" {
        pub limit: String = "The limit.",
        pub trouble: &'static str = "The difference.",
    }

    /// A file that is not as it should be.
    pub struct FileTrouble as "StatusFile" {
        pub file: String = "Its path.",
        pub trouble: String = "Why it was not read again, its first broken line, or why there is no new certificate.",
    }

    /// An issuer of tokens whose keys are fetched.
    pub struct IssuerStatus as "StatusIssuer" {
        pub issuer: String = "Its name, as in `iss`.",
        pub keys: usize = "Its usable keys; 0 while its tokens cannot be verified.",
        pub age_s: u64 = "Seconds since they were fetched; without keys, since they are needed.",
        pub error: Option<String> = "Why the last fetch failed.",
    }

    /// The snapshot of the counters.
    pub struct SnapshotStatus as "Snapshot" {
        pub file: String = "Its file.",
        pub error: Option<String> = "Why the last one was not written.",
    }

    /// The last reload and its result.
    #[derive(Debug, Clone)]
    pub struct LastReload as "LastReload" {
        pub at: u64 = "When, in seconds since 1970.",
        pub result: &'static str = "Its result." in ["ok", "failed"],
        pub told: String = "The changes, or the reason.",
        pub problems: Vec<Problem> = "The problems of an invalid file, at most 100.",
    }

    /// A limit and its rejections.
    pub struct StatusLimit as "StatusLimit" {
        pub limit: String = "Its name.",
        pub keys: Option<usize> = "Keys with counters; null if only the store knows them.",
        pub rejected: u64 = "Rejections since the start.",
        pub rejected_per_s: f64 = "The same per second.",
        pub would_reject: u64 = "What a dry run or a limit that spares a key would have rejected.",
    }

    /// The store of this gateway at one moment.
    pub struct RedisStatus as "StatusRedis" {
        pub reachable: bool = "Whether every server answers.",
        pub unreachable_since_ms: Option<u64> = "Since when not, in milliseconds since 1970.",
        pub outages: u64 = "Outages since the start, with the present one.",
        pub last_outage: Option<Outage> = "The last one that is over.",
        pub gateways: u64 = "Gateways that use it, as last counted.",
        pub servers: Vec<RedisServer> = "Its servers.",
        pub nodes: Option<Vec<GatewayNode>> = "What those gateways report, by name; null while it does not answer.",
        /// The moment, in milliseconds since 1970.
        pub now_ms: u64,
    }

    /// A time in which the store did not answer.
    pub struct Outage as "Outage" {
        pub began_at_ms: u64 = "When it began, in milliseconds since 1970.",
        pub lasted_s: f64 = "Its length, in seconds.",
        /// The end, in milliseconds since 1970.
        pub ended_at_ms: u64,
    }

    /// A server of the store.
    pub struct RedisServer as "RedisServer" {
        pub server: String = "Its host and port.",
        pub role: Option<&'static str>
            = "`primary` in a Sentinel group or a Cluster, `home` if this region leases from it; else null."
            in ["primary", "home"],
        pub up: bool = "Whether calls are made to it.",
        pub breaker: &'static str
            = "Whether all, some or no calls are made to it." in ["closed", "recovering", "open"],
        pub calls: u64 = "Calls that were made to it.",
        pub mean_ms: Option<f64> = "Their mean time; null without calls.",
        pub evicts_by: Option<String> = "The policy by which it may drop counters; null if it drops none.",
    }

    /// One gateway that uses the store.
    pub struct GatewayNode as "Node" {
        pub name: String = "The name of its host.",
        pub version: String = "The version of its program.",
        pub file_hash: String
            = "The first 12 digits of the SHA-256 of its gateway.yaml in force, or a hash of that and the files that \
               it includes; empty without a file.",
        pub started_at_ms: u64 = "When it began to serve, in milliseconds since 1970.",
        pub own: bool = "Whether it is the gateway that answers.",
        pub file_differs: Option<bool>
            = "Whether its file differs from that of the gateway that answers; null without a file.",
    }

    /// The configuration in force after a reload.
    #[derive(Clone)]
    pub struct Reloaded as "Reloaded" {
        pub result: &'static str = "The file is in force." in ["ok"],
        pub generation: u64 = "The number of the configuration in force, counted from 1.",
        pub changes: String = "What is different from before.",
        pub values: Vec<Change> = "The values of the files that are different, at most 100.",
        pub more: usize = "Values beyond these.",
    }
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "reloaded: {}", self.changes)?;
        self.values.iter().try_for_each(|change| writeln!(f, "  {change}"))?;
        if self.more > 0 { writeln!(f, "  and {} more", self.more) } else { Ok(()) }
    }
}

impl AcmeStatus {
    /// What is wrong with the certificate, a phrase that follows the name of its file.
    pub fn trouble(&self) -> Option<String> {
        let state = match self.issued {
            true => "was not renewed",
            false => "is not there yet, and clients get a self-signed or an older one",
        };
        let next = humantime::format_duration(Duration::from_secs(self.next_order_in_s));
        match &self.error {
            Some(error) => Some(format!("{state}: {error}; the next order is in {next}")),
            None if self.issued => None,
            None => Some(format!("{state}: it is being ordered")),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Status { version, pid, uptime_s, generation, connections, in_flight, .. } = self;
        writeln!(f, "sluicegate {version}, process {pid}, up {uptime_s} s")?;
        let mut line = |name: &str, value: &dyn fmt::Display| writeln!(f, "{name:<12}{value}");
        line("file", &self.file.as_deref().unwrap_or("none"))?;
        line("generation", generation)?;
        line("listening", &self.listening.join(" "))?;
        line("connections", connections)?;
        line("in flight", in_flight)?;
        line("rejections", &format_args!("{:.1}/s", self.rejections.per_s))?;
        if let Some(StatusBans { active, rejected_per_s, .. }) = &self.bans {
            line("bans", &format_args!("{active} active, {rejected_per_s:.1} rejections/s"))?;
        }
        self.paused.iter().try_for_each(|paused| line("paused", &paused.sentence))?;
        for SharedTrouble { limit, trouble } in &self.shared_limits {
            line("limit", &format_args!("{limit}: {trouble}"))?;
        }
        for FileTrouble { file, trouble } in &self.files {
            line("file", &format_args!("{file} {trouble}"))?;
        }
        for IssuerStatus { issuer, keys, age_s, error } in &self.issuers {
            let suffix = error.as_ref().map(|why| format!("; the last fetch failed: {why}"));
            line(
                "issuer",
                &format_args!("{issuer}: {keys} keys, {age_s} s old{}", suffix.unwrap_or_default()),
            )?;
        }
        if let Some(SnapshotStatus { file, error }) = &self.snapshot {
            let suffix = error.as_ref().map(|why| format!(" cannot be written: {why}"));
            line("snapshot", &format_args!("{file}{}", suffix.unwrap_or_default()))?;
        }
        match &self.last_reload {
            None => line("last reload", &"none")?,
            Some(LastReload { result, told, .. }) => line("last reload", &format_args!("{result}: {told}"))?,
        }
        for CertificateStatus { usage, name, file, days_left, expired, .. } in
            self.certificates.iter().take(ROWS_MAX)
        {
            let (days, usage) = (if *days_left == 1 { "day" } else { "days" }, usage.replace('_', " "));
            let left = if *expired { "expired".to_owned() } else { format!("{days_left} {days} left") };
            line("certificate", &format_args!("{file} ({usage} {name}): {left}"))?;
        }
        for AcmeStatus { domains, next_order_in_s, .. } in
            self.acme.iter().filter(|one| one.trouble().is_none())
        {
            let next = humantime::format_duration(Duration::from_secs(*next_order_in_s));
            line("acme", &format_args!("{}: renewed in {next}", domains.join(", ")))?;
        }
        if let Some(redis) = &self.redis {
            line("redis", &redis.describe_outages())?;
        }
        for (upstream, QueueStatus { waiting, size, .. }) in fullest_queues(&self.upstreams) {
            line("queue", &format_args!("{upstream}: {waiting} of {size} wait"))?;
        }
        f.write_str(&upstreams_table(&self.upstreams))?;
        f.write_str(&limits_table(&self.limits))?;
        self.redis.as_ref().map_or(Ok(()), |redis| redis.write_tables(f))
    }
}

/// The queues in front of servers, the fullest first.
fn fullest_queues(upstreams: &[UpstreamStatus]) -> impl Iterator<Item = (&String, &QueueStatus)> {
    let mut queues: Vec<_> =
        upstreams.iter().filter_map(|one| Some((&one.upstream, one.queue.as_ref()?))).collect();
    queues.sort_by_key(|(_, queue)| std::cmp::Reverse(queue.waiting));
    queues.into_iter().take(ROWS_MAX)
}

/// Servers that are not up come first, so that they are always on the screen.
fn upstreams_table(upstreams: &[UpstreamStatus]) -> String {
    let all = upstreams.iter().flat_map(|one| one.servers.iter().map(move |server| (one, server)));
    let mut all: Vec<(&UpstreamStatus, &ServerStatus)> = all.collect();
    all.sort_by_key(|(_, server)| server.state == "up");
    let trouble = |server: &ServerStatus| match &server.last_error {
        Some(last) if server.state != "up" => format!("{}, {:.0} s ago", last.error, last.seconds_ago),
        _ => String::new(),
    };
    let rows = all.iter().map(|(upstream, server)| {
        let (name, in_flight) = (server.server.clone(), server.in_flight.to_string());
        let faults = server.responses.class_5xx.to_string();
        [upstream.upstream.clone(), name, server.state.to_owned(), in_flight, faults, trouble(server)]
    });
    render_table(["upstream", "server", "state", "in flight", "5xx", ""], rows, ROWS_MAX)
}

/// The limits that reject most come first.
fn limits_table(limits: &[StatusLimit]) -> String {
    let mut all: Vec<&StatusLimit> = limits.iter().collect();
    all.sort_by(|a, b| b.rejected_per_s.total_cmp(&a.rejected_per_s).then(b.rejected.cmp(&a.rejected)));
    let rows = all.iter().map(|one| {
        let (per_s, total) = (format!("{:.1}", one.rejected_per_s), one.rejected.to_string());
        [one.limit.clone(), or_dash(one.keys), per_s, total, one.would_reject.to_string()]
    });
    render_table(["limit", "keys", "rejections/s", "total", "would reject"], rows, ROWS_MAX)
}

impl RedisStatus {
    fn describe_outages(&self) -> String {
        let seconds_since = |ms: u64| self.now_ms.saturating_sub(ms) as f64 / 1_000.0;
        let state = match self.unreachable_since_ms {
            None => "reachable".to_owned(),
            Some(since) => format!("unreachable for {} s", seconds_since(since)),
        };
        let outages = match self.outages {
            1 => "1 outage".to_owned(),
            count => format!("{count} outages"),
        };
        let last = self.last_outage.as_ref().map(|last| {
            let ago = seconds_since(last.ended_at_ms);
            format!(", the last lasted {} s and ended {ago} s ago", last.lasted_s)
        });
        format!("{state}; {outages}{}", last.unwrap_or_default())
    }

    /// The servers and the gateways.
    fn write_tables(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = self.servers.iter().map(|server| {
            let state = if server.up { "up" } else { "down" };
            let mean = or_dash(server.mean_ms.map(|ms| format!("{ms:.2} ms")));
            let evicts = server.evicts_by.as_deref().unwrap_or("-");
            let (role, calls) = (server.role.unwrap_or("-"), server.calls.to_string());
            [server.server.as_str(), role, state, server.breaker, &calls, &mean, evicts].map(str::to_owned)
        });
        let header = ["redis server", "role", "state", "breaker", "calls", "mean time", "evicts by"];
        f.write_str(&render_table(header, servers, ROWS_MAX))?;
        let nodes = self.nodes.as_deref().unwrap_or_default().iter().map(|node| {
            let started = self.now_ms.saturating_sub(node.started_at_ms) / 1_000;
            let file = if node.file_hash.is_empty() { "-" } else { &node.file_hash };
            let note = match (node.own, node.file_differs) {
                (true, _) => "this one",
                (false, Some(true)) => "its file differs",
                _ => "",
            };
            [node.name.as_str(), &node.version, file, &format!("{started} s"), note].map(str::to_owned)
        });
        f.write_str(&render_table(["gateway", "version", "file", "up", ""], nodes, ROWS_MAX))
    }
}

//! `/status`: the state of the running gateway, on one screen for people and complete for programs.

use serde_json::{Value, json};

use super::control::ControlThread;
use super::gateway_tasks::GatewayTasks;
use super::store_status::StoreStatus;
use crate::operate::admin::AdminResponse;
use crate::operate::text_table::render_table;
use crate::operate::traffic::{LimitSizes, TrafficLook};
use sluicegate_base::clock::Now;
use sluicegate_http::upstream::{QueueStatus, ServerStatus, UpstreamStatus};
use sluicegate_proxy::gateway::{Gateway, REQUESTS_CLOSED, REQUESTS_OPENED};

/// Maximum number of servers and of limits on the screen; JSON has all.
const ROWS_MAX: usize = 8;

impl ControlThread {
    /// The state of the gateway, for people and programs.
    pub async fn render_status(&self) -> AdminResponse {
        let gateway = self.current.load_full();
        let store = self.read_store_status(&gateway).await;
        let now = Now::read_clock();
        let (look, sizes) = (self.traffic.look_at(&gateway, now), LimitSizes::read(&gateway));
        let shown = gateway.upstreams.iter().filter(|upstream| !upstream.is_demo());
        let upstreams: Vec<UpstreamStatus> = shown.map(|upstream| upstream.status_at(now)).collect();
        let (mut text, mut json) = self.describe_process(&gateway, &look, now);
        text.push_str(&store.as_ref().map(StoreStatus::summary_line).unwrap_or_default());
        text.push_str(&queue_lines(&upstreams));
        text.push_str(&upstreams_table(&upstreams));
        text.push_str(&limits_table(&gateway, &look, &sizes));
        text.push_str(&store.as_ref().map(StoreStatus::to_tables).unwrap_or_default());
        let limits = look.limits.iter().map(|found| {
            json!({
                "limit": *gateway.limits[found.limit.0].name,
                "keys": sizes.of_limit(found.limit).keys,
                "rejected": found.rejected.total,
                "rejected_per_s": found.rejected.per_s,
            })
        });
        json["limits"] = limits.collect();
        json["redis"] = store.as_ref().map(StoreStatus::to_json).unwrap_or_default();
        json["upstreams"] = serde_json::to_value(&upstreams).unwrap_or_default();
        AdminResponse::ok(text, json)
    }

    /// `None` = no limit is counted in Redis.
    async fn read_store_status(&self, gateway: &Gateway) -> Option<StoreStatus> {
        let store = gateway.store.as_ref()?;
        let reports = self.fleet.read_reports(store).await;
        Some(StoreStatus::read(store, reports.as_deref(), &self.file_hash.borrow(), Now::read_clock()))
    }

    fn describe_process(&self, gateway: &Gateway, look: &TrafficLook, now: Now) -> (String, Value) {
        let closed = gateway.load.request_counts.sum(REQUESTS_CLOSED);
        let in_flight = gateway.load.request_counts.sum(REQUESTS_OPENED).saturating_sub(closed);
        let last = self.history.last_attempt();
        let listening = self.listeners.borrow().display_addresses();
        let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
        let file = self.file.as_ref().map(|file| file.display().to_string());
        let shared_limits = conflicting_limits(gateway);
        let tasks = self.tasks.borrow();
        let snapshot = tasks.as_ref().and_then(GatewayTasks::snapshot_status);
        let snapshot = snapshot.map(|(path, failure)| (path.display().to_string(), failure));
        let active = gateway.active_bans(now);
        let active_bans = (gateway.bans.is_some() || active > 0).then_some(active);
        let json = json!({
            "version": version,
            "pid": pid,
            "file": file,
            "uptime_s": self.history.uptime_seconds(),
            "generation": self.history.generation(),
            "workers": self.workers.count(),
            "listening": listening,
            "connections": self.connection_limits.open_count(),
            "in_flight": in_flight,
            "rejections": { "per_s": look.rejections_per_second(), "over_s": look.over_seconds },
            "bans": active_bans.map(|active| json!({
                "active": active,
                "rejected": look.ban_rejections.total,
                "rejected_per_s": look.ban_rejections.per_s,
            })),
            "shared_limits": shared_limits.iter().map(|(limit, trouble)| json!({
                "limit": limit,
                "trouble": trouble,
            })).collect::<Vec<_>>(),
            "snapshot": snapshot.as_ref().map(|(path, failure)| json!({ "file": path, "error": failure })),
            "last_reload": last.as_ref().map(|last| json!({
                "at": last.at,
                "result": if last.ok { "ok" } else { "failed" },
                "told": last.message,
            })),
        });
        let mut text =
            format!("sluicegate {version}, process {pid}, up {} s\n", self.history.uptime_seconds());
        let mut line = |name: &str, value: String| text.push_str(&format!("{name:<12}{value}\n"));
        line("file", file.unwrap_or_else(|| "none".to_owned()));
        line("generation", self.history.generation().to_string());
        line("listening", listening.join(" "));
        line("connections", self.connection_limits.open_count().to_string());
        line("in flight", in_flight.to_string());
        line("rejections", format!("{:.1}/s", look.rejections_per_second()));
        if let Some(active) = active_bans {
            line("bans", format!("{active} active, {:.1} rejections/s", look.ban_rejections.per_s));
        }
        for (limit, trouble) in &shared_limits {
            line("limit", format!("{limit}: {trouble}"));
        }
        if let Some((path, failure)) = snapshot {
            let suffix = failure.map(|why| format!(" cannot be written: {why}"));
            line("snapshot", path + suffix.as_deref().unwrap_or_default());
        }
        line(
            "last reload",
            match last {
                None => "none".to_owned(),
                Some(last) if last.ok => format!("ok: {}", last.message),
                Some(last) => format!("failed: {}", last.message),
            },
        );
        (text, json)
    }
}

/// The queues in front of servers, the fullest first.
fn queue_lines(upstreams: &[UpstreamStatus]) -> String {
    let mut queues: Vec<_> =
        upstreams.iter().filter_map(|one| Some((&one.upstream, one.queue.as_ref()?))).collect();
    queues.sort_by_key(|(_, queue)| std::cmp::Reverse(queue.waiting));
    let line = |(upstream, queue): &(&String, &QueueStatus)| {
        format!("{:<12}{upstream}: {} of {} wait\n", "queue", queue.waiting, queue.size)
    };
    queues.iter().take(ROWS_MAX).map(line).collect()
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
        [upstream.upstream.clone(), name, server.state.to_owned(), in_flight, trouble(server)]
    });
    render_table(["upstream", "server", "state", "in flight", ""], rows, ROWS_MAX)
}

/// The limits that reject most come first.
fn limits_table(gateway: &Gateway, look: &TrafficLook, sizes: &LimitSizes<'_>) -> String {
    let mut all: Vec<_> = look.limits.iter().map(|found| (found.limit, found.rejected)).collect();
    all.sort_by(|(_, a), (_, b)| b.per_s.total_cmp(&a.per_s).then(b.total.cmp(&a.total)));
    let rows = all.iter().map(|(limit, rejected)| {
        let name = gateway.limits[limit.0].name.to_string();
        let keys = sizes.of_limit(*limit).keys.map_or_else(|| "-".to_owned(), |keys| keys.to_string());
        [name, keys, format!("{:.1}", rejected.per_s), rejected.total.to_string()]
    });
    render_table(["limit", "keys", "rejections/s", "total"], rows, ROWS_MAX)
}

/// Shared limits that other gateways count differently, and the difference.
fn conflicting_limits(gateway: &Gateway) -> Vec<(String, &'static str)> {
    let fleets = gateway.shared.iter().flatten().map(|limit| &limit.fleet);
    let conflicts = fleets.flat_map(|fleet| {
        let limit = || fleet.announcement.limit.clone();
        let differs = fleet.differs().then(|| (limit(), "its numbers differ from those of other gateways"));
        let collides = fleet
            .collides()
            .then(|| (limit(), "other gateways use this name for a limit with another key or algorithm"));
        differs.into_iter().chain(collides)
    });
    conflicts.collect()
}

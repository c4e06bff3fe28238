//! Reads the state of the running gateway for `/status`.

use std::path::Path;

use super::control_thread::ControlThread;
use super::gateway_tasks::{GatewayTasks, key_files, price_files};
use super::reload_history::PROBLEMS_MAX;
use crate::operate::admin::changed_limits::LimitChanges;
use crate::operate::admin::status::{
    AcmeStatus, CertificateStatus, FileTrouble, GatewayNode, HistoryStatus, IssuerStatus, Outage,
    RedisServer, RedisStatus, RejectionRate, SharedTrouble, SnapshotStatus, Status, StatusBans, StatusLimit,
    StatusToken,
};
use crate::operate::traffic::read_sizes;
use sluicegate_base::certificate::earliest_end;
use sluicegate_base::clock::Now;
use sluicegate_base::wall_clock::unix_seconds;
use sluicegate_http::request::source::{KeySet, KeySetStatus};
use sluicegate_model::{CertificateFile, Config};
use sluicegate_proxy::gateway::{Gateway, REQUESTS_CLOSED, REQUESTS_OPENED};
use sluicegate_store::node_reports::NodeReport;
use sluicegate_store::{BreakerState, StoreServerState};

impl ControlThread {
    pub(super) async fn read_status(&self, token: StatusToken) -> Status {
        let gateway = self.current.load_full();
        let redis = self.read_redis(&gateway).await;
        let now = Now::read_clock();
        let (look, size_of) = (self.traffic.look_at(&gateway, now), read_sizes(&gateway));
        let closed = gateway.load.request_counts.sum(REQUESTS_CLOSED);
        let tasks = self.tasks.borrow();
        let snapshot = tasks.as_ref().and_then(GatewayTasks::snapshot_status);
        let acme = tasks.as_ref().map(|tasks| tasks.acme.statuses()).unwrap_or_default();
        let active = gateway.active_bans(now);
        let limits = look.limits.iter().map(|found| StatusLimit {
            limit: gateway.limits[found.limit.0].name.to_string(),
            keys: size_of(found.limit).keys,
            rejected: found.rejected.total,
            rejected_per_s: found.rejected.per_s,
            would_reject: found.dry_run_rejected.total,
        });
        let shown = gateway.upstreams.iter().filter(|upstream| !upstream.is_demo());
        Status {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            file: self.file.as_ref().map(|file| file.display().to_string()),
            uptime_s: self.history.uptime_seconds(),
            generation: self.history.generation(),
            workers: self.workers.count(),
            token,
            listening: self.listeners.borrow().display_addresses(),
            connections: self.connection_limits.open_count(),
            in_flight: gateway.load.request_counts.sum(REQUESTS_OPENED).saturating_sub(closed),
            rejections: RejectionRate { per_s: look.rejections_per_second(), over_s: look.over_seconds },
            bans: (gateway.bans.is_some() || active > 0).then_some(StatusBans {
                active,
                rejected: look.ban_rejections.total,
                rejected_per_s: look.ban_rejections.per_s,
            }),
            shared_limits: conflicting_limits(&gateway),
            redis,
            issuers: gateway.key_sets().map(|set| describe_issuer(set)).collect(),
            files: file_troubles(&gateway.config, &acme),
            snapshot: snapshot
                .map(|(path, error)| SnapshotStatus { file: path.display().to_string(), error }),
            last_reload: self.history.last_attempt().map(|last| last.shown),
            warnings: self.warnings.borrow().iter().take(PROBLEMS_MAX).cloned().collect(),
            certificates: describe_certificates(&gateway.config),
            acme,
            history: HistoryStatus { bytes: self.traffic.history.borrow().bytes() },
            paused: LimitChanges::list(&gateway, |limit| limit.pause.is_some()),
            limits: limits.collect(),
            upstreams: shown.map(|upstream| gateway.upstream_status(upstream, now)).collect(),
        }
    }

    /// `None` = no limit is counted in Redis.
    async fn read_redis(&self, gateway: &Gateway) -> Option<RedisStatus> {
        let store = gateway.store.as_ref()?;
        let reports = self.fleet.read_reports(store).await;
        let (own, now, outages) = (store.node_name(), Now::read_clock(), store.outages());
        let node = |report: &NodeReport| describe_node(report, &own, &self.file_hash.borrow());
        Some(RedisStatus {
            reachable: outages.since.is_none(),
            unreachable_since_ms: outages.since.map(unix_ms),
            outages: outages.count,
            last_outage: outages.last.map(|(start, end)| Outage {
                began_at_ms: unix_ms(start),
                lasted_s: (end.ns_since(start) / 1_000_000) as f64 / 1_000.0,
                ended_at_ms: unix_ms(end),
            }),
            gateways: store.nodes(),
            servers: store.server_states(now).into_iter().map(describe_server).collect(),
            nodes: reports.map(|reports| reports.iter().map(node).collect()),
            now_ms: unix_ms(now),
        })
    }
}

fn file_troubles(config: &Config, ordered: &[AcmeStatus]) -> Vec<FileTrouble> {
    let account = &config.account;
    let trouble = |path: &Path, trouble: Option<String>| {
        Some(FileTrouble { file: path.display().to_string(), trouble: trouble? })
    };
    let tiers = account.tier.file.iter().filter_map(|file| trouble(&file.path, file.trouble()));
    let tokens = key_files(account.jwt.as_ref()).filter_map(|file| trouble(&file.path, file.trouble()));
    let keys = account.keys.iter().filter_map(|keys| trouble(&keys.file.path, keys.file.trouble()));
    let prices = price_files(config);
    let prices = prices.iter().filter_map(|file| trouble(&file.path, file.trouble()));
    let ordered = ordered.iter().filter_map(|one| trouble(Path::new(&one.file), one.trouble()));
    tiers.chain(tokens).chain(keys).chain(prices).chain(ordered).collect()
}

/// The earliest end comes first.
fn describe_certificates(config: &Config) -> Vec<CertificateStatus> {
    let now = unix_seconds();
    let describe = |(name, CertificateFile { usage, path, expires_at }): (String, CertificateFile)| {
        let file = path.display().to_string();
        let (days_left, expired) = (expires_at.saturating_sub(now) / 86_400, expires_at < now);
        CertificateStatus { usage, name, file, expires_at, days_left, expired }
    };
    let ordered = config.acme_certificates().into_iter().filter_map(|(name, acme)| {
        let expires_at = earliest_end(&acme.current.load().as_ref()?.cert)?;
        Some((name, CertificateFile { usage: "listener", path: acme.certificate_path(), expires_at }))
    });
    let files = config.certificate_files().into_iter().map(|(name, file)| (name, file.clone()));
    let mut all: Vec<CertificateStatus> = files.chain(ordered).map(describe).collect();
    all.sort_by_key(|certificate| certificate.expires_at);
    all
}

fn describe_issuer(set: &KeySet) -> IssuerStatus {
    let KeySetStatus { keys, age_s, fault } = set.status();
    IssuerStatus { issuer: set.config.issuer.clone(), keys, age_s, error: fault }
}

fn describe_server(server: StoreServerState) -> RedisServer {
    RedisServer {
        server: server.name,
        role: server.role,
        up: server.breaker != BreakerState::Open,
        breaker: server.breaker.label(),
        calls: server.calls,
        mean_ms: server.mean_seconds.map(|seconds| (seconds * 1e6).round() / 1e3),
        evicts_by: server.evicts_by,
    }
}

/// `own` is the node of this gateway, and `file_hash` that of its file; empty without one.
fn describe_node(report: &NodeReport, own: &str, file_hash: &str) -> GatewayNode {
    let has_files = !report.file_hash.is_empty() && !file_hash.is_empty();
    GatewayNode {
        name: report.name.clone(),
        version: report.version.clone(),
        file_hash: report.file_hash.clone(),
        started_at_ms: report.started_at_ms,
        own: report.node == own,
        file_differs: has_files.then(|| report.file_hash != file_hash),
    }
}

/// Shared limits that other gateways count differently, and the difference.
fn conflicting_limits(gateway: &Gateway) -> Vec<SharedTrouble> {
    let fleets = gateway.shared.iter().flatten().map(|limit| &limit.fleet);
    let conflicts = fleets.flat_map(|fleet| {
        let differs = (fleet.differs(), "its numbers differ from those of other gateways");
        let collides =
            (fleet.collides(), "other gateways use this name for a limit with another key or algorithm");
        let found = [differs, collides].into_iter().filter(|(is_found, _)| *is_found);
        found.map(|(_, trouble)| SharedTrouble { limit: fleet.announcement.limit.clone(), trouble })
    });
    conflicts.collect()
}

fn unix_ms(at: Now) -> u64 {
    at.to_unix_ns() / 1_000_000
}

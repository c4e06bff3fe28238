//! The counters as OpenMetrics text.

use std::fmt::Error;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::cells::{Counters, Histogram};
use super::{
    Banning, CLASSES, FAILURES, HANDSHAKES, Metrics, PROXY_HEADERS, SAID, TURNED_AWAY, Tunnelled, Watched,
};

/// What [`Metrics::render`] writes.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Status classes by slot.
const CLASS_NAMES: [&str; CLASSES] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
const NO_EXEMPLAR: Option<&prometheus_client::metrics::exemplar::Exemplar<[(&str, &str); 0], u64>> = None;

/// The label set of one series.
type LabelSet<'a, const N: usize> = [(&'a str, &'a str); N];

impl Metrics {
    /// All series, in the OpenMetrics text format.
    pub fn render(self: &Arc<Metrics>) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Scrape(self.clone())));
        let mut out = String::with_capacity(16 * 1024);
        if text::encode(&mut out, &registry).is_err() {
            // Writing into a String does not fail; half a page would be read as counters that went away.
            out.clear();
            out.push_str("# EOF\n");
        }
        out
    }
}

#[derive(Debug)]
struct Scrape(Arc<Metrics>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let out = &mut encoder;
        self.build(out)?;
        self.requests(out)?;
        self.limits(out)?;
        self.upstreams(out)?;
        self.connections(out)?;
        self.tunnels(out)?;
        self.faults(out)?;
        self.bans(out)?;
        self.store(out)?;
        self.watched(out)
    }
}

impl Scrape {
    fn build(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut family =
            out.encode_descriptor("sluicegate_build", "What is running", None, MetricType::Info)?;
        family.encode_info(&[("version", self.0.labels.version)])
    }

    fn requests(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let metrics = &*self.0;
        let mut family = counter(out, "sluicegate_requests", "Requests by location and status")?;
        for (place, counters) in metrics.requests.iter().enumerate() {
            if metrics.series.locations[place] == place {
                let location = metrics.labels.locations.get(place).map_or("none", String::as_str);
                series(&mut family, &[("location", location)], "status", &CLASS_NAMES, 0, counters)?;
            }
        }
        Ok(())
    }

    fn limits(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let metrics = &*self.0;
        let limits = || {
            let firsts = metrics.series.limits.iter().enumerate().filter(|(place, first)| place == *first);
            firsts.map(|(place, _)| (metrics.labels.limits[place].as_str(), place))
        };
        let mut family = counter(out, "sluicegate_decisions", "What limits said to requests")?;
        for (limit, place) in limits() {
            series(&mut family, &[("limit", limit)], "verdict", &SAID, 0, &metrics.decisions[place])?;
        }
        let help = "Requests whose cost header is not a number";
        let mut family = counter(out, "sluicegate_invalid_costs", help)?;
        for (limit, place) in limits() {
            series(&mut family, &[], "limit", &[limit], 0, &metrics.invalid_costs[place])?;
        }
        let help = "Time requests spent in the queues of a limit";
        let waits = limits().map(|(limit, place)| (limit, &*metrics.waits[place]));
        histograms(out, "sluicegate_wait", help, "limit", waits)
    }

    fn upstreams(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let metrics = &*self.0;
        let upstreams = || {
            let firsts = metrics.series.upstreams.iter().enumerate().filter(|(place, first)| place == *first);
            firsts.map(|(place, _)| (&metrics.labels.upstreams[place], place))
        };
        let help = "Requests sent to servers, by how they ended";
        let mut family = counter(out, "sluicegate_upstream_requests", help)?;
        for ((name, servers), upstream) in upstreams() {
            for (place, server) in servers.iter().enumerate() {
                if metrics.series.servers[upstream][place] != place {
                    continue;
                }
                let counters = &metrics.upstream_requests[upstream][place];
                let labels = [("upstream", name.as_str()), ("server", server.as_str())];
                series(&mut family, &labels, "outcome", &CLASS_NAMES, 0, counters)?;
                series(&mut family, &labels, "outcome", &FAILURES, CLASSES, counters)?;
            }
        }
        let help = "Time from a request being sent to the head of its answer";
        let times = upstreams().map(|((name, _), place)| (name.as_str(), &*metrics.upstream_times[place]));
        histograms(out, "sluicegate_upstream_response", help, "upstream", times)
    }

    fn connections(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let connections = &self.0.connections;
        counter(out, "sluicegate_connections_accepted", "Client connections accepted")?
            .encode_counter(&connections.sum(0), NO_EXEMPLAR)?;
        let help = "Client connections turned away";
        let mut family = counter(out, "sluicegate_connections_rejected", help)?;
        series(&mut family, &[], "reason", &TURNED_AWAY, 1, connections)?;
        let openings = &self.0.openings;
        let mut family = counter(out, "sluicegate_tls_handshakes", "TLS handshakes by how they ended")?;
        series(&mut family, &[], "result", &HANDSHAKES, 0, openings)?;
        let mut family = counter(out, "sluicegate_proxy_headers", "PROXY headers by what came of them")?;
        series(&mut family, &[], "result", &PROXY_HEADERS, HANDSHAKES.len(), openings)
    }

    fn tunnels(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let sum = |what: Tunnelled| self.0.tunnels.sum(what as usize);
        let help = "Connections that speak another protocol now";
        // In this order: what is opened in between is not yet counted as closed.
        let closed = sum(Tunnelled::Closed);
        out.encode_descriptor("sluicegate_tunnels", help, None, MetricType::Gauge)?
            .encode_gauge(&sum(Tunnelled::Opened).saturating_sub(closed))?;
        let help = "Connections that went over to another protocol";
        counter(out, "sluicegate_tunnels_opened", help)?
            .encode_counter(&sum(Tunnelled::Opened), NO_EXEMPLAR)?;
        let mut family = counter(out, "sluicegate_tunnel_bytes", "Bytes passed through tunnels")?;
        let slot = Tunnelled::Sent as usize;
        series(&mut family, &[], "direction", &["sent", "received"], slot, &self.0.tunnels)
    }

    fn faults(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Requests the gateway answered itself without a limit being concerned";
        let mut family = counter(out, "sluicegate_faults", help)?;
        for (cause, counters) in self.0.labels.faults.iter().zip(&self.0.faults) {
            series(&mut family, &[], "cause", &[cause], 0, counters)?;
        }
        Ok(())
    }

    fn bans(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        for (name, help, what) in [
            ("sluicegate_bans", "Bans that were started", Banning::Started),
            ("sluicegate_bans_learned", "Bans that other gateways started", Banning::Learned),
            ("sluicegate_bans_rejected", "Requests rejected because of a ban", Banning::Refused),
            ("sluicegate_strikes", "Rejections that counted towards a ban", Banning::Strike),
            (
                "sluicegate_strikes_uncounted",
                "Rejections that found no room to be counted",
                Banning::Uncounted,
            ),
        ] {
            counter(out, name, help)?.encode_counter(&self.0.bans.sum(what as usize), NO_EXEMPLAR)?;
        }
        Ok(())
    }

    fn watched(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let (own, lasting) = (self.0.watched.lock(), self.0.lasting.lock());
        let watched: Vec<&Watched> = own.iter().chain(lasting.iter()).collect();
        for (place, first) in watched.iter().enumerate() {
            let same = |name: &str| name == first.name;
            if watched[..place].iter().any(|earlier| same(earlier.name)) {
                continue;
            }
            let kind = if first.counter { MetricType::Counter } else { MetricType::Gauge };
            let mut family = out.encode_descriptor(first.name, first.help, None, kind)?;
            let mut sums: Vec<(&Vec<(&str, String)>, u64)> = Vec::new();
            for one in watched.iter().filter(|one| same(one.name)) {
                let value = (one.read)();
                match sums.iter_mut().find(|(known, _)| **known == one.labels) {
                    Some((_, sum)) => *sum += value,
                    None => sums.push((&one.labels, value)),
                }
            }
            for (labels, value) in sums {
                match (labels.is_empty(), first.counter) {
                    (true, true) => family.encode_counter(&value, NO_EXEMPLAR)?,
                    (true, false) => family.encode_gauge(&value)?,
                    (false, true) => family.encode_family(labels)?.encode_counter(&value, NO_EXEMPLAR)?,
                    (false, false) => family.encode_family(labels)?.encode_gauge(&value)?,
                }
            }
        }
        Ok(())
    }

    fn store(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let Some(reading) = self.0.store.lock().as_ref().map(|read| read()) else { return Ok(()) };
        let mut family = counter(out, "sluicegate_redis_calls", "Calls to the store by what came of them")?;
        for (result, calls) in &reading.calls {
            family.encode_family(&[("result", *result)])?.encode_counter(calls, NO_EXEMPLAR)?;
        }
        let help = "Whether a server of the store answers";
        let mut family = out.encode_descriptor("sluicegate_redis_up", help, None, MetricType::Gauge)?;
        for (server, answers) in &reading.servers {
            family.encode_family(&[("server", server.as_str())])?.encode_gauge(&u64::from(*answers))?;
        }
        let help = "Gateways that share the store";
        out.encode_descriptor("sluicegate_redis_nodes", help, None, MetricType::Gauge)?
            .encode_gauge(&reading.nodes)
    }
}

fn counter<'a>(
    out: &'a mut DescriptorEncoder<'_>,
    name: &'a str,
    help: &str,
) -> Result<MetricEncoder<'a>, Error> {
    out.encode_descriptor(name, help, None, MetricType::Counter)
}

/// One series per value of `varying`, whose counters start at `slot`.
fn series<const L: usize, const N: usize>(
    family: &mut MetricEncoder<'_>,
    labels: &LabelSet<'_, L>,
    varying: &str,
    values: &[&str],
    slot: usize,
    counters: &Counters<N>,
) -> Result<(), Error> {
    for (place, value) in values.iter().enumerate() {
        let labels: Vec<(&str, &str)> = labels.iter().copied().chain([(varying, *value)]).collect();
        let sum = counters.sum(slot + place);
        family.encode_family(&labels)?.encode_counter(&sum, NO_EXEMPLAR)?;
    }
    Ok(())
}

fn histograms<'a>(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &str,
    all: impl Iterator<Item = (&'a str, &'a Histogram)>,
) -> Result<(), Error> {
    let unit = Unit::Seconds;
    let mut family = out.encode_descriptor(name, help, Some(&unit), MetricType::Histogram)?;
    for (value, histogram) in all {
        let reading = histogram.read();
        let labels: LabelSet<'_, 1> = [(label, value)];
        family.encode_family(&labels)?.encode_histogram::<LabelSet<'_, 0>>(
            reading.sum_seconds,
            reading.count,
            &reading.buckets,
            None,
        )?;
    }
    Ok(())
}

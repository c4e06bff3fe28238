//! Renders the metrics as OpenMetrics text.

use std::collections::HashMap;
use std::fmt::Error;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::answers::{MAKERS, OWN_CAUSES};
use super::cells::{Counters, Histogram, HistogramReading};
use super::labels::{first_indices, firsts};
use super::values::ValueMetric;
use super::{
    AuthResult, BanEvent, CHARGE_NAMES, CONNECTION_REJECTIONS, DecisionKind, FAULT_OUTCOMES,
    HANDSHAKE_RESULTS, Metrics, PROXY_HEADER_RESULTS, STATUS_CLASSES, TunnelEvent, VERDICT_NAMES,
    WatchedValue,
};

/// The content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Status classes by slot.
const CLASS_NAMES: [&str; STATUS_CLASSES] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
const NO_EXEMPLAR: Option<&prometheus_client::metrics::exemplar::Exemplar<[(&str, &str); 0], u64>> = None;

/// The label set of one series.
type LabelSet<'a, const N: usize> = [(&'a str, &'a str); N];

impl Metrics {
    /// All series, in the OpenMetrics text format.
    pub fn render(self: &Arc<Metrics>) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(MetricsCollector(self.clone())));
        let mut out = String::with_capacity(16 * 1024);
        if text::encode(&mut out, &registry).is_err() {
            // Writing into a String does not fail; half a page would look like counters that vanished.
            out.clear();
            out.push_str("# EOF\n");
        }
        out
    }
}

#[derive(Debug)]
struct MetricsCollector(Arc<Metrics>);

impl Collector for MetricsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let out = &mut encoder;
        self.encode_build(out)?;
        self.encode_requests(out)?;
        let mut family = counter_family(out, "sluicegate_verdicts", "Requests by their verdict")?;
        encode_series(&mut family, &[], "verdict", &VERDICT_NAMES, 0, &self.0.verdicts)?;
        self.encode_limits(out)?;
        self.encode_upstreams(out)?;
        self.encode_connections(out)?;
        self.encode_tunnels(out)?;
        self.encode_faults(out)?;
        self.encode_bans(out)?;
        let mut family = counter_family(out, "sluicegate_auth", "Decisions of auth services by result")?;
        encode_series(&mut family, &[], "result", &AuthResult::ALL.map(AuthResult::name), 0, &self.0.auth)?;
        self.encode_store(out)?;
        self.encode_watched(out)
    }
}

impl MetricsCollector {
    fn encode_build(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut family =
            out.encode_descriptor("sluicegate_build", "The version that is running", None, MetricType::Info)?;
        family.encode_info(&[("version", self.0.labels.version)])
    }

    fn encode_requests(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let metrics = &*self.0;
        let mut family = counter_family(
            out,
            "sluicegate_requests",
            "Requests by location, status and maker of the answer",
        )?;
        let name = |index: usize| metrics.location_label(index);
        for index in firsts(&metrics.series.locations) {
            for by in MAKERS {
                let labels = [("location", name(index)), ("by", by)];
                encode_sums(
                    &mut family,
                    &labels,
                    "status",
                    &CLASS_NAMES,
                    &metrics.sum_answers(index, |[maker, _]| maker == by),
                )?;
            }
        }
        let help = "Answers in place of a server's, by location and cause";
        let mut family = counter_family(out, "sluicegate_own_answers", help)?;
        for (location, answers) in metrics.location_answers() {
            encode_sums(&mut family, &[("location", location)], "cause", &OWN_CAUSES, &answers.own)?;
        }
        let durations = firsts(&metrics.series.locations)
            .map(|index| (name(index), metrics.durations[index].read_buckets()));
        let help = "Time from the head of a request to the end of its response, without tunnels";
        encode_histograms(out, "sluicegate_request_duration", help, "location", durations)
    }

    fn encode_limits(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let metrics = &*self.0;
        let limits =
            || firsts(&metrics.series.limits).map(|index| (metrics.labels.limits[index].as_str(), index));
        let mut family = counter_family(out, "sluicegate_decisions", "Decisions of limits on requests")?;
        for index in firsts(&first_indices(&metrics.series.decision_labels)) {
            let (names, decisions) = (&DecisionKind::LABELS, &metrics.decisions[index]);
            let (limit, class) = &metrics.series.decision_labels[index];
            match &**class {
                "" => encode_series(&mut family, &[("limit", limit)], "verdict", names, 0, decisions)?,
                class => {
                    let labels = [("limit", &**limit), ("class", class)];
                    encode_series(&mut family, &labels, "verdict", names, 0, decisions)?;
                }
            }
        }
        let help = "Requests whose cost cannot be read";
        let mut family = counter_family(out, "sluicegate_invalid_costs", help)?;
        for (limit, index) in limits() {
            encode_series(&mut family, &[], "limit", &[limit], 0, &metrics.invalid_costs[index])?;
        }
        let charging = || limits().filter(|(_, index)| metrics.labels.charging.get(*index) == Some(&true));
        let help = "Units that limits charged for responses, by how they were found";
        let mut family = counter_family(out, "sluicegate_charged_units", help)?;
        for (limit, index) in charging() {
            let charges = &metrics.charges[index];
            encode_series(&mut family, &[("limit", limit)], "source", &CHARGE_NAMES, 0, charges)?;
        }
        let help = "Units of responses beyond the debt that a key may have, which were not charged";
        let mut family = counter_family(out, "sluicegate_overrun_units", help)?;
        for (limit, index) in charging() {
            let sum = metrics.sum_overruns(index);
            family.encode_family(&[("limit", limit)])?.encode_counter(&sum, NO_EXEMPLAR)?;
        }
        let help = "Time requests spent in the queues of a limit";
        let waits = limits().map(|(limit, index)| (limit, metrics.waits[index].read_buckets()));
        encode_histograms(out, "sluicegate_wait", help, "limit", waits)
    }

    fn encode_upstreams(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let metrics = &*self.0;
        let upstreams =
            || firsts(&metrics.series.upstreams).map(|index| (&metrics.labels.upstreams[index], index));
        let help = "Requests sent to servers, by outcome";
        let mut family = counter_family(out, "sluicegate_upstream_requests", help)?;
        for ((name, servers), upstream) in upstreams() {
            for index in firsts(&metrics.series.servers[upstream]) {
                let counters = &metrics.upstream_requests[upstream][index];
                let labels = [("upstream", name.as_str()), ("server", servers[index].as_str())];
                encode_series(&mut family, &labels, "outcome", &CLASS_NAMES, 0, counters)?;
                encode_series(&mut family, &labels, "outcome", &FAULT_OUTCOMES, STATUS_CLASSES, counters)?;
            }
        }
        let help = "Time from sending a request to the head of its response";
        let read = |cells: &[Arc<Histogram>]| -> Vec<(&str, HistogramReading)> {
            upstreams().map(|((name, _), index)| (name.as_str(), cells[index].read_buckets())).collect()
        };
        let times = read(&metrics.upstream_times).into_iter();
        encode_histograms(out, "sluicegate_upstream_response", help, "upstream", times)?;
        let help = "Time requests spent in the queue of an upstream";
        let waits = read(&metrics.upstream_waits).into_iter();
        encode_histograms(out, "sluicegate_upstream_wait", help, "upstream", waits)
    }

    fn encode_connections(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let connections = &self.0.connections;
        counter_family(out, "sluicegate_connections_accepted", "Client connections accepted")?
            .encode_counter(&connections.sum(0), NO_EXEMPLAR)?;
        let help = "Client connections rejected";
        let mut family = counter_family(out, "sluicegate_connections_rejected", help)?;
        encode_series(&mut family, &[], "reason", &CONNECTION_REJECTIONS, 1, connections)?;
        let handshakes = &self.0.handshakes;
        let mut family = counter_family(out, "sluicegate_tls_handshakes", "TLS handshakes by result")?;
        encode_series(&mut family, &[], "result", &HANDSHAKE_RESULTS, 0, handshakes)?;
        let mut family = counter_family(out, "sluicegate_proxy_headers", "PROXY headers by result")?;
        encode_series(&mut family, &[], "result", &PROXY_HEADER_RESULTS, HANDSHAKE_RESULTS.len(), handshakes)
    }

    fn encode_tunnels(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let sum = |event: TunnelEvent| self.0.tunnels.sum(event as usize);
        let help = "Open tunnels: connections that switched to another protocol";
        // Read `Closed` first: a tunnel that opens in between is then not counted as closed.
        let closed = sum(TunnelEvent::Closed);
        out.encode_descriptor("sluicegate_tunnels", help, None, MetricType::Gauge)?
            .encode_gauge(&sum(TunnelEvent::Opened).saturating_sub(closed))?;
        let help = "Connections that switched to another protocol";
        counter_family(out, "sluicegate_tunnels_opened", help)?
            .encode_counter(&sum(TunnelEvent::Opened), NO_EXEMPLAR)?;
        let mut family = counter_family(out, "sluicegate_tunnel_bytes", "Bytes passed through tunnels")?;
        let slot = TunnelEvent::Sent as usize;
        encode_series(&mut family, &[], "direction", &["sent", "received"], slot, &self.0.tunnels)
    }

    fn encode_faults(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Requests that failed without a rejection by a limit, by cause";
        let mut family = counter_family(out, "sluicegate_faults", help)?;
        for (cause, counters) in self.0.labels.faults.iter().zip(&self.0.faults) {
            encode_series(&mut family, &[], "cause", &[cause], 0, counters)?;
        }
        Ok(())
    }

    fn encode_bans(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        for (name, help, event) in [
            ("sluicegate_bans", "Bans that were started", BanEvent::Started),
            ("sluicegate_bans_learned", "Bans that other gateways started", BanEvent::Learned),
            ("sluicegate_bans_rejected", "Requests rejected because of a ban", BanEvent::Rejected),
            ("sluicegate_strikes", "Rejections and responses that counted towards a ban", BanEvent::Strike),
            (
                "sluicegate_strikes_uncounted",
                "Rejections that could not be counted, because the table was full",
                BanEvent::Uncounted,
            ),
        ] {
            counter_family(out, name, help)?.encode_counter(&self.0.bans.sum(event as usize), NO_EXEMPLAR)?;
        }
        Ok(())
    }

    fn encode_watched(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let (gateway_values, process_values) = (self.0.gateway_values.lock(), self.0.process_values.lock());
        let watched: Vec<&WatchedValue> = gateway_values.iter().chain(process_values.iter()).collect();
        for (index, first) in watched.iter().enumerate() {
            let ValueMetric { name, help, is_counter } = first.metric;
            let is_same = |other: &&&WatchedValue| other.metric.name == name;
            if watched[..index].iter().any(|earlier| is_same(&earlier)) {
                continue;
            }
            let kind = if is_counter { MetricType::Counter } else { MetricType::Gauge };
            let mut family = out.encode_descriptor(name, help, None, kind)?;
            let mut sums: Vec<(&Vec<(&str, String)>, u64)> = Vec::new();
            let mut places = HashMap::new();
            for other in watched.iter().filter(is_same) {
                let place = *places.entry(&other.labels).or_insert(sums.len());
                if place == sums.len() {
                    sums.push((&other.labels, 0));
                }
                sums[place].1 += (other.read)();
            }
            for (labels, value) in sums {
                match (labels.is_empty(), is_counter) {
                    (true, true) => family.encode_counter(&value, NO_EXEMPLAR)?,
                    (true, false) => family.encode_gauge(&value)?,
                    (false, true) => family.encode_family(labels)?.encode_counter(&value, NO_EXEMPLAR)?,
                    (false, false) => family.encode_family(labels)?.encode_gauge(&value)?,
                }
            }
        }
        Ok(())
    }

    fn encode_store(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let Some(reading) = self.0.store.lock().as_ref().map(|read| read()) else { return Ok(()) };
        let mut family = counter_family(out, "sluicegate_redis_calls", "Calls to the store by result")?;
        for (result, calls) in &reading.calls {
            family.encode_family(&[("result", *result)])?.encode_counter(calls, NO_EXEMPLAR)?;
        }
        let help = "Whether a server of the store answers";
        let mut family = out.encode_descriptor("sluicegate_redis_up", help, None, MetricType::Gauge)?;
        for (server, answers) in &reading.servers {
            family.encode_family(&[("server", server.as_str())])?.encode_gauge(&u64::from(*answers))?;
        }
        let help = "Keys that a server of the store evicted since its start";
        let mut family = counter_family(out, "sluicegate_redis_evicted_keys", help)?;
        for (server, keys) in &reading.evicted_keys {
            family.encode_family(&[("server", server.as_str())])?.encode_counter(keys, NO_EXEMPLAR)?;
        }
        let help = "Time of a call to the store, until its reply or the timeout";
        let times = reading.call_times.iter().map(|(server, times)| (server.as_str(), times.clone()));
        encode_histograms(out, "sluicegate_redis_call", help, "server", times)?;
        let help = "Gateways that share the store";
        out.encode_descriptor("sluicegate_redis_nodes", help, None, MetricType::Gauge)?
            .encode_gauge(&reading.nodes)
    }
}

fn counter_family<'a>(
    out: &'a mut DescriptorEncoder<'_>,
    name: &'a str,
    help: &str,
) -> Result<MetricEncoder<'a>, Error> {
    out.encode_descriptor(name, help, None, MetricType::Counter)
}

/// Encodes one series per value of the label `varying`, with counters from `slot` on.
fn encode_series<const L: usize, const N: usize>(
    family: &mut MetricEncoder<'_>,
    labels: &LabelSet<'_, L>,
    varying: &str,
    values: &[&str],
    slot: usize,
    counters: &Counters<N>,
) -> Result<(), Error> {
    let sums: Vec<u64> = (slot..slot + values.len()).map(|slot| counters.sum(slot)).collect();
    encode_sums(family, labels, varying, values, &sums)
}

/// Encodes one series per value of the label `varying`, with its sum.
fn encode_sums<const L: usize>(
    family: &mut MetricEncoder<'_>,
    labels: &LabelSet<'_, L>,
    varying: &str,
    values: &[&str],
    sums: &[u64],
) -> Result<(), Error> {
    for (value, sum) in values.iter().zip(sums) {
        let labels: Vec<(&str, &str)> = labels.iter().copied().chain([(varying, *value)]).collect();
        family.encode_family(&labels)?.encode_counter(sum, NO_EXEMPLAR)?;
    }
    Ok(())
}

fn encode_histograms<'a>(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &str,
    all: impl Iterator<Item = (&'a str, HistogramReading)>,
) -> Result<(), Error> {
    let unit = Unit::Seconds;
    let mut family = out.encode_descriptor(name, help, Some(&unit), MetricType::Histogram)?;
    for (value, reading) in all {
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

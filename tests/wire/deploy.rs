//! The alerts and the dashboard: each metric, label and label value that they name is on the page of a gateway.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::support::*;

/// Labels that Prometheus and its rules add.
const ADDED_LABELS: [&str; 4] = ["job", "instance", "alertname", "alertstate"];

/// Words before a list of labels.
const GROUPINGS: [&str; 7] = ["by", "without", "on", "ignoring", "group_left", "group_right", "label_values"];

/// A file with every section that has metrics. Nothing listens at the addresses.
const EVERYTHING: &str = "\
server: { workers: 1, trusted_proxies: 127.0.0.1 }
account: { from: header:x-account }
bans: { after: 100/1m, for: 1m }
upstreams:
  app:
    servers: [127.0.0.1:1, 127.0.0.1:2]
    health: { path: /healthz }
    retries: { attempts: 1, when: [connect, 503] }
limits:
  shared: { key: ip, rate: 100/s }
  slots: { key: global, algorithm: concurrency, max_concurrent: auto, state: local, tiers: { gold: { max_concurrent: { max: 50 } } } }
  line: { key: global, algorithm: leaky_bucket, rate: 100/s, queue: 9, state: local }
locations:
  - { path: /, upstream: app, limits: [shared, slots, line] }
state:
  store: redis
  redis: { url: \"redis://127.0.0.1:1\" }
";

/// A label, an operator and a value.
type Matcher = (String, String, String);

/// The labels of each metric with their values.
type KnownSeries = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

fn read(file: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The series of a gateway that has everything. A snapshot excludes Redis, so another gateway has that.
fn known_series() -> KnownSeries {
    let everything = Gateway::start(EVERYTHING);
    let scratch = Scratch::new();
    let snapshot = scratch.path().join("counters.bin");
    let with_snapshot = Gateway::start(&format!(
        "state: {{ snapshot: {} }}\n\
         upstreams: {{ app: {{ servers: \"https://localhost:1\", tls: {{ ca: {}/tests/keys/upstream.pem }} }} }}\n\
         locations: [{{ path: /, upstream: app }}]\n",
        snapshot.display(),
        env!("CARGO_MANIFEST_DIR")
    ));
    let up = "sluicegate_redis_up{";
    eventually("a server of the store", || everything.metrics().contains(up));
    let mut known = KnownSeries::new();
    for page in [everything.metrics(), with_snapshot.metrics()] {
        for series in page.lines().filter(|line| !line.starts_with('#')) {
            let (series, _) = series.rsplit_once(' ').expect("a value");
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let known = known.entry(name.to_owned()).or_default();
            for (label, value) in matchers(labels).into_iter().map(|(label, _, value)| (label, value)) {
                known.entry(label).or_default().insert(value);
            }
        }
    }
    known
}

/// The matchers up to the closing brace: label, operator, value. No value here holds a quote.
fn matchers(text: &str) -> Vec<Matcher> {
    let (mut found, mut rest) = (Vec::new(), text);
    while !rest.starts_with('}') {
        let (label, behind) = rest.split_once('"').expect("a quoted value");
        let (value, behind) = behind.split_once('"').expect("a closed value");
        let label = label.trim_start_matches([',', ' ']);
        let name = label.trim_end_matches(['=', '~', '!', ' ']);
        found.push((name.to_owned(), label[name.len()..].trim().to_owned(), value.to_owned()));
        rest = behind;
    }
    found
}

/// The metrics of an expression, each with its matchers.
fn metrics_of(expression: &str) -> Vec<(String, Vec<Matcher>)> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (start, _) in expression.match_indices("sluicegate_") {
        let name: String = expression[start..].chars().take_while(|c| is_word(*c)).collect();
        let behind = &expression[start + name.len()..];
        found.push((name, behind.strip_prefix('{').map(matchers).unwrap_or_default()));
    }
    found
}

/// The labels in lists such as `by (a, b)`.
fn grouped_labels(expression: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (open, _) in expression.match_indices('(') {
        let word = expression[..open].trim_end().rsplit(|c: char| !c.is_alphabetic() && c != '_').next();
        let list = expression[open + 1..].split(')').next().unwrap_or_default();
        if word.is_some_and(|word| GROUPINGS.contains(&word)) {
            let labels = list.split(',').map(str::trim).filter(|label| !label.contains("sluicegate_"));
            found.extend(labels.filter(|label| !label.is_empty()).map(str::to_owned));
        }
    }
    found
}

/// The labels that a text names as `{{ $labels.a }}` or `{{a}}`.
fn shown_labels(text: &str) -> Vec<String> {
    let parts = text.split("{{").skip(1).filter_map(|part| part.split("}}").next());
    let words = parts.filter_map(|part| part.trim().split(' ').next());
    words
        .filter(|word| *word != "$value")
        .map(|word| word.trim_start_matches("$labels.").to_owned())
        .collect()
}

/// What an expression, and the texts beside it, name that no gateway has.
fn unknown_names(known: &KnownSeries, expression: &str, texts: &[&str], values: bool) -> Vec<String> {
    let mut unknown = Vec::new();
    let mut labels: BTreeSet<&str> = ADDED_LABELS.into();
    let is_up = expression.starts_with("up{");
    assert!(is_up || expression.contains("sluicegate_"), "{expression}");
    for (metric, matchers) in metrics_of(expression) {
        let Some(series) = known.get(&metric) else {
            unknown.push(metric);
            continue;
        };
        labels.extend(series.keys().map(String::as_str));
        for (label, operator, value) in matchers {
            if ADDED_LABELS.contains(&label.as_str()) {
                continue;
            }
            let Some(found) = series.get(&label) else {
                unknown.push(format!("{metric}{{{label}}}"));
                continue;
            };
            let alternatives = value.split('|').filter(|value| values && !found.contains(*value));
            unknown.extend(alternatives.map(|value| format!("{metric}{{{label}{operator}{value}}}")));
        }
    }
    let named =
        grouped_labels(expression).into_iter().chain(texts.iter().flat_map(|text| shown_labels(text)));
    unknown.extend(named.filter(|label| !labels.contains(label.as_str())));
    unknown
}

/// All expressions of the dashboard with the legends beside them.
fn dashboard_queries(value: &Value, found: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            let text = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
            let expression = text("expr").or_else(|| text("definition"));
            let legend = text("legendFormat").or_else(|| text("titleFormat")).unwrap_or_default();
            found.extend(expression.map(|expression| (expression, legend)));
            fields.values().for_each(|value| dashboard_queries(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| dashboard_queries(value, found)),
        _ => {}
    }
}

/// The rules of a file of Prometheus.
fn rules(file: &str) -> Value {
    let text = read(file);
    serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn items<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

#[test]
fn alerts_and_dashboard_name_what_a_gateway_has() {
    let known = known_series();
    let mut unknown = Vec::new();
    let alerts = rules("alerts.yml");
    let alerts = items(&alerts["groups"][0], "rules");
    assert!(alerts.len() > 10, "only {} alerts were found", alerts.len());
    for alert in alerts {
        let texts =
            ["summary", "description"].map(|name| alert["annotations"][name].as_str().expect("a text"));
        let expression = alert["expr"].as_str().expect("an expression");
        unknown.extend(unknown_names(&known, expression, &texts, true));
    }
    let tests = rules("alerts_test.yml");
    for test in items(&tests, "tests") {
        for series in items(test, "input_series").iter().map(|input| input["series"].as_str()) {
            // The servers and limits of the tests are their own.
            unknown.extend(unknown_names(&known, series.expect("a series"), &[], false));
        }
    }
    let mut queries = Vec::new();
    dashboard_queries(&serde_json::from_str(&read("grafana.json")).expect("JSON"), &mut queries);
    assert!(queries.len() > 30, "only {} queries were found", queries.len());
    for (expression, legend) in &queries {
        unknown.extend(unknown_names(&known, expression, &[legend], true));
    }
    assert!(unknown.is_empty(), "no gateway has {unknown:#?}");
}

/// promtool runs the tests; here each alert must have one that expects it.
#[test]
fn every_alert_has_a_test_that_expects_it() {
    let (alerts, tests) = (rules("alerts.yml"), read("alerts_test.yml"));
    for alert in items(&alerts["groups"][0], "rules") {
        let name = alert["alert"].as_str().expect("a name");
        let fires = format!("ALERTS{{alertname=\"{name}\", alertstate=\"firing\"");
        assert!(tests.contains(&fires), "no test expects {name}");
    }
}

#[test]
fn unknown_metrics_labels_and_values_are_found() {
    let values = BTreeSet::from(["ok".to_owned()]);
    let known = KnownSeries::from([(
        "sluicegate_a_total".to_owned(),
        BTreeMap::from([("result".to_owned(), values)]),
    )]);
    let found = |expression: &str, text: &str| unknown_names(&known, expression, &[text], true);
    assert!(
        found("sum by (job, result) (rate(sluicegate_a_total{result=\"ok\"}[5m]))", "{{ $labels.result }}")
            .is_empty()
    );
    assert_eq!(found("sluicegate_b_total", ""), ["sluicegate_b_total"]);
    assert_eq!(found("sluicegate_a_total{limit=\"x\"}", ""), ["sluicegate_a_total{limit}"]);
    assert_eq!(found("sluicegate_a_total{result=~\"ok|no\"}", ""), ["sluicegate_a_total{result=~no}"]);
    assert_eq!(found("sum by (limit) (sluicegate_a_total)", ""), ["limit"]);
    assert_eq!(found("sluicegate_a_total", "{{server}} {{ $value | humanize }}"), ["server"]);
}

//! Imported files of envoyproxy/ratelimit decide as a model of it does.

use std::cmp::Reverse;
use std::collections::HashMap;

use http::Request;
use prost::Message;
use serde_yaml::Value;
use sluicegate_import::{FindingKind, Imported, import_file};

use crate::random_site::Dice;
use crate::ratelimit_model::{Descriptor, FoundLimit, ModelLimit, ModelTree, random_descriptor};
use crate::support::client2::Client2;
use crate::support::{Gateway, Scratch};

/// The rule that the contract of `service.domains` chooses: more entries first, then values before prefixes, longer
/// prefixes before shorter ones, those before `*`, then the order of the file.
fn find_rule<'y>(rules: &'y [Value], descriptor: &Descriptor) -> Option<&'y Value> {
    type Rank = (Reverse<usize>, Vec<(u8, Reverse<usize>)>);
    let mut best: Option<(Rank, &Value)> = None;
    for rule in rules {
        let mut ranks = Vec::new();
        let mut matches = true;
        for (key, patterns) in rule["match"].as_mapping().expect("a match") {
            let own: Vec<&str> = descriptor
                .iter()
                .filter(|(name, _)| Some(*name) == key.as_str())
                .map(|(_, value)| *value)
                .collect();
            let patterns = match patterns {
                Value::Sequence(patterns) => patterns.clone(),
                pattern => vec![pattern.clone()],
            };
            matches &= own.len() == patterns.len();
            for (value, pattern) in own.iter().zip(&patterns) {
                let pattern = pattern.as_str().expect("a pattern");
                let (accepts, rank) = match pattern.strip_suffix('*') {
                    Some("") => (true, (2, Reverse(0))),
                    Some(prefix) => (value.starts_with(prefix), (1, Reverse(prefix.len()))),
                    None => (*value == pattern, (0, Reverse(0))),
                };
                matches &= accepts;
                ranks.push(rank);
            }
        }
        if !matches || ranks.len() != descriptor.len() {
            continue;
        }
        ranks.sort_unstable();
        let rank = (Reverse(ranks.len()), ranks);
        if best.as_ref().is_none_or(|(other, _)| rank < *other) {
            best = Some((rank, rule));
        }
    }
    best.map(|(_, rule)| rule)
}

/// What the rule of a descriptor does, in the words of the model.
fn find_imported(yaml: &Value, descriptor: &Descriptor) -> Option<FoundLimit> {
    let rules = yaml["service"]["domains"]["d"].as_sequence().expect("rules");
    let rule = find_rule(rules, descriptor)?;
    let unlimited = FoundLimit { limit: ModelLimit::Unlimited, shadow_mode: false, counter: String::new() };
    let Some(name) = rule["limits"][0].as_str() else { return Some(unlimited) };
    let limit = &yaml["limits"][name];
    assert_eq!((limit["algorithm"].as_str(), limit["align"].as_str()), (Some("fixed_window"), Some("clock")));
    let rate = limit["rate"].as_str().and_then(|rate| rate.strip_suffix("/365d")).expect("a rate");
    let is_refusing = limit["missing_key"].as_str() == Some("reject");
    let number = if is_refusing { 0 } else { rate.parse().expect("a number") };
    let parts = match &limit["key"] {
        Value::Sequence(parts) => parts.clone(),
        part => vec![part.clone()],
    };
    let mut counter = name.to_owned();
    for part in parts.iter().filter_map(|part| part.as_str()?.strip_prefix("header:")) {
        let own = descriptor.iter().filter(|(key, _)| *key == part).map(|(_, value)| *value);
        let values: Vec<&str> = own.collect();
        assert_eq!(values.is_empty(), is_refusing, "{part} in {descriptor:?}");
        counter += &format!("|{}", values.join(","));
    }
    let shadow_mode = limit["dry_run"].as_bool().unwrap_or(false);
    Some(FoundLimit { limit: ModelLimit::PerYear(number), shadow_mode, counter })
}

/// A descriptor without a limit may have a rule without limits, which says the same.
fn acts(found: Option<&FoundLimit>) -> Option<(ModelLimit, bool)> {
    found.filter(|found| found.limit != ModelLimit::Unlimited).map(|found| (found.limit, found.shadow_mode))
}

/// Random trees and descriptors: the same limit, and the same counters for the same descriptors.
#[test]
fn random_files_find_the_same_limits() {
    let scratch = Scratch::new();
    let (mut limited, mut forks, mut counters_compared) = (0, 0, 0);
    for seed in 0..600 {
        let mut dice = Dice(seed);
        let mut tree = ModelTree::random(&mut dice, 1000);
        let text = tree.write("d");
        let imported = import_file(&scratch.file("ratelimit.yaml", &text)).unwrap();
        let context = || format!("seed {seed}\n{text}\n{}\n{}", imported.yaml, imported.report.render_text());
        assert_eq!(imported.report.count_lost(), 0, "{}", context());
        for node in tree.limited() {
            let told = imported.report.findings.iter().any(|finding| finding.at.line == node.line);
            assert!(told, "line {} has no finding: {}", node.line, context());
        }
        let yaml: Value = serde_yaml::from_str(&imported.yaml).unwrap();
        forks += imported.yaml.matches("no limit is found here").count();
        let differs = |text: &str| {
            imported.report.of_kind(FindingKind::Difference).any(|finding| finding.says.contains(text))
        };
        let are_counters_same = !differs("share one counter");
        let mut counters: HashMap<String, String> = HashMap::new();
        let mut names: HashMap<String, String> = HashMap::new();
        for _ in 0..150 {
            let descriptor = random_descriptor(&mut dice);
            let (theirs, ours) = (tree.find(&descriptor), find_imported(&yaml, &descriptor));
            assert_eq!(acts(theirs.as_ref()), acts(ours.as_ref()), "{descriptor:?}\n{}", context());
            let (Some(theirs), Some(ours)) = (theirs, ours) else { continue };
            if !matches!(theirs.limit, ModelLimit::PerYear(1..)) || !are_counters_same {
                continue;
            }
            limited += 1;
            counters_compared += usize::from(counters.contains_key(&theirs.counter));
            let known = counters.entry(theirs.counter.clone()).or_insert_with(|| ours.counter.clone());
            assert_eq!(*known, ours.counter, "{descriptor:?}\n{}", context());
            let known = names.entry(ours.counter).or_insert_with(|| theirs.counter.clone());
            assert_eq!(*known, theirs.counter, "{descriptor:?}\n{}", context());
        }
    }
    let counts = (limited, forks, counters_compared);
    assert!(limited > 8000 && forks > 400 && counters_compared > 2000, "{counts:?}");
}

// === The service itself ===

#[derive(Clone, PartialEq, Message)]
struct CallMessage {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<DescriptorMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct DescriptorMessage {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<EntryMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct EntryMessage {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct AnswerMessage {
    #[prost(int32, tag = "1")]
    overall: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<StatusMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct StatusMessage {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(uint32, tag = "3")]
    remaining: u32,
}

const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;

/// A caller of the service that an imported file describes.
struct Caller {
    client: Client2,
    _gateway: Gateway,
}

impl Caller {
    fn start(imported: &Imported) -> Caller {
        let yaml = imported.yaml.replace("\"127.0.0.1:8081\"", "127.0.0.1:0");
        let gateway = Gateway::start(&yaml);
        let client = Client2::connect(*gateway.addrs().last().expect("a listener of the service"));
        Caller { client, _gateway: gateway }
    }

    fn ask(&mut self, domain: &str, descriptors: &[&[(&str, &str)]]) -> AnswerMessage {
        let entry =
            |&(key, value): &(&str, &str)| EntryMessage { key: key.to_owned(), value: value.to_owned() };
        let descriptor =
            |entries: &&[(&str, &str)]| DescriptorMessage { entries: entries.iter().map(entry).collect() };
        let descriptors = descriptors.iter().map(descriptor).collect();
        let call = CallMessage { domain: domain.to_owned(), descriptors }.encode_to_vec();
        let mut body = vec![0];
        body.extend((call.len() as u32).to_be_bytes());
        body.extend(call);
        let uri = "http://rls/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let request = Request::post(uri).header("te", "trailers").header("content-type", "application/grpc");
        let response = self.client.ask(request.body(()).expect("a request"), &body, None).expect("an answer");
        let message = response.body.get(5..).unwrap_or_else(|| panic!("no message: {response:?}"));
        AnswerMessage::decode(message).expect("a message")
    }
}

/// Random files and calls of one descriptor: the same codes and units left as fixed windows have that count every call.
#[test]
fn random_calls_have_the_same_codes() {
    let scratch = Scratch::new();
    let (mut over, mut asked) = (0, 0);
    for seed in 0..6 {
        let mut dice = Dice(seed + 50_000);
        let mut tree = ModelTree::random(&mut dice, 12);
        let text = tree.write("d");
        let imported = import_file(&scratch.file("ratelimit.yaml", &text)).unwrap();
        if imported
            .report
            .of_kind(FindingKind::Difference)
            .any(|found| found.says.contains("share one counter"))
        {
            continue;
        }
        let mut caller = Caller::start(&imported);
        let mut descriptors: Vec<Descriptor> = (0..2000).map(|_| random_descriptor(&mut dice)).collect();
        descriptors.retain(|descriptor| tree.find(descriptor).is_some() || dice.one_in(60));
        descriptors.truncate(40);
        let mut counts: HashMap<String, u32> = HashMap::new();
        for _ in 0..400 {
            let descriptor = &descriptors[dice.below(descriptors.len() as u64) as usize];
            let answer = caller.ask("d", &[descriptor]);
            let (mut code, mut left) = (OK, None);
            if let Some(FoundLimit { limit: ModelLimit::PerYear(max), shadow_mode, counter }) =
                tree.find(descriptor)
            {
                let count = counts.entry(counter).or_insert(0);
                *count += 1;
                left = Some(max.saturating_sub(*count));
                if *count > max && !shadow_mode {
                    code = OVER_LIMIT;
                }
            }
            let context = || format!("seed {seed}, {descriptor:?}: {answer:?}\n{text}\n{}", imported.yaml);
            assert_eq!((answer.overall, answer.statuses[0].code), (code, code), "{}", context());
            assert_eq!(answer.statuses[0].remaining, left.unwrap_or(0), "{}", context());
            asked += 1;
            over += usize::from(code == OVER_LIMIT);
        }
    }
    assert!(asked >= 1600 && over > 100, "{over} of {asked} were over");
}

/// A rule that replaces another one leaves its counter alone.
#[test]
fn a_replaced_limit_is_not_charged() {
    let scratch = Scratch::new();
    let text = "
domain: d
descriptors:
  - key: group
    descriptors:
      - { key: user, rate_limit: { name: narrow one, unit: year, requests_per_unit: 1 } }
  - key: user
    value: root
    rate_limit: { unit: year, requests_per_unit: 3, replaces: [{ name: narrow one }] }
";
    let imported = import_file(&scratch.file("ratelimit.yaml", text)).unwrap();
    let mut caller = Caller::start(&imported);
    let narrow: &[(&str, &str)] = &[("group", "g"), ("user", "root")];
    let both: &[&[(&str, &str)]] = &[narrow, &[("user", "root")]];
    let mut codes = |descriptors: &[&[(&str, &str)]]| caller.ask("d", descriptors).overall;
    assert_eq!([codes(both), codes(both), codes(both), codes(both)], [OK, OK, OK, OVER_LIMIT]);
    assert_eq!([codes(&both[..1]), codes(&both[..1])], [OK, OVER_LIMIT]);
}

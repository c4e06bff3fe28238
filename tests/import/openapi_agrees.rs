//! Imported OpenAPI documents decide as the documents say: scenarios of `sluicegate test` beside a model.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write as _;

use sluicegate_import::import_file;

use crate::support::dice::Dice;
use crate::support::{Run, Scratch};

const DOCUMENTS: u64 = 60;
/// Documents in one run of the program, which takes long on a busy machine.
const RUN: usize = 20;
const REQUESTS: usize = 80;

/// An operation: requests per hour and address by its `x-ratelimit`, and the cost that it takes of the metric.
#[derive(Clone, Copy, Default)]
struct Operation {
    per_hour: Option<u32>,
    cost: Option<u32>,
}

struct ModelPath {
    template: String,
    per_hour: Option<u32>,
    operations: Vec<(&'static str, Operation)>,
}

struct Document {
    paths: Vec<ModelPath>,
    per_hour: Option<u32>,
    per_minute: u32,
}

fn random_document(dice: &mut Dice) -> Document {
    let number = |dice: &mut Dice| dice.one_in(3).then(|| dice.below(5) as u32 + 1);
    let mut paths: Vec<ModelPath> = Vec::new();
    for index in 0..dice.below(9) + 2 {
        let segments = ["a", "b", "ab", "{p}", "{p}", "a{p}", "ab{p}", "{p}b", "a.{p}", "{p}-{q}"];
        let segment = |dice: &mut Dice| format!("/{}", dice.pick(&segments));
        let mut template: String = (0..=dice.below(3)).map(|_| segment(dice)).collect();
        if dice.one_in(8) {
            template += "/";
        }
        let template = template.replace('p', &format!("p{index}"));
        if paths.iter().any(|path| path.template == template) {
            continue;
        }
        let per_hour = number(dice);
        let mut operations = Vec::new();
        for method in ["get", "head", "post", "delete"] {
            if dice.one_in(2) {
                let cost = dice.one_in(2).then(|| dice.pick(&[1, 1, 1, 3]));
                operations.push((method, Operation { per_hour: number(dice), cost }));
            }
        }
        paths.push(ModelPath { template, per_hour, operations });
    }
    Document {
        paths,
        per_hour: dice.one_in(4).then(|| dice.below(30) as u32 + 5),
        per_minute: dice.below(9) as u32 + 3,
    }
}

fn write_document(document: &Document) -> String {
    let limit =
        |per_hour: Option<u32>| per_hour.map_or(String::new(), |number| format!("x-ratelimit: {number}/h, "));
    let mut text = format!(
        "swagger: \"2.0\"\nhost: api.test\nbasePath: /v1\nx-google-management: {{ quota: {{ limits: [\n  {{ name: l, \
         metric: m, unit: \"1/min/{{project}}\", values: {{ STANDARD: {} }} }}] }} }}\n\
         securityDefinitions: {{ k: {{ type: apiKey, in: query, name: key }} }}\npaths:\n",
        document.per_minute
    );
    if let Some(per_hour) = document.per_hour {
        text.insert_str(0, &format!("x-ratelimit: {per_hour}/h\n"));
    }
    for ModelPath { template, per_hour, operations } in &document.paths {
        write!(text, "  \"{template}\": {{ {}", limit(*per_hour)).expect("a String");
        for (method, Operation { per_hour, cost }) in operations {
            let cost = cost.map_or(String::new(), |cost| {
                format!("x-google-quota: {{ metricCosts: {{ m: {cost} }} }}, ")
            });
            write!(text, "{method}: {{ {}{cost}}}, ", limit(*per_hour)).expect("a String");
        }
        text.push_str("}\n");
    }
    text
}

/// True if a segment has the literal parts of `pattern` at its ends and between its parameters, none of them empty.
fn fits(pattern: &str, segment: &str) -> bool {
    let Some((before, rest)) = pattern.split_once('{') else { return pattern == segment };
    let (_, after) = rest.split_once('}').expect("a closed parameter");
    segment.strip_prefix(before).is_some_and(|rest| {
        (1..=rest.len()).any(|length| rest.is_char_boundary(length) && fits(after, &rest[length..]))
    })
}

fn literal_length(pattern: &str) -> usize {
    match pattern.split_once('{') {
        Some((before, rest)) => before.len() + literal_length(rest.split_once('}').expect("closed").1),
        None => pattern.len(),
    }
}

/// Literal segments come first, from the left, then those with more literal text.
fn rank(template: &str) -> Vec<(bool, Reverse<usize>)> {
    let is_open = |segment: &str| segment.contains('{');
    let ranked = |segment: &str| {
        (is_open(segment), Reverse(if is_open(segment) { literal_length(segment) } else { 0 }))
    };
    template.split('/').map(ranked).collect()
}

/// The path with names of parameters that do not matter.
fn shape(template: &str) -> String {
    template.chars().filter(|c| !c.is_ascii_digit()).collect::<String>().replace('q', "p")
}

struct Model<'d> {
    document: &'d Document,
    used: HashMap<String, u32>,
}

impl Model<'_> {
    /// The status of a request, which is charged if it is admitted; `None` if two limits refuse it for other reasons.
    fn judge(&mut self, method: &str, path: &str, client: &str, key: Option<&str>) -> Option<u16> {
        let Some(path) = path.strip_prefix("/v1") else { return Some(404) };
        let paths = &self.document.paths;
        let segments: Vec<&str> = path.split('/').collect();
        let mut found: Vec<usize> = Vec::new();
        for (index, ModelPath { template, operations, .. }) in paths.iter().enumerate() {
            let patterns: Vec<&str> = template.split('/').collect();
            let same = |earlier: &ModelPath| shape(&earlier.template) == shape(template);
            let matches = patterns.len() == segments.len()
                && patterns.iter().zip(&segments).all(|(pattern, segment)| fits(pattern, segment));
            if matches && !operations.is_empty() && !paths[..index].iter().any(same) {
                found.push(index);
            }
        }
        found.sort_by_key(|index| rank(&paths[*index].template));
        let own = |index: &usize, method: &str| {
            paths[*index]
                .operations
                .iter()
                .find(|(name, _)| *name == method)
                .map(|(_, found)| (*index, method.to_owned(), *found))
        };
        let with_head =
            |index: &usize| own(index, method).or_else(|| own(index, "get").filter(|_| method == "head"));
        let Some((index, method, operation)) = found.iter().find_map(with_head) else {
            return Some(if found.is_empty() { 404 } else { 405 });
        };
        let mut charges = Vec::new();
        charges.extend(self.document.per_hour.map(|most| (format!("api {client}"), 1, most)));
        charges.extend(paths[index].per_hour.map(|most| (format!("{index} {client}"), 1, most)));
        charges.extend(operation.per_hour.map(|most| (format!("{index} {method} {client}"), 1, most)));
        if let (Some(cost), Some(key)) = (operation.cost, key) {
            charges.push((format!("quota {cost} {key}"), cost, self.document.per_minute));
        }
        let is_over =
            charges.iter().any(|(name, cost, most)| self.used.get(name).unwrap_or(&0) + cost > *most);
        match (is_over, operation.cost.is_some() && key.is_none()) {
            (true, true) => return None,
            (true, false) => return Some(429),
            (false, true) => return Some(401),
            (false, false) => {}
        }
        for (name, cost, _) in charges {
            *self.used.entry(name).or_default() += cost;
        }
        Some(200)
    }
}

/// A segment with `value` in the place of its parameters.
fn fill(segment: &str, value: &str) -> String {
    match segment.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?.1))) {
        Some((before, after)) => format!("{before}{value}{}", fill(after, value)),
        None => segment.to_owned(),
    }
}

/// The file of scenarios for random requests, and how often each status is expected.
fn write_scenario(
    document: &Document,
    name: &str,
    dice: &mut Dice,
    seen: &mut HashMap<u16, usize>,
) -> String {
    let mut model = Model { document, used: HashMap::new() };
    let mut text = format!("config: {name}.yaml\nscenarios:\n  - name: {name}\n    steps:\n");
    for _ in 0..REQUESTS {
        let parts = ["a", "b", "ab", "abb", "c", "a.b", "a-b", "%ff", "a.%C3%A9"];
        let mut path = String::new();
        // A path of the document, or any other one.
        let template = &document.paths[dice.below(document.paths.len())].template;
        let known = template.split('/').skip(1);
        match dice.one_in(4) {
            true => (0..=dice.below(3)).for_each(|_| path += &format!("/{}", dice.pick(&parts))),
            false => known.for_each(|segment| path += &format!("/{}", fill(segment, dice.pick(&parts)))),
        }
        let path = if dice.one_in(20) { path } else { format!("/v1{path}") };
        let method = dice.pick(&["get", "get", "get", "head", "post", "delete", "put"]);
        let client = dice.pick(&["192.0.2.1", "192.0.2.2"]);
        let key = dice.pick(&[None, Some("one"), Some("one"), Some("two")]);
        // No parameter ends within an escape.
        let decoded = path.replace("%ff", "f").replace("%C3%A9", "é");
        let Some(status) = model.judge(method, &decoded, client, key) else { continue };
        *seen.entry(status).or_default() += 1;
        let query = key.map_or(String::new(), |key| format!("?key={key}"));
        let to = format!("{} {path}{query}", method.to_uppercase());
        writeln!(text, "      - {{ to: \"{to}\", from: {client}, expect: {{ status: {status} }} }}")
            .expect("a String");
    }
    text
}

#[test]
fn imported_documents_decide_as_the_model_does() {
    let scratch = Scratch::new();
    let (mut files, mut seen) = (Vec::new(), HashMap::new());
    for seed in 0..DOCUMENTS {
        let mut dice = Dice(seed);
        let document = random_document(&mut dice);
        let text = write_document(&document);
        let name = format!("d{seed}");
        let imported = import_file(&scratch.file(&format!("{name}-openapi.yaml"), &text));
        let imported = imported.unwrap_or_else(|fault| panic!("{fault}\n{text}"));
        scratch.file(&format!("{name}.yaml"), &imported.yaml);
        let scenario = write_scenario(&document, &name, &mut dice, &mut seen);
        scratch.file(&format!("{name}_test.yaml"), &scenario);
        files.push(format!("{name}_test.yaml"));
    }
    for files in files.chunks(RUN) {
        let args: Vec<&str> = std::iter::once("test").chain(files.iter().map(String::as_str)).collect();
        let run = Run::default().args(&args).finish(scratch.path());
        assert_eq!(run.code, Some(0), "{}\n{}", run.stdout, run.stderr);
    }
    for status in [200, 401, 404, 405, 429] {
        assert!(seen.get(&status).is_some_and(|count| *count > 100), "{seen:?}");
    }
}

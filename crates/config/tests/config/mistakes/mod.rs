//! Mistakes in `gateway.yaml`, each with the message and the help that its writer gets.

mod elsewhere;
mod foreign;
mod traps;

use proptest::prelude::*;
use sluicegate_config as config;
use sluicegate_model as model;

/// The file, the line and the column of its only problem (column 0 = not checked), a part of the message, and a part of
/// the help. A file without locations gets one.
type Mistake = (&'static str, usize, usize, &'static str, &'static str);

#[rustfmt::skip]
const MISTAKES: &[Mistake] = &[
    ("locations:\n\t- path: /\n\t  upstream: demo\n", 2, 1, "a tab indents", "write spaces"),
    ("server:\n  workers: 2\n\tmax_body: 1MiB\n", 3, 1, "a tab indents", "write spaces"),
    ("limits:\n  a:\n    rate: 10/s\n   burst: 5\n", 4, 4,
        "indented by 3 spaces", "indent it by 4 spaces, like `rate` in line 3"),
    ("server:\n  workers: 2\n    max_body: 1MiB\n", 3, 5,
        "indented under one that has its value", "indent it by 2 spaces, like `workers` in line 2"),
    ("locations:\n- path: /\n upstream: demo\n", 3, 2,
        "indented by 1 space", "indent it by 2 spaces, like `path` in line 2"),
    ("limits:\n  a:\n    rate: 10/s\n    burst:20\n", 4, 10,
        "the colon after `burst` needs a space", "write burst: 20"),
    ("locations:\n  - path:/api\n    upstream: demo\n", 2, 9,
        "the colon after `path` needs a space", "write path: /api"),
    ("locations:\n  - path: \"/api\n    upstream: demo\n", 2, 11,
        "the quote \" is never closed", "write \" at the end of the value"),
    ("locations:\n  - path: '/api\n    host: 'a.example'\n    upstream: demo\n", 2, 11,
        "the quote ' is never closed", "write ' at the end"),
    ("locations:\n  - path: \"~ \\.php$\"\n    upstream: demo\n", 2, 14, "`\\.` has no meaning", "single quotes"),
    ("locations:\n  - path: /\n    respond: { body: \"say \"hi\"\" }\n", 3, 28,
        "text after the quote", "\\\" for a quote"),
    ("locations:\n  - path: *\n    upstream: demo\n", 2, 11, "begins with `*`", "for every path write /"),
    ("locations:\n  - { path: /, host: *.example.com, upstream: demo }\n", 2, 22,
        "begins with `*`", "\"*.example.com\""),
    ("locations: [{ path: /, upstream: demo }\n", 1, 12, "the `[` is never closed", "write ]"),
    ("locations:\n  - { path: /, upstream: demo\n", 2, 5, "the `{` is never closed", "write }"),
    ("server: { trusted_proxies: [10.0.0.0/8 }\nlocations:\n  - { path: /, upstream: demo }\n", 1, 40,
        "does not close the `[`", "write ]"),
    ("locations: [{ path: /, upstream: demo }]]\n", 1, 41, "closes nothing", "remove it"),
    ("locations:\n  - path: /\n    upstream demo\n", 3, 5, "`upstream` has no colon", "write upstream: demo"),
    ("server:\n  trusted_proxies: - 10.0.0.0/8\n", 2, 20, "a list begins in the line after", "[10.0.0.0/8]"),
    ("listen: *port\n", 1, 9, "unknown anchor", "put it in quotes"),
    ("listen 8080\nlocations: [{ path: /, upstream: demo }]\n", 1, 1, "`listen` has no colon", "write listen: 8080"),
    ("locations\n  - path: /\n", 1, 1, "`locations` has no colon", "write locations:"),
    ("locations:\n  - path: /\n    upstream: %app\n", 3, 15, "begins with `%`", "\"%app\""),
    ("locations:\n  - path: @api\n    upstream: demo\n", 2, 11, "begins with `@`", "\"@api\""),
    ("locations:\n  - path: `/api`\n    upstream: demo\n", 2, 11, "begins with ``", "quotes: \"/api\""),
    ("locations:\n  - path: /\n    respond: { body: a: b }\n", 3, 22, "a second colon", "\"a: b\""),
    ("locations:\n  - path: /\n    respond:\n      body: sorry: closed\n", 4, 13,
        "a second colon", "\"sorry: closed\""),
    ("locations:\n  - { path: ~ ^/a[0-9], upstream: demo }\n", 2, 13, "a value with brackets", "\"~ ^/a[0-9]\""),
    ("locations:\n  - { path: /, redirect: { to: https://${host}/ } }\n", 2, 32,
        "a value with brackets", "\"https://${host}/\""),
    ("locations:\n  -path: /\n   upstream: demo\n", 2, 3, "the dash of a list needs a space", "write - path:"),
    ("limits:\n  a: { rate: 10r/s }\n", 2, 14, "`10r/s`", "write 10/s"),
    ("limits:\n  a: { rate: 10/sec }\n", 2, 14, "`10/sec`", "write 10/s"),
    ("limits:\n  a: { rate: 10/second }\n", 2, 14, "`10/second`", "write 10/s"),
    ("limits:\n  a: { rate: 10/min }\n", 2, 14, "`10/min`", "write 10/m"),
    ("limits:\n  a: { rate: 10rps }\n", 2, 14, "`10rps`", "write 10/s"),
    ("limits:\n  a: { rate: 10 per second }\n", 2, 14, "`10 per second`", "write 10/s"),
    ("limits:\n  a: { rate: 1k/s }\n", 2, 14, "`1k/s`", "write 1000/s"),
    ("limits:\n  a: { rate: -10/s }\n", 2, 14, "`-10/s`", "write 10/s"),
    ("limits:\n  a: { rate: 0.5/s }\n", 2, 14, "`0.5/s`", "write 1/2s"),
    ("limits:\n  a: { rate: 10/1.5s }\n", 2, 14, "`10/1.5s`", "write 10/1500ms"),
    ("limits:\n  a: { rate: s/10 }\n", 2, 14, "`s/10`", "write 10/s"),
    ("limits:\n  a: { rate: 10 }\n", 2, 14, "`10`", "write 10/s or 10/m"),
    ("limits:\n  a: { rate: 10/ }\n", 2, 14, "`10/`", "write 10/s or 10/m"),
    ("limits:\n  a: { rate: 100 requests per 5 minutes }\n", 2, 14, "`100 requests per 5 minutes`", "write 100/5m"),
    ("limits:\n  a: { rate: 0/s }\n", 2, 14, "let nothing pass", "write at least 1, e.g. 1/s"),
    ("limits:\n  a: { rate: 10/s, key: client_ip }\n", 2, 25, "`client_ip` is not a valid word", "did you mean `ip`?"),
    ("limits:\n  a: { rate: 10/s, key: $binary_remote_addr }\n", 2, 25,
        "`$binary_remote_addr` is not a valid word", "did you mean `ip`?"),
    ("limits:\n  a: { rate: 10/s, key: address }\n", 2, 25, "`address` is not a valid word", "did you mean `ip`?"),
    ("limits:\n  a: { rate: 10/s, key: path }\n", 2, 25, "`path` is not a valid word", "did you mean `uri`?"),
    ("limits:\n  a: { rate: 10/s, key: user }\n", 2, 25, "`user` is not a valid word", "did you mean `account`?"),
    ("limits:\n  a: { rate: 10/s, key: X-Api-Key }\n", 2, 25,
        "`X-Api-Key` is not a valid word", "write header:X-Api-Key"),
    ("limits:\n  a: { rate: 10/s, key: header.X-Api-Key }\n", 2, 25,
        "`header.X-Api-Key` is not a valid word", "write header:X-Api-Key"),
    ("limits:\n  a: { rate: 10/s, key: $http_x_api_key }\n", 2, 25,
        "`$http_x_api_key` is not a valid word", "write header:x-api-key"),
    ("limits:\n  a: { rate: 10/s, key: $cookie_sid }\n", 2, 25,
        "`$cookie_sid` is not a valid word", "write cookie:sid"),
    ("limits:\n  a: { rate: 10/s, algorithm: token-bucket }\n", 2, 31,
        "`token-bucket` is not a valid word", "did you mean `token_bucket`?"),
    ("limits:\n  a: { rate: 10/s, algorithm: gcra }\n", 2, 31,
        "`gcra` is not a valid word", "did you mean `token_bucket`?"),
    ("limits:\n  a: { rate: 10/s, algorithm: fixed }\n", 2, 31,
        "`fixed` is not a valid word", "did you mean `fixed_window`?"),
    ("limits:\n  a: { rate: 10/s, algorithm: sliding }\n", 2, 31,
        "`sliding` is not a valid word", "did you mean `sliding_window`?"),
    ("limits:\n  a: { rate: 10/s, algorithm: leaky }\n", 2, 31,
        "`leaky` is not a valid word", "did you mean `leaky_bucket`?"),
    ("limits:\n  a: { rate: 10/s, algorithm: token }\n", 2, 31,
        "`token` is not a valid word", "did you mean `token_bucket`?"),
    ("limits:\n  a: { rate: 10/s, burst: 20, nodelay: true }\n", 2, 31,
        "unknown field `nodelay`", "remove it: requests within burst pass at once"),
    ("limits:\n  a: { rate: 10/s, algorithm: sliding_window, burst: 5 }\n", 2, 47,
        "`burst` is not a field of sliding_window", "it belongs to token_bucket and leaky_bucket"),
    ("limits:\n  a: { limit: 10/s }\n", 2, 8, "unknown field `limit`", "did you mean `rate`?"),
    ("limits:\n  a: { rate: 10/s, burst: 5s }\n", 2, 27, "`5s` is not a whole number", "write burst: 5"),
    ("limits:\n  a: { rate: 10/s, burst: 1k }\n", 2, 27, "`1k` is not a whole number", "write 1000"),
    ("limits:\n  a: { burst: 5 }\n", 2, 3, "`rate` is missing", "write e.g. rate: 10/s"),
    ("limits:\n  a: { rate: 10/s, dry_run: yes }\n", 2, 29, "neither true nor false", "write true"),
    ("limits:\n  a: { rate: 10/s, on_reject: { body: '<h1>${title}</h1>' } }\n", 2, 39,
        "template variables are not allowed",
        "write body: { template: \"<h1>${title}</h1>\", content_type: text/html }"),
    ("upstreams:\n  app: { servers: [127.0.0.1:9000], retries: 3 }\n", 2, 0,
        "`retries` must be a mapping", "write retries: { attempts: 3 }"),
    ("upstreams:\n  app: { servers: [127.0.0.1:9000], balance: ip_hash }\n", 2, 0,
        "`ip_hash`", "did you mean `hash:ip`?"),
    ("upstreams:\n  app: { servers: [127.0.0.1:9000], balance: leastconn }\n", 2, 0,
        "`leastconn`", "did you mean `least_conn`?"),
    ("upstreams:\n  app: { servers: [127.0.0.1:9000], balance: roundrobin }\n", 2, 0,
        "`roundrobin`", "did you mean `round_robin`?"),
    ("upstreams:\n  app: { servers: [127.0.0.1:9000], balance: consistent_hash }\n", 2, 0,
        "`consistent_hash`", "did you mean `hash:ip`?"),
    ("upstreams:\n  app: { servers: [127.0.0.1:9000], timeout: 5s }\n", 2, 0,
        "unknown field `timeout`", "did you mean `timeouts`?"),
    ("upstreams:\n  app: { servers: [127.0.0.1:9000], timeouts: 5s }\n", 2, 0,
        "`timeouts` must be a mapping", "write timeouts: { response: 5s }"),
    ("upstreams:\n  app: { servers: [127.0.0.1:9000], timeouts: { connect: 5 } }\n", 2, 0,
        "the duration `5` has no unit", "write 5s"),
    ("upstreams:\n  app: { servers: [127.0.0.1:9000], timeouts: { connect: 1.5s } }\n", 2, 0,
        "`1.5s` is not a duration", "write 1500ms"),
    ("upstreams:\n  app: { servers: [127.0.0.1:9000], connect: 2s, idle: 5s }\n", 2, 0,
        "unknown field `connect`", "write timeouts: { connect: 2s, idle: 5s }"),
    ("upstreams:\n  app: { servers: [127.0.0.1:9000], health: true }\n", 2, 0,
        "`health` must be a mapping", "write health: { path: /healthz }"),
    ("upstreams:\n  app: { servers: [127.0.0.1:9000], health: /ok }\n", 2, 0,
        "`health` must be a mapping", "write health: { path: /ok }"),
    ("upstreams:\n  app: { servers: [127.0.0.1:9000], health: off }\n", 2, 0,
        "`health` must be a mapping", "write health: none"),
    ("upstreams:\n  app: { servers: [127.0.0.1:9000], health_check: { path: / } }\n", 2, 0,
        "unknown field `health_check`", "did you mean `health`?"),
    ("upstreams:\n  app: { servers: [127.0.0.1:9000], keepalive: 60s }\n", 2, 0,
        "`60s` is not a whole number", "write timeouts: { idle: 60s }"),
    ("upstreams: { app: { servers: [10.0.0.1] } }\n", 1, 0, "the server `10.0.0.1` has no port", "write 10.0.0.1:80"),
    ("upstreams: { app: { server: 10.0.0.1:80 } }\n", 1, 21, "unknown field `server`", "did you mean `servers`?"),
    ("upstreams: { app: { servers: [{ url: \"http://10.0.0.1\", weight: 0 }] } }\n", 1, 0,
        "`0` is not a whole number", "write at least 1"),
    ("log: { level: warning }\n", 1, 15, "`warning` is not a valid word", "did you mean `warn`?"),
    ("log: { format: text }\n", 1, 16, "`text` is not a valid word", "did you mean `pretty`?"),
    ("log: debug\n", 1, 1, "`log` must be a mapping", "write log: { level: debug }"),
    ("access_log: off\n", 1, 1, "`access_log` must be a mapping", "write access_log: none"),
    ("access_log: { format: text }\n", 1, 23, "`text` is not a valid word", "did you mean `pretty`?"),
    ("access_log: { fields: [user_agent, trie] }\n", 1, 36, "`trie` is not a valid word", "did you mean `tries`?"),
    ("admin: off\n", 1, 8, "`off` is not an address", "write admin: none"),
    ("admin: 9901\n", 1, 8, "`9901` is not an address", "write 127.0.0.1:9901"),
    ("access_log: { sample: 10 }\n", 1, 23, "`10` is not a percentage", "10%"),
    ("server: { max_body: 10M }\n", 1, 21, "`M` is not a unit of size", "write 10MiB"),
    ("listen: 80808\n", 1, 9, "`80808` is not a port", "write a number from 1 to 65535"),
    ("listen: localhost\n", 1, 9, "`localhost` is not an address", "write 127.0.0.1:8080"),
    ("listen: http://0.0.0.0:80\n", 1, 9, "`http://0.0.0.0:80` is not an address", "write 0.0.0.0:80"),
    ("listen: 443 ssl\n", 1, 9,
        "`443 ssl` is not an address", "write { address: \":443\", tls: { cert: chain.pem, key: key.pem } }"),
    ("listen: { address: \":443\", tls: true }\n", 1, 28,
        "`tls` must be a mapping", "write tls: { cert: chain.pem, key: key.pem }"),
    ("listen: { address: \":443\", cert: a.pem, key: b.pem }\n", 1, 28,
        "unknown field `cert`", "write tls: { cert: a.pem, key: b.pem }"),
    ("listen: { port: 443 }\n", 1, 11, "unknown field `port`", "did you mean `address`?"),
    ("locations:\n  - { path: /, upstream: demo, burst: 5 }\n", 2, 32,
        "unknown field `burst`", "write limits: { rate: 10/s, burst: 5 }"),
    ("locations:\n  - { path: /, upstream: demo, rate: 10/s, key: account }\n", 2, 32,
        "unknown field `rate`", "write limits: { rate: 10/s, key: account }"),
    ("locations:\n  - { path: /, proxy_pass: \"http://127.0.0.1:9000\" }\n", 2, 16,
        "unknown field `proxy_pass`", "did you mean `upstream`?"),
    ("locations:\n  - { path: /, upstream: demo, limit_req: 10/s }\n", 2, 32,
        "unknown field `limit_req`", "did you mean `limits`?"),
    ("locations:\n  - { path: /, respond: hello }\n", 2, 16,
        "`respond` must be a mapping", "write respond: { body: hello }"),
    ("locations:\n  - { path: /, respond: 404 }\n", 2, 16,
        "`respond` must be a mapping", "write respond: { status: 404 }"),
    ("locations:\n  - { path: /, redirect: \"https://example.com\" }\n", 2, 16,
        "`redirect` must be a mapping", "write redirect: { to: https://example.com }"),
    ("locations:\n  - { path: api, upstream: demo }\n", 2, 13, "the path `api` does not start with /", "write /api"),
    ("locations:\n  - { path: \"~ ^/(api\", upstream: demo }\n", 2, 18, "unclosed group", "close it with )"),
    ("locations:\n  - { path: /, upstream: demo, request_headers: { X-A: b } }\n", 2, 51,
        "unknown field `X-A`", "write set: { X-A: … }"),
    ("locations:\n  - { path: /, upstream: demo, request_headers: { set: [X-A] } }\n", 2, 51,
        "`set` must be a mapping", "write set: { X-Name: value }"),
    ("locations:\n  - { path: /, upstream: nowhere }\n", 2, 26,
        "the upstream `nowhere` is not defined", "define it under upstreams: nowhere: [127.0.0.1:9000]"),
    ("locations:\n  - { path: /, upstream: 10.0.0.1:80 }\n", 2, 26, "is not defined", "http://10.0.0.1:80"),
    ("locations:\n  - { path: /, upstream: demo, methods: get }\n", 2, 41,
        "`get` is not a request method", "did you mean `GET`?"),
    ("locations: { /: { upstream: demo } }\n", 1, 1,
        "`locations` must be a list", "write locations: [{ path: /, upstream: demo }]"),
    ("location: [{ path: /, upstream: demo }]\n", 1, 1, "unknown field `location`", "did you mean `locations`?"),
    ("server: { watch: 5s }\n", 1, 11, "unknown field `watch`", "write reload: { watch: 5s }"),
    ("limits: 10/s\n", 1, 1, "`limits` must be a mapping", "write e.g. limits: { per-ip: { rate: 10/s } }"),
    ("state: { store: redis }\n", 1, 17, "`state.redis.url` is missing", "redis://HOST:6379"),
    ("state: { redis: { url: redis://h, tls: {} } }\n", 1, 35,
        "`tls` is for rediss:// URLs", "write the URL as rediss://HOST:PORT"),
    ("state: { redis: { url: rediss://h, tls: { ca: nowhere.pem } } }\n", 1, 47,
        "the file `nowhere.pem` does not exist", "relative paths start at the folder of gateway.yaml: /"),
    ("state: { redis: { url: rediss://h, tls: { cert: ../../tests/keys/upstream.pem } } }\n", 1, 36,
        "`key` is missing", "write key: FILE, the private key of cert"),
    ("state: { redis: { url: rediss://h, tls: { verify: false } } }\n", 1, 43,
        "unknown field `verify`", ""),
    ("limits: { a: 10/s }\nlimits: { b: 10/s }\n", 2, 1, "the key `limits` appears twice", "under one key"),
    ("upstreams: { app: { servers: [a:1], limits: b } }\n", 1, 37, "unknown field `limits`", "in the locations"),
    ("limit: { a: 10/s }\n", 1, 1, "unknown field `limit`", "did you mean `limits`?"),
];

fn read(text: &str) -> Result<config::LoadedConfig, model::ProblemReport> {
    let rest = if text.contains("location") { "" } else { "locations: [{ path: /, upstream: demo }]\n" };
    config::parse(&format!("{text}{rest}"), "gateway.yaml")
}

/// Whether a problem is the only one, and the expected one.
fn check_only(problems: &[model::Problem], mistake: &Mistake) -> bool {
    let (_, line, column, message, help) = mistake;
    matches!(problems, [one]
        if one.line == *line
            && (*column == 0 || one.column == *column)
            && one.message.contains(message)
            && one.suggestion.as_deref().is_some_and(|text| text.contains(help)))
}

#[test]
fn every_mistake_has_one_problem_that_says_what_to_write() {
    assert!(MISTAKES.len() + elsewhere::MISTAKES.len() >= 220);
    let mut wrong = String::new();
    for mistake in MISTAKES.iter().chain(elsewhere::MISTAKES).chain(foreign::MISTAKES) {
        let found = match read(mistake.0) {
            Ok(_) => "it is valid".to_owned(),
            Err(report) if check_only(&report.problems, mistake) => continue,
            Err(report) => report.to_string(),
        };
        let (_, line, column, message, help) = mistake;
        wrong += &format!("--- expected {line}:{column} {message} | {help}\n{found}\n");
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Names that are equally near are suggested in the order of the alphabet, so that a file always says the same.
#[test]
fn of_equally_near_names_the_first_is_suggested() {
    let names = ["k", "d", "h", "c", "f", "i", "e", "g"];
    let list = |value: &str| names.map(|name| format!("{name}: {value}")).join(", ");
    let near = |section: &str, value: &str, location: &str| {
        let text = format!("{section}: {{ {} }}\nlocations: [{{ path: /, {location} }}]\n", list(value));
        let report = read(&text).expect_err("z is not defined");
        report.problems[0].suggestion.clone()
    };
    let found = [
        near("limits", "{ rate: 1/s }", "upstream: demo, limits: z"),
        near("upstreams", "[127.0.0.1:1]", "upstream: z"),
        near("ip_sets", "[10.0.0.0/8]", "upstream: demo, access: { allow: z }"),
    ];
    assert_eq!(found, [(); 3].map(|()| Some("did you mean `c`?".to_owned())));
}

proptest! {
    #[test]
    fn no_change_of_a_file_makes_reading_panic(
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), 0_usize..3, "[-\"'\\[\\]{}:,#*&%@` \t\n\\\\|>a0ä]"), 1..6),
    ) {
        let file = std::fs::read_to_string("../../gateway.yaml").expect("readable");
        let mut chars: Vec<char> = file.chars().collect();
        for (place, length, new) in edits {
            let start = place.index(chars.len());
            let end = (start + length).min(chars.len());
            chars.splice(start..end, new.chars());
        }
        let text: String = chars.into_iter().collect();
        if let Err(report) = config::parse(&text, "gateway.yaml") {
            prop_assert!(!report.problems.is_empty() && !report.to_string().is_empty());
            let lines = text.split('\n').count();
            prop_assert!(report.problems.iter().all(|problem| (1..=lines + 1).contains(&problem.line)));
        }
    }
}

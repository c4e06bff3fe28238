//! Names, schemes and listeners of locations, and edits of headers.

use sluicegate_config::{self as config, LoadedConfig};
use sluicegate_model::*;

fn read(text: &str) -> LoadedConfig {
    config::parse(text, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"))
}

const LISTEN: &str = "listen:\n  - { address: 127.0.0.1:1, name: plain }\n  - 127.0.0.1:2\n  \
                      - { address: \"unix:/run/x.sock\", mode: \"0660\", name: inner }\n";

#[test]
fn origins_and_names_are_read() {
    let config = read(&format!(
        "{LISTEN}server: {{ trusted_proxies: 10.0.0.1 }}\nlocations:\n  \
           - {{ path: /, upstream: demo, scheme: http, listener: plain, name: apex }}\n  \
           - {{ path: /, upstream: demo, scheme: https, listener: [inner, plain, inner] }}\n  \
           - {{ path: /, upstream: demo, scheme: any, listener: any, name: auto }}\n"
    ))
    .config;
    let names: Vec<Option<&str>> = config.listen.iter().map(|listen| listen.name.as_deref()).collect();
    assert_eq!(names, [Some("plain"), None, Some("inner")]);
    assert_eq!(config.listen[2].mode, Some(0o660));
    let [apex, secure, any] = &config.locations[..] else { panic!("three locations") };
    assert_eq!((apex.name.as_str(), apex.written_path.as_str()), ("apex", "/"));
    assert_eq!((apex.scheme, &*apex.listeners), (Some(Scheme::Http), &["plain".to_owned()][..]));
    assert_eq!((secure.name.as_str(), secure.scheme), ("/", Some(Scheme::Https)));
    assert_eq!(secure.listeners, ["inner", "plain"]);
    assert_eq!((any.name.as_str(), any.scheme, any.listeners.len()), ("/", None, 0));
    let described = |location| config::describe::describe_location(&config, location);
    assert_eq!(described(apex), "apex: / (http, listener plain) -> demo");
    assert_eq!(described(secure), "/ (https, listener inner, listener plain) -> demo");
    assert_eq!(described(any), "/ -> demo");
}

/// The label of a location that is given a name leaks no pattern into the names of its limits.
#[test]
fn names_of_inline_limits() {
    let config = read(&format!(
        "{LISTEN}server: {{ trusted_proxies: 10.0.0.1, limits: [{{ name: all, rate: 9/s }}, 1000/s] }}\nlocations:\n  \
           - {{ path: \"~* \\\\.(css|js)$\", upstream: demo, name: assets, limits: [2/s, {{ rate: 3/s }}] }}\n  \
           - {{ path: /, upstream: demo, limits: [{{ name: burst, rate: 10/s }}, {{ name: auto, rate: 1/s }}] }}\n  \
           - {{ path: /, upstream: demo, scheme: https, limits: 1/s }}\n  \
           - {{ path: /, upstream: demo, host: https, methods: GET, limits: 1/s }}\n  \
           - {{ path: /, upstream: demo, listener: [plain, inner], scheme: http, limits: 1/s }}\n"
    ))
    .config;
    let names: Vec<&str> = config.limits.iter().map(|limit| limit.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "all",
            "server#2",
            "assets#1",
            "assets#2",
            "burst",
            "/#2",
            "https: /#1",
            "https GET /#1",
            "@plain,inner http: /#1"
        ]
    );
}

#[test]
fn header_values_have_variables() {
    let text = "server: { headers: { set: { Strict-Transport-Security: max-age=1 }, add: { X-Id: \"${request_id}\" },\n  \
                  remove: server } }\nlocations:\n  - path: /\n    upstream: demo\n    request_headers:\n      \
                  set: { X-A: \"${client_ip} ${account} ${tier} ${host} ${request_uri} ${path} ${scheme} ${request_id}\" }\n      \
                  add: { X-B: \"${location}${upstream}\", X-C: \"$${host}\" }\n";
    let config = read(text).config;
    let server = &config.server.headers;
    assert_eq!((server.set.len(), server.remove[0].as_str()), (1, "server"));
    let template = |text: &HeaderText| match text {
        HeaderText::Template(template) => template.0.clone(),
        HeaderText::Fixed(value) => panic!("{value:?}"),
    };
    assert_eq!(template(&server.add[0].1), [TemplatePiece::Var(TemplateVar::RequestId)]);
    let edits = &config.locations[0].request_headers;
    assert_eq!(template(&edits.set[0].1).len(), 15);
    assert_eq!(template(&edits.add[0].1).len(), 2);
    assert_eq!(edits.add[1].1, HeaderText::Fixed(http::HeaderValue::from_static("${host}")));
}

fn help(text: &str) -> Vec<String> {
    let report = config::parse(text, "gateway.yaml").expect_err(text);
    report.problems.into_iter().filter_map(|problem| problem.suggestion).collect()
}

#[test]
fn wrong_words_get_a_suggestion() {
    let location = |fields: &str| format!("{LISTEN}locations: [{{ path: /, upstream: demo, {fields} }}]\n");
    for (fields, expected) in [
        ("scheme: htps", "did you mean `https`?"),
        ("listener: plian", "did you mean `plain`?"),
        ("listener: zebra", "the listeners are plain, inner"),
        ("nmae: x", "did you mean `name`?"),
        ("listner: plain", "did you mean `listener`?"),
        ("limits: { nmae: x, rate: 1/s }", "did you mean `name`?"),
        ("response_headers: { set: { X-A: \"${acount}\" } }", "did you mean `account`?"),
        ("request_headers: { set: { X-A: \"${reqest_id}\" } }", "did you mean `request_id`?"),
    ] {
        assert!(help(&location(fields)).iter().any(|help| help == expected), "{fields}");
    }
    let redirect = help("locations: [{ path: /, redirect: { to: \"${shceme}://x\" } }]\n");
    assert_eq!(redirect, ["did you mean `scheme`?"]);
    let nameless = help("locations: [{ path: /, upstream: demo, listener: edge }]\n");
    assert_eq!(nameless, ["name it: listen: [{ address: \":80\", name: edge }]"]);
    let limit = help(&location("response_headers: { set: { X-A: \"${limit}\" } }"));
    assert!(
        limit.iter().any(|help| help.starts_with("the variables here are tier, request_id,")),
        "{limit:?}"
    );
}

#[test]
fn a_scheme_that_no_listener_serves_is_a_warning() {
    let tls = "tls: { cert: ../../tests/keys/tls/a.pem, key: ../../tests/keys/tls/a.key.pem }";
    for (listen, server, location, warns) in [
        ("8080", "{}", "scheme: https", true),
        ("8080", "{}", "scheme: http", false),
        ("8080", "{ trusted_proxies: 10.0.0.1 }", "scheme: https", false),
        ("[8080, \"unix:/run/x.sock\"]", "{}", "scheme: https", false),
        ("{ address: \":1\", TLS }", "{}", "scheme: http", true),
        ("{ address: \":1\", TLS }", "{}", "scheme: https", false),
        ("[{ address: \":1\", name: a, TLS }, 8080]", "{}", "scheme: http, listener: a", true),
        ("[{ address: \":1\", name: a, TLS }, 8080]", "{}", "scheme: http", false),
    ] {
        let listen = listen.replace("TLS", tls);
        let text = format!(
            "listen: {listen}\nserver: {server}\nlocations: [{{ path: /, upstream: demo, {location} }}]\n"
        );
        let codes: Vec<&str> = read(&text).warnings.iter().map(|warning| warning.code).collect();
        assert_eq!(codes.contains(&codes::UNREACHABLE), warns, "{text}");
    }
}

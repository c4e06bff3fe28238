//! Every form of a Redis URL, and the errors of others.

use super::*;
use crate::yaml::tree;
use sluicegate_model::{Position, ProblemSink, Secret};

/// The endpoint of the URL or list `yaml`, or its error messages.
fn try_read_endpoint(yaml: &str) -> Result<RedisConfig, Vec<String>> {
    let node = tree::parse_document(yaml).unwrap_or_else(|(_, error)| panic!("{yaml}: {error:?}"));
    let sink = ProblemSink::default();
    let endpoint = read_redis_endpoint(&FieldValue {
        node: &node,
        path: "url".to_owned(),
        named_at: Position::START,
        sink: &sink,
    });
    let messages: Vec<String> = sink.take_sorted().0.into_iter().map(|problem| problem.message).collect();
    endpoint.filter(|_| messages.is_empty()).ok_or(messages)
}

#[track_caller]
fn read_endpoint(yaml: &str) -> RedisConfig {
    try_read_endpoint(yaml).unwrap_or_else(|messages| panic!("{yaml}: {messages:?}"))
}

fn at(host: &str, port: u16) -> (String, u16) {
    (host.to_owned(), port)
}

fn single_at(host: &str, port: u16) -> RedisServers {
    RedisServers::Single(host.to_owned(), port)
}

fn credentials(endpoint: &RedisConfig) -> (Option<String>, Option<String>) {
    let text = |secret: &Option<Secret>| secret.as_ref().map(|secret| secret.0.clone());
    (text(&endpoint.user), text(&endpoint.password))
}

#[test]
fn one_server() {
    for (text, servers, tls, database) in [
        ("redis://a.test", single_at("a.test", 6379), false, 0),
        ("redis://A.test.:7000/", single_at("a.test", 7000), false, 0),
        ("rediss://10.0.0.1/15", single_at("10.0.0.1", 6379), true, 15),
        ("valkey://cache_1", single_at("cache_1", 6379), false, 0),
        ("valkeys://u:p@a/1", single_at("a", 6379), true, 1),
        ("\"redis://[2001:DB8::1]:7001/2\"", single_at("2001:db8::1", 7001), false, 2),
        ("redis://[::1]", single_at("::1", 6379), false, 0),
    ] {
        let endpoint = read_endpoint(text);
        assert_eq!((endpoint.servers, endpoint.tls, endpoint.database), (servers, tls, database), "{text}");
    }
}

#[test]
fn sentinels() {
    let full = read_endpoint("redis+sentinel://u:p@h1,h2:26380,[::1]/my-master.1/3");
    let sentinels = vec![at("h1", 26379), at("h2", 26380), at("::1", 26379)];
    assert_eq!(full.servers, RedisServers::Sentinel { sentinels, name: "my-master.1".to_owned() });
    assert_eq!(
        (full.tls, full.database, credentials(&full)),
        (false, 3, (Some("u".to_owned()), Some("p".to_owned())))
    );
    let plain = read_endpoint("valkeys+sentinel://h:1/m");
    assert!(plain.tls && plain.database == 0 && credentials(&plain) == (None, None));
}

#[test]
fn nodes_of_a_cluster() {
    let three = read_endpoint("[\"redis://:p@a\", \"valkey://:p@b:7000/\", \"redis://:p@[::1]\"]");
    assert_eq!(three.servers, RedisServers::Cluster(vec![at("a", 6379), at("b", 7000), at("::1", 6379)]));
    assert_eq!((three.tls, credentials(&three)), (false, (None, Some("p".to_owned()))));
    let one = read_endpoint("[rediss://a]");
    assert!(one.tls && one.servers == RedisServers::Cluster(vec![at("a", 6379)]));
}

#[test]
fn users_and_passwords_are_decoded() {
    for (text, (user, password)) in [
        ("redis://h", (None, None)),
        ("redis://:@h", (None, None)),
        ("redis://u@h", (Some("u"), None)),
        ("redis://u:@h", (Some("u"), None)),
        ("redis://:p@h", (None, Some("p"))),
        ("redis://u:p:q@h", (Some("u"), Some("p:q"))),
        ("redis://u:p@q@h", (Some("u"), Some("p@q"))),
        ("\"redis://u%3Av:%40%2f%25%C3%A4%23@h\"", (Some("u:v"), Some("@/%ä#"))),
        ("redis://u:a,b[c]@h", (Some("u"), Some("a,b[c]"))),
        ("redis://u:a+b@h", (Some("u"), Some("a+b"))),
    ] {
        let expected = (user.map(str::to_owned), password.map(str::to_owned));
        assert_eq!(credentials(&read_endpoint(text)), expected, "{text}");
    }
}

#[test]
fn an_invalid_url_gets_one_message() {
    for (text, message) in [
        ("\"\"", "this is not a URL"),
        ("a.test:6379", "this is not a URL"),
        ("\"redis:a.test\"", "this is not a URL"),
        ("http://a", "this is not the URL of a Redis"),
        ("REDIS://a", "this is not the URL of a Redis"),
        ("redis-sentinel://a/m", "this is not the URL of a Redis"),
        ("unix:/run/redis.sock", "unix sockets of Redis are not supported"),
        ("unix:///run/redis.sock", "unix sockets of Redis are not supported"),
        ("redis+unix:///run/redis.sock", "unix sockets of Redis are not supported"),
        ("/run/redis.sock", "unix sockets of Redis are not supported"),
        ("redis://", "the URL does not name a host"),
        ("redis:///1", "the URL does not name a host"),
        ("redis://:p@/1", "the URL does not name a host"),
        ("redis://a..b", "the URL does not name a host"),
        ("redis://[::1", "the URL does not name a host"),
        ("redis://[a.test]", "the URL does not name a host"),
        ("redis://ä", "the URL does not name a host"),
        ("redis://::1", "an IPv6 address must be in brackets"),
        ("redis://a:0", "the text after the host is not a port"),
        ("redis://a:65536", "the text after the host is not a port"),
        ("redis://a:+1", "the text after the host is not a port"),
        ("\"redis://a:\"", "the text after the host is not a port"),
        ("redis://a,b", "a URL names exactly one server"),
        ("redis://a/x", "the text after the `/` is not a database number"),
        ("redis://a/-1", "the text after the `/` is not a database number"),
        ("redis://a/1/2", "the text after the `/` is not a database number"),
        ("redis://a/65536", "the text after the `/` is not a database number"),
        ("redis://a?db=1", "a Redis URL cannot contain `?` or `#`"),
        ("\"redis://:p#q@a\"", "a Redis URL cannot contain `?` or `#`"),
        ("\"redis://:p q@a\"", "a URL cannot contain spaces"),
        ("\"redis://:p\\0q@a\"", "a URL cannot contain spaces"),
        ("redis://:p/q@a", "a Redis URL cannot contain an at sign after a slash"),
        ("redis://:p%4@a", "a `%` in the user or password does not begin an escape"),
        ("redis://:p%+4@a", "a `%` in the user or password does not begin an escape"),
        ("redis://:p%ff@a", "the user or password is not UTF-8 text"),
        ("redis+sentinel://a", "the name of the primary is missing"),
        ("redis+sentinel://a/", "the name of the primary is missing"),
        ("redis+sentinel://a/m%20m", "the name of the primary is missing"),
        ("redis+sentinel://a,/m", "the URL does not name a host"),
        ("redis+sentinel://a/m/x", "the text after the `/` is not a database number"),
        ("[]", "`url` is empty"),
        ("[redis://a, [redis://b]]", "`url[1]` must be one value, not a list"),
        ("[redis://a, redis://b/0]", "a Cluster has no numbered databases"),
        ("[redis+sentinel://a/m]", "Sentinels are not nodes of a Cluster"),
        ("[redis://a, rediss://b]", "the nodes of a Cluster must have the same scheme, user and password"),
        (
            "[redis://:p@a, redis://:q@b]",
            "the nodes of a Cluster must have the same scheme, user and password",
        ),
        ("[redis://u:p@a, redis://b]", "the nodes of a Cluster must have the same scheme, user and password"),
        ("{ redis: a }", "`url` must be one value, not a mapping"),
    ] {
        let messages = try_read_endpoint(text).expect_err(text);
        assert!(messages.len() == 1 && messages[0].starts_with(message), "{text}: {messages:?}");
    }
}

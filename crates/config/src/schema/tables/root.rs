//! The sections of the file.

use std::path::PathBuf;

use super::{
    access, account, limits, listen, locations, operation, reject, server, service, state, upstreams,
};
use crate::schema::field::{OneOrMore, Shape, section};
use crate::schema::kinds::{FILE, Nested, NestedOrNone, OrWord, Special, Text, text};

section! {
    /// The whole file.
    mod root = "";
    /// Files whose upstreams, limits, locations and sets of networks belong to this one, relative to its folder; `*`
    /// is any text within one name and `?` any character. See [many teams, one gateway](tasks/teams.md).
    INCLUDE: OneOrMore<Text<PathBuf>> = OneOrMore(FILE),
        "include", "[]", "[conf.d/*.yaml, \"teams/*/limits.yaml\"]";
    /// The team that owns what this file defines: in lines of the access log, in the admin API and in metrics. Each
    /// included file has its own.
    OWNER: OrWord<Text<String>> = OrWord("none", Text::new("a name", super::limits::parse_name)),
        "owner", "none", "payments";
    /// The addresses to listen on.
    LISTEN: Special = Special(listen::listen_shape), "listen", "8080", "[80, 443]";
    /// Settings for all clients and locations.
    SERVER: Nested = Nested(&server::server::SECTION), "server", "{}", "{ max_body: 10MiB }";
    /// Groups of servers, by name.
    UPSTREAMS: Special = Special(upstreams::upstreams_shape), "upstreams", "{}", "{ app: [10.0.0.1:9000] }";
    /// Limits, by name.
    LIMITS: Special = Special(limits_by_name), "limits", "{}", "{ per-ip: { rate: 10/s } }";
    /// The rules that choose what happens to a request. This file or one that it includes must have them, unless it is
    /// for `service` alone.
    LOCATIONS: Special = Special(|| Shape::List(Box::new(Shape::Section(&locations::location::SECTION)))),
        "locations", "[]", "[{ path: /, upstream: demo }]";
    /// Identification of callers.
    ACCOUNT: Nested = Nested(&account::account::SECTION), "account", "{}", "{ from: header:X-Account-Id }";
    /// Named lists of networks.
    IP_SETS: Special = Special(ip_sets), "ip_sets", "{}", "{ office: [192.0.2.0/24] }";
    /// The clients that are allowed, denied, or free of limits.
    ACCESS: NestedOrNone = NestedOrNone(&access::access::SECTION), "access", "{}", "{ deny: [192.0.2.7] }";
    /// Bans of clients that are rejected too often.
    BANS: NestedOrNone = NestedOrNone(&access::bans::SECTION), "bans", "none", "{ after: 20/1m }";
    /// The response to rejected requests.
    ON_REJECT: Nested = Nested(&reject::on_reject::SECTION), "on_reject", "{}", "{ body: envelope }";
    /// The place where limits count.
    STATE: Nested = Nested(&state::state::SECTION), "state", "{}", "{ snapshot: ./state }";
    /// Reloading without a signal.
    RELOAD: Nested = Nested(&operation::reload::SECTION), "reload", "{}", "{ watch: 5s }";
    /// The admin API: an address, a mapping, or `none`. Every gateway on one host needs an address of its
    /// own.
    ADMIN: Special = Special(|| Shape::Either(vec![
        text("an address with its port, or none"),
        Shape::Section(&operation::admin::SECTION),
    ])), "admin", "127.0.0.1:9901", "none";
    /// The rate-limit service, for limits of requests that do not pass through the gateway.
    SERVICE: NestedOrNone = NestedOrNone(&service::service::SECTION), "service", "none", "{ listen: 127.0.0.1:9902 }";
    /// The log of the program itself.
    LOG: Nested = Nested(&operation::log::SECTION), "log", "{}", "{ level: warn }";
    /// The log of requests.
    ACCESS_LOG: NestedOrNone = NestedOrNone(&operation::access_log::SECTION), "access_log", "{}", "{ sample: 1% }";
    /// The traces of requests.
    TRACING: Nested = Nested(&operation::tracing::SECTION), "tracing", "{}", "{ otlp: \"http://127.0.0.1:4318\" }";
    /// The receiver of events.
    NOTIFY: NestedOrNone = NestedOrNone(&operation::notify::SECTION), "notify", "none",
        "{ url: \"https://hooks.example.com/quota\", secret: \"${NOTIFY_SECRET}\" }";
}

fn ip_sets() -> Shape {
    let item = Shape::Either(vec![text("an address or network"), Shape::Section(&access::ip_set::SECTION)]);
    Shape::Map("names", Box::new(Shape::OneOrMore(Box::new(item))))
}

fn limits_by_name() -> Shape {
    let limit = Shape::Either(vec![text("a rate"), Shape::Section(&limits::limit::SECTION)]);
    Shape::Map("names", Box::new(limit))
}

//! Describes the difference between two configurations in one line for people.

use std::collections::HashMap;
use std::fmt::{Debug, Write as _};
use std::hash::{DefaultHasher, Hasher};

use sluicegate_config::describe::describe_rates;
use sluicegate_model::{
    ActionConfig, Config, DescriptorRuleConfig, DomainConfig, LimitConfig, LimitId, LocationConfig, Secret,
    UpstreamConfig, UpstreamId, UpstreamTlsConfig, ViewId,
};

/// Names listed per section; of further names only the number.
const NAMES_MAX: usize = 8;

/// E.g. `limits: added b, changed a; locations: changed /x; numbers: a from N to M`. Of a secret it names only the
/// field.
pub(super) fn describe_changes(old: &Config, new: &Config) -> String {
    let named = [
        ("listen", named_listeners(old), named_listeners(new)),
        ("limits", named_limits(old), named_limits(new)),
        ("locations", named_locations(old), named_locations(new)),
        ("upstreams", named_upstreams(old), named_upstreams(new)),
    ];
    let mut parts: Vec<String> =
        named.iter().filter_map(|(section, old, new)| describe_section(section, old, new)).collect();
    let whole: [(&str, String, String); 13] = [
        ("server", server_text(old), server_text(new)),
        ("access", debug_text(&old.access), debug_text(&new.access)),
        ("ip_sets", debug_text(&old.ip_sets), debug_text(&new.ip_sets)),
        ("bans", debug_text(&old.bans), debug_text(&new.bans)),
        ("account", debug_text(&old.account), debug_text(&new.account)),
        ("on_reject", debug_text(&old.on_reject), debug_text(&new.on_reject)),
        ("state", debug_text(&old.state), debug_text(&new.state)),
        ("admin", debug_text(&old.admin), debug_text(&new.admin)),
        ("service", service_text(old), service_text(new)),
        ("log", debug_text(&(&old.log, &old.reload)), debug_text(&(&new.log, &new.reload))),
        ("access_log", debug_text(&old.access_log), debug_text(&new.access_log)),
        ("tracing", debug_text(&old.tracing), debug_text(&new.tracing)),
        ("notify", debug_text(&old.notify), debug_text(&new.notify)),
    ];
    let changed: Vec<&str> =
        whole.iter().filter(|(_, old, new)| old != new).map(|(section, ..)| *section).collect();
    if !changed.is_empty() {
        parts.push(format!("changed {}", changed.join(", ")));
    }
    let secret: Vec<&str> = secret_fields(old)
        .into_iter()
        .zip(secret_fields(new))
        .filter(|((_, old), (_, new))| old.is_some() && new.is_some() && old != new)
        .map(|((field, _), _)| field)
        .collect();
    if !secret.is_empty() {
        parts.push(format!("secrets: changed {}", secret.join(", ")));
    }
    let numbers = describe_numbers(old, new);
    if !numbers.is_empty() {
        parts.push(format!("numbers: {}", numbers.join("; ")));
    }
    if parts.is_empty() { "nothing changed".to_owned() } else { parts.join("; ") }
}

/// Every value that [`debug_text`] hides, by its field; a new secret must be added here.
fn secret_fields(config: &Config) -> [(&'static str, Option<SecretValues<'_>>); 8] {
    let redis = config.state.redis.as_ref().map(|redis| vec![redis.user.as_ref(), redis.password.as_ref()]);
    let token =
        config.admin.as_ref().map(|admin| admin.tokens.iter().map(|token| Some(&token.token)).collect());
    let calls = config.service.as_ref().map(|service| service.tokens.iter().map(Some).collect());
    let jwt =
        config.account.jwt.as_ref().map(|jwt| jwt.entries.iter().map(|one| one.secret.as_ref()).collect());
    let hashes = Some(vec![config.access_log.hash_secret.as_ref()]);
    let exports =
        config.tracing.otlp.as_ref().map(|otlp| otlp.headers.iter().map(|(_, value)| Some(value)).collect());
    let cookies = config.upstreams.iter().filter_map(|upstream| upstream.sticky.as_ref());
    let cookies = Some(cookies.filter_map(|sticky| sticky.secret.as_ref().map(Some)).collect());
    [
        ("upstreams.sticky.secret", cookies),
        ("state.redis.url", redis),
        ("admin.token", token),
        ("service.token", calls),
        ("account.jwt.secret", jwt),
        ("access_log.hash_secret", hashes),
        ("tracing.headers", exports),
        ("notify.secret", config.notify.as_ref().map(|notify| vec![Some(&notify.secret)])),
    ]
}

type SecretValues<'a> = Vec<Option<&'a Secret>>;

/// The debug form, so that no model must be comparable for this alone.
fn debug_text(value: &(impl Debug + ?Sized)) -> String {
    format!("{value:?}")
}

type NamedTexts = Vec<(String, String)>;

fn named_listeners(config: &Config) -> NamedTexts {
    config.all_listeners().iter().map(|listen| (listen.address.to_string(), debug_text(listen))).collect()
}

/// The service without its listeners, which are named with the others.
fn service_text(config: &Config) -> String {
    debug_text(&config.service.as_ref().map(|service| &service.tokens)) + &domain_texts(config).join(";")
}

fn domain_texts(config: &Config) -> Vec<String> {
    let rule_text = |rule: &DescriptorRuleConfig| {
        let bare = DescriptorRuleConfig { limits: Vec::new(), views: Vec::new(), ..rule.clone() };
        debug_text(&(bare, limit_names(config, &rule.limits), view_texts(config, &rule.views)))
    };
    let rules = |domain: &DomainConfig| domain.rules.iter().map(rule_text).collect::<Vec<_>>().join(",");
    let domains = config.service.iter().flat_map(|service| &service.domains);
    domains.map(|domain| format!("{:?}: {}", domain.name, rules(domain))).collect()
}

fn named_limits(config: &Config) -> NamedTexts {
    // A grant is no change of the file, a view belongs to its location, and a shadow is a limit of its own, which may
    // only have moved.
    let in_file = |limit: &LimitConfig| LimitConfig {
        views: Vec::new(),
        grants: Vec::new(),
        shadow: None,
        shadow_of: None,
        ..limit.clone()
    };
    config.limits.iter().map(|limit| (limit.name.clone(), debug_text(&in_file(limit)))).collect()
}

/// The numbers of limits before and after, where they differ.
fn describe_numbers(old: &Config, new: &Config) -> Vec<String> {
    let numbers = |limit: &LimitConfig| describe_rates(limit, &limit.algorithm).join(", ");
    let before: HashMap<&str, &LimitConfig> = old.limits.iter().map(|limit| (&*limit.name, limit)).collect();
    let changed = new.limits.iter().filter_map(|limit| {
        let (before, after) = (numbers(before.get(&*limit.name)?), numbers(limit));
        (before != after).then(|| format!("{} from {before} to {after}", limit.name))
    });
    changed.take(NAMES_MAX).collect()
}

fn named_upstreams(config: &Config) -> NamedTexts {
    let all = |upstream: &UpstreamConfig| debug_text(&(upstream, upstream.tls.as_ref().and_then(hash_roots)));
    config.upstreams.iter().map(|upstream| (upstream.name.clone(), all(upstream))).collect()
}

/// A hash of the trusted authorities; the debug form has only their number.
fn hash_roots(tls: &UpstreamTlsConfig) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    for root in &tls.roots.as_ref()?.roots {
        hasher.write(&root.subject);
        hasher.write(&root.subject_public_key_info);
    }
    Some(hasher.finish())
}

/// Indices into other sections are replaced by names, which do not change with the order.
fn named_locations(config: &Config) -> NamedTexts {
    let bare = |location: &LocationConfig| {
        let mut bare = LocationConfig { limits: Vec::new(), views: Vec::new(), ..location.clone() };
        let mut references = limit_names(config, &location.limits);
        let views = view_texts(config, &location.views);
        if let Some(auth) = &mut bare.auth {
            references.extend(limit_names(config, &std::mem::take(&mut auth.limits)));
            let upstream = config.upstreams.get(std::mem::replace(&mut auth.upstream, UpstreamId(0)).0);
            references.push(upstream.map_or("", |upstream| &upstream.name));
        }
        if let ActionConfig::Upstream(index) = &mut bare.action {
            let upstream = config.upstreams.get(std::mem::replace(index, UpstreamId(0)).0);
            references.push(upstream.map_or("", |upstream| &upstream.name));
        }
        if let ActionConfig::Usage { limits: Some(limits) } = &mut bare.action {
            references.extend(limit_names(config, &std::mem::take(limits)));
        }
        let display_name = match location.hosts.is_empty() {
            true => location.name.clone(),
            false => format!("{} of {:?}", location.name, location.hosts),
        };
        (display_name, debug_text(&(bare, references, views)))
    };
    config.locations.iter().map(bare).collect()
}

fn limit_names<'a>(config: &'a Config, limits: &[LimitId]) -> Vec<&'a str> {
    limits.iter().map(|&limit| config.limits.get(limit.0).map_or("", |limit| &limit.name)).collect()
}

/// The limits that a chain uses with other numbers, and these numbers.
fn view_texts(config: &Config, views: &[(LimitId, ViewId)]) -> Vec<String> {
    let numbers = |(limit, view): &(LimitId, ViewId)| {
        let limit = config.limits.get(limit.0)?;
        Some(debug_text(&(&limit.name, limit.views.get(view.0)?)))
    };
    views.iter().filter_map(numbers).collect()
}

fn server_text(config: &Config) -> String {
    let mut bare = config.server.clone();
    let (limits, views) = (std::mem::take(&mut bare.limits), std::mem::take(&mut bare.views));
    debug_text(&(bare, limit_names(config, &limits), view_texts(config, &views)))
}

/// Names that only one side has, and names with different texts.
fn describe_section(section: &str, old: &NamedTexts, new: &NamedTexts) -> Option<String> {
    let (before, after) = (group_texts(old), group_texts(new));
    let mut kinds: [(&str, Vec<&str>); 3] = [("added", vec![]), ("removed", vec![]), ("changed", vec![])];
    for (name, _) in new {
        if !before.contains_key(name.as_str()) {
            kinds[0].1.push(name);
        } else if before.get(name.as_str()) != after.get(name.as_str()) {
            kinds[2].1.push(name);
        }
    }
    kinds[1].1.extend(old.iter().map(|(name, _)| name.as_str()).filter(|name| !after.contains_key(name)));
    let mut parts = String::new();
    for (kind, mut names) in kinds {
        names.dedup();
        if !names.is_empty() {
            // Writing into a String cannot fail.
            let _ =
                write!(parts, "{} {kind} {}", if parts.is_empty() { "" } else { "," }, join_names(&names));
        }
    }
    (!parts.is_empty()).then(|| format!("{section}:{parts}"))
}

/// The texts of each name, in order: several locations may have the same one.
fn group_texts(all: &NamedTexts) -> HashMap<&str, Vec<&str>> {
    let mut texts: HashMap<&str, Vec<&str>> = HashMap::new();
    all.iter().for_each(|(name, text)| texts.entry(name).or_default().push(text));
    texts
}

fn join_names(names: &[&str]) -> String {
    let shown = names[..names.len().min(NAMES_MAX)].join(" ");
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_config(yaml: &str) -> Config {
        sluicegate_config::parse(yaml, "x").unwrap_or_else(|report| panic!("{report}")).config
    }

    const OLD: &str = "listen: 127.0.0.1:81\nlimits: { a: { rate: 1/s }, b: { rate: 1/s } }\n\
                       locations:\n  - { path: /, upstream: demo, limits: b }\n  - { path: /x, upstream: demo }\n";

    #[test]
    fn describes_added_removed_and_changed_names() {
        let old = parse_config(OLD);
        assert_eq!(describe_changes(&old, &old), "nothing changed");
        let new = parse_config(
            "listen: [127.0.0.1:81, 127.0.0.1:82]\nlimits: { c: { rate: 1/s }, b: { rate: 2/s } }\n\
             bans: { after: 2/1m }\nlocations:\n  - { path: /, upstream: demo, limits: b }\n",
        );
        assert_eq!(
            describe_changes(&old, &new),
            "listen: added 127.0.0.1:82; limits: added c, removed a, changed b; locations: removed /x; \
             changed bans; numbers: b from 1 request per second, burst 1 to 2 requests per second, burst 2"
        );
    }

    #[test]
    fn a_location_is_unchanged_when_its_limits_move() {
        let new = OLD.replace("limits: { a:", "limits: { z: { rate: 9/s }, a:");
        assert_eq!(describe_changes(&parse_config(OLD), &parse_config(&new)), "limits: added z");
    }

    #[test]
    fn a_changed_secret_is_named_by_its_field_and_never_shown() {
        let yaml = |url: &str, token: &str, secret: &str| {
            parse_config(&format!(
                "state: {{ store: redis, redis: {{ url: \"redis://{url}@h\" }} }}\n\
                 admin: {{ listen: 127.0.0.1:1, token: {token} }}\n\
                 account: {{ from: jwt:sub, jwt: {{ algorithms: [HS256], secret: {secret} }} }}\n\
                 locations: [{{ path: /, upstream: demo, limits: 1/s }}]\n"
            ))
        };
        let (token, secret) = ("t".repeat(32), "s".repeat(32));
        let old = yaml("u:hunter1", &token, &secret);
        assert_eq!(describe_changes(&old, &old), "nothing changed");
        for (new, fields) in [
            (yaml("u:hunter2", &token, &secret), "state.redis.url"),
            (yaml("hunter2:hunter1", &token, &secret), "state.redis.url"),
            (yaml("u:hunter1", "hunter2-hunter2-hunter2-hunter2-", &secret), "admin.token"),
            (yaml("u:hunter1", &token, "hunter2-hunter2-hunter2-hunter2-"), "account.jwt.secret"),
            (yaml("u:hunter2", "hunter2-hunter2-hunter2-hunter2-", &secret), "state.redis.url, admin.token"),
        ] {
            assert_eq!(describe_changes(&old, &new), format!("secrets: changed {fields}"));
        }
        let hashes = |secret: &str| parse_config(&format!("{OLD}access_log: {{ hash_secret: {secret} }}\n"));
        assert_eq!(
            describe_changes(&hashes("hunter1"), &hashes("hunter2")),
            "secrets: changed access_log.hash_secret"
        );
        let sticky = |secret: &str| {
            let file = "upstreams: { app: { servers: a:1, sticky: { secret: @ } } }\n\
                        locations: [{ path: /, upstream: app }]\n";
            parse_config(&file.replace('@', secret))
        };
        assert_eq!(
            describe_changes(&sticky("hunter1"), &sticky("hunter2")),
            "secrets: changed upstreams.sticky.secret"
        );
        let exports = |key: &str| {
            parse_config(&format!("{OLD}tracing: {{ otlp: http://h:1, headers: {{ x-key: {key} }} }}\n"))
        };
        assert_eq!(
            describe_changes(&exports("hunter1"), &exports("hunter2")),
            "secrets: changed tracing.headers"
        );
        let notify = |word: &str| {
            let secret = word.repeat(4);
            parse_config(&format!("{OLD}notify: {{ url: \"http://127.0.0.1:1/\", secret: {secret} }}\n"))
        };
        assert_eq!(
            describe_changes(&notify("hunter1"), &notify("hunter2")),
            "secrets: changed notify.secret"
        );
        let bare = OLD.replace("/x, ", "/y, ");
        assert_eq!(
            describe_changes(&parse_config(OLD), &parse_config(&bare)),
            "locations: added /y, removed /x"
        );
        let with = parse_config(&format!("{OLD}admin: {{ listen: 127.0.0.1:1, token: {token} }}\n"));
        assert_eq!(
            describe_changes(&parse_config(OLD), &with),
            "changed admin; secrets: changed admin.token"
        );
    }

    #[test]
    fn the_same_members_are_no_change() {
        let yaml =
            "account: { from: header:x-id, tier: { members: { a: x, b: y, c: x, d: y, e: x, f: y } } }\n";
        let all = || parse_config(&format!("{OLD}{yaml}"));
        for _ in 0..10 {
            assert_eq!(describe_changes(&all(), &all()), "nothing changed");
        }
    }

    #[test]
    fn other_authorities_of_an_upstream_are_a_change() {
        let yaml = |ca: &str| {
            let ca = format!("{}/tests/keys/{ca}", env!("CARGO_MANIFEST_DIR"));
            parse_config(&format!(
                "upstreams: {{ a: {{ servers: [\"https://h:1\"], tls: {{ ca: {ca} }} }} }}\n\
                 locations: [{{ path: /, upstream: a }}]\n"
            ))
        };
        assert_eq!(describe_changes(&yaml("upstream.pem"), &yaml("upstream.pem")), "nothing changed");
        assert_eq!(describe_changes(&yaml("upstream.pem"), &yaml("tls/ca.pem")), "upstreams: changed a");
    }

    /// The list is the only way to notice a change of a field that hides its value.
    #[test]
    fn every_secret_of_the_model_is_listed() {
        let models = [
            include_str!("../../crates/model/src/lib.rs"),
            include_str!("../../crates/model/src/access.rs"),
            include_str!("../../crates/model/src/account.rs"),
            include_str!("../../crates/model/src/admin.rs"),
            include_str!("../../crates/model/src/limit.rs"),
            include_str!("../../crates/model/src/listen.rs"),
            include_str!("../../crates/model/src/log.rs"),
            include_str!("../../crates/model/src/notify.rs"),
            include_str!("../../crates/model/src/reject.rs"),
            include_str!("../../crates/model/src/tls.rs"),
            include_str!("../../crates/model/src/traces.rs"),
            include_str!("../../crates/model/src/upstream.rs"),
        ];
        let is_field = |line: &&str| line.trim_start().starts_with("pub ") && !line.contains("use ");
        let is_secret = |line: &&str| is_field(line) && line.contains("Secret");
        let fields: usize = models.iter().map(|model| model.lines().filter(is_secret).count()).sum();
        let loaded = parse_config(
            "state: { store: redis, redis: { url: redis://u:p@h } }\n\
                             admin: { listen: 127.0.0.1:1, token: 0123456789abcdef0123456789abcdef }\n\
                             account: { from: jwt:sub, jwt: { algorithms: [HS256], \
                             secret: 0123456789abcdef0123456789abcdef } }\n\
                             tracing: { otlp: http://h:1, headers: { a: b } }\n\
                             notify: { url: http://127.0.0.1:1, secret: 0123456789abcdef01234567 }\n\
                             upstreams: { app: { servers: a:1, sticky: { secret: s } } }\n\
                             locations: [{ path: /, upstream: demo, limits: 1/s }]\n",
        );
        let listed: usize =
            secret_fields(&loaded).into_iter().flat_map(|(_, secrets)| secrets).flatten().count();
        assert_eq!(listed, fields);
    }

    /// A rule is the same one while its limits have the same names.
    #[test]
    fn rules_of_domains_belong_to_the_service() {
        let with = |limits: &str, rule: &str| {
            let rules = format!("{{ d: [{{ match: {{ a: \"*\" }}, limits: {rule} }}] }}");
            parse_config(&format!(
                "service: {{ listen: 127.0.0.1:1, domains: {rules} }}\nlimits: {{ {limits} }}\nlocations: []\n"
            ))
        };
        let old = with("a: 1/s, b: 1/s", "a");
        assert_eq!(describe_changes(&old, &with("b: 1/s, a: 1/s", "a")), "nothing changed");
        assert_eq!(describe_changes(&old, &with("a: 1/s, b: 1/s", "b")), "changed service");
    }

    #[test]
    fn names_are_cut_short() {
        let more: String = (0..12).map(|n| format!("  - {{ path: /n{n}, upstream: demo }}\n")).collect();
        let parts = describe_changes(&parse_config(OLD), &parse_config(&format!("{OLD}{more}")));
        assert!(parts.starts_with("locations: added /n0 ") && parts.ends_with("/n7 and 4 more"), "{parts}");
    }
}

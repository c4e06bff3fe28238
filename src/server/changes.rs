//! What differs between two configurations, in one line for people.

use std::fmt::{self, Debug, Write as _};

use crate::config::{Action, Config, Location};

/// Names told of one section; of more only their number.
const NAMES_MAX: usize = 8;

/// E.g. `limits: added b, changed a; locations: changed /x`. What is secret is not compared.
pub fn told(old: &Config, new: &Config) -> String {
    let named = [
        ("listen", listeners(old), listeners(new)),
        ("limits", limits(old), limits(new)),
        ("locations", locations(old), locations(new)),
        ("upstreams", upstreams(old), upstreams(new)),
    ];
    let mut told: Vec<String> =
        named.iter().filter_map(|(section, old, new)| difference(section, old, new)).collect();
    let whole: [(&str, String, String); 9] = [
        ("server", server(old), server(new)),
        ("access", text(&old.access), text(&new.access)),
        ("ip_sets", text(&old.ip_sets), text(&new.ip_sets)),
        ("bans", text(&old.bans), text(&new.bans)),
        ("account", text(&old.account), text(&new.account)),
        ("on_reject", text(&old.on_reject), text(&new.on_reject)),
        ("state", text(&old.state), text(&new.state)),
        ("log", text(&(&old.log, &old.reload)), text(&(&new.log, &new.reload))),
        ("access_log", text(&old.access_log), text(&new.access_log)),
    ];
    let changed: Vec<&str> =
        whole.iter().filter(|(_, old, new)| old != new).map(|(section, ..)| *section).collect();
    if !changed.is_empty() {
        told.push(format!("changed {}", changed.join(", ")));
    }
    if told.is_empty() { "nothing changed".to_owned() } else { told.join("; ") }
}

/// By its debug form, so that no model has to be comparable for this alone.
fn text(value: &(impl Debug + ?Sized)) -> String {
    format!("{value:?}")
}

type Named = Vec<(String, String)>;

fn listeners(config: &Config) -> Named {
    config.listen.iter().map(|listen| (listen.address.to_string(), text(listen))).collect()
}

fn limits(config: &Config) -> Named {
    config.limits.iter().map(|limit| (limit.name.clone(), text(limit))).collect()
}

fn upstreams(config: &Config) -> Named {
    config.upstreams.iter().map(|upstream| (upstream.name.clone(), text(upstream))).collect()
}

/// Where a location points into other sections, the names count and not the places.
fn locations(config: &Config) -> Named {
    let bare = |location: &Location| {
        let mut bare = Location { limits: Vec::new(), ..location.clone() };
        let mut points_at = names(config, &location.limits);
        if let Action::Upstream(place) = &mut bare.action {
            let upstream = config.upstreams.get(std::mem::take(place));
            points_at.push(upstream.map_or("", |upstream| &upstream.name));
        }
        let shown = match location.hosts.is_empty() {
            true => location.name.clone(),
            false => format!("{} of {:?}", location.name, location.hosts),
        };
        (shown, text(&(bare, points_at)))
    };
    config.locations.iter().map(bare).collect()
}

fn names<'a>(config: &'a Config, limits: &[usize]) -> Vec<&'a str> {
    limits.iter().map(|&limit| config.limits.get(limit).map_or("", |limit| &limit.name)).collect()
}

fn server(config: &Config) -> String {
    let mut bare = config.server.clone();
    let limits = std::mem::take(&mut bare.limits);
    text(&(bare, names(config, &limits)))
}

/// Names that are only in one of both, and names whose texts differ.
fn difference(section: &str, old: &Named, new: &Named) -> Option<String> {
    let of = |all: &'_ Named, name: &str| -> Vec<String> {
        all.iter().filter(|(known, _)| known == name).map(|(_, text)| text.clone()).collect()
    };
    let mut kinds: [(&str, Vec<&str>); 3] = [("added", vec![]), ("removed", vec![]), ("changed", vec![])];
    for (name, _) in new {
        let before = of(old, name);
        if before.is_empty() {
            kinds[0].1.push(name);
        } else if before != of(new, name) {
            kinds[2].1.push(name);
        }
    }
    kinds[1].1.extend(old.iter().map(|(name, _)| name.as_str()).filter(|name| of(new, name).is_empty()));
    let mut told = String::new();
    for (kind, mut names) in kinds {
        names.dedup();
        if !names.is_empty() {
            // Writing into a String cannot fail.
            let _ = write!(told, "{} {kind} {}", if told.is_empty() { "" } else { "," }, List(&names));
        }
    }
    (!told.is_empty()).then(|| format!("{section}:{told}"))
}

struct List<'a>(&'a [&'a str]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0[..self.0.len().min(NAMES_MAX)].join(" "))?;
        match self.0.len().saturating_sub(NAMES_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(yaml: &str) -> Config {
        crate::config::parse(yaml, "x").unwrap_or_else(|report| panic!("{report}")).config
    }

    const OLD: &str = "listen: 127.0.0.1:81\nlimits: { a: { rate: 1/s }, b: { rate: 1/s } }\n\
                       locations:\n  - { path: /, upstream: demo, limits: b }\n  - { path: /x, upstream: demo }\n";

    #[test]
    fn tells_what_was_added_removed_and_changed() {
        let old = config(OLD);
        assert_eq!(told(&old, &old), "nothing changed");
        let new = config(
            "listen: [127.0.0.1:81, 127.0.0.1:82]\nlimits: { c: { rate: 1/s }, b: { rate: 2/s } }\n\
             bans: { after: 2/1m }\nlocations:\n  - { path: /, upstream: demo, limits: b }\n",
        );
        assert_eq!(
            told(&old, &new),
            "listen: added 127.0.0.1:82; limits: added c, removed a, changed b; locations: removed /x; \
             changed bans"
        );
    }

    #[test]
    fn a_location_is_the_same_wherever_its_limits_stand() {
        let new = OLD.replace("limits: { a:", "limits: { z: { rate: 9/s }, a:");
        assert_eq!(told(&config(OLD), &config(&new)), "limits: added z");
    }

    #[test]
    fn names_are_cut_short() {
        let more: String = (0..12).map(|n| format!("  - {{ path: /n{n}, upstream: demo }}\n")).collect();
        let told = told(&config(OLD), &config(&format!("{OLD}{more}")));
        assert!(told.starts_with("locations: added /n0 ") && told.ends_with("/n7 and 4 more"), "{told}");
    }
}

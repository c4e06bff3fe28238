//! The locations of a server as a tree, as nginx searches it.

use std::collections::{HashMap, HashSet};

use super::known::is_other_handler;
use super::parser::Directive;
use super::regex::translate_pattern;
use super::scope::{Scope, is_guard};
use crate::ImportFault;

/// How a location matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LocationMatch {
    Exact(String),
    Prefix { path: String, no_regex: bool },
    Regex { pattern: String, any_case: bool },
    Named(String),
}

/// A location and those inside it. The root stands for the server itself and is the prefix of everything.
#[derive(Debug)]
pub(super) struct LocationNode<'d> {
    pub matching: LocationMatch,
    pub scope: Scope<'d>,
    /// `None` for the server.
    pub directive: Option<&'d Directive>,
    pub children: Vec<LocationNode<'d>>,
    /// Requests meet no check or step, whichever location inside they come to.
    pub only_forwards: bool,
    /// The places of exact and named locations in `children`.
    fixed: HashMap<String, usize>,
}

impl<'d> LocationNode<'d> {
    /// The tree of a server.
    pub(super) fn read_server(scope: Scope<'d>) -> Result<LocationNode<'d>, ImportFault> {
        let matching = LocationMatch::Prefix { path: "/".to_owned(), no_regex: false };
        LocationNode::read(matching, scope, None)
    }

    fn read(
        matching: LocationMatch,
        scope: Scope<'d>,
        directive: Option<&'d Directive>,
    ) -> Result<LocationNode<'d>, ImportFault> {
        let children = read_children(&scope, directive.map(|_| &matching))?;
        let fixed = children.iter().enumerate().filter(|(_, node)| !node.is_prefix());
        let fixed = fixed.filter_map(|(place, node)| Some((node.fixed_path()?.to_owned(), place))).collect();
        let is_free = scope.checks().next().is_none()
            && !scope.nearest_of(&["allow", "deny"]).iter().any(|rule| rule.name == "deny");
        let only_forwards = is_free && only_forwards(scope.own_level());
        Ok(LocationNode { matching, scope, directive, children, only_forwards, fixed })
    }

    /// The path of a location that is no regular expression.
    pub(super) fn static_path(&self) -> Option<&str> {
        match &self.matching {
            LocationMatch::Exact(path) | LocationMatch::Prefix { path, .. } => Some(path),
            _ => None,
        }
    }

    pub(super) fn is_prefix(&self) -> bool {
        matches!(self.matching, LocationMatch::Prefix { .. })
    }

    /// The regular expressions directly inside.
    pub(super) fn regexes(&self) -> impl Iterator<Item = &LocationNode<'d>> {
        self.children.iter().filter(|node| matches!(node.matching, LocationMatch::Regex { .. }))
    }

    fn fixed_path(&self) -> Option<&str> {
        match &self.matching {
            LocationMatch::Named(name) => Some(name),
            _ => self.static_path(),
        }
    }

    /// The named location of this name, or the exact one of this path, directly inside.
    pub(super) fn find_fixed(&self, name: &str) -> Option<&LocationNode<'d>> {
        self.children.get(*self.fixed.get(name)?)
    }
}

fn read_children<'d>(
    scope: &Scope<'d>,
    outer: Option<&LocationMatch>,
) -> Result<Vec<LocationNode<'d>>, ImportFault> {
    let (mut children, mut taken) = (Vec::new(), HashSet::new());
    for directive in scope.own_level().iter().filter(|directive| directive.name == "location") {
        let wrong = |message: String| Err(directive.fault(message));
        let Some(block) = directive.block.as_deref() else {
            return wrong("`location` has no block".to_owned());
        };
        let matching = read_match(directive)?;
        match (outer, &matching) {
            (_, LocationMatch::Named(_)) if outer.is_some() => {
                return wrong("a named location can only be on the server's level".to_owned());
            }
            (Some(LocationMatch::Exact(_) | LocationMatch::Named(_)), _) => {
                return wrong("a location cannot be inside an exact or a named one".to_owned());
            }
            (
                Some(LocationMatch::Prefix { path: around, .. }),
                LocationMatch::Exact(path) | LocationMatch::Prefix { path, .. },
            ) if !path.starts_with(around) => {
                return wrong(format!("the location `{path}` is outside of `{around}`, which it stands in"));
            }
            _ => {}
        }
        if unique_key(&matching).is_some_and(|key| !taken.insert(key)) {
            return wrong(format!("there are two locations `{}`", directive.args.join(" ")));
        }
        // The reader of the outer location tells it.
        if let Some(LocationMatch::Regex { .. }) = outer {
            continue;
        }
        if !matches!(matching, LocationMatch::Named(_)) {
            directive.mark();
        }
        children.push(LocationNode::read(matching, scope.enter(block), Some(directive))?);
    }
    Ok(children)
}

/// True if something inside limits or denies.
pub(super) fn subtree_guards(directive: &Directive) -> bool {
    is_guard(directive) && directive.name != "location" || directive.children().iter().any(subtree_guards)
}

/// True if a block forwards every request that comes to it and meets its limits, with no check or step before.
pub(super) fn only_forwards(block: &[Directive]) -> bool {
    let is_idle = |inner: &Directive| match inner.name.as_str() {
        "location" => only_forwards(inner.children()),
        "if" | "return" | "rewrite" | "try_files" => false,
        "limit_req" | "limit_conn" | "limit_rate" | "client_max_body_size" => true,
        name => !is_guard(inner) && (name == "grpc_pass" || !is_other_handler(name)),
    };
    let takes_rest = |inner: &Directive| match inner.name.as_str() {
        "location" => matches!(inner.args.concat().as_str(), "/" | "^~/"),
        name => matches!(name, "proxy_pass" | "grpc_pass"),
    };
    block.iter().all(is_idle) && block.iter().any(takes_rest)
}

/// The key that a level has once. nginx allows the same regular expression twice; the first one matches.
fn unique_key(matching: &LocationMatch) -> Option<(bool, String)> {
    match matching {
        LocationMatch::Prefix { path, .. } => Some((true, path.clone())),
        LocationMatch::Exact(path) | LocationMatch::Named(path) => Some((false, path.clone())),
        LocationMatch::Regex { .. } => None,
    }
}

fn read_match(directive: &Directive) -> Result<LocationMatch, ImportFault> {
    let prefix = |path: &str, no_regex| LocationMatch::Prefix { path: path.to_owned(), no_regex };
    let regex = |pattern: &str, any_case| LocationMatch::Regex {
        pattern: translate_pattern(pattern, any_case),
        any_case,
    };
    let words: Vec<&str> = directive.args.iter().map(String::as_str).collect();
    Ok(match words.as_slice() {
        ["=", path] => LocationMatch::Exact((*path).to_owned()),
        ["^~", path] => prefix(path, true),
        ["~", pattern] => regex(pattern, false),
        ["~*", pattern] => regex(pattern, true),
        // The mark may stand directly before the path.
        [word] if word.starts_with('@') => LocationMatch::Named((*word).to_owned()),
        [word] if word.starts_with("^~") => prefix(&word[2..], true),
        [word] if word.starts_with("~*") => regex(&word[2..], true),
        [word] if word.starts_with('~') => regex(&word[1..], false),
        [word] if word.starts_with('=') => LocationMatch::Exact(word[1..].to_owned()),
        [word] => prefix(word, false),
        _ => {
            let message = format!("`{}` is no location", directive.text());
            return Err(directive.fault(message));
        }
    })
}

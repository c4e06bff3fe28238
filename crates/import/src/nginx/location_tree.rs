//! The locations of a server as a tree, as nginx searches it.

use std::collections::{HashMap, HashSet};

use super::known::is_other_handler;
use super::parser::Directive;
use super::regex::translate_pattern;
use super::scope::{Scope, is_guard};
use crate::ImportFault;

/// How a location matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MatchKind {
    Exact,
    Prefix,
    /// `^~`: expressions are not tried.
    FinalPrefix,
    Regex,
    AnyCaseRegex,
    Named,
}

const MARKS: [(&str, MatchKind); 4] = [
    ("=", MatchKind::Exact),
    ("^~", MatchKind::FinalPrefix),
    ("~*", MatchKind::AnyCaseRegex),
    ("~", MatchKind::Regex),
];

/// The path, expression or name of a location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LocationMatch {
    pub kind: MatchKind,
    pub path: String,
}

impl LocationMatch {
    pub(super) fn prefix(path: &str) -> LocationMatch {
        LocationMatch { kind: MatchKind::Prefix, path: path.to_owned() }
    }

    pub(super) fn is_prefix(&self) -> bool {
        matches!(self.kind, MatchKind::Prefix | MatchKind::FinalPrefix)
    }

    pub(super) fn is_regex(&self) -> bool {
        matches!(self.kind, MatchKind::Regex | MatchKind::AnyCaseRegex)
    }

    /// The mark before it, if any.
    pub(super) fn mark(&self) -> &'static str {
        MARKS.iter().find(|(_, kind)| *kind == self.kind).map_or("", |(mark, _)| mark)
    }
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
        LocationNode::read(LocationMatch::prefix("/"), scope, None)
    }

    fn read(
        matching: LocationMatch,
        scope: Scope<'d>,
        directive: Option<&'d Directive>,
    ) -> Result<LocationNode<'d>, ImportFault> {
        let children = read_children(&scope, directive.map(|_| &matching))?;
        let fixed = children.iter().map(|node| &node.matching).enumerate();
        let fixed = fixed.filter(|(_, inner)| matches!(inner.kind, MatchKind::Exact | MatchKind::Named));
        let fixed = fixed.map(|(place, inner)| (inner.path.clone(), place)).collect();
        let is_free = scope.checks().next().is_none()
            && !scope.nearest_of(&["allow", "deny"]).iter().any(|rule| rule.name == "deny");
        let only_forwards = is_free && only_forwards(scope.own_level());
        Ok(LocationNode { matching, scope, directive, children, only_forwards, fixed })
    }

    /// The path of a location that is no regular expression.
    pub(super) fn static_path(&self) -> Option<&str> {
        let is_static = self.matching.is_prefix() || self.matching.kind == MatchKind::Exact;
        is_static.then_some(&self.matching.path)
    }

    /// True if a prefix directly inside is `path`.
    pub(super) fn has_prefix(&self, path: &str) -> bool {
        let is_same = |node: &LocationNode<'_>| node.matching.is_prefix() && node.matching.path == path;
        self.children.iter().any(is_same)
    }

    /// The regular expressions directly inside.
    pub(super) fn regexes(&self) -> impl Iterator<Item = &LocationNode<'d>> {
        self.children.iter().filter(|node| node.matching.is_regex())
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
        let LocationMatch { kind, path } = &matching;
        match outer {
            Some(_) if *kind == MatchKind::Named => {
                return wrong("a named location can only be on the server's level".to_owned());
            }
            Some(around) if around.is_regex() => {}
            Some(around) if !around.is_prefix() => {
                return wrong("a location cannot be inside an exact or a named one".to_owned());
            }
            Some(around) if !matching.is_regex() && !path.starts_with(&around.path) => {
                let around = &around.path;
                return wrong(format!("the location `{path}` is outside of `{around}`, which it stands in"));
            }
            _ => {}
        }
        // nginx allows the same regular expression twice; the first one matches.
        if !matching.is_regex() && !taken.insert((matching.is_prefix(), path.clone())) {
            return wrong(format!("there are two locations `{}`", directive.args.join(" ")));
        }
        // The reader of the outer location tells it.
        if outer.is_some_and(LocationMatch::is_regex) {
            continue;
        }
        if *kind != MatchKind::Named {
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

fn read_match(directive: &Directive) -> Result<LocationMatch, ImportFault> {
    let found = match directive.args.as_slice() {
        [mark, path] => MARKS.iter().find(|(known, _)| known == mark).map(|(_, kind)| (*kind, path.as_str())),
        // The mark may stand directly before the path.
        [word] => {
            let marked = MARKS.iter().find_map(|(mark, kind)| Some((*kind, word.strip_prefix(mark)?)));
            let plain = if word.starts_with('@') { MatchKind::Named } else { MatchKind::Prefix };
            Some(marked.unwrap_or((plain, word)))
        }
        _ => None,
    };
    let (kind, text) =
        found.ok_or_else(|| directive.fault(format!("`{}` is no location", directive.text())))?;
    let mut matching = LocationMatch { kind, path: text.to_owned() };
    if matching.is_regex() {
        matching.path = translate_pattern(text, kind == MatchKind::AnyCaseRegex);
    }
    Ok(matching)
}

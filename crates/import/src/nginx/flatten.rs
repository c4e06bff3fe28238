//! Nested locations as the flat list of gateway.yaml, in which the same location is found for every path.
//!
//! nginx looks for the longest prefix level by level; then it tries the regular expressions of the innermost level, and
//! those of each level around it unless `^~` stands there. The gateway tries all expressions of a file in order. So an
//! expression that holds below one prefix only is written with that prefix before it, those of longer prefixes first,
//! and a prefix is closed by an expression of its own if its paths must not meet the expressions behind.

use std::collections::HashSet;

use super::closed::widen_path;
use super::location_tree::{LocationMatch, LocationNode, MatchKind};
use super::parser::visit_all;
use super::regex::{RegexBelow, is_usable_path, scope_regex};
use super::scope::skip_all;

/// A location of gateway.yaml.
#[derive(Debug)]
pub(super) struct FlatLocation<'n, 'd> {
    /// The field `path`.
    pub path: String,
    pub node: &'n LocationNode<'d>,
    pub role: FlatRole,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlatRole {
    Whole,
    /// Answers 403, because an expression inside it that may refuse is left out.
    Closed,
    /// Redirects to the path with a slash.
    Slash,
}

impl<'n, 'd> FlatLocation<'n, 'd> {
    fn new(path: String, node: &'n LocationNode<'d>) -> FlatLocation<'n, 'd> {
        FlatLocation { path, node, role: FlatRole::Whole }
    }

    /// # Errors
    /// Why the gateway cannot match the path.
    pub(super) fn check_path(&self) -> Result<(), String> {
        match self.node.static_path() {
            // The field has no spaces around its path, and marks before it.
            Some(path) if !path.starts_with('/') || path.trim_end() != path => {
                Err("the gateway takes only paths that start with `/` and end without a space".to_owned())
            }
            _ => is_usable_path(&self.path),
        }
    }
}

/// A path without expressions, and the levels with the expressions that are tried for it.
struct Leaf<'n, 'd> {
    path: &'n str,
    exact: bool,
    role: FlatRole,
    node: &'n LocationNode<'d>,
    /// The nodes with expressions to try, in order.
    tried: Vec<&'n LocationNode<'d>>,
}

/// The list of a server.
pub(super) fn flatten_server<'n, 'd>(root: &'n LocationNode<'d>) -> Vec<FlatLocation<'n, 'd>> {
    let mut leaves = Vec::new();
    let base = with_regexes(root, &[]);
    if !root.has_prefix("/") {
        let role = FlatRole::Whole;
        leaves.push(Leaf { path: "/", exact: false, role, node: root, tried: base.clone() });
    }
    collect_leaves(root, &base, &[], &mut leaves);
    let mut flat = Vec::new();
    let meets_regexes = root.regexes().next().is_some() || leaves.iter().any(|leaf| !leaf.tried.is_empty());
    let outer = |leaf: &Leaf<'_, '_>| leaf.tried.len() == base.len() && same_nodes(&leaf.tried, &base);
    for leaf in &leaves {
        let path = match (leaf.exact, leaf.tried.is_empty()) {
            (true, _) => format!("= {}", leaf.path),
            (false, true) if meets_regexes => format!("^~ {}", leaf.path),
            _ => leaf.path.to_owned(),
        };
        flat.push(FlatLocation { path, node: leaf.node, role: leaf.role });
    }
    // The longest first, so that a longer prefix is closed before a shorter one's expressions are tried.
    let mut open: Vec<&Leaf<'n, 'd>> =
        leaves.iter().filter(|leaf| !leaf.exact && !leaf.tried.is_empty()).collect();
    open.sort_by_key(|leaf| std::cmp::Reverse(leaf.path.len()));
    let inner: Vec<&Leaf<'n, 'd>> = open.iter().filter(|leaf| !outer(leaf)).copied().collect();
    let mut passed = 0;
    for leaf in &open {
        passed += usize::from(inner.get(passed).is_some_and(|next| std::ptr::eq(*next, *leaf)));
        let mut around = inner[passed..].iter().filter(|other| leaf.path.starts_with(other.path));
        let above = around.next();
        let is_covered = match above {
            // An expression that closes the prefix above would also take the paths of this one.
            Some(above) => {
                let closes = around.next().is_some() || closes_outer(above, root);
                same_nodes(&above.tried, &leaf.tried) && !closes
            }
            None => outer(leaf),
        };
        if !is_covered {
            scope_leaf(leaf, root, above.is_some(), &mut flat);
        }
    }
    let regex_path = |matching: &LocationMatch| format!("{} {}", matching.mark(), matching.path);
    flat.extend(root.regexes().map(|node| FlatLocation::new(regex_path(&node.matching), node)));
    // Of equal expressions the first decides.
    let mut taken = HashSet::new();
    flat.retain(|location| taken.insert(location.path.clone()));
    flat
}

fn same_nodes(one: &[&LocationNode<'_>], other: &[&LocationNode<'_>]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| std::ptr::eq(*one, *other))
}

/// The expressions of `node` before those of `behind`.
fn with_regexes<'n, 'd>(
    node: &'n LocationNode<'d>,
    behind: &[&'n LocationNode<'d>],
) -> Vec<&'n LocationNode<'d>> {
    node.regexes().next().map(|_| node).into_iter().chain(behind.iter().copied()).collect()
}

/// `tried` are the levels that a child of `parent` tries, `hidden` the paths of outer levels that win over it, and
/// whether each wins over the same exact path only.
fn collect_leaves<'n, 'd>(
    parent: &'n LocationNode<'d>,
    tried: &[&'n LocationNode<'d>],
    hidden: &[(&'n str, bool)],
    leaves: &mut Vec<Leaf<'n, 'd>>,
) {
    let own_level = usize::from(parent.regexes().next().is_some());
    let static_of = |node: &'n LocationNode<'d>| Some((node.static_path()?, !node.matching.is_prefix()));
    let mut siblings: Vec<(&str, bool)> = parent.children.iter().filter_map(static_of).collect();
    let taken: HashSet<&str> = siblings.iter().map(|(path, _)| *path).collect();
    let slashes = parent.children.iter().filter_map(|node| bare_path(node, &taken));
    siblings.extend(slashes.map(|bare| (bare, true)));
    siblings.sort_unstable();
    for node in &parent.children {
        let Some(path) = node.static_path() else { continue };
        let exact = !node.matching.is_prefix();
        let hides = |(outer, only): &(&str, bool)| {
            if *only { exact && path == *outer } else { path.starts_with(outer) }
        };
        if hidden.iter().any(hides) {
            if let Some(directive) = node.directive {
                directive.exact("nginx never reaches it: a location of an outer level is longer");
                let says = "nginx never reaches its location";
                visit_all(directive.children(), &mut |inner| inner.exact(says));
            }
            continue;
        }
        let behind = match node.matching.kind {
            MatchKind::Exact => Vec::new(),
            MatchKind::FinalPrefix => tried[own_level..].to_vec(),
            _ => tried.to_vec(),
        };
        let inside = if exact { Vec::new() } else { with_regexes(node, &behind) };
        if !node.has_prefix(path) {
            leaves.push(Leaf { path, exact, role: FlatRole::Whole, node, tried: inside.clone() });
        }
        if let Some(bare) = bare_path(node, &taken).filter(|bare| !hidden.contains(&(bare, true))) {
            // The exact location says whether the path is internal.
            let node = parent.find_fixed(path).unwrap_or(node);
            leaves.push(Leaf { path: bare, exact: true, role: FlatRole::Slash, node, tried: Vec::new() });
        }
        if !node.children.is_empty() {
            let behind = &siblings[siblings.partition_point(|(other, _)| *other <= path)..];
            let longer = behind.iter().copied().take_while(|(other, _)| other.starts_with(path));
            let hidden: Vec<(&str, bool)> = hidden.iter().copied().chain(longer).collect();
            collect_leaves(node, &inside, &hidden, leaves);
        }
    }
}

/// The path without its slash that nginx redirects to a forwarding location, unless the level has one for it.
fn bare_path<'n>(node: &'n LocationNode<'_>, taken: &HashSet<&str>) -> Option<&'n str> {
    let bare =
        node.static_path()?.strip_suffix('/').filter(|bare| !bare.is_empty() && !taken.contains(bare))?;
    node.scope.own_level().iter().any(|inner| inner.name.ends_with("_pass")).then_some(bare)
}

/// True if the expressions of the server must not be tried below a leaf.
fn closes_outer(leaf: &Leaf<'_, '_>, root: &LocationNode<'_>) -> bool {
    let tries_outer = leaf.tried.last().is_some_and(|last| std::ptr::eq(*last, root));
    root.regexes().next().is_some() && !tries_outer
}

/// Writes the expressions of a leaf with its prefix before them, and closes it where others would follow.
fn scope_leaf<'n, 'd>(
    leaf: &Leaf<'n, 'd>,
    root: &'n LocationNode<'d>,
    is_below_scoped: bool,
    flat: &mut Vec<FlatLocation<'n, 'd>>,
) {
    let close = is_below_scoped || closes_outer(leaf, root);
    for level in &leaf.tried {
        if std::ptr::eq(*level, root) && !close {
            continue;
        }
        for node in level.regexes() {
            let LocationMatch { kind, path: pattern } = &node.matching;
            match scope_regex(leaf.path, pattern, *kind == MatchKind::AnyCaseRegex) {
                RegexBelow::Never => {}
                RegexBelow::Path(path) if is_usable_path(&path).is_ok() => {
                    flat.push(FlatLocation::new(path, node))
                }
                _ => {
                    tell_unscoped(node, leaf.path);
                    let prefix = LocationMatch::prefix(leaf.path);
                    let path = widen_path(if leaf.path == "/" { &node.matching } else { &prefix });
                    let closed = FlatLocation { path, node, role: FlatRole::Closed };
                    flat.extend((!node.only_forwards).then_some(closed));
                }
            }
        }
    }
    if close {
        let path = format!("~ ^{}", regex_syntax::escape(leaf.path));
        flat.push(FlatLocation::new(path, leaf.node));
    }
}

fn tell_unscoped(node: &LocationNode<'_>, path: &str) {
    let Some(directive) = node.directive else { return };
    let why = format!(
        "below {path}, the gateway cannot match this expression, or cannot tell it from the paths around it; write \
         it with its folder"
    );
    directive.loses(why.clone());
    skip_all(directive.children(), &why);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nginx::parser::ConfParser;
    use crate::nginx::scope::Scope;

    fn flat_paths(conf: &str) -> Vec<String> {
        let directives = ConfParser::read_text(conf, "x").unwrap();
        let root = LocationNode::read_server(Scope::new(&directives)).unwrap();
        flatten_server(&root).into_iter().map(|flat| flat.path).collect()
    }

    #[test]
    fn plain_locations_stay_as_they_are() {
        let conf = "location /a {} location = /b {} location ^~ /c/ {} location ~ x$ {}";
        assert_eq!(flat_paths(conf), ["/", "/a", "= /b", "^~ /c/", r"~ x\n?$"]);
        assert_eq!(flat_paths("location / { location /a/ { location /a/b {} } }"), ["/", "/a/", "/a/b"]);
    }

    #[test]
    fn an_expression_inside_a_prefix_stays_below_it() {
        let conf = r"location /app/ { location ~ \.php$ {} } location ~ \.js$ {}";
        assert_eq!(flat_paths(conf), ["/", "/app/", r"~ ^(?s-i:/app/.*)(?:\.php\n?$)", r"~ \.js\n?$"]);
    }

    #[test]
    fn a_prefix_that_stops_outer_expressions_is_closed() {
        let conf = r"location ^~ /app/ { location ~ \.php$ {} } location ~ \.js$ {}";
        assert_eq!(
            flat_paths(conf),
            ["/", "/app/", r"~ ^(?s-i:/app/.*)(?:\.php\n?$)", "~ ^/app/", r"~ \.js\n?$"]
        );
        // A longer prefix of the outer level never meets the expressions inside the shorter one.
        let conf = r"location /app/ { location ~ \.php$ {} } location /app/x/ {} location ~ \.js$ {}";
        assert_eq!(
            flat_paths(conf),
            [
                "/",
                "/app/",
                "/app/x/",
                r"~ ^(?s-i:/app/x/.*)(?:\.js\n?$)",
                "~ ^/app/x/",
                r"~ ^(?s-i:/app/.*)(?:\.php\n?$)",
                r"~ \.js\n?$"
            ]
        );
    }

    #[test]
    fn a_location_inside_a_closed_prefix_is_closed_before_it() {
        let conf = r"location ^~ /b/ { location /b/img {} location ~ \.php$ {} } location ~ x {}";
        let nested = [r"~ ^(?s-i:/b/img.*)(?:\.php\n?$)", "~ ^/b/img"];
        let outer = [r"~ ^(?s-i:/b/.*)(?:\.php\n?$)", "~ ^/b/", "~ x"];
        assert_eq!(flat_paths(conf), [&["/", "/b/", "/b/img"][..], &nested, &outer].concat());
    }

    #[test]
    fn a_nested_location_behind_a_longer_outer_one_is_never_reached() {
        assert_eq!(flat_paths("location /a { location /a/b/c {} } location /a/b {}"), ["/", "/a", "/a/b"]);
    }
}

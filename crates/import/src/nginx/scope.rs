//! Levels of a configuration and their inheritance: a level with any directive of a kind drops the inherited ones.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::known::{describe_guard, find_check, find_harmless};
use super::parser::{Directive, visit_all};
use super::pieces::count_written;

/// The levels around a place, the outermost first.
#[derive(Debug, Clone)]
pub(super) struct Scope<'d> {
    levels: Vec<Rc<ScopeLevel<'d>>>,
}

/// The directives of a block, also by name: every location asks the levels around it.
#[derive(Debug)]
struct ScopeLevel<'d> {
    directives: &'d [Directive],
    by_name: HashMap<&'d str, Vec<&'d Directive>>,
    /// How often variables are written here and below, once it is asked.
    written: OnceCell<HashMap<String, usize>>,
    /// Those that let in some clients alone, and why the gateway cannot.
    checks: Vec<(&'d Directive, &'static str)>,
}

impl<'d> ScopeLevel<'d> {
    fn new(directives: &'d [Directive]) -> Rc<ScopeLevel<'d>> {
        let mut by_name: HashMap<&str, Vec<&Directive>> = HashMap::new();
        for directive in directives {
            by_name.entry(&directive.name).or_default().push(directive);
        }
        let check = |directive: &'d Directive| Some((directive, find_check(&directive.name)?));
        let checks = directives.iter().filter_map(check).collect();
        Rc::new(ScopeLevel { directives, by_name, written: OnceCell::new(), checks })
    }

    fn all(&self, name: &str) -> &[&'d Directive] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }
}

impl<'d> Scope<'d> {
    pub(super) fn new(http: &'d [Directive]) -> Scope<'d> {
        Scope { levels: vec![ScopeLevel::new(http)] }
    }

    /// The scope of a block at this level.
    pub(super) fn enter(&self, block: &'d [Directive]) -> Scope<'d> {
        let mut levels = self.levels.clone();
        levels.push(ScopeLevel::new(block));
        Scope { levels }
    }

    /// All directives of these names at the innermost level that has one.
    pub(super) fn nearest_of(&self, names: &[&str]) -> Vec<&'d Directive> {
        let find = |level: &Rc<ScopeLevel<'d>>| {
            let mut found: Vec<_> = names.iter().flat_map(|name| level.all(name)).copied().collect();
            found.sort_unstable_by_key(|directive| directive.id);
            (!found.is_empty()).then_some(found)
        };
        self.levels.iter().rev().find_map(find).unwrap_or_default()
    }

    /// All directives of a name at the innermost level that has one.
    pub(super) fn nearest(&self, name: &str) -> Vec<&'d Directive> {
        self.nearest_of(&[name])
    }

    /// The directive of a name that holds here.
    pub(super) fn value_of(&self, name: &str) -> Option<&'d Directive> {
        self.nearest(name).last().copied()
    }

    /// The first directive of a name at the innermost level itself, for one that is not inherited.
    pub(super) fn own(&self, name: &str) -> Option<&'d Directive> {
        self.levels.last()?.all(name).first().copied()
    }

    pub(super) fn own_level(&self) -> &'d [Directive] {
        self.levels.last().map(|level| level.directives).unwrap_or_default()
    }

    /// The checks that hold here, the outermost first, and why the gateway cannot make them.
    pub(super) fn checks(&self) -> impl Iterator<Item = (&'d Directive, &'static str)> {
        let found = self.levels.iter().flat_map(|level| &level.checks);
        let held = found.filter_map(|(check, why)| Some((self.value_of(&check.name)?, *why)));
        held.filter(|(check, _)| check.arg(0) != "off")
    }

    /// True if `on` holds here.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.value_of(name).is_some_and(|directive| directive.arg(0).eq_ignore_ascii_case("on"))
    }

    /// The `set` of a variable that nothing else in the server writes, if it is always done: at the server's level or
    /// this one, with nothing before it that may end the steps.
    pub(super) fn find_set(&self, variable: &str) -> Option<&'d Directive> {
        let server = self.levels.get(1)?;
        let written = server.written.get_or_init(|| {
            let mut counts = HashMap::new();
            count_written(server.directives, &mut counts);
            counts
        });
        if written.get(variable) != Some(&1) {
            return None;
        }
        let name = format!("${variable}");
        let ends = |step: &Directive| matches!(step.name.as_str(), "break" | "rewrite");
        let may_end = |step: &Directive| ends(step) || step.name == "if" && step.children().iter().any(ends);
        let find = |level: &Rc<ScopeLevel<'d>>| {
            let mut done = level.directives.iter().take_while(|step| !may_end(step));
            done.find(|step| step.name == "set" && step.arg(0).eq_ignore_ascii_case(&name))
        };
        let levels = [server, self.levels.last()?];
        levels.into_iter().find_map(find)
    }
}

/// Leaves out everything in these blocks for one reason.
pub(super) fn skip_all(directives: &[Directive], why: &str) {
    visit_all(directives, &mut |directive| match find_harmless(&directive.name) {
        None if is_guard(directive) => directive.loses(why),
        _ => directive.skips(why),
    });
}

/// True if a directive limits or denies by itself; unknown ones may.
pub(super) fn is_guard(directive: &Directive) -> bool {
    match directive.name.as_str() {
        "limit_req" | "limit_conn" | "deny" | "limit_rate" | "client_max_body_size" | "internal" => true,
        "return" => directive.arg(0).starts_with(['4', '5']),
        "allow" | "if" | "satisfy" | "rewrite" | "valid_referers" => false,
        "ssl_verify_client" => directive.arg(0) != "off",
        name if name.starts_with("secure_link") => false,
        name if describe_guard(name).is_some() => true,
        name => find_check(name).is_some() && directive.arg(0) != "off",
    }
}

//! `if`, `return`, `rewrite` and `break` of a level: nginx does them in their order, before limits and access rules.

use ipnet::IpNet;

use super::access::denied_by;
use super::closed::{leads_to_refusal, redirects, refuses};
use super::content::SiteContext;
use super::known::IDLE_IN_IF;
use super::location_tree::LocationNode;
use super::parser::{Directive, visit_all};
use super::responses::{translate_return, translate_rewrite};
use super::scope::Scope;
use crate::ImportFault;
use crate::gateway_file::PlannedField;

#[derive(Debug, Default)]
pub(super) struct LevelSteps {
    /// The networks that are refused.
    pub denied: Vec<IpNet>,
    /// The answer to everyone else.
    pub answer: Option<PlannedField>,
    /// A step that is not translated refuses some requests.
    pub is_closed: bool,
}

/// The steps of a server, which is the root itself, or of one of its locations.
pub(super) fn read_steps(
    node: &LocationNode<'_>,
    context: &SiteContext<'_, '_>,
) -> Result<LevelSteps, ImportFault> {
    let mut found = LevelSteps::default();
    let is_step =
        |directive: &&Directive| matches!(directive.name.as_str(), "if" | "return" | "rewrite" | "break");
    let mut steps = node.scope.own_level().iter().filter(is_step).peekable();
    while let Some(step) = steps.next() {
        match step.name.as_str() {
            "if" => read_condition(step, &node.scope, context, &mut found),
            "break" => {
                step.exact("nothing behind it is done");
                break;
            }
            "return" => found.answer = Some(translate_return(step, &node.scope, context.server_name)?),
            _ if redirects(step) => {
                found.answer = translate_rewrite(step);
                found.is_closed |= found.answer.is_none();
            }
            // `strip`, or a path that is forwarded unchanged.
            _ if step.arg(2) == "break" && node.directive.is_some() && steps.peek().is_none() => {}
            _ if leads_to_refusal(step.arg(1), context.root) => {
                found.is_closed = true;
                step.closes("it may lead to a location that refuses, and paths are not rewritten");
            }
            _ => step.loses("paths are not rewritten, so that another location may hold"),
        }
        if found.answer.is_some() {
            break;
        }
    }
    for step in steps {
        visit_all(std::slice::from_ref(step), &mut |inner| inner.exact("a step before it ends them"));
    }
    Ok(found)
}

fn read_condition(
    step: &Directive,
    scope: &Scope<'_>,
    context: &SiteContext<'_, '_>,
    found: &mut LevelSteps,
) {
    let inside = step.children();
    let why = match denied_by(step, context.variables) {
        Some(Ok((nets, status))) => {
            found.denied.extend(nets);
            match status {
                403 => step.exact("access: { deny }"),
                _ => step.loses(format!("access: {{ deny }}: with 403 in place of {status}")),
            }
            inside.iter().for_each(|inner| inner.mark());
            return;
        }
        Some(Err(why)) => why,
        None => "the gateway has no conditions".to_owned(),
    };
    // nginx looks for no files where a condition holds.
    let drops_try = scope.own("try_files").is_some() && !inside.iter().any(|inner| inner.name == "return");
    if !drops_try && inside.iter().all(|inner| IDLE_IN_IF.contains(&inner.name.as_str())) {
        step.skips(why.as_str());
    } else if drops_try || inside.iter().any(|inner| refuses(inner, context.root)) && !is_no_door(step) {
        found.is_closed = true;
        step.closes(&format!("{why}; let the upstream refuse"));
    } else {
        step.loses(why);
    }
    visit_all(inside, &mut |inner| inner.skips("its `if` is not translated"));
}

/// True if an `if` keeps nobody out: it redirects to another scheme or name of the site, or goes by the name that a
/// client gives itself.
fn is_no_door(step: &Directive) -> bool {
    let condition = step.args.join(" ");
    let subject = condition.trim_start_matches(['(', ' ']).split([' ', ')']).next();
    let redirects = |inner: &Directive| redirects(inner) || inner.arg(0).starts_with("30");
    match subject {
        Some("$http_user_agent") => true,
        Some("$scheme" | "$https" | "$host" | "$http_host" | "$server_port") => {
            step.children().iter().all(redirects)
        }
        _ => false,
    }
}

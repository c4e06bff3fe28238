//! Locations that let in whom the gateway cannot tell from others: they answer 403 until the check is written by hand.

use super::known::CHECKS;
use super::location_tree::{LocationNode, subtree_guards};
use super::parser::Directive;
use super::scope::{FindingLedger, Scope};
use crate::import::FindingKind;

/// Variables by whose values an `if` lets in some clients alone.
const CHECKED_VARIABLES: [&str; 3] = ["$invalid_referer", "$secure_link", "$ssl_client_"];

/// The check that holds at a place.
pub(super) fn find_check<'d>(scope: &Scope<'d>) -> Option<(&'d Directive, &'static str)> {
    let holds = |name| scope.value_of(name).filter(|directive| directive.arg(0) != "off");
    CHECKS.iter().find_map(|(name, why)| Some((holds(name)?, *why)))
}

/// Whether an `if` refuses by a check whose outcome the gateway does not know.
pub(super) fn is_closing(directive: &Directive) -> bool {
    let asks = |word: &String| CHECKED_VARIABLES.iter().any(|variable| word.contains(variable));
    directive.name == "if"
        && directive.args.iter().any(asks)
        && directive.children().iter().any(subtree_guards)
}

/// Whether such an `if` stands at the server or at the location.
pub(super) fn is_closed_by_condition(root: &LocationNode<'_>, scope: &Scope<'_>) -> bool {
    root.scope.nearest("if").into_iter().chain(scope.own_level()).any(is_closing)
}

pub(super) fn tell_closed(directive: &Directive, why: &str, ledger: &FindingLedger) {
    ledger.tell(FindingKind::Closed, directive, format!("answers 403: {why}"));
}

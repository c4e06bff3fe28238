//! Reads texts with template variables.

use crate::yaml::field_value::FieldValue;
use crate::yaml::tree::{NodeContent, TextPiece};
use sluicegate_model::diagnostics::codes;
use sluicegate_model::diagnostics::problem::{ValueError, did_you_mean};
use sluicegate_model::template::{TemplateConfig, TemplatePiece, TemplateVar};
use sluicegate_model::value::foreign_variables::find_variable;

/// A scalar with template variables.
pub(crate) fn read_template(value: &FieldValue<'_>) -> Option<TemplateConfig> {
    read_template_of(value, |_| true)
}

/// A scalar with those template variables that `is_allowed` accepts.
pub(crate) fn read_template_of(
    value: &FieldValue<'_>,
    is_allowed: impl Fn(TemplateVar) -> bool,
) -> Option<TemplateConfig> {
    let NodeContent::Text(text) = &value.node.content else {
        value.report_shape("text");
        return None;
    };
    let mut pieces = Vec::new();
    for piece in &text.pieces {
        match piece {
            TextPiece::Plain(plain) => pieces.push(TemplatePiece::Text(plain.clone())),
            TextPiece::Variable(name) => match TemplateVar::NAMES.iter().find(|(known, _)| known == name) {
                Some((_, var)) if is_allowed(*var) => pieces.push(TemplatePiece::Var(*var)),
                known => {
                    let allowed =
                        TemplateVar::NAMES.iter().filter(|(_, var)| is_allowed(*var)).map(|(name, _)| *name);
                    let names: Vec<&str> = allowed.collect();
                    let message = match known {
                        Some(_) => format!("the template variable `${{{name}}}` has no value here"),
                        None => format!("unknown template variable `${{{name}}}`"),
                    };
                    let help = find_variable(name)
                        .filter(|own| names.contains(own))
                        .map(|own| format!("did you mean `{own}`?"))
                        .or_else(|| did_you_mean(name, names.iter().copied()))
                        .unwrap_or_else(|| format!("the variables here are {}", names.join(", ")));
                    value.report_at_value(ValueError::new(codes::TEMPLATE, message).with_help(help));
                    return None;
                }
            },
        }
    }
    Some(TemplateConfig(pieces))
}

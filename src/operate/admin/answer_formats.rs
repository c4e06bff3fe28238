//! The documented answers that many endpoints have.

use super::endpoint::{AnswerForm, AnswerFormat};
use super::shapes;
use sluicegate_base::json_shape::JsonShape;

/// The answer to a name that nothing has.
pub(super) const fn not_found(sentence: &'static str) -> AnswerFormat {
    error(404, sentence)
}

pub(super) const fn error(status: u16, sentence: &'static str) -> AnswerFormat {
    AnswerFormat { status, sentence, forms: ERROR_FORMS }
}

pub(super) const fn ok(sentence: &'static str, forms: &'static [AnswerForm]) -> AnswerFormat {
    AnswerFormat { status: 200, sentence, forms }
}

/// Their texts differ, so they have no example.
const ERROR_FORMS: &[AnswerForm] =
    &[AnswerForm::Text(""), AnswerForm::Json(JsonShape::Object(&shapes::ERROR), "")];

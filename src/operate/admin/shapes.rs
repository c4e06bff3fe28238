//! The JSON objects of the admin API that no struct defines.

use sluicegate_base::json_shape::JsonShape::{Any, List, Nullable, Text, Words};
use sluicegate_base::json_shape::{JsonObject, JsonShaped, always, maybe};
use sluicegate_model::Problem;

pub(super) static NOT_RELOADED: JsonObject = JsonObject::named("NotReloaded").with(&[
    always("error", Text, "What is wrong, and often what to do."),
    always("result", Words(&["invalid", "refused", "handed on"]), "Why nothing was reloaded."),
    maybe("message", Text, "The reason, unless the file is invalid."),
    maybe("file", Text, "The invalid file."),
    maybe("problems", Vec::<Problem>::SHAPE, "All problems of an invalid file."),
]);

/// The request to explain.
pub(super) static QUERY: JsonObject = JsonObject::named("ExplainRequest").with(&[
    maybe("method", Text, "The method, in capitals; absent only with `call`."),
    maybe("url", Text, "A path with or without a query, or a URL; absent only with `call`."),
    maybe("ip", Text, "The address of the peer; 127.0.0.1 if absent."),
    maybe("headers", List(&Text), "Header lines, `Name: value` each."),
    maybe("listener", Nullable(&Text), "The name of the listener; else the first one of the URL's scheme."),
    maybe("data", Nullable(&Text), "The body, for limits that read it."),
    maybe("call", Any, "The body of a `/check` that names limits, in place of a request."),
]);

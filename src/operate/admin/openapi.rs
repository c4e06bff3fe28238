//! `GET /openapi.json`: the OpenAPI 3.1 document, written from the table of endpoints.

use serde_json::{Map, Value, json};

use super::answer::Answer;
use super::audit::REASON_MAX;
use super::endpoint::{
    AdminRequest, AnswerForm, AnswerFormat, Answered, ERROR, Endpoint, EndpointAccess, Parameter,
    ParameterKind, REASON, error,
};
use super::events::EVENT_STREAM;
use sluicegate_base::json_shape::JsonObject;

pub(super) async fn describe_endpoints(request: AdminRequest) -> Answered {
    Ok(Answer::json(&describe_api(request.endpoints, request.needs_token)))
}

/// The document. Without tokens in the configuration no endpoint needs one.
fn describe_api(endpoints: &[Endpoint], needs_token: bool) -> Value {
    let mut schemas = Map::new();
    ERROR.collect_into(&mut schemas);
    let mut paths = Map::new();
    for endpoint in endpoints {
        collect_schemas(endpoint, &mut schemas);
        let path = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        path[endpoint.method.to_lowercase()] = describe_endpoint(endpoint, needs_token);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Sluicegate admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Shows and steers a running gateway. Calls with two forms answer text, or JSON to callers \
                that send `Accept: application/json`. Other methods than those listed are answered 405 with `Allow`.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "bearer": {
                "type": "http",
                "scheme": "bearer",
                "description": "One of the tokens of `admin.tokens`.",
            } },
        },
    })
}

fn collect_schemas(endpoint: &Endpoint, schemas: &mut Map<String, Value>) {
    for form in endpoint.answers.iter().flat_map(|answer| answer.forms) {
        match form {
            AnswerForm::Json(shape, _) | AnswerForm::Events(shape, _) => shape.collect_objects(schemas),
            AnswerForm::Text(_) | AnswerForm::Other(..) => {}
        }
    }
    if let Some(body) = &endpoint.body {
        body.object.fields.iter().for_each(|field| field.shape.collect_objects(schemas));
    }
}

fn describe_endpoint(endpoint: &Endpoint, needs_token: bool) -> Value {
    let protected = needs_token && endpoint.access != EndpointAccess::Public;
    let mut described = json!({
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "security": if protected { json!([{ "bearer": [] }]) } else { json!([]) },
        "responses": describe_answers(endpoint, protected),
    });
    if !endpoint.parameters.is_empty() {
        described["parameters"] = endpoint.parameters.iter().map(describe_parameter).collect();
    }
    if let Some(body) = describe_body(endpoint) {
        described["requestBody"] = body;
    }
    described
}

fn describe_parameter(parameter: &Parameter) -> Value {
    let mut schema = match parameter.kind {
        ParameterKind::Text | ParameterKind::TextWithSlashes => json!({ "type": "string", "minLength": 1 }),
        ParameterKind::Integer(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        ParameterKind::Flag => json!({ "type": "boolean" }),
        ParameterKind::Words(words) => json!({ "type": "string", "enum": words }),
    };
    let typed = |text: &str| match parameter.kind {
        ParameterKind::Integer(..) | ParameterKind::Flag => {
            serde_json::from_str(text).unwrap_or_else(|_| json!(text))
        }
        _ => json!(text),
    };
    if let Some(default) = parameter.default.filter(|default| !default.is_empty()) {
        schema["default"] = typed(default);
    }
    json!({
        "name": parameter.name,
        "in": if parameter.default.is_some() { "query" } else { "path" },
        "required": parameter.default.is_none(),
        "description": parameter.sentence,
        "schema": schema,
        "example": typed(parameter.example),
    })
}

/// The body of a request: that of the table, to which changes add their reason.
fn describe_body(endpoint: &Endpoint) -> Option<Value> {
    let changes = endpoint.access == EndpointAccess::Change;
    let (mut schema, required, example) = match &endpoint.body {
        Some(body) => (closed_schema(body.object), body.required, body.example),
        None if changes => (closed_schema(&REASON), true, r#"{"reason": "maintenance"}"#),
        None => return None,
    };
    if changes {
        schema["properties"]["reason"] = closed_schema(&REASON)["properties"]["reason"].clone();
        schema["properties"]["reason"]["maxLength"] = json!(REASON_MAX);
    }
    Some(json!({
        "required": required,
        "content": { "application/json": { "schema": schema, "example": parse_example(example) } },
    }))
}

/// The schema of a request, in which every field is known.
fn closed_schema(object: &JsonObject) -> Value {
    let mut schema = object.schema();
    schema["additionalProperties"] = json!(false);
    schema
}

fn describe_answers(endpoint: &Endpoint, protected: bool) -> Value {
    let mut answers: Map<String, Value> =
        endpoint.answers.iter().map(|answer| (answer.status.to_string(), describe_answer(answer))).collect();
    let changes = endpoint.access == EndpointAccess::Change;
    let has_body = changes || endpoint.body.is_some();
    let common = [
        (
            400,
            has_body || endpoint.query_parameters().next().is_some(),
            "A parameter or the body is invalid.",
        ),
        (401, protected, "The request carries no valid token."),
        (403, true, "The Origin is another site, the Host is foreign, or the token may only read."),
        (404, endpoint.parameters.iter().any(|one| one.default.is_none()), "The path is malformed."),
        (408, has_body, "The body did not arrive in time."),
        (413, has_body, "The body has more than 64 KiB."),
        (415, changes, "The Content-Type is not application/json."),
    ];
    for (status, happens, sentence) in common {
        if happens {
            answers.entry(status.to_string()).or_insert_with(|| describe_answer(&error(status, sentence)));
        }
    }
    Value::Object(answers)
}

fn describe_answer(answer: &AnswerFormat) -> Value {
    let media = |form: &AnswerForm| match form {
        AnswerForm::Text(example) => describe_media("text/plain", text_schema(), example, json!(example)),
        AnswerForm::Json(shape, example) => {
            describe_media("application/json", shape.schema(), example, parse_example(example))
        }
        AnswerForm::Events(shape, example) => {
            let data = json!({
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": shape.schema(),
            });
            let event = format!("data: {}\n\n", parse_example(example));
            describe_media(EVENT_STREAM, data, example, json!(event))
        }
        AnswerForm::Other(kind, example) => {
            let kind = kind.split(';').next().unwrap_or(kind);
            describe_media(kind, text_schema(), example, json!(example))
        }
    };
    let content: Map<String, Value> = answer.forms.iter().map(media).collect();
    json!({ "description": answer.sentence, "content": content })
}

/// One media type; `example` is shown unless `written` is empty.
fn describe_media(kind: &str, schema: Value, written: &str, example: Value) -> (String, Value) {
    let mut media = json!({ "schema": schema });
    if !written.is_empty() {
        media["example"] = example;
    }
    (kind.to_owned(), media)
}

fn text_schema() -> Value {
    json!({ "type": "string" })
}

/// An example of the table; a test holds that it is JSON.
fn parse_example(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::endpoints::ENDPOINTS;
    use super::*;

    #[test]
    fn every_endpoint_is_described() {
        let (mut names, mut places) = (HashSet::new(), HashSet::new());
        for endpoint in ENDPOINTS {
            assert!(
                names.insert(endpoint.name) && places.insert((endpoint.method, endpoint.path)),
                "{} twice",
                endpoint.name
            );
            assert!(endpoint.summary.ends_with('.'), "{}", endpoint.summary);
            assert_eq!(endpoint.answers.first().map(|answer| answer.status), Some(200), "{}", endpoint.name);
            for parameter in endpoint.parameters {
                let in_path = endpoint.path.contains(&format!("{{{}}}", parameter.name));
                assert_eq!(in_path, parameter.default.is_none(), "{}", parameter.name);
                assert!(parameter.sentence.ends_with('.'), "{}", parameter.sentence);
            }
            assert_eq!(endpoint.path.matches('{').count(), endpoint.path.matches('}').count());
            for form in endpoint.answers.iter().flat_map(|answer| answer.forms) {
                if let AnswerForm::Json(_, text) | AnswerForm::Events(_, text) = form
                    && !text.is_empty()
                {
                    assert!(serde_json::from_str::<Value>(text).is_ok(), "{}: {text}", endpoint.name);
                }
            }
        }
        let described = describe_api(ENDPOINTS, true);
        let count: usize = described["paths"].as_object().unwrap().values().map(count_members).sum();
        assert_eq!(count, ENDPOINTS.len());
        assert_eq!(described["paths"]["/healthz"]["get"]["security"], json!([]));
        assert_eq!(described["paths"]["/status"]["get"]["security"], json!([{ "bearer": [] }]));
        assert_eq!(describe_api(ENDPOINTS, false)["paths"]["/status"]["get"]["security"], json!([]));
    }

    fn count_members(value: &Value) -> usize {
        value.as_object().map_or(0, Map::len)
    }

    #[test]
    fn changes_take_a_reason() {
        let described = describe_api(ENDPOINTS, true);
        for endpoint in ENDPOINTS.iter().filter(|endpoint| endpoint.access == EndpointAccess::Change) {
            let operation = &described["paths"][endpoint.path][endpoint.method.to_lowercase()];
            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            assert_eq!(body["properties"]["reason"]["maxLength"], json!(REASON_MAX), "{}", endpoint.name);
            assert!(operation["responses"]["415"].is_object(), "{}", endpoint.name);
        }
    }
}

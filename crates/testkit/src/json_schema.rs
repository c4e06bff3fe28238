//! Validates JSON by the schemas of an OpenAPI document.

use serde_json::{Value, json};

/// The paths of the values that do not fit `schema`; its references lead into `document`.
pub fn find_misfits(document: &Value, schema: &Value, value: &Value) -> Vec<String> {
    let schema = json!({ "components": document["components"], "allOf": [schema] });
    let validator = jsonschema::draft202012::new(&schema).expect("a valid schema");
    validator.iter_errors(value).map(|error| error.instance_path().to_string()).collect()
}

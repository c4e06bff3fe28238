//! The `id` of a message, beside `serde_json`.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn id_of(body: &[u8]) -> String {
    let mut texts = BodyTexts::default();
    texts.read_rpc_id(body);
    texts.rpc_id().to_owned()
}

#[test]
fn an_id_is_repeated_as_it_was_written() {
    let long = "7".repeat(256);
    for id in ["1", "-0", "1.0", "1e3", "9007199254740993", "\"\"", r#""a\u0041\/\"\\""#, r#""ä""#, &long] {
        for body in [
            format!("{{\"id\":{id}}}"),
            format!(
                " {{ \"jsonrpc\" : \"2.0\", \"params\":{{\"id\":0}}, \"id\" : {id} , \"x\":[{{\"id\":2}}] }} "
            ),
            format!("\u{feff}{{\"i\\u0064\":{id}}}"),
        ] {
            assert_eq!(id_of(body.as_bytes()), id, "{body}");
        }
    }
    assert_eq!(id_of(format!("{{\"id\":\"{long}\"}}").as_bytes()), format!("\"{long}\""));
}

#[test]
fn other_bodies_have_no_id() {
    let long = "7".repeat(257);
    let long_text = format!("{{\"id\":\"{long}\"}}");
    for body in [
        "",
        "null",
        "{}",
        r#"{"id":null}"#,
        r#"{"id":true}"#,
        r#"{"id":[1]}"#,
        r#"{"id":{"id":1}}"#,
        r#"{"ID":1}"#,
        r#"{"params":{"id":1}}"#,
        r#"[{"id":1}]"#,
        r#"{"id":1,"id":1}"#,
        r#"{"id":1,"i\u0064":2}"#,
        r#"{"id":1}x"#,
        r#"{"id":1,}"#,
        r#"{"id":01}"#,
        r#"{"id":+1}"#,
        "{\"id\":\"a\nb\"}",
        r#"{"id":"a"#,
        r#"{"id":"\ud800\"}"#,
        "id=1",
        &long_text,
        &format!("{{\"id\":{long}}}"),
    ] {
        assert_eq!(id_of(body.as_bytes()), "null", "{body}");
    }
    assert_eq!(id_of(b"{\"id\":\"\xff\"}"), "null");
    assert_eq!(id_of("[".repeat(100_000).as_bytes()), "null");
    assert_eq!(id_of(format!("{{\"id\":1,\"x\":{}", "[".repeat(100_000)).as_bytes()), "1");
}

#[test]
fn a_beginning_tells_an_id_that_ends_in_it() {
    let body = br#"{"jsonrpc":"2.0","id":123,"method":"tools/call"}"#;
    for end in 0..=body.len() {
        let expected = if end > r#"{"jsonrpc":"2.0","id":123"#.len() { "123" } else { "null" };
        assert_eq!(id_of(&body[..end]), expected, "{end}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        ".*".prop_map(Value::from),
        "[a-z]{250,260}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((prop_oneof!["id", ".*"], inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn an_id_is_that_of_serde_json(
        members in prop::collection::vec((prop_oneof!["id", "method", ".*"], any_json()), 0..5),
        cut in any::<prop::sample::Index>(),
        change in any::<Option<(prop::sample::Index, u8)>>(),
    ) {
        let written: Vec<String> = members.iter().map(|(name, value)| format!("{}:{value}", json!(name))).collect();
        let mut body = format!("{{{}}}", written.join(",")).into_bytes();
        if let Some((at, byte)) = change {
            let at = at.index(body.len());
            body[at] = byte;
        }
        let ids = |id: &Value| id.is_number() || id.as_str().is_some_and(|text| json!(text).to_string().len() <= 258);
        let told = id_of(&body);
        if let Ok(Value::Object(object)) = serde_json::from_slice(&body) {
            match object.get("id") {
                // Of several members the map has the last.
                Some(id) if told != "null" => prop_assert_eq!(&serde_json::from_str::<Value>(&told).unwrap(), id),
                Some(id) if change.is_none() => {
                    prop_assert!(!ids(id) || members.iter().filter(|(name, _)| name == "id").count() > 1)
                }
                Some(_) => {}
                None => prop_assert_eq!(told, "null"),
            }
        } else {
            // A change can make it the beginning of another document.
            prop_assert!(told == "null" || serde_json::from_str::<Value>(&told).is_ok());
        }
        let cut = &body[..cut.index(body.len())];
        let of_cut = id_of(cut);
        prop_assert!(of_cut == "null" || cut.windows(of_cut.len()).any(|part| part == of_cut.as_bytes()));
    }
}

//! Values in whole bodies: those that a key or a cost may be made of, and those that count as absent.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

fn pointer(text: &str) -> JsonPointer {
    JsonPointer::parse(text).unwrap()
}

fn plan(pointers: &[&str]) -> Arc<BodyPlan> {
    let mut plan = BodyPlan::new(1 << 20, true, false);
    pointers.iter().for_each(|text| plan.add_pointer(&pointer(text)));
    Arc::new(plan)
}

fn read(body: &str, pointers: &[&str]) -> BodyValues {
    BodyValues::read(&plan(pointers), body.as_bytes(), true)
}

/// What a key is made of.
fn key(body: &str, at: &str) -> Option<String> {
    let values = read(body, &[at]);
    values.find(&pointer(at)).key_text().map(|text| String::from_utf8_lossy(text).into_owned())
}

#[track_caller]
fn assert_key(body: &str, at: &str, expected: Option<&str>) {
    assert_eq!(key(body, at).as_deref(), expected, "{body} {at}");
}

#[test]
fn keys_are_texts_numbers_and_booleans() {
    assert_key(r#"{"model":"gpt","n":1}"#, "/model", Some("gpt"));
    assert_key(r#"{"a":{"b":["x",{"c":"deep"}]}}"#, "/a/b/1/c", Some("deep"));
    assert_key(r#"{"b":true,"c":false}"#, "/c", Some("false"));
    assert_key(r#"{"model":"é\u00e9\ud83d\ude00\n"}"#, "/model", Some("éé😀\n"));
    assert_key(r#"{"t":"\ud83d","model":"a\ud83d"}"#, "/model", Some("a\u{fffd}"));
    assert_key(r#"{"model":"\ud83e","model\ud83d":1}"#, "/model", Some("\u{fffd}"));
    assert_key("\u{feff}{\"model\":\"x\"}", "/model", Some("x"));
    assert_key(r#"{"\u006dodel":"gpt"}"#, "/model", Some("gpt"));
    assert_key(r#"{"a/b":{"m~n":"x"}}"#, "/a~1b/m~0n", Some("x"));
}

/// Servers read them as one number, so they lead to one counter.
#[test]
fn ways_to_write_a_number_are_one_key() {
    let long = format!("1.{}", "0".repeat(5_000));
    for (key, ways) in [
        ("1", &["1", "1.0", "1e0", "10e-1", "0.1E+1", &long][..]),
        ("150", &["150", "1.50e2", "150.000"]),
        ("0", &["0", "-0", "0.0", "0e9"]),
        ("0.05", &["0.05", "5e-2"]),
        ("-7", &["-7", "-7.0", "-70e-1"]),
        ("18446744073709551615", &["18446744073709551615"]),
        ("9007199254740993", &["9007199254740993"]),
        // Other numbers are doubles to servers, so digits behind them lead to no other counter.
        ("9007199254740992", &["9007199254740993e0", "9007199254740992.000001", "9007199254740992.000002"]),
        ("4503599627370496", &["4503599627370496.000001", "4503599627370496.000002"]),
        ("1", &["1.0000000000000000000001", "0.99999999999999999999999"]),
        ("100000000000000000000", &["1e20", "100000000000000000000", "10.0e19"]),
    ] {
        ways.iter().for_each(|way| assert_key(&format!(r#"{{"n":{way}}}"#), "/n", Some(key)));
    }
}

#[test]
fn other_values_are_absent() {
    for body in [
        r#"{"other":1}"#,
        r#"{"model":null}"#,
        r#"{"model":{}}"#,
        r#"{"model":{"model":"x"}}"#,
        r#"{"model":["x"]}"#,
        r#"{"model":""}"#,
        r#"[{"model":"x"}]"#,
        r#""model""#,
        "",
        "{",
        r#"{"model":"x""#,
        r#"{"model":"x"} x"#,
        r#"{'model':'x'}"#,
        r#"{"model":"x",}"#,
        "model=x",
        "{\"model\":\"\u{1}\"}",
    ] {
        assert_key(body, "/model", None);
    }
    let invalid_utf8 = b"{\"model\":\"\xff\"}";
    assert_eq!(BodyValues::read(&plan(&["/model"]), invalid_utf8, true).json_bytes(), None);
    let long = format!(r#"{{"model":"{}"}}"#, "x".repeat(1 << 16));
    assert_key(&long, "/model", None);
}

/// An upstream may read the first or the last of two members, so neither counts.
#[test]
fn a_repeated_member_is_neither() {
    for (body, at) in [
        (r#"{"model":"a","model":"b"}"#, "/model"),
        (r#"{"model":"a","x":1,"mod\u0065l":"a"}"#, "/model"),
        (r#"{"params":{"name":"a"},"params":{"name":"b"}}"#, "/params/name"),
        (r#"{"params":{"name":"a"},"params":{}}"#, "/params/name"),
        (r#"{"params":1,"params":{"name":"a"}}"#, "/params/name"),
        (r#"{"params":{"name":"a","name":null}}"#, "/params/name"),
        (r#"{"a":[{"b":1,"b":2}]}"#, "/a/0/b"),
    ] {
        assert_eq!(*read(body, &[at]).find(&pointer(at)), BodyValue::Repeated, "{body}");
    }
    for (body, at) in [
        (r#"{"x":1,"x":2,"X":3,"model":"a"}"#, "/model"),
        (r#"{"a":[{"b":"a"},{"b":2}]}"#, "/a/0/b"),
        (r#"{"name":"x","params":{"name":"a","x":{"name":"y"}},"z":{"params":{"name":1}}}"#, "/params/name"),
    ] {
        assert_key(body, at, Some("a"));
    }
}

/// Servers that ignore case read the member as well, and some of them the last one.
#[test]
fn a_member_in_another_case_is_a_second_one() {
    for (body, at) in [
        (r#"{"model":"a","Model":"b"}"#, "/model"),
        (r#"{"Model":"b","model":"a"}"#, "/model"),
        (r#"{"MODEL":"b"}"#, "/model"),
        (r#"{"\u004dodel":"b"}"#, "/model"),
        (r#"{"params":{"name":"a"},"Params":{}}"#, "/params/name"),
        (r#"{"Params":{"name":"b"},"params":{"name":"a"}}"#, "/params/name"),
        (r#"{"params":{"name":"a","naMe":null}}"#, "/params/name"),
        (r#"{"a":[{"B":1}]}"#, "/a/0/b"),
        // Go reads these as s and k.
        ("{\"ma\u{17f}k\":1}", "/mask"),
        (r#"{"mas\u212a":1,"mask":2}"#, "/mask"),
        ("{\"cl\u{c9}\":1}", "/cl\u{e9}"),
        ("{\"\u{17f}\u{212a}\":1}", "/SK"),
    ] {
        assert_eq!(*read(body, &[at]).find(&pointer(at)), BodyValue::Repeated, "{body}");
    }
    for body in [
        r#"{"model":"a","x":{"Model":"b"},"models":1,"mode1":2}"#,
        r#"{"model":"a","m\u00f6del":1}"#,
        r#"{"model":"a","modeı":1,"modelé":1}"#,
    ] {
        assert_key(body, "/model", Some("a"));
    }
    assert_eq!(read(r#"{"N":7}"#, &["/n"]).read_cost(&pointer("/n")), Err(CostFault::Repeated));
}

/// Servers of Protocol Buffers read `max_tokens` and `maxTokens` as one member, and take the last.
#[test]
fn a_member_in_camel_case_is_a_second_one() {
    for (body, at) in [
        (r#"{"max_tokens":1,"maxTokens":9}"#, "/max_tokens"),
        (r#"{"maxTokens":9}"#, "/max_tokens"),
        (r#"{"max_tokens":9,"maxTokens":1}"#, "/maxTokens"),
        (r#"{"max_output_tokens":1,"maxOutput_tokens":9}"#, "/max_output_tokens"),
        (r#"{"top_p":{"n_x":1},"topP":{}}"#, "/top_p/n_x"),
        (r#"{"a_1":1,"a1":2}"#, "/a_1"),
        (r#"{"id":1,"id_":2}"#, "/id"),
    ] {
        assert_eq!(*read(body, &[at]).find(&pointer(at)), BodyValue::Repeated, "{body}");
    }
    for (body, at) in [
        (r#"{"id":"a","_id":1,"i_d":3}"#, "/id"),
        (r#"{"_id":"a","id":1}"#, "/_id"),
        (r#"{"user_id":"a","userid":1,"x":{"userId":2}}"#, "/user_id"),
        (r#"{"max_tokens":"a","max-tokens":1,"max_token":2}"#, "/max_tokens"),
    ] {
        assert_key(body, at, Some("a"));
    }
    // Where each is looked for, either may stand alone.
    let both = ["/max_tokens", "/maxTokens"];
    for (body, found) in [(r#"{"max_tokens":"a"}"#, [true, false]), (r#"{"maxTokens":"a"}"#, [false, true])] {
        let values = read(body, &both);
        assert_eq!(both.map(|at| values.find(&pointer(at)).key_text() == Some(b"a")), found, "{body}");
        assert!(both.iter().all(|at| *values.find(&pointer(at)) != BodyValue::Repeated), "{body}");
    }
    for body in [r#"{"max_tokens":1,"maxTokens":9}"#, r#"{"maxTokens":1,"max_tokens":9}"#] {
        let values = read(body, &both);
        assert!(both.iter().any(|at| *values.find(&pointer(at)) == BodyValue::Repeated), "{body}");
    }
}

#[test]
fn costs_are_numbers_from_one() {
    let cost = |body: &str| read(body, &["/n"]).read_cost(&pointer("/n"));
    for (number, expected) in [
        ("7", 7),
        ("1", 1),
        ("0", 1),
        ("-3", 1),
        ("-1e300", 1),
        ("0.2", 1),
        ("1.0", 1),
        ("1.01", 2),
        ("2.5e1", 25),
        ("1e-400", 1),
        ("9007199254740993", 9_007_199_254_740_993),
        ("18446744073709551615", u64::MAX),
        ("18446744073709551616", u64::MAX),
        ("1e300", u64::MAX),
        ("1e400", u64::MAX),
        ("null", 1),
    ] {
        assert_eq!(cost(&format!(r#"{{"n":{number}}}"#)), Ok(expected), "{number}");
    }
    assert_eq!(cost("{}"), Ok(1));
    let digits = format!(r#"{{"n":1{}}}"#, "0".repeat(300));
    assert_eq!(cost(&digits), Ok(u64::MAX));
    let digits = format!(r#"{{"n":0.{}1}}"#, "0".repeat(5_000));
    assert_eq!(cost(&digits), Ok(1));
    for wrong in [r#"{"n":"7"}"#, r#"{"n":true}"#, r#"{"n":[7]}"#, r#"{"n":{}}"#, "x"] {
        assert_eq!(cost(wrong), Err(CostFault::NotANumber), "{wrong}");
    }
    let claim =
        |number: &str| read(&format!(r#"{{"n":{number}}}"#), &["/n"]).find(&pointer("/n")).millionths();
    for (number, units) in [
        ("99999999999999999999", Some(u64::MAX)),
        ("1e30", Some(u64::MAX)),
        ("1e400", Some(u64::MAX)),
        (&"9".repeat(5_000), Some(u64::MAX)),
        ("-1", None),
        ("-1e30", None),
        ("\"1\"", None),
    ] {
        assert_eq!(claim(number), units.map(|units| u128::from(units) * MILLION), "{number}");
    }
    assert_eq!(cost(r#"{"n":7,"n":7}"#), Err(CostFault::Repeated));
    assert_eq!(cost(""), Ok(1), "there is no body");
    assert_eq!(NOT_JSON.read_cost(&pointer("/n")), Err(CostFault::NotANumber));
}

#[test]
fn the_calls_of_a_batch_are_counted() {
    let batch = r#"[{"jsonrpc":"2.0","method":"a","id":1}, {"params":[1,2,[3]]},[1,2],{}]"#;
    for (body, calls) in [
        (batch, 4),
        ("\u{feff}[1,2]", 2),
        (r#"["\ud800",2]"#, 2),
        ("[]", 1),
        ("[[1,2,3]]", 1),
        (r#"{"method":"a","params":[1,2]}"#, 1),
        ("7", 1),
        ("", 1),
    ] {
        assert_eq!(read(body, &[]).count_calls(), Ok(calls), "{body}");
        assert_eq!(read(body, &["/x"]).count_calls(), Ok(calls), "{body}");
    }
    for lenient in ["[1,2", "[1,2]x", "[1,2]\0", "[1][2]", "[1,2,]", "[1,/**/2]", "[NaN,2]", "{} {}"] {
        assert_eq!(read(lenient, &[]).count_calls(), Err(CostFault::NotANumber), "{lenient}");
    }
}

#[test]
fn many_pointers_are_found_at_once() {
    let names: Vec<String> = (0..3 * PATHS_MAX + 1).map(|n| format!("/m{n}")).collect();
    let members: Vec<String> = (0..names.len()).map(|n| format!(r#""m{n}":{n}"#)).collect();
    let refs: Vec<&str> = names.iter().chain(&names).map(String::as_str).collect();
    let values = read(&format!("{{{}}}", members.join(",")), &refs);
    for (n, name) in names.iter().enumerate() {
        assert_eq!(values.find(&pointer(name)).key_text(), Some(n.to_string().as_bytes()));
    }
    assert_eq!(*values.find(&pointer("/unknown")), BodyValue::Absent);
}

#[test]
fn a_body_beyond_the_peek_has_no_values() {
    let body = br#"{"model":"gpt"}"#;
    let length = body.len() as u64;
    for (peek_bytes, is_whole, is_found) in
        [(length, true, true), (length - 1, true, false), (length, false, false)]
    {
        let mut plan = BodyPlan::new(peek_bytes, true, false);
        plan.add_pointer(&pointer("/model"));
        let values = BodyValues::read(&Arc::new(plan), body, is_whole);
        assert_eq!(values.find(&pointer("/model")).key_text().is_some(), is_found);
        assert_eq!(values.form == BodyForm::TooLong, !is_found);
        assert_eq!(values.json_bytes(), is_found.then_some(length));
    }
}

proptest! {
    /// No body does more than have no values.
    #[test]
    fn any_bytes_can_be_read(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        let values = BodyValues::read(&plan(&["/a", "/0/b"]), &body, true);
        prop_assert_eq!(values.count_calls().is_ok(), body.is_empty() || values.json_bytes().is_some());
        let is_json = serde_json::from_slice::<serde_json::Value>(&body).is_ok();
        prop_assert!(values.json_bytes().is_some() || !is_json);
    }

    /// A text is found as it was written.
    #[test]
    fn any_text_is_found(text in ".{1,100}", at in "[a-z]{1,8}") {
        let body = serde_json::json!({ "x": [1, { at.clone(): 1 }], at.clone(): text }).to_string();
        prop_assume!(at != "x");
        prop_assert_eq!(key(&body, &format!("/{at}")), Some(text));
    }
}

#[test]
fn the_hash_is_that_of_the_whole_body_as_it_came() {
    let hashing = |peek_bytes| {
        let mut plan = BodyPlan::new(peek_bytes, false, false);
        plan.hashes_body = true;
        Arc::new(plan)
    };
    let first = |body: &[u8], is_whole| {
        let values = BodyValues::read(&hashing(3), body, is_whole);
        values.hash().map(|hash| format!("{:02x}{:02x}{:02x}{:02x}", hash[0], hash[1], hash[2], hash[3]))
    };
    assert_eq!(first(b"abc", true).as_deref(), Some("ba7816bf"), "no JSON");
    assert_ne!(first(b"{}", true), first(b"{ }", true));
    assert_eq!(first(b"", true), None);
    assert_eq!(first(b"abc", false), None);
    assert_eq!(first(b"abcd", true), None);
    let encoded = BodyValues::read(&hashing(3), b"abc", true).into_form(BodyForm::Encoded);
    assert_eq!((encoded.form, encoded.hash().is_some()), (BodyForm::Encoded, true));
    assert!(read("{}", &["/a"]).hash().is_none(), "nobody asked for it");
}

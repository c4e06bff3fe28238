//! Tests of the tree: positions, syntax errors, bounds.

use super::*;

fn child<'a>(node: &'a Node, name: &str) -> (&'a MapKey, &'a Node) {
    match &node.content {
        NodeContent::Map(entries) => {
            let found = entries.iter().find(|(key, _)| key.name == name);
            let (key, value) = found.unwrap_or_else(|| panic!("no {name}"));
            (key, value)
        }
        _ => panic!("not a mapping"),
    }
}

#[test]
fn every_node_has_its_position_and_its_text_as_written() {
    let root = parse_document("a: 1.10\nb:\n  - x\n  - {c: 'd e', f: 0x1F}\ng:\nh: [ ]\n").unwrap();
    let (key, value) = child(&root, "a");
    assert_eq!((key.position.line, key.position.column), (1, 1));
    assert_eq!((value.position.line, value.position.column, value.position.width), (1, 4, 4));
    assert!(matches!(&value.content, NodeContent::Text(text) if text.written == "1.10"));
    let NodeContent::List(items) = &child(&root, "b").1.content else { panic!("no list") };
    let (_, value) = child(&items[1], "c");
    assert_eq!((value.position.line, value.position.column, value.position.width), (4, 9, 5));
    assert!(matches!(&child(&items[1], "f").1.content, NodeContent::Text(text) if text.written == "0x1F"));
    let (key, value) = child(&root, "g");
    assert!(matches!(value.content, NodeContent::Null) && value.position == key.position);
    let (key, value) = child(&root, "h");
    assert!(matches!(value.content, NodeContent::List(_)) && value.position == key.position);
}

#[test]
fn invalid_yaml_is_reported_with_its_position() {
    let place_of = |text: &str| {
        parse_document(text)
            .map(|_| ())
            .map_err(|(position, it)| (position.line, position.column, it.message))
    };
    assert_eq!(place_of("a: [1\nb: 2"), Err((1, 4, "the `[` is never closed".to_owned())));
    assert!(place_of("a: *b").unwrap_err().2.starts_with("not valid YAML"));
    assert_eq!(place_of("a: 1\n---\nb: 2").unwrap_err().0, 2);
    assert_eq!(place_of("a: !x 1").unwrap_err().2, TAG_UNSUPPORTED);
    assert_eq!(place_of("? [a]\n: 1").unwrap_err().2, KEY_NOT_PLAIN);
    assert_eq!(place_of("a: b\u{0}").unwrap_err().1, 5);
    // The parser starts a new line at these characters.
    for text in ["a: 1\r\nb: 2\rc: 3\r\n", "a: 1\nb: 2\u{2028}c: 3\n", "a: 1\nb: 2\u{2029}c: 3\n"] {
        let (line, column, message) = place_of(text).unwrap_err();
        assert_eq!((line, column), (2, 5), "{message}");
    }
    assert_eq!(place_of("a: 1\r\nb: 2\r\n"), Ok(()));
    assert_eq!(place_of(&"[".repeat(500)).unwrap_err().2, "nested too deeply");
}

#[test]
fn multiplying_aliases_and_deep_nesting_are_errors() {
    let mut text = String::from("a: &l0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..9 {
        let row = vec![format!("*l{}", level - 1); 10].join(",");
        text.push_str(&format!("b{level}: &l{level} [{row}]\n"));
    }
    let (_, error) = parse_document(&text).unwrap_err();
    assert_eq!(error.message, TOO_MANY_NODES);
    let deep = format!("a: {}{}", "[".repeat(300), "]".repeat(300));
    assert_eq!(parse_document(&deep).unwrap_err().1.message, "nested too deeply");
    assert_eq!(parse_document("a: &a [*a]").unwrap_err().1.message, "nested too deeply");
}

#[test]
fn a_large_file_on_one_line_is_read_fast() {
    let many = format!("a: [{}]", vec!["x"; 20_000].join(","));
    assert!(parse_document(&many).is_ok());
    let many = format!("a: [{}é]", vec!["x"; 20_000].join(","));
    assert!(parse_document(&many).is_ok());
    assert!(parse_document(&"[".repeat(1 << 20)).is_err());
    assert!(parse_document(&"{".repeat(1 << 20)).is_err());
    assert!(parse_document(&"- ".repeat(1 << 19)).is_err());
}

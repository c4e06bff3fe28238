//! Normalising paths before the search.

use proptest::prelude::*;

use super::*;

fn normal(path: &str) -> Result<String, PathError> {
    normalise_path(path).map(|path| String::from_utf8(path.into_owned()).expect("the rows decode to UTF-8"))
}

#[test]
fn paths_fold_as_in_nginx() {
    let rows = [
        ("/", "/"),
        ("/admin", "/admin"),
        ("/admin/", "/admin/"),
        ("//admin", "/admin"),
        ("/./admin", "/admin"),
        ("/x/../admin", "/admin"),
        ("/%61dmin", "/admin"),
        ("/%2e/admin", "/admin"),
        ("/x/%2e%2e/admin", "/admin"),
        ("/x/.%2E/admin", "/admin"),
        ("/x%2F..%2fadmin", "/admin"),
        ("/a/.", "/a/"),
        ("/a/..", "/"),
        ("/a/b/..", "/a/"),
        ("/a/b/%2e%2e", "/a/"),
        ("/.", "/"),
        ("///foo///bar///", "/foo/bar/"),
        ("/foo/../bar/", "/bar/"),
        ("/a/b/c/../../d", "/a/d"),
        ("/a/b/c/../../../d/..", "/"),
        ("/.well-known/x", "/.well-known/x"),
        ("/a..b/..c/d../...", "/a..b/..c/d../..."),
        ("/%25%36%31", "/%61"),
        ("/a%3Fb%23c", "/a?b#c"),
        ("/%E4%B8%AD", "/中"),
        ("/中", "/中"),
        ("/a;v=1", "/a;v=1"),
    ];
    for (path, expected) in rows {
        assert_eq!(normal(path).as_deref(), Ok(expected), "{path}");
    }
}

#[test]
fn hostile_paths_are_rejected() {
    let rows = [
        ("", PathError::NotAbsolute),
        ("*", PathError::NotAbsolute),
        ("admin", PathError::NotAbsolute),
        ("%2Fadmin", PathError::NotAbsolute),
        ("/%", PathError::BadEscape),
        ("/%1", PathError::BadEscape),
        ("/%g1", PathError::BadEscape),
        ("/%1g", PathError::BadEscape),
        ("/%%31", PathError::BadEscape),
        ("/%+1", PathError::BadEscape),
        ("/a%00", PathError::EncodedNul),
        ("/\0", PathError::ControlCharacter),
        ("/a\u{2}", PathError::ControlCharacter),
        ("/a\u{7f}", PathError::ControlCharacter),
        ("/..", PathError::AboveRoot),
        ("/../a", PathError::AboveRoot),
        ("/%2e%2e", PathError::AboveRoot),
        ("/foo/../../bar/", PathError::AboveRoot),
        ("/foo/..//../bar/", PathError::AboveRoot),
    ];
    for (path, expected) in rows {
        assert_eq!(normal(path), Err(expected), "{path:?}");
    }
}

#[test]
fn a_normal_path_is_borrowed() {
    for path in ["/", "/api/v1/users", "/.well-known/a.b", "/...", "/a..", "/a.", "/a/..b"] {
        assert!(matches!(normalise_path(path), Ok(Cow::Borrowed(_))), "{path}");
    }
    for path in ["/a//b", "/a/.", "/%61", "/a/../b"] {
        assert!(matches!(normalise_path(path), Ok(Cow::Owned(_))), "{path}");
    }
}

#[test]
fn bytes_of_invalid_text_stay_distinct() {
    let byte = normalise_path("/%FF").expect("a byte like any other");
    let spelled = normalise_path("/%25FF").expect("an escaped percent sign");
    assert_eq!(*byte, *b"/\xFF");
    assert_eq!(*spelled, *b"/%FF");
    assert_eq!(encode_path(&byte), "/%FF");
    assert_eq!(encode_path(&spelled), "/%25FF");
}

/// Paths of the characters that normalisation acts on, so that the interesting cases are common.
fn tricky_path() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("/".to_owned()),
        Just(".".to_owned()),
        Just("..".to_owned()),
        Just("%2e".to_owned()),
        Just("%2F".to_owned()),
        Just("%25".to_owned()),
        Just("%".to_owned()),
        "[a-f0-9]",
        any::<char>().prop_map(String::from),
        any::<u8>().prop_map(|byte| format!("%{byte:02x}")),
    ];
    proptest::collection::vec(piece, 0..24).prop_map(|pieces| format!("/{}", pieces.concat()))
}

proptest! {
    #[test]
    fn a_normalised_path_is_clean_and_stays(path in tricky_path()) {
        if let Ok(once) = normalise_path(&path) {
            prop_assert_eq!(once.first(), Some(&b'/'));
            let inner: Vec<_> = once[1..].split(|&byte| byte == b'/').collect();
            prop_assert!(!inner.iter().any(|segment| matches!(*segment, b"." | b"..")));
            prop_assert!(inner.iter().rev().skip(1).all(|segment| !segment.is_empty()), "an empty segment");
            let sent = encode_path(&once);
            prop_assert!(sent.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(&*normalise_path(&sent).expect("what we encode is valid"), &*once);
        }
    }

    #[test]
    fn any_text_is_normalised_or_rejected(path in any::<String>()) {
        let _ = normalise_path(&path);
    }

    #[test]
    fn borrowing_and_rewriting_agree(path in tricky_path()) {
        if is_normal(path.as_bytes()) {
            let rewritten = rewrite_path(path.as_bytes());
            prop_assert_eq!(rewritten.as_deref(), Ok(path.as_bytes()));
        }
    }
}

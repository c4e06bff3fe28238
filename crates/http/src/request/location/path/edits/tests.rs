//! Changed paths, by hand and beside a plain model on decoded bytes.

use proptest::prelude::*;

use super::super::{encode_path, normalise_path};
use super::*;
use sluicegate_model::PathRegex;

const NONE: PathEdits = PathEdits { strip: None, rewrite: None, add_prefix: None };

fn strip(prefix: &str) -> PathEdits {
    PathEdits { strip: Some(prefix.to_owned()), ..NONE }
}

fn rewrite(from: &str, to: &str) -> PathEdits {
    let from = PathRegex::compile_with_groups(from).expect("an expression");
    PathEdits { rewrite: Some(RewriteConfig { from, to: to.to_owned() }), ..NONE }
}

#[test]
fn strip_leaves_a_path_and_keeps_the_query() {
    let rows = [
        ("/api/x", "/api/", None, "/x"),
        ("/api/x", "/api", None, "/x"),
        ("/api/", "/api/", None, "/"),
        ("/api", "/api", Some("a=%2F"), "/?a=%2F"),
        ("/apix", "/api", None, "/x"),
        ("/other", "/api/", Some(""), "/other?"),
        ("/api/a b?c", "/api", None, "/a%20b%3Fc"),
        ("/api/..x", "/api", None, "/..x"),
        ("/api.x", "/api", None, "/.x"),
    ];
    for (path, prefix, query, expected) in rows {
        assert_eq!(
            strip(prefix).build_target(path.as_bytes(), query).as_deref(),
            Ok(expected),
            "{path} without {prefix}"
        );
    }
}

#[test]
fn strip_never_climbs_out_of_its_location() {
    for path in ["/api..", "/api../etc/passwd", "/api.", "/api./x"] {
        assert_eq!(strip("/api").build_target(path.as_bytes(), None), Err(PathError::DotSegment), "{path}");
    }
}

#[test]
fn a_matching_path_becomes_another_as_a_whole() {
    let long = "^/(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)";
    let rows = [
        ("/old/x/y", "^/old/(.*)$", "/new/$1", "/new/x/y"),
        ("/x/old/y/z", "/old/([a-z])", "/new/$1", "/new/y"),
        ("/other", "^/old/(.*)$", "/new/$1", "/other"),
        ("/a?b#c%d\n", "^/zzz", "/new", "/a%3Fb%23c%25d%0A"),
        ("/old/a?b#c%d\u{1}", "^/old/(.*)$", "/new/$1", "/new/a%3Fb%23c%25d%01"),
        ("/old/$2$$", "^/(old)/(.*)$", "/$$1/$2/$1", "/$1/$2$$/old"),
        ("/ac", "^/a(b)?c", "/x$1y", "/xy"),
        ("/abcdefghij", long, "/$9$8$1$10", "/ihaa0"),
        ("/old//x", "^/old/(.*)$", "//new//$1", "/new/x"),
        ("/é", "^/(.)$", "/$1$1", "/%C3%A9%C3%A9"),
    ];
    for (path, from, to, expected) in rows {
        let target = rewrite(from, to).build_target(path.as_bytes(), None);
        assert_eq!(target.as_deref(), Ok(expected), "{path} by {from} to {to}");
    }
}

/// U+FFFD stands for invalid bytes in matching alone.
#[test]
fn bytes_of_invalid_text_are_taken_over_as_they_are() {
    let rows: [(&[u8], &str, &str, &str); 5] = [
        (b"/old/\xFF", "^/old/(.*)$", "/$1", "/%FF"),
        (b"/\xFFa\xE2\x82b\xFF", "^/(.)a(..)(.)$", "/$3-$2-$1", "/%FF-%E2%82b-%FF"),
        (b"/\xFF/x/\xFF", "/(x)/", "/$1", "/x"),
        (b"/\xE2\x82\xFF", "^/(?-u:(.))(?-u:(.))", "/$2/$1", "/%82/%E2"),
        (b"/\xF0\x9F\x98", "^/(.)$", "/$1", "/%F0%9F%98"),
    ];
    for (path, from, to, expected) in rows {
        assert_eq!(rewrite(from, to).build_target(path, None).as_deref(), Ok(expected), "{path:?} by {from}");
    }
}

#[test]
fn a_new_path_has_no_dot_segments() {
    for (path, from, to) in [
        ("/al../x", "^/al(.*)$", "/files/$1"),
        ("/al./x", "^/al(.*)$", "/files/$1"),
        ("/a/.x", "^/(.*)x$", "/$1"),
        ("/a.b", "^/a(.)b", "/$1$1"),
        ("/a.b", "^/a(.)b", "/$1$1/x"),
        ("/al../x", "^/al(../)x", "/b/$1/c"),
        ("/al..;a=b/x", "^/al(.*)$", "/files/$1"),
        ("/al.;/x", "^/al(.*)$", "/files/$1"),
        ("/al..\\x", "^/al(.*)$", "/files/$1"),
        ("/al\\..;x", "^/al(.*)$", "/files/$1"),
    ] {
        let target = rewrite(from, to).build_target(path.as_bytes(), None);
        assert_eq!(target, Err(PathError::DotSegment), "{path} by {from} to {to}");
    }
    let all = PathEdits { strip: Some("/api".to_owned()), ..rewrite("^/", "/fixed") };
    assert_eq!(all.build_target(b"/api../x", None), Err(PathError::DotSegment), "before it is rewritten");
    assert_eq!(
        rewrite("^/al(.*)$", "/files/$1").build_target(b"/al.../x", None).as_deref(),
        Ok("/files/.../x")
    );
}

#[test]
fn strip_comes_first_and_add_prefix_last() {
    let all = |add: &str| PathEdits {
        strip: Some("/api".to_owned()),
        add_prefix: Some(add.to_owned()),
        ..rewrite("^/old/(.*)$", "/new/$1")
    };
    let rows = [
        ("/api/old/x", "/v1", "/v1/new/x?q=%2F%41&&"),
        ("/old/api/x", "/v1", "/v1/new/api/x?q=%2F%41&&"),
        ("/api", "/v1/", "/v1/?q=%2F%41&&"),
        ("/api/a?b", "/v1/$1", "/v1/$1/a%3Fb?q=%2F%41&&"),
    ];
    for (path, add, expected) in rows {
        assert_eq!(
            all(add).build_target(path.as_bytes(), Some("q=%2F%41&&")).as_deref(),
            Ok(expected),
            "{path}"
        );
    }
}

/// The groups of a decoded path by an expression; `None` = it does not match.
type Matcher = fn(&[u8]) -> Option<Vec<Vec<u8>>>;

/// What each expression means, in plain words on bytes.
const EXPRESSIONS: [(&str, Matcher); 8] = [
    ("^/old/(.*)$", |path| rest_of_line(path.strip_prefix(b"/old/")?)),
    ("^/al(.*)$", |path| rest_of_line(path.strip_prefix(b"/al")?)),
    ("c$", |path| path.ends_with(b"c").then(Vec::new)),
    ("^/([^/]*)/([^/]*)", |path| {
        let mut segments = path[1..].splitn(3, |&byte| byte == b'/').map(<[u8]>::to_vec);
        Some(vec![segments.next()?, segments.next()?])
    }),
    ("/(b+)", |path| {
        let start = path.windows(2).position(|two| two == b"/b")? + 1;
        Some(vec![path[start..].iter().copied().take_while(|&byte| byte == b'b').collect()])
    }),
    ("^/(x)?((?s:.*))$", |path| match &path[1..] {
        [b'x', rest @ ..] => Some(vec![b"x".to_vec(), rest.to_vec()]),
        rest => Some(vec![Vec::new(), rest.to_vec()]),
    }),
    ("(?i)^/OLD", |path| path.get(1..4)?.eq_ignore_ascii_case(b"old").then(Vec::new)),
    ("^/(?-u:([^a]))", |path| path.get(1).filter(|byte| **byte != b'a').map(|byte| vec![vec![*byte]])),
];

fn rest_of_line(rest: &[u8]) -> Option<Vec<Vec<u8>>> {
    (!rest.contains(&b'\n')).then(|| vec![rest.to_vec()])
}

const TARGETS: [&str; 8] =
    ["/new/$1", "/$2/$1", "/$$1/$1$1", "/files/$1", "//a//$1/", "/%$1%41", "/é $1 ", "/.$1"];

/// [`PathEdits::build_target`], one step after the other on whole texts.
fn model(path: &[u8], strip: &str, (matcher, to): (Matcher, &str), prefix: &str) -> Option<String> {
    let is_dotted = |path: &[u8]| {
        [b"." as &[u8], b".."].iter().any(|dots| path.split(|b| *b == b'/').any(|s| s == *dots))
    };
    let mut path = match path.starts_with(strip.as_bytes()) {
        true => [b"/", &path[strip.len()..]].concat(),
        false => path.to_vec(),
    };
    if path.starts_with(b"//") {
        path.remove(0);
    }
    if is_dotted(&path) {
        return None;
    }
    if let Some(groups) = matcher(&path) {
        let group = |text: &str| {
            let number = usize::from(text.as_bytes()[0] - b'1');
            [groups.get(number).map_or(&b""[..], Vec::as_slice), &text.as_bytes()[1..]].concat()
        };
        let expand = |part: &str| {
            let mut pieces = part.split('$');
            let first = pieces.next().unwrap_or_default().as_bytes().to_vec();
            [first, pieces.flat_map(group).collect()].concat()
        };
        path = to.split("$$").map(expand).collect::<Vec<_>>().join(&b'$');
    }
    let path = [prefix.as_bytes(), &path].concat();
    if is_dotted(&path) {
        return None;
    }
    let segments: Vec<&[u8]> = path.split(|&byte| byte == b'/').filter(|one| !one.is_empty()).collect();
    let mut target = String::new();
    for byte in
        segments.iter().flat_map(|one| [b"/", *one].concat()).chain(path.ends_with(b"/").then_some(b'/'))
    {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => target.push(char::from(byte)),
            _ if b"-._~!$&'()*+,;=:@/".contains(&byte) => target.push(char::from(byte)),
            _ => target += &format!("%{byte:02X}"),
        }
    }
    Some(target)
}

/// The path of these decoded bytes; `None` if it climbs above the root.
fn normalised(path: &[u8]) -> Option<Vec<u8>> {
    let escaped: String = path.iter().skip(1).map(|byte| format!("%{byte:02x}")).collect();
    normalise_path(&format!("/{escaped}")).ok().map(Cow::into_owned)
}

fn any_path() -> impl Strategy<Value = Vec<u8>> {
    let words: [&[u8]; 22] = [
        b"/",
        b"/",
        b"/",
        b"old/",
        b"/old/",
        b"/al",
        b"/api",
        b".",
        b"..",
        b"b",
        b"c",
        b"x",
        b"a",
        b"$1",
        b"%",
        b"?",
        b"#",
        b"\n",
        b"\xFF",
        b"\xE2\x82",
        b"\xF0\x9F\x98",
        "é".as_bytes(),
    ];
    let piece = prop_oneof![8 => proptest::sample::select(words.to_vec()).prop_map(<[u8]>::to_vec),
        1 => (1_u8..).prop_map(|byte| vec![byte])];
    proptest::collection::vec(piece, 0..8).prop_map(|pieces| [b"/".to_vec(), pieces.concat()].concat())
}

proptest! {
    #[test]
    fn paths_change_as_the_model_says(
        path in any_path(),
        strip in proptest::sample::select(vec!["", "/api", "/api/", "/al"]),
        expression in 0..EXPRESSIONS.len(),
        to in proptest::sample::select(TARGETS.to_vec()),
        prefix in proptest::sample::select(vec!["", "/v1", "/v1/", "/a%2Fb?"]),
        query in proptest::option::of("[a-z%=&/.]{0,6}"),
    ) {
        let Some(normal) = normalised(&path) else { return Ok(()) };
        let (from, matcher) = EXPRESSIONS[expression];
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let edits = PathEdits { strip: some(strip), add_prefix: some(prefix), ..rewrite(from, to) };
        let target = edits.build_target(&normal, query.as_deref()).ok();
        let expected = model(&normal, strip, (matcher, to), prefix);
        let expected = expected.map(|path| query.iter().fold(path, |path, query| path + "?" + query));
        prop_assert_eq!(target, expected);
    }

    #[test]
    fn a_stripped_target_is_normal_again(path in any_path(), cut in 0usize..8) {
        if let Some(normal) = normalised(&path) {
            let prefix = String::from_utf8_lossy(&normal[..cut.min(normal.len())]).into_owned();
            if let Ok(target) = strip(&prefix).build_target(&normal, None) {
                let again = normalise_path(&target).map(|path| encode_path(&path));
                prop_assert_eq!(again, Ok(target));
            }
        }
    }
}

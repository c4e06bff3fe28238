//! The path normaliser beside a plain model of it.

use proptest::prelude::*;
use sluicegate_http::request::location::{PathEdits, encode_path, normalise_path};

use crate::fuzz;

fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => proptest::sample::select(vec![
            "/", "/", ".", "..", "/..", "/.", "//", "%2e", "%2E%2e", "%2f", "%2F..", "%5c", "\\", "%00", "%", "%1",
            "%zz", "%25", "%252e", ";", "%3b", "?", "#", "admin", "api", "\u{7f}", "é",
        ]).prop_map(str::to_owned),
        1 => any::<u8>().prop_map(|byte| format!("%{byte:02X}")),
        1 => any::<char>().prop_map(String::from),
        1 => "[a-z0-9]{1,3}",
    ]
}

fn any_path() -> impl Strategy<Value = String> {
    let lead = prop_oneof![9 => Just("/"), 1 => Just("")];
    (lead, proptest::collection::vec(piece(), 0..30))
        .prop_map(|(lead, pieces)| lead.to_owned() + &pieces.concat())
}

/// Decodes once, splits and walks, as the contract says.
fn model(path: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::new();
    let mut rest = path.as_bytes();
    while let [first, others @ ..] = rest {
        let (byte, others) = match (first, others) {
            (b'%', [high, low, others @ ..]) => {
                let digits = [*high, *low].map(|digit| char::from(digit).to_digit(16));
                let [Some(high), Some(low)] = digits else { return None };
                ((high * 16 + low) as u8, others)
            }
            (b'%', _) => return None,
            (plain, _) if plain.is_ascii_control() => return None,
            (plain, others) => (*plain, others),
        };
        if byte == 0 {
            return None;
        }
        decoded.push(byte);
        rest = others;
    }
    // An encoded slash is a slash, but not in place of the first.
    if !path.starts_with('/') {
        return None;
    }
    let segments: Vec<&[u8]> = decoded[1..].split(|&byte| byte == b'/').collect();
    let (last, inner) = segments.split_last()?;
    let mut kept: Vec<&[u8]> = Vec::new();
    for segment in inner.iter().chain([last]) {
        match *segment {
            b"" | b"." => {}
            b".." => drop(kept.pop()?),
            name => kept.push(name),
        }
    }
    let folder = matches!(*last, b"" | b"." | b"..") && !kept.is_empty();
    let joined = kept.iter().flat_map(|name| [b"/", *name].concat()).collect::<Vec<u8>>();
    Some(if kept.is_empty() {
        b"/".to_vec()
    } else {
        [&joined[..], if folder { b"/" } else { b"" }].concat()
    })
}

#[test]
fn paths_are_normalised_as_the_model_does() {
    fuzz(any_path(), |path| {
        let found = normalise_path(&path).ok().map(|normal| normal.into_owned());
        prop_assert_eq!(&found, &model(&path), "{}", path.escape_debug());
        let Some(normal) = found else { return Ok(()) };
        let climbs = normal.split(|&byte| byte == b'/').any(|segment| matches!(segment, b"." | b".."));
        prop_assert!(normal.starts_with(b"/") && !climbs && !normal.windows(2).any(|two| two == b"//"));
        let again = encode_path(&normal);
        prop_assert!(normalise_path(&again).is_ok_and(|same| *same == *normal), "{}", again);
        for prefix in ["/", "/api", "/api/", "/admin"] {
            let edits = PathEdits { strip: Some(prefix.to_owned()), rewrite: None, add_prefix: None };
            let Ok(stripped) = edits.build_target(&normal, None) else { continue };
            let seen = normalise_path(&stripped).ok();
            prop_assert!(seen.is_some_and(|seen| seen.starts_with(b"/")), "{} without {}", path, prefix);
        }
        Ok(())
    });
}

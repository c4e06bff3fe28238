//! Locations for one scheme or listener.

use super::*;

#[test]
fn equal_paths_are_told_apart_by_scheme_and_listener() {
    let site = site(&[
        ("/", "", ""),
        ("/", "", "POST"),
        ("/", "", "http:"),
        ("/", "", "@edge"),
        ("/", "", "@edge https:"),
        ("= /only", "", "https:"),
        ("~ ^/re", "", "@back @edge"),
        ("~ ^/re", "", ""),
    ]);
    let find = |path: &str, scheme, listener| match site.search.find_location(
        "",
        path.as_bytes(),
        &Arrival { method: &Method::GET, scheme, listener, values: None },
    ) {
        LocationLookup::Found(LocationId(index)) => index,
        other => panic!("{other:?}"),
    };
    let (http, https) = (Scheme::Http, Scheme::Https);
    assert_eq!((find("/", http, None), find("/", https, None)), (2, 0));
    assert_eq!((find("/", http, Some("edge")), find("/", https, Some("edge"))), (3, 4), "the listener first");
    assert_eq!((find("/", http, Some("other")), find("/", https, Some("other"))), (2, 0));
    assert_eq!((find("/only", https, None), find("/only", http, None)), (5, 2), "passed over");
    assert_eq!((find("/re", https, Some("back")), find("/re", https, None)), (6, 7));
    // A location with methods does not hide one of the request's scheme.
    let site = super::site(&[("/", "", "GET"), ("/", "", "http:")]);
    let located = site.search.find_location("", b"/", &plain(&Method::GET));
    assert_eq!(located, LocationLookup::Found(LocationId(1)));
}

#[test]
fn another_scheme_or_listener_is_no_405() {
    let site =
        site(&[("/a", "", "https: POST"), ("/a", "", "@edge PUT"), ("/b", "", "POST"), ("/b", "", "https:")]);
    let plain_get = plain(&Method::GET);
    assert_eq!(site.locate_arrival("", "/a", &plain_get), "404");
    assert_eq!(site.locate_arrival("", "/a", &Arrival { scheme: Scheme::Https, ..plain_get }), "405 POST");
    assert_eq!(site.locate_arrival("", "/a", &Arrival { listener: Some("edge"), ..plain_get }), "405 PUT");
    assert_eq!(site.locate_arrival("", "/b", &plain_get), "405 POST");
    let losses = site.search.list_candidates("", b"/a", &Arrival { listener: Some("x"), ..plain_get });
    let losses: Vec<_> = losses.iter().map(|candidate| candidate.loss).collect();
    assert_eq!(losses, [Some(LossReason::Listener), Some(LossReason::Scheme)]);
}

#[test]
fn a_name_does_not_change_the_identity_but_scheme_and_listener_do() {
    let mut rows: Vec<_> =
        ["", "http:", "https:", "@edge", "@http"].map(|words| location("/", "", words)).into();
    rows.push(LocationConfig { name: "root".to_owned(), ..rows[0].clone() });
    let search = Locations::new(&rows);
    let mut identities: Vec<_> = (0..6).map(|index| search.identity_of(LocationId(index))).collect();
    assert_eq!(identities[0], identities[5]);
    identities.sort_unstable();
    identities.dedup();
    assert_eq!(identities.len(), 5);
}

//! Cookies that name a server, and all others, which name none.

use http::header::COOKIE;
use proptest::prelude::*;
use sluicegate_model::Config;

use super::*;

const SECRET: &[u8] = b"a secret of tests";
const NOW: u64 = 1_800_000_000;

fn config(upstream: &str) -> Config {
    let file = format!("upstreams: {{ {upstream} }}\nlocations: [{{ path: /, upstream: app }}]\n");
    sluicegate_config::parse(&file, "x").unwrap_or_else(|report| panic!("{report}")).config
}

fn cookies(upstream: &str) -> StickyCookie {
    StickyCookie::new(&config(upstream).upstreams[0], SECRET).expect("a sticky upstream")
}

fn app() -> StickyCookie {
    cookies("app: { servers: [a:1, b:1, c:1], sticky: { cookie: sg, for: 1h } }")
}

fn lines(lines: &[&str]) -> HeaderMap {
    lines.iter().map(|line| (COOKIE, HeaderValue::from_str(line).unwrap())).collect()
}

/// The value of a cookie that names the server at `position`.
fn value(cookies: &StickyCookie, position: usize) -> String {
    let line = cookies.write(ServerId(position), false, NOW).unwrap();
    line.to_str().unwrap().split(';').next().unwrap().split_once('=').unwrap().1.to_owned()
}

/// The server that a single cookie with this value names.
fn named(cookies: &StickyCookie, value: &str, now: u64) -> Option<usize> {
    let mut headers = lines(&[&format!("sg={value}")]);
    let named = cookies.take(&mut headers, now);
    assert!(headers.is_empty(), "{value}: {headers:?}");
    named.map(|server| server.0)
}

#[test]
fn a_cookie_names_its_server_until_its_end() {
    let cookies = app();
    for position in 0..3 {
        let value = value(&cookies, position);
        assert_eq!(value.len(), VALUE_LEN);
        assert_eq!(named(&cookies, &value, NOW), Some(position));
        assert_eq!(named(&cookies, &value, NOW + 3_599), Some(position));
        assert_eq!(named(&cookies, &value, NOW + 3_600), None);
    }
    assert!(cookies.write(ServerId(3), false, NOW).is_none());
    let line = cookies.write(ServerId(0), true, NOW).unwrap();
    let attributes = line.to_str().unwrap().split_once(';').unwrap().1;
    assert_eq!(attributes, " Path=/; Max-Age=3600; HttpOnly; SameSite=Lax; Secure");
    let short = self::cookies("app: { servers: [a:1], sticky: { for: 1ms } }");
    assert!(
        short
            .write(ServerId(0), false, NOW)
            .unwrap()
            .to_str()
            .unwrap()
            .contains("; Max-Age=1; HttpOnly; SameSite=Lax")
    );
}

/// Gateways agree by names of servers, wherever they stand in their files.
#[test]
fn positions_may_differ() {
    let other = cookies("app: { servers: [c:1, a:1], sticky: {} }");
    assert_eq!(named(&other, &value(&app(), 0), NOW), Some(1));
    assert_eq!(named(&other, &value(&app(), 2), NOW), Some(0));
    assert_eq!(named(&other, &value(&app(), 1), NOW), None);
}

#[test]
fn a_cookie_of_another_upstream_or_secret_names_nothing() {
    let cookies = app();
    let shop = self::cookies("shop: { servers: [a:1], sticky: {} }, app: a:1");
    assert_eq!(named(&cookies, &value(&shop, 0), NOW), None);
    let own = self::cookies("app: { servers: [a:1], sticky: { secret: another } }");
    assert_eq!(named(&cookies, &value(&own, 0), NOW), None);
    let own_again = self::cookies("app: { servers: [a:1], sticky: { secret: another } }");
    assert_eq!(named(&own_again, &value(&own, 0), NOW), Some(0));
    let upstream = &config("app: { servers: [a:1], sticky: {} }").upstreams[0];
    let elsewhere = StickyCookie::new(upstream, b"another").unwrap();
    // A secret of the file and one that the gateway chose are equal if their bytes are.
    assert_eq!(named(&elsewhere, &value(&own, 0), NOW), Some(0));
    assert!(StickyCookie::new(&config("app: a:1").upstreams[0], SECRET).is_none());
}

#[test]
fn forged_values_name_nothing() {
    let cookies = app();
    let good = value(&cookies, 0);
    let forged = [
        String::new(),
        "a".to_owned(),
        "A".repeat(VALUE_LEN),
        "A".repeat(10_000),
        format!("{good}A"),
        good[1..].to_owned(),
        format!("\"{good}\""),
        format!("{good}="),
        good.to_ascii_lowercase(),
        format!("%{good}"),
    ];
    for forged in forged {
        assert_eq!(named(&cookies, &forged, NOW), None, "{forged}");
    }
    // Halves of two good ones.
    let other = value(&cookies, 1);
    let half = VALUE_LEN / 2;
    assert_eq!(named(&cookies, &format!("{}{}", &good[..half], &other[half..]), NOW), None);
}

/// Neither the server nor the end can be seen: any two values differ in about half of their bits, equal ones too.
#[test]
fn values_tell_nothing() {
    let cookies = app();
    let bytes = |value: &str| URL_SAFE_NO_PAD.decode(value).unwrap();
    let one = bytes(&cookies.seal(7, NOW));
    for (server, end) in [(7, NOW), (7, NOW + 1), (8, NOW), (7, NOW + 3_600)] {
        let other = bytes(&cookies.seal(server, end));
        let differing: u32 = one.iter().zip(&other).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert!((80..=176).contains(&differing), "{differing}");
        assert_ne!(one[HALF..HALF + 8], other[HALF..HALF + 8]);
    }
}

#[test]
fn other_cookies_stay_as_they_are() {
    let cookies = app();
    let good = value(&cookies, 1);
    for (sent, kept, found) in [
        (vec!["sg=@"], vec![], Some(1)),
        (vec!["a=1; sg=@; b=\"x y\""], vec!["a=1; b=\"x y\""], Some(1)),
        (vec!["sg=@; a=1;b=2;  c"], vec!["a=1;b=2;  c"], Some(1)),
        (vec!["a=1;b=2; sg=@"], vec!["a=1;b=2"], Some(1)),
        (vec!["a=1; sg=@;"], vec!["a=1"], Some(1)),
        (vec!["a= sg=@;; ;", "sg=@", "b=1;"], vec!["a= sg=@;; ;", "b=1;"], Some(1)),
        (vec![" sg = @ ;a=1"], vec!["a=1"], Some(1)),
        // Doubled: in one line, in two, with another value, with the same one.
        (vec!["sg=@; a=1; sg=x"], vec!["a=1"], None),
        (vec!["sg=@; sg=@"], vec![], None),
        (vec!["sg=@", "a=1; sg=@"], vec!["a=1"], None),
        (vec!["sg; sg=@"], vec![], None),
        (vec!["a=1; sg"], vec!["a=1"], None),
        // Others, which are no concern of this upstream.
        (vec!["SG=@; sg2=@; xsg=@; $sg=@; sg[0]=@"], vec!["SG=@; sg2=@; xsg=@; $sg=@; sg[0]=@"], None),
        (vec![" a=1;  ; b", "c=d=e; "], vec![" a=1;  ; b", "c=d=e; "], None),
    ] {
        let fill = |line: &&str| line.replace('@', &good);
        let sent: Vec<String> = sent.iter().map(fill).collect();
        let mut headers = lines(&sent.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(cookies.take(&mut headers, NOW).map(|server| server.0), found, "{sent:?}");
        let left: Vec<&str> = headers.get_all(COOKIE).iter().map(|line| line.to_str().unwrap()).collect();
        assert_eq!(left, kept.iter().map(fill).collect::<Vec<_>>(), "{sent:?}");
    }
}

proptest! {
    /// No altered cookie is accepted: any change of one or more characters makes it name nothing.
    #[test]
    fn altered_cookies_name_nothing(
        position in 0usize..3,
        changes in proptest::collection::vec((0..VALUE_LEN, "[A-Za-z0-9_-]"), 1..4),
    ) {
        let cookies = app();
        let good = value(&cookies, position);
        let mut altered = good.clone();
        for (at, character) in changes {
            altered.replace_range(at..=at, &character);
        }
        prop_assert_eq!(named(&cookies, &altered, NOW), (altered == good).then_some(position));
    }

    /// Any flipped bits of the sealed bytes, re-encoded.
    #[test]
    fn flipped_bits_name_nothing(flips in proptest::collection::vec(0usize..256, 1..4)) {
        let cookies = app();
        let good = URL_SAFE_NO_PAD.decode(value(&cookies, 2)).unwrap();
        let mut flipped = good.clone();
        flips.iter().for_each(|bit| flipped[bit / 8] ^= 1 << (bit % 8));
        let expected = (flipped == good).then_some(2);
        prop_assert_eq!(named(&cookies, &URL_SAFE_NO_PAD.encode(flipped), NOW), expected);
    }
}

//! Valid hosts have one spelling; all others are rejected.

use http::Uri;

use super::*;

const CANONICAL: [(&str, &str); 30] = [
    ("example.com", "example.com"),
    ("EXAMPLE.com", "example.com"),
    ("example.com:80", "example.com"),
    ("example.com.", "example.com"),
    ("Example.COM.:8080", "example.com"),
    ("example.com:", "example.com"),
    ("example.com:0", "example.com"),
    ("example.com:65535", "example.com"),
    ("example.com:00080", "example.com"),
    ("localhost", "localhost"),
    ("LOCALHOST.", "localhost"),
    ("a", "a"),
    ("a.b", "a.b"),
    ("my_service", "my_service"),
    ("a--b.test", "a--b.test"),
    ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ("AbC-d93.0.34ZhGt-s.nk.Ru:88", "abc-d93.0.34zhgt-s.nk.ru"),
    ("a~b!c$d&e'f(g)h*i+j;k=l", "a~b!c$d&e'f(g)h*i+j;k=l"),
    ("123.40.56.78", "123.40.56.78"),
    ("123.49.0.78:987", "123.49.0.78"),
    ("127.0.0.1.", "127.0.0.1"),
    ("[::1]", "[::1]"),
    ("[::1]:80", "[::1]"),
    ("[::1]:", "[::1]"),
    ("[2001:DB8::A]", "[2001:db8::a]"),
    ("[abcd::ef98:0:7654:321]:80", "[abcd::ef98:0:7654:321]"),
    ("[::ffff:12.30.67.89]", "[::ffff:12.30.67.89]"),
    ("[::123.45.67.89]:4321", "[::123.45.67.89]"),
    ("[v1F.a:B]", "[v1f.a:b]"),
    ("[vA.!$&'()*+,;=-._~:]:5", "[va.!$&'()*+,;=-._~:]"),
];

const REFUSED: [&str; 46] = [
    "",
    " ",
    ".",
    "..",
    ":",
    ":80",
    ".:80",
    ".a.test",
    "a..test",
    "a.test..",
    "a.test..:80",
    "a.test,b.test",
    "a.test, b.test",
    ",",
    "user@a.test",
    "user:pass@a.test",
    "@a.test",
    "a.test/",
    "a.test/path",
    "/",
    "a.test\\",
    "a.test?x",
    "a.test#x",
    "a test",
    "a.test\t",
    "a.test:80 ",
    "a.test:x",
    "a.test:8x",
    "a.test:-1",
    "a.test:+1",
    "a.test:65536",
    "a.test:184467440737095516160",
    "a.test:80:90",
    "a%2etest",
    "a\"b",
    "a<b>",
    "a|b",
    "a^b`{}",
    "bücher.test",
    "a\u{7f}b",
    "::1",
    "[::1",
    "[::1]80",
    "[::1]..:98",
    "[ab..cd::1]",
    "[fe80::1%eth0]",
];

#[test]
fn accepted_hosts_have_one_spelling() {
    for (host, expected) in CANONICAL {
        assert_eq!(canonical_host(host).as_deref(), Ok(expected), "{host}");
        assert_eq!(canonical_host(expected).as_deref(), Ok(expected), "{expected} again");
    }
}

#[test]
fn bad_hosts_are_rejected() {
    for host in REFUSED {
        assert_eq!(canonical_host(host), Err(HostError::Invalid), "{host:?}");
    }
    for host in ["[]", "[v.a]", "[v1.]", "[v1.a b]", "[127.0.0.1]", "[::1]x:80", "[abcd\\::1/]:12"] {
        assert_eq!(canonical_host(host), Err(HostError::Invalid), "{host:?}");
    }
}

#[test]
fn a_canonical_host_is_borrowed() {
    for host in ["example.com", "example.com:8080", "example.com.", "[::1]:80"] {
        assert!(matches!(canonical_host(host), Ok(Cow::Borrowed(_))), "{host}");
    }
}

#[test]
fn a_host_is_no_longer_than_the_dns_allows() {
    let longest = "a.".repeat(126) + "a";
    assert_eq!(canonical_host(&format!("{longest}.:80")).as_deref(), Ok(&*longest));
    assert_eq!(canonical_host(&format!("{longest}aa")), Err(HostError::Invalid));
    assert_eq!(canonical_host(&format!("[v1.{longest}]")), Err(HostError::Invalid));
}

fn host_for(version: Version, target: &'static str, hosts: &[&'static [u8]]) -> Result<String, HostError> {
    let mut headers = HeaderMap::new();
    for value in hosts {
        headers.append(HOST, HeaderValue::from_bytes(value).expect("a value a parser lets through"));
    }
    request_host(version, &headers, Uri::from_static(target).authority()).map(Cow::into_owned)
}

#[test]
fn http_11_needs_exactly_one_valid_host() {
    let v11 = |hosts: &[&'static [u8]]| host_for(Version::HTTP_11, "/", hosts);
    assert_eq!(v11(&[b"A.test:80"]).as_deref(), Ok("a.test"));
    assert_eq!(v11(&[]), Err(HostError::Missing));
    assert_eq!(v11(&[b"a.test", b"b.test"]), Err(HostError::Repeated));
    assert_eq!(v11(&[b"a.test", b"a.test"]), Err(HostError::Repeated));
    assert_eq!(v11(&[b""]), Err(HostError::Invalid));
    assert_eq!(v11(&[b"a.test,b.test"]), Err(HostError::Invalid));
    assert_eq!(v11(&[b"u@a.test"]), Err(HostError::Invalid));
    assert_eq!(v11(&[b"a.test/x"]), Err(HostError::Invalid));
    assert_eq!(v11(&[b"a test"]), Err(HostError::Invalid));
    assert_eq!(v11(&[b"a\xFF.test"]), Err(HostError::Invalid));
}

#[test]
fn http_10_may_name_no_host() {
    assert_eq!(host_for(Version::HTTP_10, "/", &[]).as_deref(), Ok(""));
    assert_eq!(host_for(Version::HTTP_10, "/", &[b"A.test"]).as_deref(), Ok("a.test"));
    assert_eq!(host_for(Version::HTTP_10, "/", &[b"a.test", b"a.test"]), Err(HostError::Repeated));
    assert_eq!(host_for(Version::HTTP_10, "/", &[b"a.test,b.test"]), Err(HostError::Invalid));
    assert_eq!(host_for(Version::HTTP_10, "http://B.test:81/", &[]).as_deref(), Ok("b.test"));
}

#[test]
fn an_absolute_target_overrides_a_host_that_must_still_be_valid() {
    let v11 = |hosts: &[&'static [u8]]| host_for(Version::HTTP_11, "http://B.test:8080/x", hosts);
    assert_eq!(v11(&[b"a.test"]).as_deref(), Ok("b.test"));
    assert_eq!(v11(&[]), Err(HostError::Missing));
    assert_eq!(v11(&[b"a.test/"]), Err(HostError::Invalid));
    assert_eq!(v11(&[b"a.test", b"b.test"]), Err(HostError::Repeated));
    assert_eq!(host_for(Version::HTTP_11, "http://b.test,c.test/", &[b"b.test"]), Err(HostError::Invalid));
}

#[test]
fn http_2_may_name_its_host_in_either_place_but_not_two_hosts() {
    let v2 = |target, hosts: &[&'static [u8]]| host_for(Version::HTTP_2, target, hosts);
    assert_eq!(v2("http://a.test/", &[]).as_deref(), Ok("a.test"));
    assert_eq!(v2("http://a.test/", &[b"A.test:80"]).as_deref(), Ok("a.test"));
    assert_eq!(v2("/", &[b"a.test"]).as_deref(), Ok("a.test"));
    assert_eq!(v2("/", &[]), Err(HostError::Missing));
    assert_eq!(v2("http://a.test/", &[b"b.test"]), Err(HostError::Contradiction));
}

#[test]
fn the_upstream_gets_the_host_of_the_target() {
    let mut headers = HeaderMap::new();
    headers.insert(HOST, HeaderValue::from_static("a.test"));
    set_host_header(&mut headers, &Authority::from_static("b.test:81"));
    assert_eq!(headers[HOST], "b.test:81");
    assert_eq!(headers.get_all(HOST).iter().count(), 1);
}

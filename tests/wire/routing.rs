//! Routing: the location of a request, and the request as it is forwarded.

use crate::support::h2_raw::request;
use crate::support::*;

/// One location per `(path, more)`, each responding with its own path text.
fn locations(list: &[&str]) -> Gateway {
    let yaml: String = list
        .iter()
        .map(|path| format!("  - {{ path: \"{path}\", respond: {{ body: '{path}' }} }}\n"))
        .collect();
    Gateway::start(&format!("locations:\n{yaml}"))
}

/// Exact, then the longest prefix (`^~` ends the search), then the first regex in file order.
#[test]
fn locations_follow_nginx_precedence() {
    let gateway = locations(&[
        "/",
        "= /exact",
        "/exact",
        "/static/",
        "^~ /static/raw/",
        "/static/raw/deep/",
        "~* [.](gif|jpg)$",
        "~ ^/CaseFull",
        "~ ^/static/.*[.]txt$",
        "~ [.]txt$",
    ]);
    for (target, expected) in [
        ("/", "/"),
        ("/exact", "= /exact"),
        ("/exactly", "/exact"),
        ("/exact/", "/exact"),
        ("/exact?x=y", "= /exact"),
        ("/t.gif", "~* [.](gif|jpg)$"),
        ("/t.GIF", "~* [.](gif|jpg)$"),
        ("/static/t.jpg", "~* [.](gif|jpg)$"),
        ("/static/raw/t.jpg", "^~ /static/raw/"),
        ("/static/raw/deep/t.jpg", "~* [.](gif|jpg)$"),
        ("/CaseFull/", "~ ^/CaseFull"),
        ("/CASEFULL/", "/"),
        ("/static/a.txt", "~ ^/static/.*[.]txt$"),
        ("/b.txt", "~ [.]txt$"),
        ("/b.TXT", "/"),
        ("/static", "/"),
        ("/static/", "/static/"),
    ] {
        assert_eq!(gateway.get(target).expect(200).text(), expected, "{target}");
    }
}

/// A prefix matches bytes, not segments, as in nginx.
#[test]
fn a_prefix_is_a_byte_prefix() {
    let gateway = locations(&["/admin"]);
    assert_eq!(gateway.get("/administrator").expect(200).text(), "/admin");
    gateway.get("/adm").expect(404);
}

/// Every spelling that an application might fold into /admin meets /admin's limit, or is rejected.
#[test]
fn a_limited_path_cannot_be_bypassed() {
    let upstream = Upstream::ok();
    let url = upstream.url();
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /admin, upstream: \"{url}\", limits: {{ key: global, rate: 1/h }} }}\n  \
           - {{ path: /, upstream: \"{url}\" }}\n"
    ));
    gateway.get("/admin").expect(200);
    for spelling in [
        "/admin",
        "/admin/",
        "//admin",
        "///admin",
        "/./admin",
        "/x/../admin",
        "/%61dmin",
        "/%61%64%6d%69%6e",
        "/x/%2e%2e/admin",
        "/x/.%2e/admin",
        "/%2e/admin",
        "/admin?x",
        "/x//..//admin",
        "http://gateway.test/admin",
    ] {
        let status = gateway.get(spelling).status;
        assert!(status == 429 || status == 400, "{spelling} was answered {status}");
    }
    assert_eq!(upstream.count(), 1, "{:?}", upstream.targets());
    // Paths other than /admin do not meet its limit; nor does a name that only looks alike once decoded
    // twice.
    gateway.get("/adm").expect(200);
    gateway.get("/%2561dmin").expect(200);
}

/// A target that cannot be a path is rejected; dot segments fold; absolute forms are understood.
#[test]
fn targets_are_validated() {
    let gateway = Gateway::start("locations:\n  - { path: /, respond: { body: \"${uri}\" } }\n");
    for bad in ["/%", "/%1", "/%zz", "/a\u{2}b", "/a b", "/%00", "/a%00b", "/../x", "/a/../../b", "/%2e%2e/x"]
    {
        let response = gateway.raw(format!("GET {bad} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(response.status, 400, "{bad:?}");
    }
    for (target, uri) in [
        ("/a/.", "/a/"),
        ("/a/b/..", "/a/"),
        ("/a/b/../", "/a/"),
        ("http://a.test", "/"),
        ("http://a.test/", "/"),
        ("http://a.test/x?y", "/x"),
        ("http://a.test?y", "/"),
        ("/a%20b", "/a b"),
        ("/a%3fb", "/a?b"),
    ] {
        assert_eq!(gateway.get(target).expect(200).text(), uri, "{target}");
    }
}

/// Slashes are merged for matching and keys; the target is forwarded as sent.
#[test]
fn slashes_merge_for_matching_only() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /show/, respond: {{ body: \"${{uri}} ${{request_uri}}\" }} }}\n  \
           - {{ path: /, upstream: \"{}\" }}\n",
        upstream.url()
    ));
    for (target, uri) in [
        ("//show///bar///", "/show/bar/"),
        ("//show//?bar=///", "/show/"),
        ("/foo/../show/../show/bar", "/show/bar"),
    ] {
        assert_eq!(gateway.get(target).expect(200).text(), format!("{uri} {target}"));
    }
    for target in ["///foo///bar///?a=//b", "/a/../%7euser/./x", "/a%2Fb%20c?q=%zz"] {
        let status = gateway.get(target).status;
        if status == 200 {
            assert_eq!(upstream.targets().last().map(String::as_str), Some(target));
        } else {
            assert_eq!(status, 400, "{target}");
        }
    }
    assert!(upstream.count() >= 2, "{:?}", upstream.targets());
}

/// The host of an absolute target wins over Host, for routing, keys and the upstream alike.
#[test]
fn an_absolute_target_decides_the_host() {
    let upstream = Upstream::ok();
    let url = upstream.url();
    let gateway = Gateway::start(&format!(
        "locations:\n  \
           - {{ path: /, host: b.test, upstream: \"{url}\", limits: {{ key: host, rate: 1/h }} }}\n  \
           - {{ path: /, host: a.test, respond: {{ body: wrong }} }}\n"
    ));
    gateway.ask(&get("http://b.test/x?y").host("a.test")).expect(200);
    let seen = &upstream.requests()[0];
    assert_eq!((seen.header("host").as_deref(), seen.target.as_str()), (Some("b.test"), "/x?y"));
    gateway.ask(&get("/x").host("b.test")).expect(429);
}

/// Authority and asterisk forms belong to CONNECT and OPTIONS; the upstream sees none.
#[test]
fn other_target_forms_are_rejected() {
    let upstream = Upstream::ok();
    let gateway =
        Gateway::start(&format!("locations:\n  - {{ path: /, upstream: \"{}\" }}\n", upstream.url()));
    for target in ["admin", "a.test:80", "*", "http://", "http:///x", "?x"] {
        let response = gateway.raw(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(response.status, 400, "{target}");
        assert_eq!(upstream.count(), 0, "{target}");
    }
    let options = gateway.raw("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(options.status == 200 || options.status == 400, "{}", options.status);
}

/// A fragment in place of the path leaves no target to send; nginx rejects it too. Behind a path it is
/// dropped, and a query without a path gets its slash.
#[test]
fn a_fragment_is_no_target() {
    let (upstream, upstream2) = (Upstream::ok(), Upstream2::new(|_| Act::Text("ok")));
    let gateway = Gateway::start(&format!(
        "upstreams:\n  two: {{ servers: [\"{}\"], protocol: http2 }}\n\
         locations:\n  - {{ path: /, upstream: \"{}\" }}\n  - {{ path: /, host: two.test, upstream: two }}\n",
        upstream2.addr(),
        upstream.url()
    ));
    for host in ["b.test", "two.test"] {
        for rest in ["#", "#f", ":80#x", "#/x", "#?x=1"] {
            for scheme in ["http", "https"] {
                let target = format!("{scheme}://{host}{rest}");
                assert_eq!(gateway.ask(&get(&target).host("a.test")).status, 400, "{target}");
            }
        }
        let mut h2 = H2::open(gateway.addr());
        for (index, path) in ["#b", "#", "#/x", "#?x"].iter().enumerate() {
            let stream = 1 + 2 * index as u32;
            h2.ask(stream, &[(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", host)]);
            let outcome = h2.outcome(stream);
            assert!(matches!(outcome, Outcome::Answered(400, _)), "{path}: {outcome:?}");
        }
    }
    assert_eq!((upstream.count(), upstream2.requests().len()), (0, 0));
    for (rest, sent) in [("", "/"), ("/#f", "/"), ("?x=1", "/?x=1"), ("?x#f", "/?x"), ("/a?b#c", "/a?b")] {
        gateway.ask(&get(&format!("http://b.test{rest}")).host("a.test")).expect(200);
        assert_eq!(upstream.targets().pop().as_deref(), Some(sent), "{rest}");
        gateway.ask(&get(&format!("http://two.test{rest}")).host("a.test")).expect(200);
        let seen = upstream2.requests().pop().expect("a request");
        assert_eq!(seen.uri, format!("http://two.test{sent}"), "{rest}");
    }
}

/// The absolute target of one request does not affect the next request with the same Host.
#[test]
fn an_absolute_target_is_not_remembered() {
    let gateway = Gateway::start(
        "locations:\n  - { path: /, host: a.test, respond: { body: inside } }\n  \
           - { path: /, respond: { body: outside } }\n",
    );
    let mut client = gateway.client();
    let absolute = client.ask(&get("http://a.test/").host("a.test.evil.test"));
    assert_eq!(absolute.expect(200).text(), "inside");
    assert_eq!(client.ask(&get("/").host("a.test.evil.test")).expect(200).text(), "outside");
}

/// The gateway does not serve CONNECT and TRACE.
#[test]
fn connect_and_trace_are_rejected() {
    let upstream = Upstream::ok();
    let gateway =
        Gateway::start(&format!("locations:\n  - {{ path: /, upstream: \"{}\" }}\n", upstream.url()));
    for request in ["CONNECT a.test:80", "CONNECT /x", "TRACE /", "TRACE /x"] {
        let response = gateway.raw(format!("{request} HTTP/1.1\r\nHost: a.test:80\r\n\r\n"));
        assert!(response.status == 405 || response.status == 400, "{request}: {}", response.status);
    }
    assert_eq!(upstream.count(), 0);
}

/// Hosts are matched first: exact name, longest suffix, then any; without a matching path there, the next
/// group.
#[test]
fn hosts_choose_before_paths() {
    let gateway = Gateway::start(
        "locations:\n  - { path: /, respond: { body: any } }\n  \
           - { path: /x, host: \"*.example.com\", respond: { body: suffix } }\n  \
           - { path: /x, host: \"*.b.example.com\", respond: { body: longer } }\n  \
           - { path: /x, host: [a.example.com, other.test], respond: { body: exact } }\n  \
           - { path: /x/y, respond: { body: any-xy } }\n",
    );
    for (host, target, expected) in [
        ("a.example.com", "/x", "exact"),
        ("A.EXAMPLE.com.:8080", "/x", "exact"),
        ("other.test", "/x/y", "exact"),
        ("c.example.com", "/x", "suffix"),
        ("d.b.example.com", "/x", "longer"),
        ("example.com", "/x", "any"),
        ("a.example.com", "/z", "any"),
        ("nobody.test", "/x/y", "any-xy"),
    ] {
        assert_eq!(gateway.ask(&get(target).host(host)).expect(200).text(), expected, "{host}{target}");
    }
}

/// A location of other methods is skipped; if only the method fails, Allow lists the possible ones.
#[test]
fn methods_choose_too() {
    let gateway = Gateway::start(
        "locations:\n  - { path: /a/b, methods: [POST, PUT], respond: { body: write } }\n  \
           - { path: /a, methods: GET, respond: { body: read } }\n  \
           - { path: /only, methods: DELETE, respond: { body: delete } }\n",
    );
    assert_eq!(gateway.ask(&post("/a/b", b"")).expect(200).text(), "write");
    assert_eq!(gateway.get("/a/b").expect(200).text(), "read");
    let rejected = gateway.get("/only").expect(405);
    assert_eq!(rejected.header("allow").as_deref(), Some("DELETE"));
    gateway.get("/none").expect(404);
}

/// `post` does not bypass a rule for POST.
#[test]
fn methods_in_lower_case_are_rejected() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /, methods: [POST], respond: {{ status: 403 }} }}\n  \
           - {{ path: /, upstream: \"{}\" }}\n",
        upstream.url()
    ));
    gateway.ask(&post("/", b"")).expect(403);
    for method in ["post", "Post", "POSt", "get", "purge", "connect", "trace"] {
        assert_eq!(gateway.raw(format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n")).status, 400, "{method}");
        let mut h2 = H2::open(gateway.addr());
        h2.ask(1, &request(method, "/", &[]));
        let outcome = h2.outcome(1);
        assert!(matches!(outcome, Outcome::Answered(400, _)), "{method}: {outcome:?}");
    }
    assert_eq!(upstream.count(), 0);
    gateway.ask(&Ask::new("PURGE", "/")).expect(200);
    gateway.ask(&Ask::new("M-SEARCH", "/")).expect(200);
}

/// Methods are case-sensitive, and one of 8 KiB is invalid.
#[test]
fn odd_methods_are_not_get() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /, methods: [GET, POST], upstream: \"{}\" }}\n",
        upstream.url()
    ));
    for method in ["get", "Get", &"M".repeat(8192), "G(T", "GE\tT"] {
        let response = gateway.raw(format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!((400..=501).contains(&response.status), "{}: {}", &method[..3], response.status);
    }
    assert_eq!(upstream.count(), 0);
}

/// `strip` removes a prefix; the rest is forwarded normalised and encoded again.
#[test]
fn strip_forwards_the_rest() {
    let upstream = Upstream::ok();
    let url = upstream.url();
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /api/, strip: /api, upstream: \"{url}\" }}\n  \
           - {{ path: /v2/, strip: /v2/, upstream: \"{url}\" }}\n"
    ));
    for (target, forwarded) in [
        ("/api/users?x=%2f", "/users?x=%2f"),
        ("/api/", "/"),
        ("/api//a/../b%20c", "/b%20c"),
        ("/api/a%3fb", "/a%3Fb"),
        ("/%61pi/x", "/x"),
        ("/v2/x", "/x"),
    ] {
        gateway.get(target).expect(200);
        let seen = upstream.targets().pop().expect("a request");
        assert!(seen.eq_ignore_ascii_case(forwarded), "{target} became {seen}, not {forwarded}");
    }
}

/// `respond` and `redirect` respond without an upstream, with their variables filled in.
#[test]
fn locations_can_respond_without_an_upstream() {
    let gateway = Gateway::start(
        "locations:\n  - path: /teapot\n    \
             respond: { status: 418, body: \"short ${host}\", content_type: text/x-tea }\n  \
           - { path: /away, redirect: { to: \"https://${host}${request_uri}\", status: 308 } }\n",
    );
    let teapot = gateway.get("/teapot").expect(418);
    assert_eq!(teapot.text(), "short gateway.test");
    assert_eq!(teapot.header("content-type").as_deref(), Some("text/x-tea"));
    let head = gateway.ask(&Ask::new("HEAD", "/teapot"));
    assert_eq!((head.status, head.body.len()), (418, 0));
    let away = gateway.get("/away/x?y=1").expect(308);
    assert_eq!(away.header("location").as_deref(), Some("https://gateway.test/away/x?y=1"));
}

/// The asterisk of OPTIONS is no part of a URL.
#[test]
fn a_redirect_omits_the_asterisk() {
    let gateway = Gateway::start(
        "locations:\n  - { path: /, host: b.test, respond: { body: \"${request_uri}\" } }\n  \
           - { path: /, redirect: { to: \"https://${host}${request_uri}\", status: 308 } }\n",
    );
    let away = gateway.ask(&Ask::new("OPTIONS", "*").host("a.test")).expect(308);
    assert_eq!(away.header("location").as_deref(), Some("https://a.test"));
    assert_eq!(gateway.ask(&Ask::new("OPTIONS", "*").host("b.test")).expect(200).text(), "*");
    let mut h2 = H2::open(gateway.addr());
    h2.ask(1, &[(":method", "OPTIONS"), (":scheme", "http"), (":path", "*"), (":authority", "b.test")]);
    assert_eq!(h2.outcome(1), Outcome::Answered(200, b"*".to_vec()));
    let away = gateway.ask(&get("http://a.test?x=1").host("c.test")).expect(308);
    assert_eq!(away.header("location").as_deref(), Some("https://a.test/?x=1"));
}

/// The built-in `demo` upstream echoes the request.
#[test]
fn the_demo_upstream_echoes() {
    let gateway = Gateway::start("locations:\n  - { path: /, upstream: demo }\n");
    let echo = gateway.get("/hello?x=1").expect(200);
    assert!(echo.json().is_object());
    assert!(echo.text().contains("/hello"), "{}", echo.text());
}

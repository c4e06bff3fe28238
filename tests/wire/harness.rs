//! Tests of the harness itself, with an nginx in the gateway's place.

use crate::support::nginx::Nginx;
use crate::support::volley::{answered, count};
use crate::support::*;

/// Client and upstream understand each other without a proxy between them.
#[test]
fn client_and_upstream_talk() {
    let upstream = Upstream::in_turn([
        Reply::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n"),
        Reply::text("second").after(ms(20)),
        Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc").close(),
    ]);
    let mut client = Client::connect(upstream.addr());
    let first = client.ask(&get("/a").header("X-One", 1)).expect(200);
    assert_eq!((first.text().as_str(), first.trailers.get("x")), ("abc", Some("y".to_owned())));
    assert_eq!(client.ask(&post("/b", b"body")).expect(200).text(), "second");
    let third = client.ask(&get("/c"));
    assert_eq!((third.text().as_str(), third.cut), ("abc", Some(End::Closed)));
    let seen = upstream.requests();
    assert_eq!(upstream.targets(), ["/a", "/b", "/c"]);
    assert_eq!(seen[0].header("x-one").as_deref(), Some("1"));
    assert_eq!(seen[1].body, b"body");
    assert!(upstream.raw(0).starts_with(b"GET /a HTTP/1.1\r\n"));
}

/// A volley through nginx's own limit_req leaves on schedule, and the harness measures exactly that.
#[test]
fn a_volley_through_nginx_is_timed_right() {
    let upstream = Upstream::ok();
    let nginx = Nginx::start(
        &format!(
            "limit_req_zone all zone=a:1m rate=10r/s; limit_req_status 429;
             server {{ listen @0@; location / {{ limit_req zone=a burst=5; proxy_pass {}; }} }}",
            upstream.url()
        ),
        1,
    );
    let noise = Noise::listen();
    let shots = volley(nginx.addr(0), (0..20).map(|_| get("/")));
    assert_eq!(count(&shots, 429), 14);
    noise.assert_schedule(&answered(&shots, 200), &[0, 100, 200, 300, 400, 500]);
    assert_eq!(upstream.count(), 6);
}

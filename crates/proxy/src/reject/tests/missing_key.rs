//! The response to a request without the key of its limit.

use super::*;

/// The response of the only location, whose limit has these fields.
fn render(limit: &str, sections: &str, grpc: bool) -> Response<Bytes> {
    let yaml = format!(
        "{sections}limits:\n  per-account: {{ rate: 10/s, {limit} }}\n\
         locations:\n  - {{ path: /, upstream: demo, limits: per-account }}\n"
    );
    let rejection = limit_rejection(0, LimitCause::MissingKey, None);
    rejecters(&yaml).1.for_location(Some(LocationId(0))).render_rejection(&rejection, &context(), grpc)
}

const ACCOUNT: &str = "account: { from: header:X-Account-Id }\n";

#[test]
fn it_is_forbidden_and_names_what_is_missing() {
    for status in ["", "on_reject: { status: 429, retry_jitter: 20% }\n"] {
        let sections = format!("{ACCOUNT}{status}");
        let response = render("key: account, missing_key: reject", &sections, false);
        assert_eq!(response.status(), 403);
        let expected = concat!(
            r#"{"type":"about:blank","title":"Forbidden","status":403,"#,
            r#""detail":"limit per-account: the request has no account","limit":"per-account","#,
            r#""request_id":"01JD3Z0V7Q"}"#
        );
        assert_eq!(text(&response), expected);
        let names: Vec<&str> = response.headers().keys().map(|name| name.as_str()).collect();
        assert_eq!(names, ["content-type"]);
    }
    let both = render("key: [account, ip, header:X-Device], missing_key: reject", ACCOUNT, false);
    assert!(text(&both).contains("the request has no account or header x-device"), "{}", text(&both));
}

#[test]
fn a_401_carries_a_challenge_for_the_source_of_the_key() {
    let jwt = "account: { from: jwt:sub, jwt: { secret: \"0123456789abcdef0123456789abcdef\", \
               algorithms: [HS256] } }\n";
    let (bearer, api_key) = ("Bearer realm=\"gateway\"", "ApiKey realm=\"gateway\"");
    for (key, sections, challenge) in [
        ("header:X-Api-Key", "", api_key),
        ("header:Authorization", "", bearer),
        ("[ip, query:key]", "", api_key),
        ("account", ACCOUNT, api_key),
        ("account", "account: { from: header:Authorization }\n", bearer),
        ("account", jwt, bearer),
        ("jwt:tenant", jwt, bearer),
    ] {
        let limit = format!("key: \"{key}\", missing_key: {{ reject: 401 }}")
            .replace("\"[ip, query:key]\"", "[ip, query:key]");
        let response = render(&limit, sections, false);
        assert_eq!(
            (response.status().as_u16(), header(&response, "www-authenticate")),
            (401, challenge),
            "{key}"
        );
        assert_eq!(header(&response, "retry-after"), "");
        assert!(text(&response).contains(r#""title":"Unauthorized","status":401"#), "{}", text(&response));
    }
}

#[test]
fn the_challenge_of_the_file_replaces_it() {
    let own = "on_reject: { headers: { WWW-Authenticate: 'Basic realm=\"shop\"' } }\n";
    let response = render("key: header:X-A, missing_key: { reject: 401 }", own, false);
    let sent: Vec<_> = response.headers().get_all("www-authenticate").iter().collect();
    assert_eq!(sent, ["Basic realm=\"shop\""]);
}

#[test]
fn a_substitute_carries_no_challenge() {
    let limit = "key: header:X-A, missing_key: { reject: 401 }, on_reject: { degrade: { status: 203 } }";
    let response = render(limit, "", false);
    assert_eq!((response.status().as_u16(), header(&response, "www-authenticate")), (203, ""));
}

#[test]
fn grpc_callers_read_their_own_status() {
    for (missing_key, status) in [("reject", "7"), ("{ reject: 403 }", "7"), ("{ reject: 401 }", "16")] {
        let response = render(&format!("key: account, missing_key: {missing_key}"), ACCOUNT, true);
        assert_eq!((header(&response, "grpc-status"), header(&response, "retry-after")), (status, ""));
        assert_eq!(header(&response, "grpc-message"), "The request has no account");
    }
}

#[test]
fn an_envelope_says_the_same() {
    let sections = format!("{ACCOUNT}on_reject: {{ body: envelope }}\n");
    let response = render("key: account, missing_key: reject", &sections, false);
    assert_eq!(text(&response), r#"{"resp_code":-1,"resp_msg":"The request has no account","datas":{}}"#);
}

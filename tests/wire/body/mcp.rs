//! Keys of MCP messages, and of whole bodies.

use crate::support::*;

fn call(name: &str) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{{"name":"{name}"}}}}"#).into_bytes()
}

fn gateway() -> Gateway {
    Gateway::start(
        "limits:\n  tool: { key: mcp:name, missing_key: skip, rate: 3/h }\n  \
           method: { key: mcp:method, missing_key: skip, rate: 5/h }\n\
         locations:\n- { path: /tool, upstream: demo, limits: tool, body_peek: 1KiB }\n\
         - { path: /method, upstream: demo, limits: method }\n\
         - { path: /dry, upstream: demo, limits: { key: mcp:name, missing_key: skip, rate: 1/h, dry_run: true } }\n",
    )
}

/// Whatever spells a name leads to its one counter, or to 400.
#[test]
fn spellings_of_a_name_are_one_counter_or_refused() {
    let gateway = gateway();
    let mut client = gateway.client();
    let headers = [
        "mail",
        "SEARCH",
        "=?base64?bWFpbA==?=",
        "=?BASE64?c2VhcmNo?=",
        "=?base64?c2VhcmNo=?=",
        "=?base64?c2VhcmNp?=",
        "=?base64?c2VhcmN?=",
        "searc%68",
        "\"search\"",
        "",
    ];
    for header in headers {
        let refused = client.ask(&post("/tool", &call("search")).header("Mcp-Name", header));
        assert_eq!(refused.status, 400, "{header}");
        let body = refused.json();
        assert_eq!((&body["error"]["code"], &body["id"]), (&(-32020).into(), &5.into()), "{header}");
    }
    // None of them was charged: the whole budget is left for the right ones.
    client.ask(&post("/tool", &call("search")).header("Mcp-Name", "search")).expect(200);
    let encoded = post("/tool", &call("se\\u0061rch")).header("mcp-name", "=?base64?c2VhcmNo?=");
    client.ask(&encoded.header("Mcp-Method", "tools/call")).expect(200);
    client.ask(&post("/tool", &call("search"))).expect(200);
    client.ask(&post("/tool", &call("search"))).expect(429);
    client.ask(&encoded_again()).expect(429);
    client.ask(&post("/tool", &call("mail"))).expect(200);
}

fn encoded_again() -> Ask {
    post("/tool", &call("search")).header("Mcp-Name", "=?base64?c2VhcmNo?=")
}

#[test]
fn a_header_needs_the_value_beside_it() {
    let gateway = gateway();
    let mut client = gateway.client();
    let named = |body: &[u8]| post("/tool", body).header("Mcp-Name", "search");
    let twice = named(&call("search")).header("Mcp-Name", "search");
    let batch = [&b"["[..], &call("search"), b"]"].concat();
    let list = br#"{"id":5,"method":"tools/list"}"#;
    for (ask, id) in [
        (twice, "5"),
        (named(&batch), "null"),
        (named(b"no JSON"), "null"),
        (named(list), "5"),
        (named(&call("search")).header("Mcp-Method", "tools/list"), "5"),
        (named(&call("search")).header("Content-Encoding", "gzip"), "null"),
    ] {
        let refused = client.ask(&ask);
        assert_eq!((refused.status, refused.json()["id"].to_string().as_str()), (400, id));
    }
    // No message, no name: the key is missing, and the header decides nothing.
    for ask in [
        get("/tool").header("Mcp-Name", "x"),
        Ask::new("DELETE", "/tool").header("Mcp-Name", "x"),
        named(b""),
    ] {
        (0..5).for_each(|_| drop(client.ask(&ask).expect(200)));
    }
    client.ask(&named(&[&call("search")[..], &[b' '; 1024]].concat())).expect(413);
    // A dry run refuses nothing.
    client.ask(&post("/dry", &call("search")).header("Mcp-Name", "mail")).expect(200);
}

#[test]
fn methods_and_resources_have_counters_of_their_own() {
    let gateway = gateway();
    let mut client = gateway.client();
    for uri in ["file:///a", "file:///b"] {
        let read =
            format!(r#"{{"id":1,"method":"resources/read","params":{{"uri":"{uri}","name":"same"}}}}"#);
        let asks =
            |client: &mut Client| client.ask(&post("/tool", read.as_bytes()).header("Mcp-Name", uri)).status;
        assert_eq!([0; 4].map(|_| asks(&mut client)), [200, 200, 200, 429], "{uri}");
    }
    let ask = |client: &mut Client, method: &str| {
        client.ask(&post("/method", format!(r#"{{"id":1,"method":"{method}"}}"#).as_bytes())).status
    };
    assert_eq!([0; 6].map(|_| ask(&mut client, "tools/list")), [200, 200, 200, 200, 200, 429]);
    assert_eq!(ask(&mut client, "ping"), 200);
}

#[test]
fn identical_bodies_share_a_counter() {
    let gateway = Gateway::start(
        "limits: { same: { key: body:hash, missing_key: skip, rate: 2/h } }\n\
         locations:\n- { path: /, upstream: demo, limits: same, body_peek: 1KiB }\n",
    );
    let mut client = gateway.client();
    client.ask(&post("/", b"no JSON")).expect(200);
    client.ask(&post("/", b"no JSON").header("Content-Encoding", "gzip")).expect(200);
    client.ask(&post("/", b"no JSON")).expect(429);
    let chunks =
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nno \r\n4\r\nJSON\r\n0\r\n\r\n";
    let mut raw = gateway.client();
    raw.send(chunks);
    raw.response().expect(429);
    client.ask(&post("/", b"no JSON ")).expect(200);
    (0..4).for_each(|_| drop(client.ask(&get("/")).expect(200)));
    client.ask(&post("/", &[b'x'; 1024])).expect(200);
    client.ask(&post("/", &[b'x'; 1025])).expect(413);
    client.ask(&post("/", &[b'x'; 1025]).header("Content-Encoding", "gzip")).expect(413);
}

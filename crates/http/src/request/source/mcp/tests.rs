//! Spellings of `Mcp-Method` and `Mcp-Name`.

use std::sync::Arc;

use http::HeaderValue;

use super::*;
use crate::request::source::BodyPlan;

fn values_of(body: &[u8]) -> BodyValues {
    let mut plan = BodyPlan::new(1 << 16, false, false);
    mcp_pointers().iter().for_each(|pointer| plan.add_pointer(pointer));
    BodyValues::read(&Arc::new(plan), body, true)
}

fn headers_of(lines: &[(&'static str, &[u8])]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(*name, HeaderValue::from_bytes(value).expect("a header value"));
    }
    headers
}

fn name_of(body: &BodyValues) -> SourceValue<'_> {
    read_mcp(McpPart::Name, Some(body))
}

const CALL: &[u8] = br#"{"id":1,"method":"tools/call","params":{"name":"search"}}"#;

/// Each spelling of a name leads to the name of the body, or is refused.
#[test]
fn each_spelling_of_a_name_is_the_name_or_refused() {
    let body = values_of(CALL);
    for same in [&b"search"[..], b"=?base64?c2VhcmNo?="] {
        assert_eq!(check_mcp_headers(&headers_of(&[("mcp-name", same)]), &body), Ok(()));
    }
    for other in [
        &b""[..],
        b"mail",
        b"Search",
        b"search ",
        b"searc%68",
        b"\"search\"",
        b"search\xff",
        b"=?BASE64?c2VhcmNo?=",
        b"=?Base64?c2VhcmNo?=",
        b"=?utf-8?B?c2VhcmNo?=",
        b"=?base64?c2VhcmNo",
        b"=?base64?c2VhcmNo=?=",
        b"=?base64?c2Vh cmNo?=",
        b"=?base64?c2VhcmNp?=",
        b"=?base64?c2Vhcm-o?=",
        b"=?base64??=",
        b"=?base64?=?=",
        b"=?base64?bWFpbA==?=",
        b"c2VhcmNo",
    ] {
        let found = check_mcp_headers(&headers_of(&[("mcp-name", other)]), &body);
        assert_eq!(found, Err(HeaderMismatch), "{}", other.escape_ascii());
    }
    // Bits behind the last character would be another spelling of it.
    let short = values_of(br#"{"method":"tools/call","params":{"name":"a"}}"#);
    for (encoded, expected) in [("YQ==", Ok(())), ("YR==", Err(HeaderMismatch)), ("YQ", Err(HeaderMismatch))]
    {
        let value = format!("=?base64?{encoded}?=");
        let found = check_mcp_headers(&headers_of(&[("mcp-name", value.as_bytes())]), &short);
        assert_eq!(found, expected, "{encoded}");
    }
}

#[test]
fn a_header_is_single_and_has_a_value_beside_it() {
    let body = values_of(CALL);
    let check =
        |lines: &[(&'static str, &[u8])], body: &BodyValues| check_mcp_headers(&headers_of(lines), body);
    let both: [(_, &[u8]); 2] = [("mcp-method", b"tools/call"), ("mcp-name", b"search")];
    assert_eq!(check(&both, &body), Ok(()));
    assert_eq!(check(&[], &body), Ok(()));
    assert_eq!(check(&[both[1], both[1]], &body), Err(HeaderMismatch));
    assert_eq!(check(&[("mcp-method", b"tools/list"), both[1]], &body), Err(HeaderMismatch));
    for other in [
        &br#"{"method":"tools/list"}"#[..],
        br#"{"method":"tools/call","params":{"name":7}}"#,
        br#"{"method":"tools/call","params":{"uri":"search"}}"#,
        br#"{"method":"tools/call","params":{"name":"search","name":"search"}}"#,
        br#"{"method":"tools/call","params":{"name":"search","Name":"mail"}}"#,
        br#"[{"method":"tools/call","params":{"name":"search"}}]"#,
        b"no JSON",
    ] {
        assert_eq!(check(&both[1..], &values_of(other)), Err(HeaderMismatch), "{}", other.escape_ascii());
    }
    assert_eq!(check(&both, &values_of(b"")), Ok(()), "there is no message");
}

#[test]
fn a_resource_is_named_by_its_uri() {
    for (body, expected) in [
        (&br#"{"method":"resources/read","params":{"uri":"file:///a","name":"b"}}"#[..], Some("file:///a")),
        (br#"{"method":"r\u0065sources/subscribe","params":{"uri":"x"}}"#, Some("x")),
        (br#"{"method":"resources/read","params":{"name":"b"}}"#, None),
        (br#"{"method":"resources","params":{"uri":"x","name":"b"}}"#, Some("b")),
        (br#"{"method":"prompts/get","params":{"uri":"x","name":"b"}}"#, Some("b")),
        (br#"{"method":7,"params":{"uri":"x","name":"b"}}"#, Some("b")),
        (br#"{"params":{"n\u0061me":"\u0062"}}"#, Some("b")),
        (br#"{"params":{"name":""}}"#, None),
        (br#"{"params":{"name":7}}"#, None),
        (b"", None),
    ] {
        let values = values_of(body);
        let expected = expected.map_or(SourceValue::Absent, |text| SourceValue::One(text.as_bytes().into()));
        assert_eq!(name_of(&values), expected, "{}", body.escape_ascii());
    }
    let twice = values_of(br#"{"method":"tools/call","params":{"name":"a","name":"a"}}"#);
    assert_eq!(name_of(&twice), SourceValue::Repeated);
    assert_eq!(read_mcp(McpPart::Method, None), SourceValue::Absent);
}

//! Escapes foreign text for the place it is written to: JSON strings, HTML, gRPC messages, structured fields, header
//! values, URLs.

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_encode, percent_encode_byte};

/// All but the unreserved characters of a URL (RFC 3986).
pub const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Bytes that a JSON string may hold unescaped and that no terminal interprets.
const fn is_plain(byte: u8) -> bool {
    byte >= 0x20 && byte < 0x7f && byte != b'"' && byte != b'\\'
}

/// Appends `text` as the content of a JSON string; invalid UTF-8 becomes U+FFFD.
pub fn escape_json(out: &mut Vec<u8>, text: &[u8]) {
    match text.iter().position(|byte| !is_plain(*byte)) {
        None => out.extend_from_slice(text),
        Some(first) => {
            out.extend_from_slice(&text[..first]);
            escape_json_slowly(out, &text[first..]);
        }
    }
}

fn escape_json_slowly(out: &mut Vec<u8>, text: &[u8]) {
    for character in String::from_utf8_lossy(text).chars() {
        match character {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            '\n' => out.extend_from_slice(b"\\n"),
            '\r' => out.extend_from_slice(b"\\r"),
            '\t' => out.extend_from_slice(b"\\t"),
            // Line separators and direction marks would let a value forge lines in a log viewer.
            '\u{0}'..='\u{1f}'
            | '\u{7f}'..='\u{9f}'
            | '\u{200e}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' => {
                let code = character as u32;
                out.extend_from_slice(b"\\u");
                out.extend([12, 8, 4, 0].map(|shift| HEX[(code >> shift & 15) as usize]));
            }
            other => out.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Appends `text` as text of an HTML or XML document.
pub fn escape_html(out: &mut Vec<u8>, text: &[u8]) {
    for byte in text {
        match byte {
            b'&' => out.extend_from_slice(b"&amp;"),
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            b'\'' => out.extend_from_slice(b"&#39;"),
            other => out.push(*other),
        }
    }
}

/// Appends `text` as gRPC writes `grpc-message`: `%` and everything but printable ASCII is percent-encoded.
pub fn escape_grpc_message(out: &mut Vec<u8>, text: &[u8]) {
    const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');
    percent_encode(text, ESCAPED).for_each(|piece| out.extend_from_slice(piece.as_bytes()));
}

/// Appends `text` as part of a header value: `%`, spaces and everything but visible ASCII is percent-encoded, so that
/// different texts stay different.
pub fn escape_header_text(out: &mut Vec<u8>, text: &[u8]) {
    const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%');
    percent_encode(text, ESCAPED).for_each(|piece| out.extend_from_slice(piece.as_bytes()));
}

/// Appends `text`, of the file or escaped already, as part of a header value: only bytes that a value cannot hold are
/// percent-encoded.
pub fn escape_header_controls(out: &mut Vec<u8>, text: &[u8]) {
    percent_encode(text, CONTROLS).for_each(|piece| out.extend_from_slice(piece.as_bytes()));
}

/// Appends `text` as a component of a URL (RFC 3986): everything but unreserved characters is percent-encoded.
pub fn escape_url_component(out: &mut Vec<u8>, text: &[u8]) {
    percent_encode(text, RESERVED).for_each(|piece| out.extend_from_slice(piece.as_bytes()));
}

/// True if each `%` of `text` begins an escape with two digits.
pub fn has_whole_escapes(text: &str) -> bool {
    text.split('%').skip(1).all(|behind| {
        let digits = behind.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

/// Appends `text` as the content of a structured field's string, which holds ASCII only: the rest is
/// percent-encoded, so that names stay distinct.
pub fn escape_structured_string(out: &mut Vec<u8>, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0x20..=0x7e => out.push(byte),
            other => out.extend_from_slice(percent_encode_byte(other).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped_text(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn json_strings_survive_a_parser() {
        for text in
            ["", "plain", "a\"b\\c", "\u{0}\u{1}\n\r\t\u{1b}[31m", "grüße \u{2028} 🦀", "\u{7f}\u{9b}"]
        {
            let quoted = escaped_text(|out| {
                out.push(b'"');
                escape_json(out, text.as_bytes());
                out.push(b'"');
            });
            assert_eq!(serde_json::from_str::<String>(&quoted).unwrap(), text);
            assert!(!quoted.chars().any(|c| c.is_control() || c == '\u{2028}'), "{quoted:?}");
        }
    }

    #[test]
    fn json_replaces_invalid_utf8() {
        assert_eq!(escaped_text(|out| escape_json(out, b"a\xffb")), "a\u{fffd}b");
    }

    #[test]
    fn other_places_have_their_own_escapes() {
        assert_eq!(
            escaped_text(|out| escape_html(out, b"<a href='x'>&\"")),
            "&lt;a href=&#39;x&#39;&gt;&amp;&quot;"
        );
        assert_eq!(escaped_text(|out| escape_grpc_message(out, "50% ü\n".as_bytes())), "50%25 %C3%BC%0A");
        assert_eq!(escaped_text(|out| escape_header_text(out, b"a%\r\n \xfc\"")), "a%25%0D%0A%20%FC\"");
        assert_eq!(escaped_text(|out| escape_header_controls(out, b"~ a%\n\xfc")), "~ a%%0A%FC");
        assert_eq!(escaped_text(|out| escape_url_component(out, b"a-b&c=/?%\n")), "a-b%26c%3D%2F%3F%25%0A");
        assert_eq!(escaped_text(|out| escape_structured_string(out, "~ \\d\"ü")), "~ \\\\d\\\"%C3%BC");
    }
}

//! Pointers to a value in a JSON document (RFC 6901), as `json:/a/b` names them.

/// A pointer to one value in a JSON document; the empty pointer, to the whole document, is not one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct JsonPointer {
    /// The pointer as written: `/a/b`.
    text: String,
    /// The names of members and the indices of elements on the way, unescaped; at least one.
    segments: Vec<String>,
}

/// A document is not read deeper than this, so a longer pointer finds nothing.
pub const POINTER_SEGMENTS_MAX: usize = 16;
const TEXT_MAX: usize = 256;

impl JsonPointer {
    /// # Errors
    /// The text does not begin with `/`, has a `~` that escapes nothing, or is too long: a phrase about it.
    pub fn parse(text: &str) -> Result<JsonPointer, &'static str> {
        let Some(path) = text.strip_prefix('/').filter(|path| !path.is_empty()) else {
            return Err("it begins with `/` and names a member");
        };
        if text.len() > TEXT_MAX || path.split('/').count() > POINTER_SEGMENTS_MAX {
            return Err("it is too long");
        }
        let segments = path.split('/').map(unescape_segment).collect::<Option<Vec<String>>>();
        let segments = segments.ok_or("write ~0 for `~` and ~1 for `/` in a name")?;
        Ok(JsonPointer { text: text.to_owned(), segments })
    }

    /// The pointer as written: `/a/b`.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The names of members and the indices of elements on the way, unescaped; at least one.
    pub fn segments(&self) -> &[String] {
        &self.segments
    }
}

fn unescape_segment(segment: &str) -> Option<String> {
    let mut parts = segment.split('~');
    let mut name = parts.next()?.to_owned();
    for part in parts {
        let (escaped, rest) = match part.as_bytes().first()? {
            b'0' => ('~', &part[1..]),
            b'1' => ('/', &part[1..]),
            _ => return None,
        };
        name.push(escaped);
        name.push_str(rest);
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_split_and_unescaped() {
        for (text, segments) in [
            ("/model", &["model"][..]),
            ("/params/name", &["params", "name"]),
            ("/a~1b/m~0n/~01", &["a/b", "m~n", "~1"]),
            ("/0//x", &["0", "", "x"]),
        ] {
            let pointer = JsonPointer::parse(text).unwrap();
            assert_eq!(pointer.segments(), segments);
            assert_eq!(pointer.as_str(), text);
        }
    }

    #[test]
    fn other_texts_are_errors() {
        let deep = "/a".repeat(POINTER_SEGMENTS_MAX + 1);
        let long = format!("/{}", "a".repeat(TEXT_MAX));
        for text in ["", "/", "model", "/a~", "/a~2", "#/a", deep.as_str(), long.as_str()] {
            assert!(JsonPointer::parse(text).is_err(), "{text}");
        }
    }
}

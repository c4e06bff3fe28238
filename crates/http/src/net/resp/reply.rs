//! Writes replies.

/// The version of the protocol that a client has chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProtocolVersion {
    /// Version 2, with which a connection begins.
    #[default]
    Resp2,
    /// Version 3, which a client chooses by `HELLO 3`.
    Resp3,
}

/// Appends replies to a buffer.
pub struct ReplyWriter<'a> {
    /// The buffer that replies are appended to.
    pub out: &'a mut Vec<u8>,
    /// The version in which maps and nulls are written.
    pub version: ProtocolVersion,
}

/// Bytes of a client that an error repeats.
const SHOWN_MAX: usize = 64;

// === impl ReplyWriter ===

impl ReplyWriter<'_> {
    /// `text` holds no line end.
    pub fn write_simple(&mut self, text: &str) {
        self.write_line(b'+', text.as_bytes());
    }

    /// An error: a code in capital letters, then a sentence; neither holds a line end.
    pub fn write_error(&mut self, text: &str) {
        self.write_line(b'-', text.as_bytes());
    }

    /// An error in which `shown`, a client's own bytes, stands between quotes behind `before`.
    pub fn write_error_about(&mut self, before: &str, shown: &[u8]) {
        self.out.push(b'-');
        self.out.extend_from_slice(before.as_bytes());
        self.out.extend_from_slice(b" '");
        let cut = &shown[..shown.len().min(SHOWN_MAX)];
        // Whatever could end the line or upset a terminal is replaced.
        self.out.extend(cut.iter().map(|byte| match byte {
            b' '..=b'~' => *byte,
            _ => b'?',
        }));
        self.write_line_rest(if cut.len() < shown.len() { b"...'" } else { b"'" });
    }

    /// A whole number.
    pub fn write_integer(&mut self, number: i64) {
        self.write_line(b':', itoa::Buffer::new().format(number).as_bytes());
    }

    /// A text of any bytes, with its length in front.
    pub fn write_bulk(&mut self, bytes: &[u8]) {
        self.write_line(b'$', itoa::Buffer::new().format(bytes.len()).as_bytes());
        self.write_line_rest(bytes);
    }

    /// The absence of a value.
    pub fn write_null(&mut self) {
        match self.version {
            ProtocolVersion::Resp2 => self.write_line(b'$', b"-1"),
            ProtocolVersion::Resp3 => self.write_line(b'_', b""),
        }
    }

    /// The head of an array of this many replies.
    pub fn begin_array(&mut self, length: usize) {
        self.write_line(b'*', itoa::Buffer::new().format(length).as_bytes());
    }

    /// The head of a map of this many pairs of replies; in version 2 it is an array.
    pub fn begin_map(&mut self, pairs: usize) {
        match self.version {
            ProtocolVersion::Resp2 => self.begin_array(2 * pairs),
            ProtocolVersion::Resp3 => self.write_line(b'%', itoa::Buffer::new().format(pairs).as_bytes()),
        }
    }

    fn write_line(&mut self, kind: u8, text: &[u8]) {
        self.out.push(kind);
        self.write_line_rest(text);
    }

    fn write_line_rest(&mut self, text: &[u8]) {
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }
}

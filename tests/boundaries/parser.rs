//! A strict parser of HTTP/1 (RFC 9112), which shares no line with the gateway: the requests in a client's bytes, and
//! the answers in a server's.

/// One request.
#[derive(Debug, Clone, Default)]
pub struct Request {
    pub method: String,
    pub target: String,
    pub body: Vec<u8>,
    /// It has one, if only of an empty chunk.
    pub has_body: bool,
    /// The last byte of its body came.
    pub is_complete: bool,
    /// The sender lets the connection go on behind it.
    pub keeps_alive: bool,
}

/// One final answer.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
    /// It says that the connection ends with it.
    pub closes: bool,
}

/// The place at which the bytes end, or `Malformed` if they are no messages from some place on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    BetweenMessages,
    InHead,
    InBody,
    Malformed,
}

/// No message, or not all of it.
enum Stop {
    Partial,
    Malformed,
}

type Parsed<T> = Result<T, Stop>;

struct Head<'a> {
    first: Vec<&'a str>,
    fields: Vec<(String, &'a str)>,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The requests in `bytes`; an incomplete one is the last.
pub fn read_requests(bytes: &[u8]) -> (Vec<Request>, Tail) {
    let (mut reader, mut requests) = (Reader { bytes, at: 0 }, Vec::new());
    while reader.at < bytes.len() {
        let mut request = Request::default();
        let read = reader.read_request(&mut request);
        let has_head = !request.method.is_empty();
        requests.extend(has_head.then_some(request));
        match read {
            Ok(()) => {}
            Err(Stop::Partial) if has_head => return (requests, Tail::InBody),
            Err(Stop::Partial) => return (requests, Tail::InHead),
            Err(Stop::Malformed) => return (requests, Tail::Malformed),
        }
    }
    (requests, Tail::BetweenMessages)
}

/// The complete final answers in `bytes` to requests with these methods. `has_ended`: nothing comes behind them.
pub fn read_answers(bytes: &[u8], methods: &[&str], has_ended: bool) -> (Vec<Answer>, Tail) {
    let (mut reader, mut answers) = (Reader { bytes, at: 0 }, Vec::new());
    while reader.at < bytes.len() {
        let to_head = methods.get(answers.len()) == Some(&"HEAD");
        match reader.read_answer(to_head, has_ended) {
            Ok(Some(answer)) => answers.push(answer),
            Ok(None) => {}
            Err(Stop::Partial) => return (answers, Tail::InBody),
            Err(Stop::Malformed) => return (answers, Tail::Malformed),
        }
    }
    (answers, Tail::BetweenMessages)
}

impl<'a> Reader<'a> {
    fn read_request(&mut self, request: &mut Request) -> Parsed<()> {
        // Section 2.2: a server ignores empty lines before a request, and a line feed may end a line.
        while let Some(behind) =
            [&b"\r\n"[..], b"\n"].iter().find(|end| self.bytes[self.at..].starts_with(end))
        {
            self.at += behind.len();
        }
        let head = self.read_head()?;
        let [method, target, version @ ("HTTP/1.1" | "HTTP/1.0")] = head.first[..] else {
            return Err(Stop::Malformed);
        };
        let (lengths, codings) = (head.all("content-length"), head.all("transfer-encoding"));
        if !is_token(method) || head.all("host").len() != 1 || lengths.len() + codings.len() > 1 {
            return Err(Stop::Malformed);
        }
        (request.method, request.target) = (method.to_owned(), target.to_owned());
        request.keeps_alive = head.keeps_alive(version);
        request.has_body = !codings.is_empty() || lengths.iter().any(|length| *length != "0");
        match (&lengths[..], &codings[..]) {
            ([length], _) => self.take_body(number(length, 10)?, &mut request.body)?,
            (_, ["chunked"]) if version == "HTTP/1.1" => self.take_chunks(&mut request.body)?,
            (_, []) => {}
            _ => return Err(Stop::Malformed),
        }
        request.is_complete = true;
        Ok(())
    }

    /// `None` for an interim answer.
    fn read_answer(&mut self, to_head: bool, has_ended: bool) -> Parsed<Option<Answer>> {
        let head = self.read_head()?;
        let [version @ ("HTTP/1.1" | "HTTP/1.0"), status, ..] = head.first[..] else {
            return Err(Stop::Malformed);
        };
        let status = number(status, 10)? as u16;
        if status == 100 {
            return Ok(None);
        }
        let mut answer = Answer { status, body: Vec::new(), closes: !head.keeps_alive(version) };
        let (lengths, codings) = (head.all("content-length"), head.all("transfer-encoding"));
        match (&lengths[..], &codings[..]) {
            _ if to_head || status == 204 || status == 304 => {}
            ([length], []) => self.take_body(number(length, 10)?, &mut answer.body)?,
            ([], ["chunked"]) => self.take_chunks(&mut answer.body)?,
            ([], []) if has_ended => {
                answer.body = self.bytes[self.at..].to_vec();
                (self.at, answer.closes) = (self.bytes.len(), true);
            }
            ([], []) => return Err(Stop::Partial),
            _ => return Err(Stop::Malformed),
        }
        Ok(Some(answer))
    }

    fn read_head(&mut self) -> Parsed<Head<'a>> {
        let first = self.take_line()?.split(' ').collect();
        let mut fields = Vec::new();
        loop {
            let line = self.take_line()?;
            if line.is_empty() {
                return Ok(Head { first, fields });
            }
            let (name, value) = line.split_once(':').ok_or(Stop::Malformed)?;
            if !is_token(name) {
                return Err(Stop::Malformed);
            }
            fields.push((name.to_ascii_lowercase(), value.trim_matches([' ', '\t'])));
        }
    }

    /// A line of visible characters, without its end.
    fn take_line(&mut self) -> Parsed<&'a str> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|&byte| byte != b'\t' && !(b' '..=b'~').contains(&byte));
        let Some(end) = end else { return Err(Stop::Partial) };
        match rest[end..] {
            [b'\r', b'\n', ..] => {}
            [b'\r'] => return Err(Stop::Partial),
            _ => return Err(Stop::Malformed),
        }
        self.at += end + 2;
        std::str::from_utf8(&rest[..end]).map_err(|_| Stop::Malformed)
    }

    fn take_body(&mut self, length: usize, body: &mut Vec<u8>) -> Parsed<()> {
        let rest = &self.bytes[self.at..];
        let taken = length.min(rest.len());
        body.extend_from_slice(&rest[..taken]);
        self.at += taken;
        if taken == length { Ok(()) } else { Err(Stop::Partial) }
    }

    fn take_chunks(&mut self, body: &mut Vec<u8>) -> Parsed<()> {
        loop {
            let line = self.take_line()?;
            let size = number(line.split(';').next().unwrap_or_default(), 16)?;
            if size == 0 {
                // Trailers.
                while !self.take_line()?.is_empty() {}
                return Ok(());
            }
            self.take_body(size, body)?;
            if !self.take_line()?.is_empty() {
                return Err(Stop::Malformed);
            }
        }
    }
}

impl Head<'_> {
    fn all(&self, name: &str) -> Vec<&str> {
        self.fields.iter().filter(|(own, _)| own == name).map(|(_, value)| *value).collect()
    }

    /// Whether the connection goes on behind the message.
    fn keeps_alive(&self, version: &str) -> bool {
        let lists = self.all("connection");
        let has_option = |option: &str| {
            lists.iter().flat_map(|list| list.split(',')).any(|one| one.trim().eq_ignore_ascii_case(option))
        };
        !has_option("close") && (version == "HTTP/1.1" || has_option("keep-alive"))
    }
}

fn is_token(text: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_fit)
}

fn number(digits: &str, radix: u32) -> Parsed<usize> {
    let is_clean = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
    usize::from_str_radix(digits, radix).ok().filter(|_| is_clean).ok_or(Stop::Malformed)
}

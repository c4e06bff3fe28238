//! Hostile servers behind pools of connections: they answer early, twice, late, short, long, or close at the worst
//! moment. No client gets an answer to another request, and every byte to a server belongs to one clear request.
//!
//! The id of a request is in its path, head and body, and in the head and body of its answers.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Union;

use crate::fuzz;
use crate::recorder::{Request, parse};
use crate::support::*;

/// Clients at a time, and the requests of each in one case.
const CLIENTS: usize = 6;
const REQUESTS: usize = 25;
/// The time that a server has for the head of its answer.
const RESPONSE_MS: u64 = 100;

/// The behaviour of a server towards one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    Answer,
    Chunked,
    Interim,
    /// Before the body of the request.
    Early,
    Late,
    Long,
    BodyBehind204,
    Twice,
    /// The second answer comes by itself, before the next request.
    TwiceApart,
    // From here on the connection ends.
    CloseAfter,
    EarlyClose,
    /// Announces the end of the connection, and more follows.
    LongLast,
    Short,
    ChunksCut,
    HeadCut,
    Close,
    /// The body of the request was not read.
    CloseUnread,
    Reset,
}

/// How often each comes. The last one comes only to clients that wait for it.
const ACTS: [(u32, Act); 18] = [
    (160, Act::Answer),
    (16, Act::Chunked),
    (8, Act::Interim),
    (8, Act::Early),
    (1, Act::Late),
    (1, Act::Long),
    (1, Act::BodyBehind204),
    (1, Act::Twice),
    (4, Act::CloseAfter),
    (2, Act::EarlyClose),
    (2, Act::LongLast),
    (2, Act::Short),
    (2, Act::ChunksCut),
    (2, Act::HeadCut),
    (2, Act::Close),
    (2, Act::CloseUnread),
    (2, Act::Reset),
    (0, Act::TwiceApart),
];

#[derive(Debug, Clone, Copy)]
struct Plan {
    path: &'static str,
    act: Act,
    /// Bytes of the answer with its head.
    size: usize,
    /// Bytes of the body; 0 = a GET.
    body: usize,
    chunked: bool,
}

fn plan() -> impl Strategy<Value = Plan> {
    let acts = ACTS.iter().filter(|(weight, _)| *weight > 0).map(|(weight, act)| (*weight, Just(*act)));
    let act = Union::new_weighted(acts.collect());
    // 8 KiB fill the buffer of the gateway, and what follows stays in the socket.
    let sizes = select(vec![120, 200, 1000, 8192, 8193, 30_000]);
    let bodies = select(vec![0, 0, 0, 9, 900, 20_000, 200_000]);
    (select(vec!["plain", "retried"]), act, sizes, bodies, any::<bool>())
        .prop_map(|(path, act, size, body, chunked)| Plan { path, act, size, body, chunked })
}

/// The body of a message with this id: nothing but the id.
fn body_of(id: &str, length: usize) -> Vec<u8> {
    id.bytes().cycle().take(length).collect()
}

/// What all servers saw.
#[derive(Default)]
struct Book {
    faults: Mutex<Vec<String>>,
    connections: AtomicU64,
    requests: AtomicU64,
    right: AtomicU64,
    /// Second answers that were sent apart.
    apart: AtomicU64,
}

/// A hostile server; dropped, it accepts no more.
struct Server {
    addr: SocketAddr,
    ended: Arc<AtomicBool>,
}

impl Server {
    fn new(book: &Arc<Book>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (addr, ended) = (listener.local_addr().expect("an address"), Arc::new(AtomicBool::new(false)));
        let (book, end) = (book.clone(), ended.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok).take_while(|_| !end.load(Relaxed)) {
                let book = book.clone();
                book.connections.fetch_add(1, Relaxed);
                thread::spawn(move || {
                    // The gateway may close whenever it likes.
                    let _ = serve(stream, &book);
                });
            }
        });
        Server { addr, ended }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        let _ = TcpStream::connect(self.addr);
    }
}

/// Serves one connection until one side ends it.
fn serve(mut stream: TcpStream, book: &Book) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut buffer, mut chunk, mut is_answered) = (Vec::new(), [0; 16 * 1024], false);
    loop {
        match parse(&buffer) {
            Err(why) => {
                let begin = buffer[..buffer.len().min(300)].escape_ascii();
                book.faults.lock().unwrap().push(format!("a server saw {why}: {begin}"));
                return Ok(());
            }
            Ok(Some((request, length))) => {
                buffer.drain(..length);
                book.requests.fetch_add(1, Relaxed);
                match script_of(&request) {
                    Err(why) => book.faults.lock().unwrap().push(format!("{why} in {request:?}")),
                    Ok((id, act, size)) => {
                        if !std::mem::take(&mut is_answered) && !answer(&mut stream, book, &id, act, size)? {
                            return Ok(());
                        }
                    }
                }
                continue;
            }
            Ok(None) if !is_answered => {
                if let Some((id, act, size)) = early_script(&buffer) {
                    is_answered = true;
                    if act != Act::CloseUnread {
                        stream.write_all(&answer_of(&id, size))?;
                    }
                    if act >= Act::CloseAfter {
                        return Ok(());
                    }
                }
            }
            Ok(None) => {}
        }
        match stream.read(&mut chunk)? {
            0 => return Ok(()),
            count => buffer.extend_from_slice(&chunk[..count]),
        }
    }
}

type Script = (String, Act, usize);

/// The script in a request, all of whose ids agree.
fn script_of(request: &Request) -> Result<Script, String> {
    let field = |name: &str| match request.all(name)[..] {
        [value] => Ok(String::from_utf8_lossy(value).into_owned()),
        ref values => Err(format!("{} fields {name}", values.len())),
    };
    let number = |name| field(name)?.parse::<usize>().map_err(|_| format!("no number {name}"));
    let (id, act, size) = (field("x-id")?, number("x-act")?, number("x-size")?);
    if !request.target.ends_with(format!("/{id}").as_bytes()) {
        return Err("another id in the path".to_owned());
    }
    if request.body != body_of(&id, number("x-length")?) {
        return Err("another body".to_owned());
    }
    Ok((id, ACTS[act].1, size))
}

/// The script of a request that is answered before its body is complete.
fn early_script(buffer: &[u8]) -> Option<Script> {
    let end = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let headers = Headers::parse(&buffer[..end + 2]);
    let number = |name| headers.get(name)?.parse::<usize>().ok();
    let act = ACTS.get(number("x-act")?)?.1;
    let is_early = matches!(act, Act::Early | Act::EarlyClose | Act::CloseUnread);
    is_early.then_some((headers.get("x-id")?, act, number("x-size")?))
}

/// An answer of `size` bytes.
fn answer_of(id: &str, size: usize) -> Vec<u8> {
    let head = |length| format!("HTTP/1.1 200 OK\r\nX-Id: {id}\r\nContent-Length: {length:05}\r\n\r\n");
    let length = size - head(0).len();
    [head(length).into_bytes(), body_of(id, length)].concat()
}

fn chunks_of(id: &str, size: usize, is_whole: bool) -> Vec<u8> {
    let mut bytes =
        format!("HTTP/1.1 200 OK\r\nX-Id: {id}\r\nTransfer-Encoding: chunked\r\n\r\n").into_bytes();
    // Whole ids, so that the body is nothing but the id.
    for length in [id.len() * 3, size / 16 * id.len()] {
        bytes.extend(format!("{length:x}\r\n").bytes());
        bytes.extend(body_of(id, length));
        bytes.extend(b"\r\n");
    }
    match is_whole {
        true => bytes.extend(b"0\r\n\r\n"),
        false => bytes.truncate(bytes.len() - 9),
    }
    bytes
}

/// Answers a whole request; false if the connection ends with it.
fn answer(stream: &mut TcpStream, book: &Book, id: &str, act: Act, size: usize) -> io::Result<bool> {
    let whole = answer_of(id, size);
    let bytes = match act {
        Act::Answer | Act::Early | Act::EarlyClose | Act::CloseAfter | Act::TwiceApart => whole,
        Act::Chunked => chunks_of(id, size, true),
        Act::ChunksCut => chunks_of(id, size, false),
        Act::Interim => {
            [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nX-Id: none\r\n\r\n", &whole[..]]
                .concat()
        }
        Act::Late => {
            thread::sleep(ms(RESPONSE_MS * 3));
            whole
        }
        Act::Short => whole[..size - 5].to_vec(),
        Act::HeadCut => whole[..30].to_vec(),
        Act::Close | Act::CloseUnread | Act::Reset => Vec::new(),
        Act::LongLast => [b"HTTP/1.1 200 OK\r\nConnection: close", &whole[15..], &whole[..]].concat(),
        Act::Long => [&whole[..], b"and more"].concat(),
        Act::BodyBehind204 => format!("HTTP/1.1 204 No Content\r\nX-Id: {id}\r\n\r\n{id}").into_bytes(),
        // The second one fits into the same segment.
        Act::Twice => [&whole[..], &answer_of(id, 120)].concat(),
    };
    stream.write_all(&bytes)?;
    match act {
        Act::TwiceApart => {
            thread::sleep(ms(size as u64 % 3));
            // The gateway may have closed the connection by now.
            let _ = stream.write_all(&answer_of(id, 120));
            book.apart.fetch_add(1, Relaxed);
        }
        Act::Reset => socket2::SockRef::from(&*stream).set_linger(Some(ms(0)))?,
        _ => {}
    }
    Ok(act < Act::CloseAfter)
}

/// A client, which connects again after each answer that ends its connection.
struct Asker<'a> {
    gateway: &'a Gateway,
    client: Option<Client>,
    book: &'a Book,
}

impl Asker<'_> {
    /// Sends one request; true if the answer of a server came.
    ///
    /// # Errors
    /// The answer belongs to another request, or none comes.
    fn ask(&mut self, plan: &Plan) -> Result<bool, String> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = format!("-{:08}.", NEXT.fetch_add(1, Relaxed));
        let mut client = self.client.take().unwrap_or_else(|| self.gateway.client());
        // A gateway that answered early may have closed already.
        let _ = client.try_send(request_of(&id, plan));
        let response = match client.response_within(PATIENCE) {
            Ok(response) => response,
            Err(End::Closed | End::Reset) => return Ok(false),
            Err(end) => return Err(format!("{id} with {plan:?}: {end:?}")),
        };
        let told = response.headers.all("x-id");
        let is_own = told == [id.as_str()] && body_of(&id, response.body.len()) == response.body;
        if !matches!((response.status, is_own, told.is_empty()), (200 | 204, true, _) | (502 | 504, _, true))
        {
            return Err(format!("{id} with {plan:?} got {response:?}"));
        }
        self.book.right.fetch_add(is_own.into(), Relaxed);
        let is_last = response.cut.is_some() || response.headers.has("connection");
        self.client = Some(client).filter(|_| !is_last);
        Ok(is_own)
    }
}

fn request_of(id: &str, plan: &Plan) -> Vec<u8> {
    let act = ACTS.iter().position(|(_, act)| *act == plan.act).expect("an act");
    let method = if plan.body == 0 { "GET" } else { "POST" };
    let ask = Ask::new(method, &format!("/{}/{}", plan.path, id))
        .header("X-Id", id)
        .header("X-Act", act)
        .header("X-Size", plan.size)
        .header("X-Length", plan.body);
    let body = body_of(id, plan.body);
    match (plan.body, plan.chunked) {
        (0, _) => ask.bytes(),
        (_, false) => ask.body(&body).bytes(),
        (length, true) => {
            let head = ask.header("Transfer-Encoding", "chunked").bytes();
            [&head, format!("{length:x}\r\n").as_bytes(), &body, b"\r\n0\r\n\r\n"].concat()
        }
    }
}

/// The configuration with these servers, which are new in each case: one that sent stray data is not trusted for a while.
fn yaml(servers: &[Server]) -> String {
    let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(|place: usize| servers[place].addr);
    let more = format!("eject: none, keepalive: 8, timeouts: {{ response: {RESPONSE_MS}ms }}");
    format!(
        "server: {{ workers: 2 }}\naccess_log: none\nupstreams:\n  \
           plain: {{ servers: [\"{a}\", \"{b}\"], {more}, retries: none }}\n  \
           retried: {{ servers: [\"{c}\", \"{d}\"], {more}, \
             retries: {{ attempts: 2, when: [connect, refused, timeout, 502], budget: none }} }}\n  \
           apart: {{ servers: [\"{e}\"], {more}, retries: none }}\n\
         locations:\n  - {{ path: /plain/, upstream: plain }}\n  - {{ path: /retried/, upstream: retried }}\n  \
           - {{ path: /apart/, upstream: apart }}\n"
    )
}

/// One after the other, so that a second answer has come before the next request is sent.
fn ask_apart(mut asker: Asker, sizes: &[usize]) -> Result<(), String> {
    let mut plan = Plan { path: "apart", act: Act::Answer, size: 200, body: 0, chunked: false };
    for size in sizes {
        (plan.act, plan.size) = (Act::TwiceApart, *size);
        let before = asker.book.apart.load(Relaxed);
        if asker.ask(&plan)? {
            eventually("the second answer", || asker.book.apart.load(Relaxed) > before);
        }
        plan.act = Act::Answer;
        for _ in 0..3 {
            asker.ask(&plan)?;
        }
    }
    Ok(())
}

#[test]
fn no_answer_goes_to_another_request() {
    let book = Arc::new(Book::default());
    let servers = || (0..5).map(|_| Server::new(&book)).collect::<Vec<Server>>();
    let gateway = Gateway::start(&yaml(&servers()));
    let plans = proptest::collection::vec(proptest::collection::vec(plan(), REQUESTS), CLIENTS);
    fuzz((plans, proptest::collection::vec(120..2000usize, 2)), |(plans, sizes)| {
        let servers = servers();
        gateway.change(&yaml(&servers));
        let asker = || Asker { gateway: &gateway, client: None, book: &book };
        let ask_all = |plans: &Vec<Plan>| {
            let mut asker = asker();
            plans.iter().try_for_each(|plan| asker.ask(plan).map(drop))
        };
        let outcomes: Vec<Result<(), String>> = thread::scope(|scope| {
            let mut asking: Vec<_> = plans.iter().map(|plans| scope.spawn(move || ask_all(plans))).collect();
            asking.push(scope.spawn(|| ask_apart(asker(), &sizes)));
            asking.into_iter().map(|asking| asking.join().expect("no panic")).collect()
        });
        outcomes.into_iter().collect::<Result<(), String>>().map_err(TestCaseError::fail)?;
        let faults = std::mem::take(&mut *book.faults.lock().unwrap());
        prop_assert!(faults.is_empty(), "{faults:#?}");
        Ok(())
    });
    let [requests, connections, right] =
        [&book.requests, &book.connections, &book.right].map(|count| count.load(Relaxed));
    // Connections were reused, and most requests were answered.
    assert!(connections < requests * 2 / 3 && right > requests / 2, "{requests}, {connections}, {right}");
}

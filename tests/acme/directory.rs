//! The directory that gateways ask: pebble's, through a proxy that counts, delays, edits and refuses requests.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::{ClientConfig, ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::support::timing::eventually_within;
use crate::support::tls::shake_hands;
use crate::support::*;

/// The subject of a request (RFC 8555, section 7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    Directory,
    Nonce,
    NewAccount,
    Account,
    NewOrder,
    Authorization,
    Challenge,
    Finalize,
    Order,
    Certificate,
    RenewalInfo,
    Other,
}

/// Pebble's paths.
const PATHS: [(&str, Step); 11] = [
    ("/dir", Step::Directory),
    ("/nonce-plz", Step::Nonce),
    ("/sign-me-up", Step::NewAccount),
    ("/my-account/", Step::Account),
    ("/order-plz", Step::NewOrder),
    ("/authZ/", Step::Authorization),
    ("/chalZ/", Step::Challenge),
    ("/finalize-order/", Step::Finalize),
    ("/my-order/", Step::Order),
    ("/certZ/", Step::Certificate),
    (RENEWAL_INFO, Step::RenewalInfo),
];

const RENEWAL_INFO: &str = "/renewal-info";

/// A request of a gateway.
#[derive(Debug, Clone)]
pub struct Asked {
    pub step: Step,
    pub method: String,
    pub target: String,
    /// How many requests of the same step came before it.
    pub before: usize,
    body: Vec<u8>,
}

/// What the directory does with a request.
pub enum Deed {
    /// Pebble answers.
    Forward,
    /// Pebble answers, and its JSON is changed.
    Edit(fn(&mut Value)),
    /// Pebble answers, after a while.
    Late(Duration),
    /// This status, field and body are the answer, and pebble is not asked.
    Answer(u16, &'static str, String),
    /// Nobody answers.
    Silence,
    /// Pebble is asked, and its answer is lost.
    Lose,
    /// Pebble answers once the gate is open.
    Hold(Gate),
}

type Script = dyn Fn(&Asked) -> Deed + Send + Sync;

/// The address of the directory; dropping it ends it.
pub struct Directory {
    addr: SocketAddr,
    state: Arc<State>,
}

struct State {
    pebble: SocketAddr,
    client: Arc<ClientConfig>,
    script: Mutex<Arc<Script>>,
    asked: Mutex<Vec<Asked>>,
    /// The type and the token of each challenge, by its path.
    challenges: Mutex<HashMap<String, (String, String)>>,
    /// The answer of `renewalInfo`, if the directory has it.
    renewal_info: Mutex<Option<(u16, String)>>,
    ended: AtomicBool,
}

// === impl Directory ===

impl Directory {
    /// A directory in front of the pebble at an address, with these settings.
    pub fn start(pebble: SocketAddr, settings: Arc<ServerConfig>, authority: &Authority) -> Directory {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        let forward: Arc<Script> = Arc::new(|_: &Asked| Deed::Forward);
        let state = Arc::new(State {
            pebble,
            client: Arc::new(authority.client(None)),
            script: Mutex::new(forward),
            asked: Mutex::new(Vec::new()),
            challenges: Mutex::new(HashMap::new()),
            renewal_info: Mutex::new(None),
            ended: AtomicBool::new(false),
        });
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if shared.ended.load(Ordering::Relaxed) {
                    return;
                }
                let (state, settings) = (shared.clone(), settings.clone());
                thread::spawn(move || state.serve(stream, settings));
            }
        });
        Directory { addr, state }
    }

    pub fn url(&self) -> String {
        format!("https://{}/dir", self.addr)
    }

    /// Decides about each request from now on.
    pub fn script(&self, script: impl Fn(&Asked) -> Deed + Send + Sync + 'static) {
        *self.state.script.lock().unwrap() = Arc::new(script);
    }

    /// Does this with every request of a step, and forwards the others.
    pub fn at(&self, step: Step, deed: impl Fn(&Asked) -> Deed + Send + Sync + 'static) {
        self.script(move |asked| if asked.step == step { deed(asked) } else { Deed::Forward });
    }

    pub fn forward(&self) {
        self.script(|_| Deed::Forward);
    }

    /// Adds `renewalInfo`, which answers with this status and text.
    pub fn renewal_info(&self, status: u16, text: &str) {
        *self.state.renewal_info.lock().unwrap() = Some((status, text.to_owned()));
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.state.asked.lock().unwrap().clone()
    }

    /// How many requests of a step have come.
    pub fn count(&self, step: Step) -> usize {
        self.state.asked.lock().unwrap().iter().filter(|asked| asked.step == step).count()
    }

    #[track_caller]
    pub fn wait(&self, step: Step, count: usize) {
        self.wait_within(step, count, PATIENCE);
    }

    #[track_caller]
    pub fn wait_within(&self, step: Step, count: usize, most: Duration) {
        eventually_within(most, &format!("{count} requests of {step:?}"), || self.count(step) >= count);
    }

    /// The types of the challenges that were to be tried, in order.
    pub fn tried(&self) -> Vec<String> {
        let challenges = self.state.challenges.lock().unwrap();
        let posted = self.asked().into_iter().filter(|asked| asked.step == Step::Challenge);
        // A challenge is read by the same request without a payload.
        let tried = posted.filter(|asked| asked.payload() == json!({}));
        tried.map(|asked| challenges.get(&asked.target).map_or_else(String::new, |c| c.0.clone())).collect()
    }

    /// The tokens of a type of challenge.
    pub fn tokens(&self, kind: &str) -> Vec<String> {
        let challenges = self.state.challenges.lock().unwrap();
        challenges.values().filter(|one| one.0 == kind).map(|one| one.1.clone()).collect()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.addr);
    }
}

// === impl Asked ===

impl Asked {
    /// What the request is signed for.
    pub fn payload(&self) -> Value {
        self.part("payload")
    }

    /// The header of its signature.
    pub fn protected(&self) -> Value {
        self.part("protected")
    }

    fn part(&self, name: &str) -> Value {
        let message: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let text = URL_SAFE_NO_PAD.decode(message[name].as_str().unwrap_or_default()).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }
}

// === impl State ===

impl State {
    /// Answers the requests of one connection.
    fn serve(&self, stream: TcpStream, settings: Arc<ServerConfig>) {
        let _ = stream.set_read_timeout(Some(6 * PATIENCE));
        let session = ServerConnection::new(settings).expect("a session");
        let mut stream = StreamOwned::new(session, stream);
        while let Some((head, body)) = read(&mut stream) {
            let asked = self.record(&head, body);
            let script = self.script.lock().unwrap().clone();
            let Some(answer) = self.judge(&asked, &head, script(&asked)) else {
                // Until the gateway gives up.
                let _ = stream.read(&mut [0]);
                return;
            };
            if stream.write_all(&answer).and_then(|()| stream.flush()).is_err() {
                return;
            }
        }
        stream.conn.send_close_notify();
        let _ = stream.flush();
    }

    fn record(&self, head: &str, body: Vec<u8>) -> Asked {
        let mut words = head.split(' ').map(str::to_owned);
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let step = PATHS.iter().find(|(path, _)| target.starts_with(path)).map_or(Step::Other, |one| one.1);
        let mut all = self.asked.lock().unwrap();
        let before = all.iter().filter(|asked| asked.step == step).count();
        let asked = Asked { step, method, target, before, body };
        all.push(asked.clone());
        asked
    }

    /// The answer, or `None` for silence.
    fn judge(&self, asked: &Asked, head: &str, deed: Deed) -> Option<Vec<u8>> {
        if let (Step::RenewalInfo, Some((status, text))) =
            (asked.step, self.renewal_info.lock().unwrap().clone())
        {
            return Some(response(status, "Retry-After: 21600\r\n", text.as_bytes(), false));
        }
        let (mut edit, lost) = (None, matches!(deed, Deed::Lose));
        match deed {
            Deed::Forward | Deed::Lose => {}
            Deed::Edit(change) => edit = Some(change),
            Deed::Late(pause) => thread::sleep(pause),
            Deed::Hold(gate) => gate.wait(),
            Deed::Answer(status, field, body) => {
                let field = if field.is_empty() { String::new() } else { format!("{field}\r\n") };
                return Some(response(status, &field, body.as_bytes(), false));
            }
            Deed::Silence => return None,
        }
        let answer = self.ask_pebble(asked, head, edit);
        answer.filter(|_| !lost)
    }

    fn ask_pebble(&self, asked: &Asked, head: &str, edit: Option<fn(&mut Value)>) -> Option<Vec<u8>> {
        let stream = shake_hands(self.pebble, &self.client, "127.0.0.1").ok()?;
        let mut client = Client::over_tls(stream);
        let mut request = head.as_bytes().to_vec();
        request.extend(&asked.body);
        client.try_send(&request).ok()?;
        let is_head = asked.method == "HEAD";
        let found = if is_head { client.head_response() } else { client.response() };
        let mut body = found.body.clone();
        if let Ok(mut value) = serde_json::from_slice::<Value>(&body) {
            self.learn(asked, &value);
            if asked.step == Step::Directory && self.renewal_info.lock().unwrap().is_some() {
                value["renewalInfo"] = json!(format!("https://{}{RENEWAL_INFO}", self.host(head)));
            }
            if let Some(edit) = edit {
                edit(&mut value);
            }
            body = value.to_string().into_bytes();
        }
        let kept = |name: &str| !["content-length", "transfer-encoding", "connection"].contains(&name);
        let fields = found.headers.0.iter().filter(|(name, _)| kept(name));
        let fields: String =
            fields.map(|(name, value)| format!("{name}: {}\r\n", String::from_utf8_lossy(value))).collect();
        Some(response(found.status, &fields, &body, is_head || found.status == 204))
    }

    fn host<'a>(&self, head: &'a str) -> &'a str {
        let lines = head.split("\r\n");
        let mut hosts =
            lines.filter_map(|line| line.split_once(": ").filter(|one| one.0.eq_ignore_ascii_case("host")));
        hosts.next().map_or("", |one| one.1)
    }

    /// Notes the challenges of an authorisation.
    fn learn(&self, asked: &Asked, value: &Value) {
        let found = value["challenges"].as_array().filter(|_| asked.step == Step::Authorization);
        for one in found.into_iter().flatten() {
            let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
            let url = text("url");
            let path = url.splitn(4, '/').nth(3).unwrap_or_default();
            self.challenges.lock().unwrap().insert(format!("/{path}"), (text("type"), text("token")));
        }
    }
}

/// The head and the body of the next request.
fn read(stream: &mut impl Read) -> Option<(String, Vec<u8>)> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let length = Headers::parse(&head).get("content-length").and_then(|text| text.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    Some((String::from_utf8_lossy(&head).into_owned(), body))
}

fn response(status: u16, fields: &str, body: &[u8], bodiless: bool) -> Vec<u8> {
    let length = if bodiless { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let mut response = format!("HTTP/1.1 {status} Status\r\n{fields}{length}\r\n").into_bytes();
    if !bodiless {
        response.extend(body);
    }
    response
}

/// The body of an error of a directory (RFC 8555, section 6.7).
pub fn problem(kind: &str, detail: &str) -> String {
    json!({ "type": format!("urn:ietf:params:acme:error:{kind}"), "detail": detail }).to_string()
}

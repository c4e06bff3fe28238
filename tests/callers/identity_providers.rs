//! Tokens of identity providers: keys that are fetched, rotate, vanish, and cannot be had.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rustls::{ServerConnection, StreamOwned};
use serde_json::json;

use crate::support::timing::eventually_within;
use crate::support::*;

const KEYS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/keys");
const KEYS_PATH: &str = "/keys";
const DISCOVERY: &str = "/.well-known/openid-configuration";
/// After this time an issuer may be asked again.
const REST: Duration = Duration::from_millis(10_500);

type Script = dyn Fn(&str) -> Vec<u8> + Send;

/// An issuer over TLS, which answers each target by a script that can be replaced; an empty answer is silence.
struct Issuer {
    authority: Authority,
    port: u16,
    script: Arc<Mutex<Box<Script>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Issuer {
    fn new() -> Issuer {
        let authority = Authority::new();
        let settings = authority.certify(&["127.0.0.1"]).server(&["http/1.1"]);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let script: Arc<Mutex<Box<Script>>> = Arc::new(Mutex::new(Box::new(|_: &str| Vec::new())));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (own_script, own_asked) = (script.clone(), asked.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (script, asked) = (own_script.clone(), own_asked.clone());
                let session = ServerConnection::new(settings.clone()).expect("a session");
                thread::spawn(move || {
                    let mut stream = StreamOwned::new(session, stream);
                    let (mut head, mut byte) = (Vec::new(), [0]);
                    while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                        head.push(byte[0]);
                    }
                    let head = String::from_utf8_lossy(&head).into_owned();
                    let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
                    asked.lock().unwrap().push(target.clone());
                    let answer = script.lock().unwrap()(&target);
                    if answer.is_empty() {
                        let _ = stream.read(&mut byte);
                    }
                    let _ = stream.write_all(&answer).and_then(|()| stream.flush());
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                });
            }
        });
        Issuer { authority, port, script, asked }
    }

    fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.port)
    }

    /// The entry of `account.jwt` for the issuer at a path.
    fn entry(&self, path: &str, jwks: &str) -> String {
        let ca = self.authority.file();
        format!("{{ issuer: \"{}\", jwks: {jwks}, tls: {{ ca: {} }} }}", self.url(path), ca.display())
    }

    fn answer(&self, script: impl Fn(&str) -> Vec<u8> + Send + 'static) {
        *self.script.lock().unwrap() = Box::new(script);
    }

    /// Answers as the issuer at its root, with these keys.
    fn serve(&self, keys: &[(&str, &str)]) {
        let (document, set) = (self.document(""), key_set(keys));
        self.answer(move |target| match target {
            DISCOVERY => ok(&document),
            KEYS_PATH => ok(&set),
            _ => ok("{}"),
        });
    }

    fn document(&self, path: &str) -> String {
        json!({ "issuer": self.url(path), "jwks_uri": self.url(&format!("{path}{KEYS_PATH}")) }).to_string()
    }

    /// How often the keys were asked for.
    fn fetches(&self) -> usize {
        self.asked.lock().unwrap().iter().filter(|target| target.ends_with(KEYS_PATH)).count()
    }

    fn gateway(&self, entries: &str) -> Gateway {
        Gateway::start(&file_with(entries))
    }
}

fn file_with(entries: &str) -> String {
    format!(
        "account: {{ from: jwt:sub, jwt: {entries} }}\n\
         locations: [{{ path: /, respond: {{ body: \"account ${{account}}\" }} }}]\n"
    )
}

fn ok(body: &str) -> Vec<u8> {
    response("200 OK", "Content-Type: application/json", body)
}

fn response(status: &str, field: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\n{field}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn private_key(name: &str) -> EncodingKey {
    let pem = std::fs::read(format!("{KEYS}/{name}.pem")).expect("a key");
    EncodingKey::from_rsa_pem(&pem).expect("an RSA key")
}

/// A set of keys by their ids and files.
fn key_set(keys: &[(&str, &str)]) -> String {
    let jwk = |(id, file): &(&str, &str)| {
        let mut jwk = Jwk::from_encoding_key(&private_key(file), Algorithm::RS256).expect("a public key");
        jwk.common.key_id = Some((*id).to_owned());
        jwk.common.key_algorithm = None;
        jwk
    };
    serde_json::to_string(&JwkSet { keys: keys.iter().map(jwk).collect() }).expect("a set")
}

fn expiry() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a time of day").as_secs() + 3600
}

/// A request with a token of `issuer` for ann, signed by the key of a file under an id.
fn with_token(issuer: &str, id: &str, file: &str) -> Ask {
    let header = Header { kid: Some(id.to_owned()), ..Header::new(Algorithm::RS256) };
    let claims = json!({ "sub": "ann", "iss": issuer, "exp": expiry() });
    let token = jsonwebtoken::encode(&header, &claims, &private_key(file)).expect("a token");
    get("/").header("Authorization", format!("Bearer {token}"))
}

#[track_caller]
fn account_of(gateway: &Gateway, ask: &Ask) -> String {
    gateway.ask(ask).expect(200).text().trim_start_matches("account ").to_owned()
}

#[track_caller]
fn wait_ready(gateway: &Gateway) {
    eventually("keys", || !gateway.admin_get("/readyz").text().contains("degraded"));
}

/// A key works within one fetch after it is published, and not any longer after it is withdrawn; a reload keeps the set.
#[test]
fn keys_rotate() {
    let issuer = Issuer::new();
    issuer.serve(&[("1", "rsa")]);
    let name = issuer.url("");
    let gateway = issuer.gateway(&issuer.entry("", "discover"));
    let first = with_token(&name, "1", "rsa");
    assert_eq!(account_of(&gateway, &first), "ann", "the first requests wait for the keys");
    let fetched = Instant::now();
    wait_ready(&gateway);
    assert_eq!(account_of(&gateway, &with_token(&name, "1", "other")), "", "another key");
    assert_eq!(account_of(&gateway, &with_token("https://other.test/", "1", "rsa")), "", "another issuer");
    let changed =
        std::fs::read_to_string(gateway.file()).expect("the file") + "server: { max_waiting: 999 }\n";
    std::fs::write(gateway.file(), changed).expect("the file");
    gateway.reload().expect(200);
    assert_eq!(
        (account_of(&gateway, &first), issuer.fetches()),
        ("ann".to_owned(), 1),
        "a reload keeps the set"
    );
    issuer.serve(&[("2", "other")]);
    let second = with_token(&name, "2", "other");
    assert_eq!(account_of(&gateway, &second), "", "it was fetched just now");
    thread::sleep(REST.saturating_sub(fetched.elapsed()));
    assert_eq!(account_of(&gateway, &first), "ann", "nothing told of the withdrawal");
    assert_eq!(account_of(&gateway, &second), "ann", "the request waits for the fetch");
    assert_eq!(account_of(&gateway, &first), "", "withdrawn, and out of the cache");
    assert_eq!(issuer.fetches(), 2);
    assert_eq!(gateway.metric("sluicegate_issuer_fetches_total", &["result=\"ok\"", &name]), 2.0);
    assert!(gateway.metric("sluicegate_issuer_keys_age_seconds", &[&name]) < 9.0);
}

/// Tokens with 10,000 unknown keys make at most one fetch in 10 seconds.
#[test]
fn a_flood_of_unknown_keys_makes_one_fetch() {
    let issuer = Issuer::new();
    issuer.serve(&[("1", "rsa")]);
    let gateway = issuer.gateway(&issuer.entry("", &format!("\"{}\"", issuer.url(KEYS_PATH))));
    wait_ready(&gateway);
    thread::sleep(REST);
    let began = Instant::now();
    let good = with_token(&issuer.url(""), "1", "rsa");
    let claims = json!({ "sub": "ann", "iss": issuer.url(""), "exp": expiry() }).to_string();
    let payload = URL_SAFE_NO_PAD.encode(claims);
    thread::scope(|scope| {
        for worker in 0..8 {
            let (gateway, payload) = (&gateway, &payload);
            scope.spawn(move || {
                let mut client = gateway.client();
                for number in 0..1250 {
                    let head = json!({ "alg": "RS256", "kid": format!("{worker}-{number}") }).to_string();
                    let head = URL_SAFE_NO_PAD.encode(head);
                    let ask = get("/").header("Authorization", format!("Bearer {head}.{payload}.AAAA"));
                    assert_eq!(client.ask(&ask).expect(200).text(), "account ");
                }
            });
        }
    });
    let most = 2 + began.elapsed().as_secs() as usize / 10;
    assert!((2..=most).contains(&issuer.fetches()), "{} fetches in {:?}", issuer.fetches(), began.elapsed());
    assert_eq!(account_of(&gateway, &good), "ann");
}

/// The path of an issuer, its answer instead of keys, and the word for it.
fn bad_answers() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let secret = "{\"keys\":[{\"kty\":\"oct\",\"k\":\"AAAA\",\"alg\":\"HS256\"}]}";
    vec![
        ("/html", response("200 OK", "Content-Type: text/html", "<!DOCTYPE html><p>login"), "answers HTML"),
        ("/large", ok(&"x".repeat(10 << 20)), "at most 1 MiB"),
        ("/garbage", ok("{\"keys\": 5"), "neither a PEM key nor a JSON Web Key Set"),
        ("/empty", ok("{\"keys\":[]}"), "no key that can verify"),
        ("/oct", ok(secret), "no key that can verify"),
        ("/redirect", response("302 Found", "Location: /html/keys", ""), "redirects (302)"),
        ("/missing", response("404 Not Found", "X: y", ""), "answers 404"),
        ("/silent", Vec::new(), "did not answer within 5 s"),
        ("/broken", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{".to_vec(), "cannot be read"),
        ("/stranger", Vec::new(), "the document of another issuer"),
    ]
}

/// The issuers of [`bad_answers`] answer as it says, or each with a key `1` of its own file.
fn answer_at_paths(issuer: &Issuer, badly: bool) {
    let mut answers = Vec::new();
    for (path, bad, _) in bad_answers() {
        let stranger = json!({ "issuer": "https://evil.test/", "jwks_uri": "https://evil.test/keys" });
        let document = match badly && path == "/stranger" {
            true => stranger.to_string(),
            false => issuer.document(path),
        };
        let good = ok(&key_set(&[("1", files_of(path).0)]));
        answers.push((format!("{path}{DISCOVERY}"), ok(&document)));
        answers.push((format!("{path}{KEYS_PATH}"), if badly { bad } else { good }));
    }
    issuer.answer(move |target| {
        let found = answers.iter().find(|(path, _)| path == target);
        found.map_or_else(Vec::new, |(_, answer)| answer.clone())
    });
}

/// The file of the key of an issuer of [`bad_answers`], and that of another issuer.
fn files_of(path: &str) -> (&'static str, &'static str) {
    if path == "/html" { ("other", "rsa") } else { ("rsa", "other") }
}

/// The reason why the last fetch failed, as the status tells it.
fn error_of(gateway: &Gateway, issuer: &str) -> String {
    let status = gateway.ask_admin(&get("/status").header("Accept", "application/json")).expect(200).json();
    let mut all = status["issuers"].as_array().expect("a list").iter();
    let found = all.find(|one| one["issuer"] == issuer).expect("an issuer");
    found["error"].as_str().unwrap_or_default().to_owned()
}

/// What is wrong with an issuer is told in its own words; nothing opens, and a set that serves stays.
#[test]
fn bad_answers_open_nothing_and_replace_nothing() {
    let issuer = Issuer::new();
    let bad = bad_answers();
    answer_at_paths(&issuer, true);
    let entries: Vec<String> = bad.iter().map(|(path, ..)| issuer.entry(path, "discover")).collect();
    let gateway = issuer.gateway(&format!("[{}]", entries.join(", ")));
    let readiness = || gateway.admin_get("/readyz").expect(200).text();
    for (path, _, reason) in &bad {
        let name = issuer.url(path);
        eventually(reason, || error_of(&gateway, &name).contains(reason));
        eventually("the reason in the log", || gateway.stderr().contains(reason));
        let refused = gateway.ask(&with_token(&name, "1", "rsa")).expect(503);
        assert!(refused.header("retry-after").is_some(), "{}", refused.text());
        assert!(refused.text().contains("the keys of the token's issuer"), "{}", refused.text());
        assert!(readiness().contains(&format!("degraded: issuer {name}\n")), "{}", readiness());
    }
    assert_eq!(gateway.get("/").expect(200).text(), "account ", "others are served");
    assert_eq!(account_of(&gateway, &with_token("https://evil.test/", "1", "rsa")), "", "no token at all");
    answer_at_paths(&issuer, false);
    eventually_within(Duration::from_secs(30), "all keys", || !readiness().contains("degraded"));
    answer_at_paths(&issuer, true);
    thread::sleep(REST);
    for (path, _, reason) in &bad {
        let (name, (own, foreign)) = (issuer.url(path), files_of(path));
        assert_eq!(account_of(&gateway, &with_token(&name, "2", own)), "", "{path}: an unknown key");
        eventually(reason, || error_of(&gateway, &name).contains(reason));
        assert_eq!(account_of(&gateway, &with_token(&name, "1", own)), "ann", "{path}: the old set serves");
        let crossed = account_of(&gateway, &with_token(&name, "1", foreign));
        assert_eq!(crossed, "", "{path}: the key of another issuer");
    }
}

/// `check --fetch` shows the keys, and fails where they cannot be had; `check` alone asks nobody.
#[test]
fn check_fetches_on_request() {
    let issuer = Issuer::new();
    issuer.serve(&[("one", "rsa"), ("two", "other")]);
    let scratch = Scratch::new();
    let check = |arguments: &[&str]| {
        let file = scratch.file("gateway.yaml", &file_with(&issuer.entry("", "discover")));
        let file = file.display().to_string();
        Run::default().args(&[&["check", &file], arguments].concat()).finish(scratch.path())
    };
    let plain = check(&[]);
    assert_eq!((plain.code, issuer.fetches()), (Some(0), 0), "{plain:?}");
    let fetched = check(&["--fetch"]);
    assert!(fetched.stdout.contains("one [RS256], two [RS256]; fetched again after 600 s"), "{fetched:?}");
    let document: serde_json::Value =
        serde_json::from_str(&check(&["--fetch", "--json"]).stdout).expect("JSON");
    assert_eq!(document["issuers"][0]["keys"], json!(["one [RS256]", "two [RS256]"]));
    issuer.answer(|_| response("500 Oops", "X: y", ""));
    let failed = check(&["--fetch"]);
    assert!(failed.code == Some(1) && failed.stdout.contains("answers 500"), "{failed:?}");
}

/// Tokens that other libraries sign are verified: PyJWT, and python-jose, which has no PS256.
#[test]
fn tokens_of_other_libraries_are_verified() {
    let issuer = Issuer::new();
    issuer.serve(&[("1", "rsa")]);
    let ec = format!("{{ issuer: ec, jwks: {KEYS}/ec.pub.pem, algorithms: ES256 }}");
    let secret = "{ issuer: hs, secret: 0123456789abcdef0123456789abcdef, algorithms: [HS256, HS512] }";
    let rsa = issuer
        .entry("", "discover")
        .replace("jwks:", "algorithms: [RS256, RS512, PS256], audience: api, jwks:");
    let gateway = issuer.gateway(&format!("[{rsa}, {ec}, {secret}]"));
    wait_ready(&gateway);
    let script = format!(
        "import jwt\nfrom jose import jwt as jose\n\
         signed = [('RS256', 'rsa', '{name}'), ('RS512', 'rsa', '{name}'), ('PS256', 'rsa', '{name}'),\n\
                   ('ES256', 'ec', 'ec'), ('HS256', None, 'hs'), ('HS512', None, 'hs')]\n\
         for alg, file, issuer in signed:\n  \
           key = open(f'{KEYS}/{{file}}.pem').read() if file else '0123456789abcdef0123456789abcdef'\n  \
           claims = {{'sub': alg, 'iss': issuer, 'aud': ['api'], 'exp': {expires}}}\n  \
           print(alg, jwt.encode(claims, key, algorithm=alg, headers={{'kid': '1'}}))\n  \
           if alg != 'PS256':\n    \
             claims['aud'] = 'api'\n    \
             print(alg, jose.encode(claims, key, algorithm=alg, headers={{'kid': '1'}}))\n",
        name = issuer.url(""),
        expires = expiry(),
    );
    let output = Command::new("/usr/bin/python3").args(["-c", &script]).output().expect("python3 runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let tokens: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once(' ')).collect();
    assert_eq!(tokens.len(), 11, "python3-jwt and python3-jose: {}", String::from_utf8_lossy(&output.stderr));
    for (algorithm, token) in tokens {
        let ask = get("/").header("Authorization", format!("Bearer {token}"));
        assert_eq!(account_of(&gateway, &ask), algorithm);
    }
}

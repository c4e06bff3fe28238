//! A headless Chromium of one test, steered over WebDriver.

use std::future::Future;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use thirtyfour::error::WebDriverErrorInner;
use thirtyfour::prelude::*;
use thirtyfour::session::http::{Body, HttpClient};
use thirtyfour::{ChromiumLikeCapabilities, LoggingPrefsLogLevel};

use crate::support::run::Lines;
use crate::support::*;

/// The start of a browser on a busy machine, and every other command to it.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(40);

/// A name that leads to this machine; every other name leads nowhere.
pub const REBOUND_HOST: &str = "rebound.test";

/// A running browser; dropping it ends it.
pub struct Browser {
    driver: WebDriver,
    runtime: tokio::runtime::Runtime,
    _processes: Processes,
    _scratch: Scratch,
}

/// chromedriver and all processes of its browser.
struct Processes {
    shell: Child,
    output: Lines,
}

impl Processes {
    /// Everything in the group ends when the shell's input does, so also when this process is killed.
    fn start(home: &Path) -> Processes {
        let mut command = Command::new("sh");
        command.args(["-c", "chromedriver --port=0 & cat; kill -KILL 0"]).process_group(0);
        command.env("HOME", home).env("TMPDIR", home).current_dir(home);
        let mut shell = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        let output = Lines::follow(shell.stdout.take().expect("piped"));
        Processes { shell, output }
    }

    /// chromedriver wants the free port that it found for IPv4 for IPv6, too, and ends if another program has that.
    #[track_caller]
    fn start_driver(home: &Path) -> (Processes, SocketAddr) {
        let started = (0..3).find_map(|_| {
            let processes = Processes::start(home);
            processes.address().map(|address| (processes, address))
        });
        started.expect("chromedriver starts")
    }

    fn address(&self) -> Option<SocketAddr> {
        let started = |line: &String| {
            line.split_once("successfully on port ")?.1.trim_end_matches('.').parse::<u16>().ok()
        };
        let deadline = Instant::now() + COMMAND_TIMEOUT;
        loop {
            if let Some(port) = self.output.all().iter().find_map(started) {
                return Some(SocketAddr::from(([127, 0, 0, 1], port)));
            }
            if Instant::now() >= deadline {
                return None;
            }
            thread::sleep(ms(20));
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// Sends the commands with the client of the other tests.
struct DriverClient(SocketAddr);

type Answered<'a> =
    std::pin::Pin<Box<dyn Future<Output = WebDriverResult<::http::Response<Bytes>>> + Send + 'a>>;
type NewClient<'a> = std::pin::Pin<Box<dyn Future<Output = std::sync::Arc<dyn HttpClient>> + Send + 'a>>;

impl HttpClient for DriverClient {
    fn send<'a: 'b, 'r: 'b, 'b>(&'a self, request: ::http::Request<Body<'r>>) -> Answered<'b>
    where
        Self: 'b,
    {
        Box::pin(async move {
            let target = request.uri().path();
            let mut ask = Ask::new(request.method().as_str(), target).host(&self.0.to_string());
            if let Body::Json(json) = request.body() {
                ask = ask.header("Content-Type", "application/json").body(json.to_string().as_bytes());
            }
            let mut client = Client::connect(self.0);
            client.send(ask.bytes());
            let answer = client.response_within(COMMAND_TIMEOUT);
            let answer = answer.map_err(|end| {
                WebDriverError::from_inner(WebDriverErrorInner::RequestFailed(format!("{end:?}")))
            })?;
            let mut response = ::http::Response::new(Bytes::from(answer.body));
            *response.status_mut() = ::http::StatusCode::from_u16(answer.status).expect("a status");
            Ok(response)
        })
    }

    fn new<'a: 'b, 'b>(&'a self) -> NewClient<'b>
    where
        Self: 'b,
    {
        Box::pin(async move { std::sync::Arc::new(DriverClient(self.0)) as std::sync::Arc<dyn HttpClient> })
    }
}

impl Browser {
    /// Starts a browser that reaches nothing but loopback.
    #[track_caller]
    pub fn start() -> Browser {
        let scratch = Scratch::new();
        let (processes, address) = Processes::start_driver(scratch.path());
        let mut wanted = DesiredCapabilities::chrome();
        let profile = format!("--user-data-dir={}", scratch.path().join("profile").display());
        let names =
            format!("--host-resolver-rules=MAP {REBOUND_HOST} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1");
        for argument in [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--no-proxy-server",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1280,900",
            &profile,
            &names,
        ] {
            wanted.add_arg(argument).expect("an argument");
        }
        for log in ["browser", "performance"] {
            wanted.set_logging_prefs(log, LoggingPrefsLogLevel::All).expect("a log");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let session = WebDriver::builder(format!("http://{address}"), wanted).client(DriverClient(address));
        let driver = runtime.block_on(session.connect()).expect("a browser");
        Browser { driver, runtime, _processes: processes, _scratch: scratch }
    }

    /// Opens the page of the gateway and waits for its first event.
    #[track_caller]
    pub fn open_page(gateway: &Gateway) -> Browser {
        let browser = Browser::start();
        browser.go(&page_url(gateway));
        browser.wait_for("the first event", "return document.getElementById('live').textContent === 'live'");
        browser
    }

    #[track_caller]
    pub fn go(&self, url: &str) {
        self.runtime.block_on(self.driver.goto(url)).expect("the page loads");
    }

    /// Runs the body of a function in the page.
    #[track_caller]
    pub fn run(&self, script: &str) -> Value {
        let answer = self.runtime.block_on(self.driver.execute(script, Vec::new()));
        answer.unwrap_or_else(|error| panic!("{script}: {error}")).json().clone()
    }

    /// The same for a function that calls `done` with its result.
    #[track_caller]
    pub fn run_async(&self, script: &str) -> Value {
        let script = format!("const done = arguments[0]; {script}");
        let answer = self.runtime.block_on(self.driver.execute_async(script.as_str(), Vec::new()));
        answer.unwrap_or_else(|error| panic!("{script}: {error}")).json().clone()
    }

    #[track_caller]
    pub fn text(&self, selector: &str) -> String {
        let text = self.run(&format!("return document.querySelector({}).textContent", json!(selector)));
        text.as_str().expect("a text").to_owned()
    }

    #[track_caller]
    pub fn wait_for(&self, what: &str, script: &str) {
        eventually(what, || self.run(script) == json!(true));
    }

    /// Waits until the element has this text somewhere.
    #[track_caller]
    pub fn wait_text(&self, selector: &str, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.text(selector).contains(text) {
            assert!(Instant::now() < deadline, "no {text:?} in {selector}: {}", self.text(selector));
            std::thread::sleep(ms(20));
        }
    }

    /// Clicks as a mouse does. The page may replace the element before, so it tries again.
    #[track_caller]
    pub fn click(&self, selector: &str) {
        let deadline = Instant::now() + PATIENCE;
        let click = async || self.driver.find(By::Css(selector)).await?.click().await;
        while let Err(error) = self.runtime.block_on(click()) {
            assert!(Instant::now() < deadline, "{selector} cannot be clicked: {error}");
            std::thread::sleep(ms(20));
        }
    }

    /// Clicks the button of the page with this [`data-focus`] name.
    #[track_caller]
    pub fn click_button(&self, name: &str) {
        self.click(&button(name));
    }

    /// Types into a field of the dialog, in place of its text.
    #[track_caller]
    pub fn fill(&self, field: &str, text: &str) {
        let fill = async || {
            let input = self.driver.find(By::Css(format!("dialog [name={field}]"))).await?;
            input.clear().await?;
            input.send_keys(text).await
        };
        self.runtime.block_on(fill()).expect("a field of the dialog");
    }

    /// Presses a key, wherever the focus is.
    #[track_caller]
    pub fn press(&self, key: Key) {
        let keys = self.driver.action_chain().send_keys(key);
        self.runtime.block_on(keys.perform()).expect("a key");
    }

    /// Types wherever the focus is.
    #[track_caller]
    pub fn press_text(&self, text: &str) {
        let keys = self.driver.action_chain().send_keys(text);
        self.runtime.block_on(keys.perform()).expect("keys");
    }

    pub fn dialog_is_open(&self) -> bool {
        self.run("return document.getElementById('dialog').open") == json!(true)
    }

    /// Waits until a dialog asks, and returns what it says.
    #[track_caller]
    pub fn wait_dialog(&self) -> String {
        eventually("a dialog", || self.dialog_is_open());
        self.text("#dialog")
    }

    /// Confirms the dialog, and waits for the sentence that reports the change.
    #[track_caller]
    pub fn confirm(&self, report: &str) {
        self.run("document.getElementById('notice').textContent = ''");
        self.click("#confirm");
        self.wait_text("#notice", report);
    }

    /// A command of the DevTools protocol.
    #[track_caller]
    pub fn send_devtools(&self, method: &str, parameters: Value) {
        self.runtime.block_on(self.driver.cdp().send_raw(method, parameters)).expect("a command");
    }

    pub fn save_screenshot(&self, file: &Path) {
        self.runtime.block_on(self.driver.screenshot(file)).expect("a screenshot");
    }

    /// The errors in the console since the last look.
    pub fn console_errors(&self) -> Vec<String> {
        let entries = self.runtime.block_on(self.driver.browser_log()).expect("the log");
        entries.into_iter().filter(|entry| entry.level == "SEVERE").map(|entry| entry.message).collect()
    }

    /// The addresses of all requests since the last look, also of those that failed.
    pub fn requested_urls(&self) -> Vec<String> {
        let entries = self.runtime.block_on(self.driver.get_log("performance")).expect("the log");
        let messages = entries.iter().filter_map(|entry| serde_json::from_str::<Value>(&entry.message).ok());
        let sent = messages.filter(|entry| entry["message"]["method"] == "Network.requestWillBeSent");
        let url = |entry: Value| entry["message"]["params"]["request"]["url"].as_str().map(str::to_owned);
        sent.filter_map(url).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // An orderly end removes its temporary files; the processes end in any case.
        if std::thread::panicking() {
            let _ = self.driver.clone().leak();
        } else {
            let _ = self.runtime.block_on(self.driver.clone().quit());
        }
    }
}

pub fn page_url(gateway: &Gateway) -> String {
    format!("http://{}/", gateway.admin())
}

/// The selector of a button by its [`data-focus`] name.
pub fn button(name: &str) -> String {
    format!("[data-focus={}]", json!(name))
}

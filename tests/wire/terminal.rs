//! Commands on a pseudo-terminal: `top`, the pretty access log, and the progress of long work.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::support::*;

const ROWS: u16 = 30;
const COLUMNS: u16 = 100;
const WAIT: Duration = Duration::from_secs(20);

/// A process on a terminal of its own, and its output.
struct Terminal {
    process: Child,
    keyboard: File,
    output: Receiver<Vec<u8>>,
    /// All output so far, and the screen that it makes.
    bytes: Vec<u8>,
    screen: vt100::Parser,
}

impl Terminal {
    /// Runs the command in a folder; `stdin` and `stdout` are the terminal where they are `None`.
    fn run(args: &[&str], dir: &Scratch, stdin: Option<Stdio>, stdout: Option<Stdio>) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("a usable one");
        let name = ptsname(&master, Vec::new()).expect("its name").into_string().expect("ASCII");
        let slave = File::options().read(true).write(true).open(name).expect("the terminal opens");
        let size = Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).expect("it has a size");
        let end = || Stdio::from(OwnedFd::from(slave.try_clone().expect("a descriptor")));
        // The terminal of the process is this one, whatever the tests run on.
        let mut command = match stdin {
            None => Command::new("setsid"),
            Some(_) => Command::new(env!("CARGO_BIN_EXE_sluicegate")),
        };
        if stdin.is_none() {
            command.args(["--ctty", env!("CARGO_BIN_EXE_sluicegate")]);
        }
        command.args(args).current_dir(dir.path()).env_remove("NO_COLOR").env("TERM", "xterm");
        command.stdin(stdin.unwrap_or_else(end)).stdout(stdout.unwrap_or_else(end)).stderr(end());
        let process = command.spawn().expect("setsid of util-linux");
        let mut reader = File::from(master);
        let keyboard = reader.try_clone().expect("a descriptor");
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            // The end is an error, once nobody has the terminal open.
            while let Ok(count @ 1..) = reader.read(&mut piece) {
                if sender.send(piece[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        let screen = vt100::Parser::new(ROWS, COLUMNS, 0);
        Terminal { process, keyboard, output, bytes: Vec::new(), screen }
    }

    fn type_keys(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    fn receive(&mut self, timeout: Duration) {
        if let Ok(piece) = self.output.recv_timeout(timeout) {
            self.screen.process(&piece);
            self.bytes.extend(piece);
        }
    }

    /// The screen, once it contains the text.
    #[track_caller]
    fn wait_for(&mut self, text: &str) -> String {
        let started = Instant::now();
        loop {
            let shown = self.screen.screen().contents();
            if shown.contains(text) {
                return shown;
            }
            assert!(started.elapsed() < WAIT, "no `{text}`:\n{shown}");
            self.receive(Duration::from_millis(50));
        }
    }

    /// The exit code, with all output read.
    #[track_caller]
    fn wait_exit(&mut self) -> Option<i32> {
        let started = Instant::now();
        loop {
            self.receive(Duration::from_millis(50));
            if let Some(status) = self.process.try_wait().expect("a child") {
                (0..100).for_each(|_| self.receive(Duration::from_millis(1)));
                return status.code();
            }
            assert!(started.elapsed() < WAIT, "no end:\n{}", self.screen.screen().contents());
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An action of `top` happens at the gateway, and none without the confirmation.
#[test]
fn top_bans_and_unbans_a_client() {
    let yaml = "limits: { per-ip: { rate: 3/h } }\n\
                locations: [{ path: /, respond: { body: ok }, limits: per-ip }]\n";
    let gateway = Gateway::start(yaml);
    let dir = Scratch::new();
    dir.file("gateway.yaml", &format!("admin: {}\n{yaml}", gateway.admin()));
    assert_eq!([(); 4].map(|()| gateway.get("/").status), [200, 200, 200, 429]);

    let mut top = Terminal::run(&["top"], &dir, None, None);
    top.wait_for("ip=127.0.0.1");
    top.type_keys("\r");
    top.wait_for("b bans, u unbans, r resets");
    top.type_keys("r");
    top.wait_for("forget what ip=127.0.0.1 of per-ip has used?");
    top.type_keys("n");
    top.wait_for("b bans, u unbans, r resets");
    assert_eq!(gateway.get("/").status, 429, "nothing was reset");
    top.type_keys("ry");
    top.wait_for("ip=127.0.0.1 of per-ip was reset");
    gateway.get("/").expect(200);
    top.type_keys("by");
    top.wait_for("127.0.0.1 is banned for 10m");
    assert_eq!(gateway.get("/").status, 429);
    // The keys, the upstreams if there are any, and the bans.
    top.wait_for("\nbanned ");
    top.type_keys("\t");
    top.wait_for("u unbans  q quits");
    top.type_keys("uy");
    top.wait_for("127.0.0.1 is no longer banned; per-ip has 2 left");
    gateway.get("/").expect(200);
    top.type_keys("\u{1b}");
    top.wait_for("enter goes to the keys");
    top.type_keys("/nothing like this\r");
    let shown = top.wait_for("/nothing like this enter goes to the keys");
    assert!(!shown.contains("ip=127.0.0.1"), "{shown}");
    top.type_keys("q");
    assert_eq!(top.wait_exit(), Some(0));
    assert!(!top.screen.screen().alternate_screen(), "the terminal is as before");
}

#[test]
fn the_access_log_is_pretty_on_a_terminal_and_json_elsewhere() {
    let dir = Scratch::new();
    let yaml = "limits: { per-ip: { rate: 1/h } }\n\
                locations: [{ path: /, respond: { body: ok }, limits: per-ip }]\n";
    dir.file("gateway.yaml", &format!("listen: 127.0.0.1:0\n{yaml}"));
    let mut served = Terminal::run(&["run"], &dir, None, None);
    let shown = served.wait_for("listening http://127.0.0.1:");
    let port = shown.split("listening http://127.0.0.1:").nth(1).expect("a port");
    let port: u16 = port.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().expect("a number");
    let mut client = Client::connect(([127, 0, 0, 1], port).into());
    assert_eq!([(); 2].map(|()| client.ask(&get("/a?token=secret")).status), [200, 429]);
    let shown = served.wait_for(" 429 reject      per-ip         127.0.0.1       GET    /a ");
    assert!(shown.contains(" 200 admit       -              127.0.0.1       GET    /a "), "{shown}");
    assert!(!shown.contains("secret") && !shown.contains("{\"ts\""), "{shown}");
    assert!(String::from_utf8_lossy(&served.bytes).contains("\u{1b}[33m429 reject"), "coloured");

    let gateway = Gateway::start(yaml);
    gateway.get("/").expect(200);
    assert_eq!(gateway.wait_log(1)[0]["status"], 200, "a pipe has JSON");
}

/// The line is there after a second, and gone at the end.
#[test]
fn long_work_shows_its_progress_on_a_terminal() {
    let dir = Scratch::new();
    let line = "192.0.2.7 - - [20/Nov/2026:20:22:11 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"\n";
    for terminal in [true, false] {
        let args = ["recommend", "-"];
        let (mut log, stdin) = pipe();
        let write = std::thread::spawn(move || {
            // One more than are read ahead, the first ones to be counted, and all others after a second.
            log.write_all(line.repeat(1000).as_bytes()).expect("it reads");
            std::thread::sleep(Duration::from_millis(1100));
            log.write_all(line.repeat(120_000).as_bytes()).expect("it reads");
        });
        let (stderr, code) = if terminal {
            let mut command = Terminal::run(&args, &dir, Some(stdin), Some(Stdio::null()));
            let code = command.wait_exit();
            assert_eq!(command.screen.screen().contents().trim(), "", "erased");
            (String::from_utf8_lossy(&command.bytes).into_owned(), code)
        } else {
            let output = Command::new(env!("CARGO_BIN_EXE_sluicegate")).args(args).stdin(stdin).output();
            let output = output.expect("the command runs");
            (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code())
        };
        write.join().expect("the log was written");
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!(stderr.contains(" requests  ") && stderr.contains(" MiB read"), terminal, "{stderr:?}");
        assert!(terminal || stderr.is_empty(), "{stderr:?}");
    }
}

fn pipe() -> (File, Stdio) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    (File::from(OwnedFd::from(writer)), Stdio::from(reader))
}

/// A terminal that closes, as when a connection by ssh breaks, ends `top`.
#[test]
fn top_ends_with_its_terminal() {
    let yaml = "locations: [{ path: /, respond: { body: ok }, limits: { rate: 3/h } }]\n";
    let gateway = Gateway::start(yaml);
    let dir = Scratch::new();
    dir.file("gateway.yaml", &format!("admin: {}\n{yaml}", gateway.admin()));
    let run = format!("echo $$ >pid; stty rows 30 cols 100; exec {} top", env!("CARGO_BIN_EXE_sluicegate"));
    let mut terminal = Command::new("script")
        .args(["--quiet", "--command", &run, "/dev/null"])
        .current_dir(dir.path())
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script of bsdutils");
    let (mut shown, mut piece) = (Vec::new(), [0; 4096]);
    let output = terminal.stdout.as_mut().expect("a pipe");
    while !String::from_utf8_lossy(&shown).contains("rejected") {
        let count = output.read(&mut piece).expect("the output of top");
        assert!(count > 0, "{}", String::from_utf8_lossy(&shown));
        shown.extend_from_slice(&piece[..count]);
    }
    let pid = std::fs::read_to_string(dir.path().join("pid")).expect("the number of the process");
    // Most of the time it waits for a key.
    std::thread::sleep(ms(300));
    terminal.kill().and_then(|()| terminal.wait()).expect("the terminal ends");
    let status = format!("/proc/{}/stat", pid.trim());
    // A process that ended may wait for its parent.
    eventually("the end of top", || {
        std::fs::read_to_string(&status).map_or(true, |stat| stat.contains(") Z"))
    });
}

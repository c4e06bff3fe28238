//! Starts the binary: with a file, with arguments, under a shell, or until it exits.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use super::PATIENCE;
use super::gateway::Gateway;
use super::timing::ms;

/// A directory of one test, removed with it.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let place = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("sluicegate-test-{}-{place}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a temporary directory");
        Scratch(dir)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("the temporary directory takes files");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The binary under test, which cargo puts beside the folder of the test programs.
pub fn program() -> PathBuf {
    let own = std::env::current_exe().expect("a test program knows its file");
    let folder = own.ancestors().nth(2).expect("a test program stands in the folder `deps`");
    let program = folder.join("sluicegate");
    let missing = "`cargo build --bin sluicegate` builds it, and so do the tests of that package";
    assert!(program.is_file(), "{} does not exist: {missing}", program.display());
    program
}

/// Options for starting the binary.
#[derive(Default)]
pub struct Run {
    env: Vec<(String, String)>,
    /// Shell words put before it, e.g. `ulimit -n 256`.
    shell: Option<String>,
    args: Option<Vec<String>>,
    /// The input instead of nothing.
    stdin: Option<OwnedFd>,
}

/// The output of a run that exited by itself.
#[derive(Debug)]
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    pub fn env(mut self, name: &str, value: &str) -> Run {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn under(mut self, shell: &str) -> Run {
        self.shell = Some(shell.to_owned());
        self
    }

    pub fn stdin(mut self, stdin: OwnedFd) -> Run {
        self.stdin = Some(stdin);
        self
    }

    /// Replaces `run -c FILE`.
    pub fn args(mut self, args: &[&str]) -> Run {
        self.args = Some(args.iter().map(|&a| a.to_owned()).collect());
        self
    }

    fn command(&self, args: &[String], dir: &Path) -> Command {
        let binary = program();
        let mut command = match &self.shell {
            None => Command::new(binary),
            Some(words) => {
                let mut sh = Command::new("sh");
                sh.arg("-c").arg(format!("{words}; exec \"$0\" \"$@\"")).arg(binary);
                sh
            }
        };
        let stdin = self.stdin.as_ref().map(|fd| fd.try_clone().expect("a descriptor can be cloned"));
        command.args(args).current_dir(dir).stdin(stdin.map_or(Stdio::null(), Stdio::from));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.envs(self.env.iter().map(|(n, v)| (n, v)));
        command
    }

    /// Starts the gateway with `yaml` and waits until it listens. A file without `listen` or `admin` gets one on a port
    /// that the kernel picks.
    #[track_caller]
    pub fn start(self, yaml: &str) -> Gateway {
        let text = completed(yaml);
        let (listeners, admin) = expected(&text);
        let scratch = Scratch::new();
        let file = scratch.file("gateway.yaml", &text);
        let args = vec!["run".to_owned(), "-c".to_owned(), file.display().to_string()];
        self.spawn(&args, scratch, listeners, admin)
    }

    /// Starts the binary with the arguments given, waits for one listener and, if wanted, the admin port.
    #[track_caller]
    pub fn serve(self, admin: bool) -> Gateway {
        let args = self.args.clone().expect("arguments");
        self.spawn(&args, Scratch::new(), 1, admin)
    }

    #[track_caller]
    fn spawn(self, args: &[String], scratch: Scratch, listeners: usize, admin: bool) -> Gateway {
        let mut child = self.command(args, scratch.path()).spawn().expect("the binary starts");
        let stdout = Lines::follow(child.stdout.take().expect("piped"));
        let stderr = Lines::follow(child.stderr.take().expect("piped"));
        Gateway::ready(child, scratch, [stdout, stderr], listeners, admin)
    }

    /// Runs the binary in `dir` until it exits.
    #[track_caller]
    pub fn finish(self, dir: &Path) -> Finished {
        let args = self.args.clone().expect("arguments");
        let mut child = self.command(&args, dir).spawn().expect("the binary starts");
        let stdout = Lines::follow(child.stdout.take().expect("piped"));
        let stderr = Lines::follow(child.stderr.take().expect("piped"));
        // Some compute for seconds.
        let deadline = Instant::now() + 4 * PATIENCE;
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child can be waited for") {
                break status;
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                panic!("{args:?} did not end; stderr:\n{}", stderr.text());
            }
            thread::sleep(ms(5));
        };
        stdout.wait_end();
        stderr.wait_end();
        Finished { code: status.code(), stdout: stdout.text(), stderr: stderr.text() }
    }
}

/// The file that [`Run::start`] builds from `yaml`.
pub fn completed(yaml: &str) -> String {
    let mut text = String::new();
    for word in ["listen", "admin"] {
        if !yaml.lines().any(|line| line.starts_with(&format!("{word}:"))) {
            let _ = writeln!(text, "{word}: 127.0.0.1:0");
        }
    }
    text + yaml
}

/// The number of `listening` lines that the file causes, and whether it causes an `admin` line.
fn expected(yaml: &str) -> (usize, bool) {
    let file: serde_yaml::Value = serde_yaml::from_str(yaml).expect("the test wrote YAML");
    let count = |value: &serde_yaml::Value| match value {
        serde_yaml::Value::Null => 0,
        serde_yaml::Value::Sequence(items) => items.len(),
        _ => 1,
    };
    // The name of a listener opens none.
    let calls = &file["service"]["listen"];
    let is_name = calls.as_str().is_some_and(|text| !text.contains([':', '/']));
    let calls = if is_name { 0 } else { count(calls) };
    let listeners = count(&file["listen"]) + calls;
    (listeners, file["admin"].as_str() != Some("none"))
}

/// One stream of a child's output, collected in the background.
pub struct Lines(Arc<Output>);

#[derive(Default)]
struct Output {
    /// The lines so far, and whether the stream has ended.
    lines: Mutex<(Vec<String>, bool)>,
    changed: Condvar,
}

impl Lines {
    pub fn follow(stream: impl Read + Send + 'static) -> Lines {
        let output = Arc::new(Output::default());
        let shared = output.clone();
        thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while stream.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
                shared.lines.lock().unwrap().0.push(text);
                shared.changed.notify_all();
                line.clear();
            }
            shared.lines.lock().unwrap().1 = true;
            shared.changed.notify_all();
        });
        Lines(output)
    }

    pub fn all(&self) -> Vec<String> {
        self.0.lines.lock().unwrap().0.clone()
    }

    pub fn text(&self) -> String {
        self.all().iter().map(|line| format!("{line}\n")).collect()
    }

    pub fn ended(&self) -> bool {
        self.0.lines.lock().unwrap().1
    }

    pub fn wait_end(&self) {
        let lines = self.0.lines.lock().unwrap();
        drop(self.0.changed.wait_timeout_while(lines, PATIENCE, |lines| !lines.1));
    }
}

//! The access log with slow, failing and busy outputs.

use std::io::ErrorKind;
use std::sync::mpsc::{Receiver, Sender, channel};

use serde_json::Value;

use super::*;

const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

fn config() -> model::AccessLogConfig {
    model::AccessLogConfig {
        output: AccessLogOutput::Stdout,
        format: LogFormat::Auto,
        sample: 100.0,
        headers: Vec::new(),
        fields: Vec::new(),
        hash_keys: true,
        hash_secret: None,
    }
}

fn start_with_sink(
    sink: Box<dyn Write + Send>,
    config: &model::AccessLogConfig,
    workers: usize,
    capacity: usize,
) -> io::Result<AccessLog> {
    let none = model::AccessLogConfig { output: AccessLogOutput::None, ..config.clone() };
    let mut log = AccessLog::continue_from(None, &none, workers)?;
    log.output = config.output.clone();
    log.start_thread(sink, workers, capacity)?;
    Ok(log)
}

fn record(path: &str) -> AccessRecord<'_> {
    AccessRecord {
        unix_us: 0,
        id: "id",
        ip: None,
        method: "GET",
        protocol: None,
        host: "h",
        path,
        status: 200,
        bytes: 0,
        received: None,
        duration_ns: 0,
        wait_ns: 0,
        upstream: None,
        error: None,
        location: None,
        owner: None,
        account: None,
        tier: None,
        verdict: "admit",
        limit: None,
        class: None,
        key: None,
        retry_after_ns: None,
        charge: None,
        dry_run: None,
        step: None,
        user_agent: None,
        referer: None,
        tries: None,
        upstream_ns: None,
        scheme: None,
        proto: None,
        headers: &[],
    }
}

/// Keeps the written bytes.
#[derive(Clone, Default)]
struct CapturedOutput(Arc<Mutex<(Vec<u8>, usize)>>);

impl Write for CapturedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut kept = self.0.lock();
        kept.0.extend_from_slice(bytes);
        kept.1 += 1;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Follows one order per write: the number of bytes to take, or an error; without an order it takes all.
struct ScriptedOutput(Receiver<io::Result<usize>>, CapturedOutput);

impl Write for ScriptedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.recv() {
            Ok(Ok(most)) => self.1.write(&bytes[..most.min(bytes.len())]),
            Ok(Err(error)) => Err(error),
            Err(_) => self.1.write(bytes),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn scripted_log(capacity: usize) -> (AccessLog, Sender<io::Result<usize>>, CapturedOutput) {
    let (orders, kept) = (channel(), CapturedOutput::default());
    let sink = Box::new(ScriptedOutput(orders.1, kept.clone()));
    (start_with_sink(sink, &config(), 1, capacity).unwrap(), orders.0, kept)
}

fn lines(kept: &CapturedOutput) -> Vec<String> {
    String::from_utf8(kept.0.lock().0.clone()).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn all_lines_of_all_workers_arrive_in_few_writes() {
    let kept = CapturedOutput::default();
    let log = start_with_sink(Box::new(kept.clone()), &config(), 2, BUFFER_CAPACITY).unwrap();
    let workers: Vec<_> = (0..2)
        .map(|worker| {
            let log = log.clone();
            std::thread::spawn(move || {
                let lines = log.line_writer(worker);
                (0..1_000).for_each(|n| lines.write_record(&record(&format!("/{worker}/{n}"))));
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert!(log.flush_within(WRITE_TIMEOUT));
    let mut paths: Vec<String> = lines(&kept)
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["path"].as_str().unwrap().to_owned())
        .collect();
    let first_worker: Vec<&String> = paths.iter().filter(|path| path.starts_with("/0/")).collect();
    assert!(first_worker.iter().enumerate().all(|(n, path)| **path == format!("/0/{n}")), "order is kept");
    paths.sort();
    paths.dedup();
    assert_eq!(paths.len(), 2_000);
    assert!(kept.0.lock().1 < 100, "{} writes", kept.0.lock().1);
    assert_eq!(log.dropped_lines(), 0);
}

#[test]
fn lines_arrive_without_a_flush() {
    let kept = CapturedOutput::default();
    let log = start_with_sink(Box::new(kept.clone()), &config(), 1, BUFFER_CAPACITY).unwrap();
    log.line_writer(0).write_record(&record("/"));
    for _ in 0..1_000 {
        if !lines(&kept).is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("the line was never written");
}

#[test]
fn a_blocked_output_blocks_no_worker_and_lost_lines_are_counted() {
    let (log, orders, kept) = scripted_log(2_000);
    let worker = log.line_writer(0);
    for _ in 0..1_000 {
        worker.write_record(&record("/"));
    }
    assert!(!log.flush_within(Duration::from_millis(20)), "nothing can have been written");
    let dropped = log.dropped_lines();
    assert!(dropped > 900, "{dropped}");
    drop(orders);
    assert!(log.flush_within(WRITE_TIMEOUT));
    assert_eq!(lines(&kept).len() as u64 + log.dropped_lines(), 1_000);
    worker.write_record(&record("/after"));
    assert!(log.flush_within(WRITE_TIMEOUT));
    assert!(lines(&kept).last().unwrap().contains("/after"));
}

#[test]
fn a_full_disk_loses_lines_and_never_joins_two() {
    let (log, orders, kept) = scripted_log(BUFFER_CAPACITY);
    let worker = log.line_writer(0);
    worker.write_record(&record("/torn"));
    worker.write_record(&record("/lost"));
    orders.send(Ok(10)).unwrap();
    orders.send(Err(ErrorKind::StorageFull.into())).unwrap();
    assert!(log.flush_within(WRITE_TIMEOUT));
    assert_eq!(log.dropped_lines(), 2);
    orders.send(Err(ErrorKind::Interrupted.into())).unwrap();
    drop(orders);
    worker.write_record(&record("/whole"));
    assert!(log.flush_within(WRITE_TIMEOUT));
    let lines = lines(&kept);
    assert_eq!(lines.len(), 2, "{lines:?}");
    let whole: Value = serde_json::from_str(&lines[1]).unwrap();
    assert_eq!(whole["path"], "/whole");
}

#[test]
fn a_sample_of_the_requests_is_logged() {
    for (percent, range) in [(0.0, 0..=0), (10.0, 700..=1_300), (100.0, 10_000..=10_000)] {
        let sample = model::AccessLogConfig { sample: percent, ..config() };
        let log = start_with_sink(Box::new(CapturedOutput::default()), &sample, 1, BUFFER_CAPACITY).unwrap();
        let lines = log.line_writer(0);
        let wanted = (0..10_000).filter(|_| lines.is_sampled()).count();
        assert!(range.contains(&wanted), "{percent}%: {wanted}");
    }
}

#[test]
fn none_logs_nothing() {
    let none = model::AccessLogConfig { output: AccessLogOutput::None, ..config() };
    let log = AccessLog::continue_from(None, &none, 1).unwrap();
    assert!(!log.line_writer(0).is_sampled());
    log.line_writer(0).write_record(&record("/"));
    assert!(log.flush_within(Duration::ZERO));
}

#[test]
fn a_file_is_appended_to_and_a_wrong_path_is_named() {
    let path = std::env::temp_dir().join(format!("sluicegate-log-{}", std::process::id()));
    std::fs::write(&path, "before\n").unwrap();
    let config = model::AccessLogConfig { output: AccessLogOutput::File(path.clone()), ..config() };
    let log = AccessLog::continue_from(None, &config, 1).unwrap();
    log.line_writer(0).write_record(&record("/x"));
    assert!(log.flush_within(WRITE_TIMEOUT));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(text.starts_with("before\n{") && text.ends_with("}\n"));
    let wrong = model::AccessLogConfig { output: AccessLogOutput::File("/nowhere/at/all".into()), ..config };
    assert!(AccessLog::continue_from(None, &wrong, 1).unwrap_err().to_string().contains("/nowhere/at/all"));
}

#[test]
fn lines_are_pretty_on_a_terminal_alone() {
    let form = |format, output: AccessLogOutput, terminal| {
        choose_form(&model::AccessLogConfig { format, output, ..config() }, terminal)
    };
    let file = || AccessLogOutput::File("access.log".into());
    let pretty = |colors| LineForm::Pretty { colors };
    assert_eq!(form(LogFormat::Auto, AccessLogOutput::Stdout, true), pretty(true));
    assert_eq!(form(LogFormat::Auto, AccessLogOutput::Stdout, false), LineForm::Json);
    assert_eq!(form(LogFormat::Auto, file(), true), LineForm::Json);
    assert_eq!(form(LogFormat::Json, AccessLogOutput::Stdout, true), LineForm::Json);
    assert_eq!(form(LogFormat::Pretty, AccessLogOutput::Stdout, false), pretty(false));
    assert_eq!(form(LogFormat::Pretty, file(), true), pretty(false));
}

#[test]
fn the_same_output_keeps_its_thread_and_another_ends_it() {
    let folder = std::env::temp_dir().join(format!("sluicegate-logs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let to = |name: &str| model::AccessLogConfig {
        output: AccessLogOutput::File(folder.join(name)),
        hash_keys: true,
        hash_secret: None,
        ..config()
    };
    let first = AccessLog::continue_from(None, &to("one"), 1).unwrap();
    let same = AccessLog::continue_from(Some(&first), &to("one"), 1).unwrap();
    let shared = |log: &AccessLog| Arc::downgrade(&log.writer.as_ref().unwrap().0);
    assert!(shared(&first).ptr_eq(&shared(&same)));
    assert_eq!(
        first.line_writer(0).shown_account("alice"),
        same.line_writer(0).shown_account("alice"),
        "hashes stay comparable"
    );
    let secret = |text: &str| Some(model::Secret(text.to_owned()));
    let with_secret = model::AccessLogConfig { hash_secret: secret("one"), ..to("one") };
    let own = AccessLog::continue_from(Some(&first), &with_secret, 1).unwrap();
    assert_eq!(own.hasher(), Some(&ValueHasher::from_secret("one")));
    let random = AccessLog::continue_from(Some(&own), &to("one"), 1).unwrap();
    assert_ne!(random.hasher(), own.hasher(), "a secret that was removed is not used any more");
    drop((own, random));
    same.dropped.fetch_add(3, Relaxed);
    let (line, before) = (first.line_writer(0), shared(&first));
    let other = AccessLog::continue_from(Some(&same), &to("two"), 1).unwrap();
    assert_eq!(other.dropped_lines(), 3);
    drop((first, same));
    // A request of the previous gateway ends now.
    line.write_record(&record("/last"));
    drop(line);
    for _ in 0..1_000 {
        if before.strong_count() == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(before.strong_count(), 0, "the thread has ended");
    assert!(std::fs::read_to_string(folder.join("one")).unwrap().contains("/last"));
    std::fs::remove_dir_all(&folder).unwrap();
}

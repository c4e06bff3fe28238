//! Real clients: redis-cli, redis-benchmark, redis-py and the Rust crate `redis`.

use std::process::Command;

use super::*;

/// What a program prints; it must succeed.
#[track_caller]
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn redis_cli_asks() {
    let gateway = start_resp(", token: s3cret", "");
    let port = service(&gateway).port().to_string();
    let cli = |words: &[&str]| {
        let given = ["-h", "127.0.0.1", "-p", &port, "--no-auth-warning"];
        output("redis-cli", &[&given[..], words].concat())
    };
    let call = ["CL.THROTTLE", "user123", "15", "30", "60"];
    assert!(cli(&call).contains("NOAUTH"));
    for version in ["-2", "-3"] {
        let answer = cli(&[&["-a", "s3cret", version][..], &call].concat());
        let lines: Vec<&str> = answer.trim().lines().collect();
        assert_eq!((lines.len(), lines[0], lines[1], lines[3]), (5, "0", "16", "-1"), "{answer}");
    }
    let remaining = cli(&[&["-a", "s3cret"][..], &call, &["0"]].concat());
    assert_eq!(remaining.lines().nth(2), Some("14"));
    assert!(cli(&["-a", "wrong", "PING"]).contains("NOAUTH"));
}

#[test]
fn redis_benchmark_runs_to_its_end() {
    let gateway = start_resp("", "");
    let port = service(&gateway).port().to_string();
    let arguments = ["-p", &port, "-n", "20000", "-c", "20", "-P", "16", "-q", "-r", "1000"];
    let text = output(
        "redis-benchmark",
        &[&arguments[..], &["CL.THROTTLE", "k__rand_int__", "10", "10", "1"]].concat(),
    );
    assert!(text.contains("requests per second"), "{text}");
    let calls = |result: &str| {
        gateway
            .metric("sluicegate_service_calls_total", &["protocol=\"resp\"", &format!("result=\"{result}\"")])
    };
    assert_eq!(calls("admit") + calls("reject"), 20_000.0);
}

const PYTHON: &str = r#"
import sys, threading, redis

port = int(sys.argv[1])
client = redis.Redis(port=port, password="s3cret", client_name="app")
assert client.ping()
assert client.execute_command("CL.THROTTLE", "py", 2, 1, 1000) == [0, 3, 2, -1, 1000]
pipeline = client.pipeline(transaction=False)
for _ in range(3):
    pipeline.execute_command("CL.THROTTLE", "py", 2, 1, 1000)
assert [answer[0] for answer in pipeline.execute()] == [0, 0, 1]
try:
    client.execute_command("CL.THROTTLE", "py", 2, 1, "x")
    raise SystemExit("a bad call was answered")
except redis.ResponseError as error:
    assert "period" in str(error), error
try:
    redis.Redis(port=port, password="wrong").ping()
    raise SystemExit("a wrong token was accepted")
except (redis.AuthenticationError, redis.ResponseError) as error:
    # Newer versions of the library have a class for it.
    assert "WRONGPASS" in str(error) or "token is not valid" in str(error), error

admitted = []
def work():
    for _ in range(50):
        admitted.append(1 - client.execute_command("CL.THROTTLE", "pool", 99, 1, 100000)[0])
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(admitted) == 400 and sum(admitted) == 100, sum(admitted)
"#;

#[test]
fn redis_py_asks_with_a_pool_and_a_pipeline() {
    let gateway = start_resp(", token: s3cret", "");
    output("/usr/bin/python3", &["-c", PYTHON, &service(&gateway).port().to_string()]);
}

#[test]
fn the_rust_client_asks_in_both_versions() {
    let gateway = start_resp(", token: s3cret", "");
    for (left, version) in [(1, ""), (0, "?protocol=resp3")] {
        let url = format!("redis://:s3cret@{}/{version}", service(&gateway));
        let mut connection =
            ::redis::Client::open(url).and_then(|one| one.get_connection()).expect("a connection");
        let call = || {
            let mut call = ::redis::cmd("CL.THROTTLE");
            call.arg("rust").arg(1).arg(1).arg(1_000);
            call
        };
        let answer: Vec<i64> = call().query(&mut connection).expect("an answer");
        assert_eq!(answer[..4], [0, 2, left, -1]);
    }
}

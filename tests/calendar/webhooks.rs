//! Steps of quotas as webhooks of the running program, checked by the Python of docs/quotas.md.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use sluicegate_testkit::upstream::{Reply, Seen, Upstream};
use sluicegate_testkit::{Gateway, eventually, get};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn file(receiver: &Upstream, secret: &str) -> String {
    format!(
        "account: {{ from: header:X-Account }}\n\
         notify: {{ url: \"{}/hook\", secret: {secret} }}\n\
         limits:\n  plan: {{ key: account, rate: 4/year, steps: [{{ at: 50%, then: warn }}, {{ at: 100%, then: reject }}] }}\n\
         locations: [{{ path: /, respond: {{ body: ok }}, limits: plan }}]\n",
        receiver.url()
    )
}

/// What the function of the documentation says of a request.
fn is_genuine(request: &Seen, secret: &str) -> bool {
    let page = include_str!("../../docs/quotas.md");
    let code = page.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).expect("its code");
    let main = "\nimport json, sys\nsecret, headers = sys.argv[1], json.loads(sys.argv[2])\n\
                print(is_genuine(secret, headers, sys.stdin.buffer.read()))\n";
    let names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
    let headers: Value = names.iter().map(|name| ((*name).to_owned(), json!(request.header(name)))).collect();
    let mut python = Command::new("python3");
    python.args(["-c", &format!("{code}{main}"), secret, &headers.to_string()]);
    let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 runs");
    child.stdin.take().expect("a pipe").write_all(&request.body).expect("python3 reads");
    let output = child.wait_with_output().expect("python3 ends");
    match output.stdout.trim_ascii() {
        b"True" => true,
        b"False" => false,
        other => panic!("{}", String::from_utf8_lossy(other)),
    }
}

#[test]
fn steps_are_posted_once_each_and_signed() {
    let receiver = Upstream::in_turn([500, 204, 204, 204].map(|status| Reply::with(status, &[], "")));
    let gateway = Gateway::start(&file(&receiver, SECRET));
    let ask = get("/").header("X-Account", "acme");
    (0..2).for_each(|_| drop(gateway.ask(&ask).expect(200)));
    let tries = receiver.wait_for(2);
    let [first, second] = [&tries[0], &tries[1]].map(|request| (request.header("webhook-id"), &request.body));
    assert_eq!(first, second, "the second try");
    for request in &tries {
        assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/hook"));
        assert!(is_genuine(request, SECRET) && !is_genuine(request, "another secret of 24 bytes"));
    }
    let message: Value = serde_json::from_slice(&tries[0].body).expect("JSON");
    assert_eq!(message["type"], "quota.step");
    let data = &message["data"];
    assert_eq!((&data["limit"], &data["key"]), (&"plan".into(), &"account=acme".into()), "{message}");
    assert_eq!((&data["step"]["at"], &data["step"]["then"]), (&50.into(), &"warn".into()), "{message}");

    gateway.change(&file(&receiver, "a text that is long enough"));
    (0..3).for_each(|_| drop(gateway.ask(&ask)));
    let last = &receiver.wait_for(3)[2];
    assert!(is_genuine(last, "a text that is long enough") && !is_genuine(last, SECRET), "{last:?}");
    eventually("both are counted", || {
        gateway.metric("sluicegate_notify_total", &["result=\"delivered\""]) == 2.0
    });
    assert_eq!(receiver.count(), 3, "each step is told once");
    assert!(!gateway.stderr().contains("MfKQ") && gateway.stderr().contains("it answered 500"));
}

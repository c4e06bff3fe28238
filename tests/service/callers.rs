//! Who may call: tokens, pages in browsers, and the files that would leave the service open.

use super::*;

const TOKEN: &str = "s3cret-token-of-the-service";
const OTHER: &str = "another-secret-of-the-service";

fn guarded() -> Gateway {
    Gateway::start(&format!(
        "service: {{ listen: 127.0.0.1:0, token: [{TOKEN}, {OTHER}] }}\nlog: {{ level: trace }}\n\
         access_log: {{ hash_keys: false }}\n\
         limits: {{ sms: {{ key: account, rate: 5/1h, burst: 5 }} }}\nlocations: []\n"
    ))
}

#[test]
fn calls_need_one_of_the_tokens() {
    let gateway = guarded();
    let body = json!({ "limits": "sms", "key": { "account": "a" } }).to_string();
    let mut client = Client::connect(service(&gateway));
    let ask = post("/check", body.as_bytes());
    for wrong in
        [None, Some("Bearer".to_owned()), Some(format!("Bearer {TOKEN}x")), Some(format!("Basic {TOKEN}"))]
    {
        let ask = wrong.iter().fold(ask.clone(), |ask, value| ask.header("Authorization", value));
        let refused = client.ask(&ask).expect(401);
        assert_eq!(refused.json()["error"], "bad_token");
        assert_eq!(refused.header("www-authenticate").as_deref(), Some("Bearer"));
    }
    for (token, left) in [(TOKEN, 4), (OTHER, 3)] {
        let answer = client.ask(&ask.clone().header("Authorization", format!("Bearer {token}"))).expect(200);
        assert_eq!(answer.json()["remaining"], left);
    }
    assert_eq!(gateway.metric("sluicegate_service_calls_total", &["result=\"denied\""]), 4.0);
}

#[test]
fn tokens_and_leases_reach_no_log() {
    let gateway = guarded();
    let body = json!({ "limits": "sms", "key": { "account": "a" } }).to_string();
    let mut client = Client::connect(service(&gateway));
    client
        .ask(&post("/check", body.as_bytes()).header("Authorization", format!("Bearer {TOKEN}")))
        .expect(200);
    client
        .ask(&post("/check", body.as_bytes()).header("Authorization", format!("Bearer {TOKEN}x")))
        .expect(401);
    client.ask(&post(&format!("/check?token={TOKEN}"), b"{}")).expect(401);
    gateway.write("service: { listen: 127.0.0.1:0, token: changed-secret-of-it }\nlocations: []\n");
    let changes = gateway.reload().expect(200).text();
    let status = gateway.admin_get("/status").expect(200).text();
    let lines: String = gateway.wait_log(3).iter().map(Value::to_string).collect();
    for text in [&gateway.stderr(), &changes, &status, &lines, &gateway.metrics()] {
        for secret in [TOKEN, OTHER, "changed-secret"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
    assert!(lines.contains("\"protocol\":\"check\""), "{lines}");
}

#[test]
fn pages_in_browsers_may_not_call() {
    let gateway = start("limits: { sms: { key: global, rate: 5/1h, burst: 5 } }");
    let ask = post("/check", b"{\"limits\":\"sms\"}").header("Origin", "http://127.0.0.1");
    let refused = Client::connect(service(&gateway)).ask(&ask).expect(403);
    assert_eq!(refused.json()["error"], "access_denied");
    assert_eq!(check(&gateway, &json!({ "limits": "sms" })).expect(200).json()["remaining"], 4);
}

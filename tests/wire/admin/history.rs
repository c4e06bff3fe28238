//! `/history`: the traffic from before somebody looked.

use serde_json::Value;

use crate::support::*;

const FILE: &str = "admin: { listen: 127.0.0.1:0, tokens: [{ name: ops, token: one },\
                     { name: eye, token: two, allow: read }] }\n\
                    limits: { per-user: { key: header:x-user, rate: 2/h, burst: 2 } }\n";

fn file(upstream: &Upstream) -> String {
    format!(
        "{FILE}upstreams: {{ app: \"{}\" }}\nlocations:\n  - {{ path: /, upstream: app, limits: per-user }}\n",
        upstream.addr()
    )
}

fn history(gateway: &Gateway, query: &str) -> Value {
    let ask = get(&format!("/history{query}")).header("Authorization", "Bearer two");
    gateway.ask_admin(&ask).expect(200).json()
}

/// The sum of a column, and the number of its values.
fn sum(row: &Value, column: &str) -> (u64, usize) {
    let values = row[column].as_array().expect(column);
    (values.iter().filter_map(Value::as_u64).sum(), values.len())
}

#[test]
fn a_history_has_what_happened_before() {
    let upstream = Upstream::new(|request| match request.target.as_str() {
        "/bad" => Reply::with(503, &[], "no"),
        _ => Reply::text("well"),
    });
    let gateway = Gateway::start(&file(&upstream));
    for (target, status) in [("/", 200), ("/bad", 503), ("/", 429)] {
        gateway.ask(&get(target).header("x-user", "a-secret-user")).expect(status);
    }
    let row = |kind: &str| history(&gateway, "")[kind][0].clone();
    eventually("a sample", || sum(&row("limits"), "rejected").0 == 1);
    let (limit, location, app) = (row("limits"), row("locations"), row("upstreams"));
    assert_eq!(
        (&limit["limit"], &location["location"], &app["upstream"]),
        (&"per-user".into(), &"/".into(), &"app".into())
    );
    for (row, column, expected) in [
        (&limit, "admitted", 2),
        (&limit, "waited", 0),
        (&limit, "would_reject", 0),
        (&location, "2xx", 1),
        (&location, "4xx", 0),
        (&location, "5xx", 1),
        (&location, "own", 1),
        (&app, "2xx", 1),
        (&app, "5xx", 1),
    ] {
        assert_eq!(sum(row, column), (expected, 600), "{column}");
    }
    let times = app["p99_ms"].as_array().expect("times");
    assert!(times.iter().any(Value::is_f64) && times[0].is_null(), "{times:?}");
    let all = history(&gateway, "");
    let (end, step) = (all["end_ms"].as_u64().expect("an end"), all["step_ms"].as_u64());
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis();
    assert!(now.abs_diff(end.into()) < 5_000 && step == Some(1_000), "{end} {step:?}");
    assert!(!all.to_string().contains("secret"));
    let day = history(&gateway, "?span=1d&of=limits&name=per-user");
    assert_eq!(
        (day["limits"][0]["admitted"].as_array().map(Vec::len), &day["step_ms"]),
        (Some(1_440), &60_000.into())
    );
    assert!(day.get("upstreams").is_none());
    let ask = get("/status").header("Authorization", "Bearer two").header("Accept", "application/json");
    let status = gateway.ask_admin(&ask).expect(200).json();
    let bytes = status["history"]["bytes"].as_u64().expect("bytes");
    assert!((100_000..1 << 20).contains(&bytes), "{bytes}");
    assert_eq!(status["token"], serde_json::json!({ "name": "eye", "allow": "read" }));
    // A reload keeps it; a renamed limit begins anew.
    gateway.write(&file(&upstream).replace("per-user", "renamed"));
    let ask =
        post("/reload", b"").header("Authorization", "Bearer one").header("Content-Type", "application/json");
    gateway.ask_admin(&ask).expect(200);
    eventually("the next sample", || row("limits")["limit"] == "renamed");
    assert_eq!((sum(&row("limits"), "rejected").0, sum(&row("locations"), "own").0), (0, 1));
}

#[test]
fn the_status_tells_of_the_file_and_its_last_reload() {
    let yaml = |rate: &str| {
        format!(
            "listen: 127.0.0.1:0\nlimits: {{ a: {{ rate: {rate} }} }}\n\
             locations: [{{ path: /, respond: {{ body: ok }} }}]\n"
        )
    };
    let gateway = Gateway::start(&yaml("1/s"));
    let status = || {
        let ask = get("/status").header("Accept", "application/json");
        gateway.ask_admin(&ask).expect(200).json()
    };
    assert_eq!(status()["token"], serde_json::json!({ "name": "loopback", "allow": "all" }));
    let warnings = status()["warnings"].clone();
    assert!(warnings[0]["message"].as_str().is_some_and(|text| text.contains("`a`")), "{warnings}");
    gateway.change(&yaml("2/s"));
    let last = status()["last_reload"].clone();
    let told =
        "limits: changed a; numbers: a from 1 request per second, burst 1 to 2 requests per second, burst 2";
    assert_eq!((&last["told"], &last["problems"]), (&told.into(), &serde_json::json!([])));
    gateway.write(&yaml("fast"));
    gateway.reload();
    let last = status()["last_reload"].clone();
    assert_eq!((&last["result"], &last["problems"][0]["field"]), (&"failed".into(), &"limits.a.rate".into()));
    assert!(last["problems"][0]["line"].is_u64(), "{last}");
    assert_eq!(status()["warnings"], warnings, "those of the file in force");
}

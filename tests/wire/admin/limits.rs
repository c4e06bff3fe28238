//! `/limits`: the numbers, the size and the traffic of every limit.

use crate::support::*;

/// A dry run, a shadow and keys that a limit spares reject nothing, so no column of rejections has them.
#[test]
fn what_would_be_rejected_stands_apart() {
    let gateway = Gateway::start(
        "limits:\n  tried: { rate: 1/h, key: global, dry_run: true }\n  \
         spares: { rate: 1/h, key: ip, enforce: 0% }\n  \
         live: { rate: 9/h, key: global, shadow: { rate: 1/h } }\n\
         locations: [{ path: /, respond: { body: ok }, limits: [tried, spares, live] }]\n",
    );
    (0..3).for_each(|_| drop(gateway.get("/").expect(200)));
    let status = gateway.ask_admin(&get("/status").header("Accept", "application/json")).expect(200).json();
    assert_eq!(status["rejections"]["per_s"], 0.0);
    let mut reader = super::events::EventReader::open(&gateway);
    let event = reader.next_event();
    for (limit, would) in [("tried", 2), ("spares", 2), ("live", 0), ("live:shadow", 2)] {
        let of = |list: &serde_json::Value| {
            let all = list["limits"].as_array().expect("limits");
            all.iter().find(|one| one["limit"] == limit).expect(limit).clone()
        };
        let (total, now) = (of(&status), of(&event));
        assert_eq!((&total["rejected"], &total["would_reject"]), (&0.into(), &would.into()), "{total}");
        assert_eq!(now["rejected_per_s"], 0.0, "{now}");
        assert_eq!(now["would_reject_per_s"].as_f64() > Some(0.0), would > 0, "{now}");
    }
    let query = post("/explain", br#"{"method": "GET", "url": "/"}"#).header("Accept", "text/plain");
    let explained = gateway.ask_admin(&query).expect(200).text();
    assert_eq!(explained.matches(": would reject, it would fit in").count(), 3, "{explained}");
    assert!(!explained.contains(": reject"), "{explained}");
    for (target, columns) in [
        ("/limits", "rejected/s  rejected  would reject/s"),
        ("/status", "rejections/s  total  would reject"),
        ("/limits/tried/keys", "asked/s  would refuse/s"),
        ("/limits/live:shadow/keys", "asked/s  would refuse/s"),
        ("/limits/spares/keys", "asked/s  refused or spared/s"),
    ] {
        let text = gateway.admin_get(target).expect(200).text();
        assert!(text.contains(columns), "{target}: {text}");
    }
}

#[test]
fn limits_show_their_numbers_and_their_traffic() {
    let gateway = Gateway::start(
        "limits:\n  tight: { rate: 2/h, burst: 3 }\n  idle: { algorithm: concurrency, max_concurrent: 4 }\n  \
         paced: { algorithm: leaky_bucket, rate: 2/s, queue: 5, key: global }\n\
         locations:\n  - { path: /paced, respond: { body: ok }, limits: paced }\n  \
         - { path: /, respond: { body: ok }, limits: [tight, idle] }\n",
    );
    let statuses = [(); 5].map(|()| gateway.get("/").status);
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    let mut waiting: Vec<Client> = (0..4).map(|_| gateway.client()).collect();
    waiting.iter_mut().for_each(|client| client.send(get("/paced").bytes()));
    gateway.wait_queued(3);
    let ask = get("/limits").header("Accept", "application/json");
    let json = gateway.ask_admin(&ask).expect(200).json();
    let limits = json["limits"].as_array().expect("limits");
    let names: Vec<&str> = limits.iter().filter_map(|limit| limit["limit"].as_str()).collect();
    assert_eq!(names, ["tight", "idle", "paced"], "in the order of the file");
    let tight = &limits[0];
    assert_eq!(
        (&tight["algorithm"], &tight["numbers"]),
        (&"token_bucket".into(), &"2 requests per hour, burst 3".into())
    );
    assert_eq!(tight["rates"][0], serde_json::json!({ "units": 2, "period_ms": 3_600_000.0, "burst": 3 }));
    assert_eq!(
        (&tight["keys"], &tight["admitted"]["total"], &tight["rejected"]["total"]),
        (&1.into(), &3.into(), &2.into())
    );
    assert!(tight["rejected"]["per_s"].as_f64() > Some(0.0), "{tight:#}");
    assert!(tight["rejected"]["per_s_1m"].as_f64() > Some(0.0), "{tight:#}");
    assert_eq!((&limits[1]["max_concurrent"], &limits[1]["rates"]), (&4.into(), &serde_json::json!([])));
    assert_eq!((&limits[2]["waiting"], &limits[2]["rates"][0]["queue"]), (&3.into(), &5.into()));
    let text = gateway.admin_get("/limits").expect(200).text();
    let row: Vec<&str> =
        text.lines().find(|line| line.starts_with("paced")).expect("a row").split("  ").collect();
    assert!(row[1].contains("2 requests per second"), "{text}");
    let first = |target: &str| {
        let ask = get(target).header("Accept", "application/json");
        let json = gateway.ask_admin(&ask).expect(200).json();
        (json["limits"][0]["limit"].clone(), json["limits"].as_array().map(Vec::len))
    };
    assert_eq!(first("/limits?by=rejected&top=1"), ("tight".into(), Some(1)));
    for client in &mut waiting {
        client.response().expect(200);
    }
}

//! A rejection tells one wait, in all of its fields.

use crate::support::*;

/// A request may cost more than is left: then units are left, and it has to wait all the same. A leaky bucket is not
/// here, because it rejects only when nothing is left.
#[test]
fn every_field_of_a_rejection_tells_the_wait() {
    let algorithms = [
        "rate: 5/60s",
        "algorithm: fixed_window, rate: 5/60s",
        "algorithm: sliding_window, rate: 5/60s",
        "algorithm: sliding_log, rate: 5/60s",
    ];
    for algorithm in algorithms {
        let gateway = Gateway::start(&format!(
            "on_reject: {{ ratelimit_headers: [draft-11, draft-03] }}\n\
             limits:\n  dear: {{ {algorithm}, cost: 3 }}\n  wide: {{ rate: 2/1h, burst: 2 }}\n\
             locations:\n  - {{ path: /, respond: {{}}, limits: [dear, wide] }}\n"
        ));
        gateway.get("/").expect(200);
        let rejected = gateway.get("/").expect(429);
        let header = |name: &str| rejected.header(name).unwrap_or_else(|| panic!("{algorithm}: no {name}"));
        let wait = header("retry-after");
        assert!((1..=66).contains(&wait.parse::<u64>().expect("seconds")), "{algorithm}: {wait}");
        let fields = header("ratelimit");
        let (dear, wide) = fields.split_once(", ").expect("two limits");
        assert!(dear.ends_with(&format!(";t={wait}")) && !dear.contains(";r=0;"), "{algorithm}: {fields}");
        // A limit that did not reject keeps its own window: the time until its bucket is full.
        assert!(wide.ends_with(";r=1;t=1800"), "{algorithm}: {fields}");
        // The limit that rejects, though another one has fewer units left.
        let legacy = ["limit", "remaining", "reset"].map(|part| header(&format!("x-ratelimit-{part}")));
        assert_eq!((legacy[0].as_str(), &legacy[2]), ("5", &wait), "{algorithm}: {legacy:?}");
    }
}

//! Calls to limits with shares: the caller says the value that names the class.

use super::*;

#[test]
fn a_call_says_its_class() {
    let shares = |by: &str, class: &str| {
        format!(
            "{{ key: global, rate: 40/d, burst: 40, shares: {{ by: {by}, classes: {{ {class}: {{ least: 50% }} }} }} }}"
        )
    };
    let gateway = Gateway::start(&format!(
        "service: {{ listen: 127.0.0.1:0 }}\nlimits:\n  by-header: {}\n  by-place: {}\n\
         locations: [{{ path: /, name: checkout, respond: {{ body: ok }} }}, {{ path: /search, respond: {{ body: ok }} }}]\n",
        shares("\"header:X-Class\"", "gold"),
        shares("location", "checkout")
    ));
    for (limit, part, [own, other]) in
        [("by-header", "header:x-class", ["gold", "iron"]), ("by-place", "location", ["checkout", "/search"])]
    {
        let ask = |value: &str, cost: u32| {
            check(&gateway, &json!({ "limits": limit, "key": { part: value }, "cost": cost }))
        };
        assert_eq!(ask(other, 30).expect(200).json()["remaining"], 0);
        let refused = ask(other, 1).expect(429).json();
        assert_eq!((&refused["limit"], &refused["class"]), (&json!(limit), &json!("default")));
        assert_eq!(ask(own, 9).expect(200).json()["remaining"], 1);
        assert_eq!(
            ask(own, 2).expect(429).json()["class"],
            if limit == "by-place" { "checkout" } else { own }
        );
        let missing = check(&gateway, &json!({ "limits": limit })).expect(400);
        assert!(missing.text().contains(&format!("key.{part}")), "{}", missing.text());
    }
    // Each worker writes its own lines, so that they come in any order.
    let lines = gateway.wait_log(10);
    let of = |class: &str| lines.iter().filter(|line| line["class"] == class).count();
    assert_eq!([of("default"), of("gold"), of("checkout")], [4, 2, 2], "{lines:#?}");
}

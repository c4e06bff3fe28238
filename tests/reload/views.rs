//! A reload, or an upgrade, that adds, alters or removes other numbers for a limit at one place.

use crate::support::*;

/// Five an hour, and at `/wide/` the entry of its chain.
fn file(entry: &str) -> String {
    format!(
        "limits: {{ five: {{ key: header:x-user, rate: 5/h }} }}\nlocations:\n  \
           - {{ path: /wide/, respond: {{ body: ok }}, limits: [{entry}] }}\n  \
           - {{ path: /, respond: {{ body: ok }}, limits: five }}\n"
    )
}

fn passed(gateway: &Gateway, path: &str) -> usize {
    (0..40).take_while(|_| gateway.ask(&get(path).header("x-user", "ann")).status == 200).count()
}

#[test]
fn counters_survive_a_reload_of_their_places() {
    let gateway = Gateway::start(&file("five"));
    assert_eq!(passed(&gateway, "/"), 5);
    let told = gateway.change(&file("{ use: five, burst: 12 }"));
    assert!(told.starts_with("reloaded: locations: changed /wide/\n"), "{told}");
    assert!(told.contains("\n  locations /wide/.limits[five]: new\n"), "{told}");
    assert_eq!((passed(&gateway, "/wide/"), passed(&gateway, "/")), (7, 0));
    gateway.change(&file("{ use: five, burst: 15 }"));
    assert_eq!(passed(&gateway, "/wide/"), 3);
    gateway.change(&file("{ use: five, burst: 7 }"));
    assert_eq!(passed(&gateway, "/wide/"), 0);
    // No more than the greatest burst counts as used: seven, and then five.
    gateway.change(&file("five"));
    gateway.change(&file("{ use: five, burst: 12 }"));
    assert_eq!(passed(&gateway, "/wide/"), 7);
    let refused = std::panic::catch_unwind(|| gateway.change(&file("{ use: fvie, burst: 12 }")));
    assert!(refused.is_err(), "a wrong file is refused, and the old one serves on");
    assert_eq!(passed(&gateway, "/wide/"), 0);
}

#[test]
fn counters_are_handed_over_with_their_places() {
    let mut gateway = Gateway::start(&file("{ use: five, burst: 12 }"));
    assert_eq!((passed(&gateway, "/"), passed(&gateway, "/wide/")), (5, 7));
    gateway.write(&file("{ use: five, burst: 20 }"));
    let _successor = gateway.upgrade();
    assert_eq!((passed(&gateway, "/"), passed(&gateway, "/wide/")), (0, 8));
}

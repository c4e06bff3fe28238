//! Files made to be expensive are rejected in less than a second and less than 100 MiB.

use std::fs::File;

use crate::support::*;

/// Processor seconds and kilobytes of written memory. The test build is not optimised: it may take three
/// times as long.
const BOUNDS: &str = "ulimit -t 3; ulimit -d 102400";

/// `check` rejects the file within the bounds.
#[track_caller]
fn assert_rejected_cheaply(name: &str, scratch: &Scratch, file: &str) {
    let finished = Run::default().under(BOUNDS).args(&["check", "-c", file]).finish(scratch.path());
    let end: String = finished.stderr.chars().take(300).collect();
    assert_eq!(finished.code, Some(3), "{name}: {end}");
}

#[test]
fn expensive_files_are_rejected_cheaply() {
    let scratch = Scratch::new();
    let mut bomb = String::from("a: &l0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..40 {
        bomb += &format!("b{level}: &l{level} [{}]\n", vec![format!("*l{}", level - 1); 10].join(","));
    }
    let nested = |open: &str, count: usize| format!("locations: {}", open.repeat(count));
    let fold: String = (0..300).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    let texts = [
        ("bomb", bomb),
        (
            "bomb-of-maps",
            "a: &a { b: 1 }\nb: &b { <<: *a, c: *a }\nc: { x: *b, y: *b, <<: [*a, *b] }\n".to_owned(),
        ),
        ("brackets", nested("[", 500_000)),
        ("braces", nested("{a: ", 200_000)),
        ("dashes", nested("- ", 200_000)),
        ("questions", nested("? ", 200_000)),
        ("indents", fold),
        ("anchors", (0..5_000).map(|n| format!("a{n}: &a{n} 1\n")).collect()),
        ("colons", format!("a: {}", ": ".repeat(200_000))),
        ("objects", format!("a: {}", "{b: [1, ".repeat(100_000))),
        ("self", "a: &a [*a, *a]\n".to_owned()),
        ("one-key", format!("{}: 1\n", "k".repeat(1_000_000))),
        ("one-value", format!("listen: {}\n", "v".repeat(1_000_000))),
        ("keys", (0..20_000).map(|n| format!("k{n}: 1\n")).collect()),
        ("locations", format!("locations:\n{}", "  - { pth: 1 }\n".repeat(5_000))),
        ("quote", format!("a: \"{}", "\\x41".repeat(200_000))),
        ("comment", "#".repeat((1 << 20) + 1)),
    ];
    for (name, text) in texts {
        let file = scratch.file(&format!("{name}.yaml"), &text);
        assert_rejected_cheaply(name, &scratch, &file.display().to_string());
    }
    let large = scratch.path().join("large.yaml");
    File::create(&large).and_then(|file| file.set_len(100_000_000)).expect("a sparse file");
    assert_rejected_cheaply("100 MB of zeros", &scratch, &large.display().to_string());
    assert_rejected_cheaply("a file without end", &scratch, "/dev/zero");
}

//! Expressions of locations: those of PCRE, in bytes, and those of the gateway.

use sluicegate_import::import_file;

use crate::exit_code::{ask, head};
use crate::support::nginx::Nginx;
use crate::support::{Gateway, Scratch};

/// Expressions with the same meaning for both; each refuses with 409.
const SAME: &[&str] = &[
    r"~ \.php$",
    "~ ^/a.b$",
    "~ ^/a..b$",
    r"~ \w\.x$",
    r"~ ^/\d$",
    r"~ ^/a\b",
    "~ ^/[^/]{2}$",
    "~ ^/.*y$",
    "~* ^/k$",
    "~* ^/[s]$",
    "~ é",
    "~ ^/(a|b$)",
    "~ ^/[$]$",
    r"~ \$$",
    "~ ",
    "~ ^/[[:alpha:]]+$",
    r"~ ^/a\Bb",
    "~ ^/a$|^/b$",
    r"~ ^/[\w]$",
    r"~ ^/\S\S$",
    "~  x",
    "~ /x .",
    "~ (?i)^/K$",
];

const PATHS: &[&str] = &[
    "/",
    "/x.php",
    "/x.php%0A",
    "/x.php%0A%0A",
    "/x.php%0Ay",
    "/a%C3%A9b",
    "/aab",
    "/aaab",
    "/%C3%A9.x",
    "/9",
    "/%D9%A3",
    "/a",
    "/a%C3%A9",
    "/ab",
    "/%C3%A9",
    "/%E2%84%AA",
    "/k",
    "/K%0A",
    "/s",
    "/%C5%BF",
    "/x%C3%A9y",
    "/y%0A",
    "/b",
    "/b%0A",
    "/$",
    "/x$",
    "/%0A",
    "/a%0A",
    "/%C3%A9%C3%A9",
    "/%20x",
    "/x%20y",
];

#[test]
fn expressions_match_bytes_and_end_before_a_line_break() {
    let conf = |listen: &str| -> String {
        let server = |(number, expression): (usize, &&str)| {
            let (mark, pattern) = expression.split_once(' ').expect("a mark");
            format!(
                "server {{ listen {listen}; server_name r{number}.test; location / {{ return 204; }}\n\
                 location {mark} \"{pattern}\" {{ return 409; }} }}\n"
            )
        };
        SAME.iter().enumerate().map(server).collect()
    };
    let scratch = Scratch::new();
    let file = format!("events {{}} http {{ {}\n }}", conf("127.0.0.1:0"));
    let imported = import_file(&scratch.file("nginx.conf", &file)).expect("an import");
    assert_eq!(imported.report.count_lost(), 0, "{}", imported.yaml);
    let gateway = Gateway::start(&format!("{}\nadmin: none\naccess_log: none\n", imported.yaml));
    let nginx = Nginx::start(&conf("@0@"), 1);
    let mut refused = 0;
    for (number, expression) in SAME.iter().enumerate() {
        for path in PATHS {
            let request = head("GET", path, &format!("r{number}.test"), "");
            let theirs = ask(nginx.addr(0), 1, &request);
            assert_eq!(ask(gateway.addr(), 1, &request), theirs, "{expression} {path}\n{}", imported.yaml);
            refused += usize::from(theirs == 409);
        }
    }
    assert!(refused > 100, "{refused}");
}

//! docs/service-redis.md: its file is served, and its snippets answer what the page says.

use std::process::Command;

use super::*;

/// Snippets of JavaScript and Go need packages from the network, so nothing runs them here.
const NOT_RUN: [&str; 4] = ["yaml", "js", "go", "json"];

#[test]
fn the_snippets_of_the_page_answer_what_it_says() {
    let page = include_str!("../../../docs/service-redis.md");
    let blocks: Vec<(&str, &str)> =
        page.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n')).collect();
    let file = blocks.iter().find(|(language, _)| *language == "yaml").expect("a file").1;
    let gateway = Gateway::start(&file.replace("127.0.0.1:6380", "127.0.0.1:0"));
    let port = service(&gateway).port().to_string();
    let mut said = blocks.iter().filter(|(language, _)| *language == "text");
    let mut executed = 0;
    for (language, text) in &blocks {
        let text = text.replace("6380", &port);
        let (program, expected) = match *language {
            "sh" => ("bash", said.next().expect("an answer").1),
            "python" => ("/usr/bin/python3", "go\n[0, 0]\n"),
            "text" => continue,
            other => {
                assert!(NOT_RUN.contains(&other), "nothing runs a snippet of {other}");
                continue;
            }
        };
        let output = Command::new(program).args(["-c", &text]).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        executed += 1;
    }
    assert_eq!(executed, 2);
    assert!(said.next().is_none(), "an answer without a call");
}

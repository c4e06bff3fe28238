//! docs/service.md: its file is served, and its snippets answer what the page says.

use std::process::Command;

use super::*;

/// The fenced blocks of the page: language and text.
fn blocks() -> Vec<(String, String)> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/service.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let mut found = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => open = Some((language.to_owned(), String::new())),
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some((_, text)), None) => *text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    found
}

#[test]
fn every_snippet_of_the_page_answers_what_it_says() {
    let blocks = blocks();
    let file = &blocks.iter().find(|(language, _)| language == "yaml").expect("a file").1;
    let gateway = Gateway::start(&file.replace("127.0.0.1:9902", "127.0.0.1:0"));
    let address = service(&gateway).to_string();
    let scratch = Scratch::new();
    scratch.file("gateway.yaml", file);
    let run_with = |program: &[&str], name: &str, text: &str| {
        let path = scratch.file(name, &text.replace("127.0.0.1:9902", &address));
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).arg(&path).env("no_proxy", "*").env("NO_PROXY", "*");
        let output = command.output().unwrap_or_else(|error| panic!("{program:?}: {error}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let run = |program: &str, name: &str, text: &str| run_with(&[program], name, text);
    let mut executed = 0;
    let mut expected = blocks.iter().filter(|(language, _)| language == "json");
    for (language, text) in &blocks {
        match language.as_str() {
            "sh" => {
                let answer: Value = serde_json::from_str(&run("bash", "call.sh", text)).expect("JSON");
                let said: Value = serde_json::from_str(&expected.next().expect("an answer").1).expect("JSON");
                assert_same(&answer, &said);
            }
            "python" => assert_eq!(run("python3", "check.py", text).trim(), "admit"),
            // Go is not among the tools of the tests.
            "go" if Command::new("go").arg("version").output().is_err() => {}
            "go" => assert_eq!(run_with(&["go", "run"], "check.go", text).trim(), "admit"),
            "java" => assert_eq!(run("java", "Check.java", text).trim(), "admit"),
            "js" => assert_eq!(run("node", "check.js", text).trim(), "admit"),
            "text" => {
                let (command, said) = text.split_once('\n').expect("a command and its output");
                let args: Vec<&str> =
                    command.strip_prefix("$ sluicegate ").expect("a command").split(' ').collect();
                let finished = Run::default().args(&args).finish(scratch.path());
                assert_eq!(finished.stdout, said, "{finished:?}");
            }
            "yaml" | "json" => continue,
            other => panic!("nothing runs a snippet of {other}"),
        }
        executed += 1;
    }
    assert_eq!(executed, 10);
    assert!(expected.next().is_none(), "an answer without a call");
}

/// Times may be a little shorter by now.
fn assert_same(answer: &Value, said: &Value) {
    let (answer, said) = (answer.as_object().expect("an object"), said.as_object().expect("an object"));
    assert_eq!(answer.keys().collect::<Vec<_>>(), said.keys().collect::<Vec<_>>());
    for (name, value) in said {
        match (name.ends_with("_ms"), value.as_u64(), answer[name].as_u64()) {
            (true, Some(said), Some(real)) => {
                assert!(real <= said && real + 10_000 >= said, "{name}: {real}, not {said}")
            }
            _ => assert_eq!(&answer[name], value, "{name}"),
        }
    }
}

//! `notify`: the receiver of events.

use sluicegate_config as config;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn read(notify: &str) -> Result<config::LoadedConfig, String> {
    let text = format!("notify: {notify}\nlocations: []\n");
    config::parse(&text, "tests/config/valid/x.yaml").map_err(|report| {
        let all =
            format!("{report:?}{}{}", report.render(true), serde_json::to_string(&report).expect("JSON"));
        assert!(!all.contains("hunter2"), "{all}");
        report.problems.iter().map(|problem| format!("{}\n", problem.message)).collect()
    })
}

#[test]
fn a_receiver_is_read() {
    assert!(read("none").expect("valid").config.notify.is_none());
    let ca = "tls: { ca: ../../../../../tests/keys/tls/ca.pem }";
    for (url, more, authority, roots) in [
        ("https://hooks.example.com/q?k=hunter2", ca, "hooks.example.com", Some(1)),
        ("http://127.0.0.1:8080/q", "", "127.0.0.1:8080", None),
    ] {
        let loaded = read(&format!("{{ url: \"{url}\", secret: {SECRET}, {more} }}")).expect("valid");
        let notify = loaded.config.notify.expect("a receiver");
        assert_eq!(notify.url.authority, authority);
        assert_eq!(notify.roots.as_ref().map(|roots| roots.len()), roots);
        assert!(!format!("{notify:?}").contains("MfKQ"), "{notify:?}");
    }
}

#[test]
fn wrong_receivers_are_refused() {
    let here = "url: \"http://127.0.0.1:8080/q\"";
    for (notify, messages) in [
        ("{}".to_owned(), "`url` is missing\n`secret` is missing\n"),
        (format!("{{ {here} }}"), "`secret` is missing\n"),
        (format!("{{ {here}, secret: whsec_hunter2 }}"), "no base64 follows `whsec_`\n"),
        (
            format!("{{ {here}, secret: hunter2-hunter2-hunter2 }}"),
            "the secret of signatures has fewer than 24 bytes\n",
        ),
        (
            format!("{{ {here}, secret: {SECRET}, tls: {{ ca: system }} }}"),
            "`tls` is for a URL with https://\n",
        ),
        (
            format!("{{ url: \"http://hooks.example.com/\", secret: {SECRET} }}"),
            "events are sent to other hosts over https:// alone\n",
        ),
        (
            format!(
                "{{ url: \"https://u:hunter2@hooks.example.com/\", secret: {SECRET}, tls: {{ ca: no.pem }} }}"
            ),
            "the URL has a user name, a fragment, characters that must be encoded, or is too long\n\
             the file `no.pem` does not exist\n",
        ),
        ("https://hooks.example.com/".to_owned(), "`notify` must be a mapping such as"),
        (format!("{{ {here}, secret: {SECRET}, secrets: hunter2 }}"), "unknown"),
    ] {
        let found = read(&notify).err().unwrap_or_default();
        assert!(found.contains(messages), "{notify}: {found}");
    }
}

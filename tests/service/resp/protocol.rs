//! The protocol: what is refused and closed, what is refused alone, and what client libraries send at connect.

use super::*;

/// What is no RESP is answered with an error, and then the connection closes.
#[test]
fn what_is_no_resp_is_refused_and_closed() {
    let gateway = start_resp("", "");
    let long = "x".repeat(70_000);
    for (sent, why) in [
        ("*x\r\n", "invalid multibulk length"),
        ("*+1\r\n$4\r\nPING\r\n", "invalid multibulk length"),
        ("*99999999999\r\n", "invalid multibulk length"),
        ("*99999999999999999999999999", "invalid multibulk length"),
        ("*1025\r\n", "invalid multibulk length"),
        ("*1\rPING", "invalid multibulk length"),
        ("*1\r\n:1\r\n", "expected '$'"),
        ("*1\r\nPING\r\n", "expected '$'"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1\r\n$x\r\n", "invalid bulk length"),
        ("*1\r\n$65537\r\n", "invalid bulk length"),
        ("*1\r\n$536870912\r\n", "invalid bulk length"),
        ("*1\r\n$4\r\nPINGxx", "end of an argument"),
        ("*1\r\n$3\r\nPING\r\n", "end of an argument"),
        ("PING \"a\r\n", "unbalanced quotes"),
        ("PING 'a\r\n", "unbalanced quotes"),
        ("PING \"a\"b\r\n", "unbalanced quotes"),
        ("POST / HTTP/1.1\r\nHost: a\r\n\r\nPING\r\n", "HTTP"),
        ("Host: a\r\nPING\r\n", "HTTP"),
        (&format!("PING {long}"), "64 KiB"),
        (&format!("PING {long}\r\n"), "64 KiB"),
        (&format!("*2\r\n$4\r\nECHO\r\n$65530\r\n{}\r\n", &long[..65_530]), "64 KiB"),
    ] {
        let mut peer = Peer::connect(service(&gateway));
        peer.send(sent);
        let shown = &sent[..sent.len().min(60)];
        match peer.try_reply() {
            Some(Reply::Error(error)) => {
                assert!(
                    error.starts_with("ERR Protocol error: ") && error.contains(why),
                    "{shown:?}: {error}"
                )
            }
            other => panic!("{shown:?}: {other:?}"),
        }
        peer.assert_closed();
    }
    assert_eq!(
        gateway.metric("sluicegate_service_calls_total", &["protocol=\"resp\"", "result=\"no_call\""]),
        22.0
    );
}

/// A command that cannot be run is answered with an error, and the next one is answered.
#[test]
fn a_command_that_cannot_run_is_refused_alone() {
    let gateway = start_resp("", "");
    let mut peer = Peer::connect(service(&gateway));
    for (words, error) in [
        ("GET a", "ERR unknown command 'GET'"),
        ("MULTI", "ERR unknown command 'MULTI'"),
        ("CONFIG GET save", "ERR unknown command 'CONFIG'"),
        ("CL.THROTTLEX a 1 1 1", "ERR unknown command 'CL.THROTTLEX'"),
        ("\"a\\r\\n-b\\x00\\xff\"", "ERR unknown command 'a??-b??'"),
        ("SELECT 1", "ERR DB index is out of range"),
        ("SELECT", "ERR wrong number of arguments for 'SELECT'"),
        ("ECHO", "ERR wrong number of arguments for 'ECHO'"),
        ("PING a b", "ERR wrong number of arguments for 'PING'"),
        ("AUTH", "ERR wrong number of arguments for 'AUTH'"),
        ("AUTH a", "ERR AUTH is not expected"),
        ("HELLO 4", "NOPROTO"),
        ("HELLO 3 SETNAME", "ERR syntax error"),
        ("HELLO 3 SETNAME \"a b\"", "ERR the name of a connection"),
        ("HELLO 3 AUTH a", "ERR syntax error"),
        ("CLIENT", "ERR unknown subcommand"),
        ("CLIENT KILL all", "ERR unknown subcommand of CLIENT, or wrong arguments of 'KILL'"),
        ("CLIENT SETNAME \"a b\"", "ERR the name of a connection"),
        ("COMMAND GETKEYS", "ERR unknown subcommand of COMMAND: 'GETKEYS'"),
    ] {
        peer.send(format!("{words}\r\n"));
        match peer.reply() {
            Reply::Error(text) => assert!(text.starts_with(error), "{words}: {text}"),
            other => panic!("{words}: {other:?}"),
        }
    }
    assert_eq!(peer.ask(&["PING"]), Reply::Simple("PONG".to_owned()));
    let long = "x".repeat(5_000);
    let Reply::Error(text) = peer.ask(&[&long]) else { panic!("an error") };
    assert!(text.len() < 200, "{text}");
}

#[test]
fn client_libraries_are_answered_when_they_connect() {
    let gateway = start_resp("", "");
    let mut peer = Peer::connect(service(&gateway));
    let bulk = |text: &str| Reply::Bulk(text.to_owned());
    let Reply::Array(hello) = peer.ask(&["hello", "2"]) else { panic!("version 2 has no maps") };
    assert_eq!((hello.len(), &hello[0], &hello[5]), (14, &bulk("server"), &Reply::Integer(2)));
    assert_eq!(peer.ask(&["CLIENT", "GETNAME"]), Reply::Null);
    for words in [
        &["CLIENT", "SETNAME", "app"][..],
        &["CLIENT", "SETINFO", "LIB-NAME", "x"],
        &["client", "setinfo", "lib-ver", "1"],
        &["CLIENT", "NO-EVICT", "ON"],
        &["CLIENT", "NO-TOUCH", "ON"],
        &["SELECT", "0"],
    ] {
        assert_eq!(peer.ask(words), ok(), "{words:?}");
    }
    assert_eq!(peer.ask(&["CLIENT", "GETNAME"]), bulk("app"));
    let Reply::Integer(id) = peer.ask(&["CLIENT", "ID"]) else { panic!("an id") };
    let Reply::Integer(other) = Peer::connect(service(&gateway)).ask(&["CLIENT", "ID"]) else {
        panic!("an id")
    };
    assert_ne!(id, other);
    let Reply::Map(hello) = peer.ask(&["HELLO", "3", "AUTH", "default", "any", "SETNAME", "b"]) else {
        panic!("version 3 has maps")
    };
    assert_eq!((hello.len(), &hello[5]), (14, &Reply::Integer(3)));
    assert_eq!(peer.ask(&["CLIENT", "GETNAME"]), bulk("b"));
    assert_eq!(peer.ask(&["COMMAND"]), Reply::Array(Vec::new()));
    assert_eq!(peer.ask(&["COMMAND", "DOCS"]), Reply::Map(Vec::new()));
    assert_eq!(peer.ask(&["COMMAND", "INFO", "get", "cl.throttle"]), Reply::Array(vec![Reply::Null; 2]));
    assert_eq!(peer.ask(&["COMMAND", "COUNT"]), Reply::Integer(12));
    assert!(matches!(peer.ask(&["INFO"]), Reply::Bulk(text) if text.contains("sluicegate_version:")));
    assert_eq!(peer.ask(&["ECHO", "a\r\nb"]), bulk("a\r\nb"));
    assert_eq!(peer.ask(&["PING", "x"]), bulk("x"));
    assert_eq!(peer.ask(&["RESET"]), Reply::Simple("RESET".to_owned()));
    assert_eq!(peer.ask(&["CLIENT", "GETNAME"]), Reply::Null);
    assert_eq!(peer.ask(&["QUIT"]), ok());
    peer.assert_closed();
}

#[test]
fn empty_commands_ask_for_nothing() {
    let gateway = start_resp("", "");
    let mut peer = Peer::connect(service(&gateway));
    peer.send("\r\n\n  \r\n*0\r\n*-1\r\nPING\n");
    assert_eq!(peer.reply(), Reply::Simple("PONG".to_owned()));
    peer.send("  ECHO  \"a b\\x41\\n\"  \r\necho 'it\\'s'\r\necho \"\"\r\n");
    for text in ["a bA\n", "it's", ""] {
        assert_eq!(peer.reply(), Reply::Bulk(text.to_owned()));
    }
}

/// Wherever the network cuts a pipeline, the replies are the same, in order.
#[test]
fn a_pipeline_may_be_cut_at_each_byte() {
    let gateway = start_resp("", "");
    let mut pipeline = array(&["ECHO", "one"]);
    pipeline.extend(b"ECHO \"two\"\r\n");
    pipeline.extend(array(&["CL.THROTTLE", "cut", "1000000", "1", "1000", "0"]));
    pipeline.extend(array(&["ECHO", ""]));
    let mut peer = Peer::connect(service(&gateway));
    for cut in 0..=pipeline.len() {
        peer.send(&pipeline[..cut]);
        std::thread::sleep(ms(1));
        peer.send(&pipeline[cut..]);
        assert_eq!(peer.reply(), Reply::Bulk("one".to_owned()), "cut at {cut}");
        assert_eq!(peer.reply(), Reply::Bulk("two".to_owned()), "cut at {cut}");
        assert_eq!(numbers(&peer.reply()), [0, 1_000_001, 1_000_001, -1, 0], "cut at {cut}");
        assert_eq!(peer.reply(), Reply::Bulk(String::new()), "cut at {cut}");
    }
}

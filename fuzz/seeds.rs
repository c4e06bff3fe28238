//! Writes the first inputs of every target to `fuzz/corpus`: the cases of tests/corpus and other files of the tests.
//! It has no dependencies, so that rustc alone builds it; it is run in the root of the repository.

#[allow(dead_code)] // Its random documents are not needed.
#[path = "../crates/base/src/json/tests/documents.rs"]
mod documents;
#[allow(dead_code)] // Only the bytes of a case are needed.
#[path = "../tests/corpus/table.rs"]
mod table;

use std::fs;
use std::path::Path;

/// Longer inputs slow every run down, and say little.
const SEED_MAX: usize = 8 * 1024;

const TABLES: [(&str, &str); 3] = [
    ("gunicorn", include_str!("../tests/corpus/gunicorn.txt")),
    ("llhttp", include_str!("../tests/corpus/llhttp.txt")),
    ("probe", include_str!("../tests/corpus/probe.txt")),
];

const RESPONSES: [&str; 8] = [
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
     5\r\nhello\r\nA;a=\"b\"\r\n, chunked!\r\n0\r\nx: y\r\n\r\nrest",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
    "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2, 2\r\n\r\nab",
    "HTTP/1.1 200 OK\r\n\r\nuntil the end",
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x01\x02",
    "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\nContent-Length: 3\r\n\r\n1\r\nx\r\n0\r\n\r\n",
];

const COMMANDS: [&str; 6] = [
    "*1\r\n$4\r\nPING\r\n",
    "*2\r\n$3\r\nGET\r\n$0\r\n\r\n*0\r\nPING \"a\\x41\" 'b\\''\r\n\r\n",
    "*6\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n$1\r\n1\r\n",
    "HELLO 3 AUTH a b\r\n",
    "*1025\r\n",
    "*-1\r\n$-1\r\n",
];

const HEADERS: [&[u8]; 6] = [
    b"PROXY TCP4 192.0.2.7 192.0.2.8 1 65535\r\nGET / HTTP/1.1\r\n",
    b"PROXY TCP6 2001:db8::1 ::ffff:192.0.2.7 1 2\r\n",
    b"PROXY UNKNOWN anything\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x07\xc0\x00\x02\x08\x00\x01\x00\x02",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x21\x00\x24\
      \x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\xff\xff\xc0\x00\x02\x07\0\x01\0\x02",
    b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00GET / HTTP/1.1\r\n",
];

fn write(target: &str, name: &str, bytes: &[u8]) {
    if bytes.len() > SEED_MAX {
        return;
    }
    let folder = Path::new("fuzz/corpus").join(target);
    fs::create_dir_all(&folder).expect("the folder of a target");
    fs::write(folder.join(name), bytes).expect("a seed");
}

/// The files of a folder that end so.
fn copy_files(target: &str, folder: &str, ending: &str) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder}: {error}")) {
        let path = entry.expect("a file").path();
        if path.extension().is_some_and(|extension| extension == ending) {
            let name = path.display().to_string().replace(['/', '.'], "-");
            write(target, &name, &fs::read(&path).expect("a file"));
        }
    }
}

/// A request of the corpora as a response: the same fields and body behind a status line.
fn respond(request: &[u8]) -> Vec<u8> {
    let behind_line = request.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    [b"HTTP/1.1 200 OK\r\n", &request[behind_line..]].concat()
}

fn main() {
    for (corpus, table) in TABLES {
        for (place, case) in table::read(table).iter().enumerate() {
            let name = format!("{corpus}-{place}");
            write("response", &name, &respond(&case.bytes));
            write("resp", &name, &case.bytes);
            write("proxy_header", &name, &case.bytes);
        }
    }
    let texts = [("json", documents::NASTY), ("response", &RESPONSES), ("resp", &COMMANDS)];
    for (target, texts) in texts {
        for (place, text) in texts.iter().enumerate() {
            write(target, &format!("text-{place}"), text.as_bytes());
        }
    }
    for (place, header) in HEADERS.iter().enumerate() {
        write("proxy_header", &format!("header-{place}"), header);
    }
    for folder in ["valid", "invalid", "warned"] {
        copy_files("config", &format!("crates/config/tests/config/{folder}"), "yaml");
    }
    copy_files("config", "examples", "yaml");
    for target in ["nginx_lexer", "nginx_import"] {
        copy_files(target, "crates/import/tests/import/cases", "conf");
    }
}

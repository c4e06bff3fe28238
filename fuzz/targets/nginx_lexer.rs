//! The words of an nginx configuration are the same once they are written in quotes.
//!
//! The lexer is private to its crate, so its own file is compiled here.

#![no_main]

#[path = "../../crates/import/src/nginx/lexer.rs"]
mod lexer;

use lexer::{ConfToken, TokenKind, read_tokens};
use libfuzzer_sys::fuzz_target;
pub use sluicegate_import::ImportedLine;

/// In place of the importer's own, which only the importer makes.
#[derive(Debug)]
pub struct ImportFault {
    at: ImportedLine,
    message: String,
}

impl ImportFault {
    fn new(at: &ImportedLine, message: impl Into<String>) -> ImportFault {
        ImportFault { at: at.clone(), message: message.into() }
    }
}

fn write_quoted(tokens: &[ConfToken]) -> String {
    let mut text = String::new();
    for ConfToken { kind, .. } in tokens {
        match kind {
            TokenKind::Word(word) => {
                text += &format!("\"{}\"\n", word.replace('\\', "\\\\").replace('"', "\\\""))
            }
            TokenKind::Semicolon => text.push(';'),
            TokenKind::Open => text.push('{'),
            TokenKind::Close => text.push('}'),
            TokenKind::Code => text += "{ return '}' -- }\n }",
        }
    }
    text
}

fuzz_target!(|text: &str| {
    let lines = 1 + text.matches('\n').count();
    let tokens = match read_tokens(text, "nginx.conf") {
        Ok(tokens) => tokens,
        Err(ImportFault { at, message }) => {
            assert!((1..=lines).contains(&at.line) && !message.is_empty(), "line {} of {lines}", at.line);
            return;
        }
    };
    assert!(tokens.is_sorted_by_key(|token| token.line));
    assert!(tokens.iter().all(|token| (1..=lines).contains(&token.line)));
    // Comments and other spaces say nothing; lines end with CRLF as well.
    let written = write_quoted(&tokens);
    let again = read_tokens(&written, "nginx.conf").expect("words in quotes are read");
    let kinds = |tokens: &[ConfToken]| tokens.iter().map(|token| token.kind.clone()).collect::<Vec<_>>();
    assert_eq!(kinds(&again), kinds(&tokens), "{written}");
});

//! Files of nginx as trees of statements, so that a part can be left out and the rest tried again.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug)]
pub enum Statement {
    /// Without the semicolon.
    Line(String),
    Block(String, Vec<Statement>),
    /// One `include` with a pattern, and the files that it finds.
    Include(String, Vec<(String, Vec<Statement>)>),
}

pub fn line(text: impl Into<String>) -> Statement {
    Statement::Line(text.into())
}

pub fn block(head: impl Into<String>, inside: Vec<Statement>) -> Statement {
    Statement::Block(head.into(), inside)
}

/// Without these, nginx would leave the folder or the ports of the test.
const KEPT: [&str; 7] =
    ["listen", "pid", "error_log", "events", "http", "client_body_temp_path", "include paths.conf"];

impl Statement {
    fn is_kept(&self) -> bool {
        let text = match self {
            Statement::Line(text) | Statement::Block(text, _) => text,
            Statement::Include(pattern, _) => &format!("include {pattern}"),
        };
        KEPT.iter().any(|word| text.starts_with(word))
    }

    /// The lists of statements inside.
    fn lists_mut(&mut self) -> Vec<&mut Vec<Statement>> {
        match self {
            Statement::Line(_) => Vec::new(),
            Statement::Block(_, inside) => vec![inside],
            Statement::Include(_, files) => files.iter_mut().map(|(_, inside)| inside).collect(),
        }
    }
}

/// A main file and everything that it includes.
#[derive(Clone, Debug)]
pub struct Conf(pub Vec<Statement>);

/// The places that the text names by `@WORD@`.
pub struct Places<'a> {
    pub dir: &'a Path,
    pub ports: [u16; 2],
    pub backend: u16,
}

impl Conf {
    /// Writes the files into the folder; returns the main one.
    pub fn write(&self, places: &Places<'_>) -> PathBuf {
        for (name, text) in self.files() {
            let path = places.dir.join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder can be made");
            let text = text
                .replace("@DIR@", &places.dir.display().to_string())
                .replace("@0@", &places.ports[0].to_string())
                .replace("@1@", &places.ports[1].to_string())
                .replace("@BACKEND@", &places.backend.to_string());
            std::fs::write(path, text).expect("the folder takes files");
        }
        places.dir.join("nginx.conf")
    }

    /// The files, the main one last.
    fn files(&self) -> Vec<(String, String)> {
        let mut files = vec![("htpasswd".to_owned(), "u:{PLAIN}pw\n".to_owned())];
        let mut main = String::new();
        render(&self.0, 0, &mut main, &mut files);
        files.push(("nginx.conf".to_owned(), main));
        files
    }

    /// All files in one text, the main one first.
    pub fn show(&self) -> String {
        let files = self.files();
        files.iter().rev().map(|(name, text)| format!("# --- {name}\n{text}")).collect()
    }

    /// Without the statements that begin with one of `words`.
    pub fn without(&self, words: &[&str]) -> Conf {
        let mut conf = self.clone();
        strike(&mut conf.0, words);
        conf
    }

    /// Without the statement at `place`, counted from the outside; `None` behind the last one.
    pub fn without_place(&self, place: usize) -> Option<Conf> {
        let (mut conf, mut left) = (self.clone(), place);
        remove_place(&mut conf.0, &mut left).then_some(conf)
    }
}

fn render(list: &[Statement], depth: usize, out: &mut String, files: &mut Vec<(String, String)>) {
    let indent = "    ".repeat(depth);
    for statement in list {
        let _ = match statement {
            Statement::Line(text) => writeln!(out, "{indent}{text};"),
            Statement::Block(head, inside) => {
                let _ = writeln!(out, "{indent}{head} {{");
                render(inside, depth + 1, out, files);
                writeln!(out, "{indent}}}")
            }
            Statement::Include(pattern, included) => {
                for (name, inside) in included {
                    let mut text = String::new();
                    render(inside, 0, &mut text, files);
                    files.push((name.clone(), text));
                }
                writeln!(out, "{indent}include {pattern};")
            }
        };
    }
}

fn strike(list: &mut Vec<Statement>, words: &[&str]) {
    list.retain(|statement| {
        !matches!(statement, Statement::Line(text) | Statement::Block(text, _) if words.iter().any(|word| text.starts_with(word)))
    });
    for statement in list {
        statement.lists_mut().into_iter().for_each(|inner| strike(inner, words));
    }
}

fn remove_place(list: &mut Vec<Statement>, left: &mut usize) -> bool {
    for at in 0..list.len() {
        if !list[at].is_kept() {
            if *left == 0 {
                list.remove(at);
                return true;
            }
            *left -= 1;
        }
        if list[at].lists_mut().into_iter().any(|inner| remove_place(inner, left)) {
            return true;
        }
    }
    false
}

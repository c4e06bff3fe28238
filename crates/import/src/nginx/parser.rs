//! Directives and blocks of an nginx configuration, with its includes in their places.

use std::borrow::Borrow;
use std::cell::{Cell, RefCell};
use std::iter::Peekable;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::vec::IntoIter;

use super::glob;
use super::lexer::{ConfToken, TokenKind, read_tokens};
use crate::source::FILE_BYTES_MAX;
use crate::{FindingKind, ImportFault, ImportReport, ImportedLine};
use sluicegate_base::file;

/// The report of an import, to which each directive adds its findings.
pub(super) type SharedReport = Rc<RefCell<ImportReport>>;

/// One directive; its number is unique in the configuration.
#[derive(Debug)]
pub(super) struct Directive {
    pub id: usize,
    pub name: String,
    pub args: Vec<String>,
    pub at: ImportedLine,
    pub block: Option<Vec<Directive>>,
    report: SharedReport,
    has_finding: Cell<bool>,
}

impl Directive {
    /// The directive as text, without its block.
    pub(super) fn text(&self) -> String {
        let words: Vec<&str> = std::iter::once(&self.name).chain(&self.args).map(String::as_str).collect();
        words.join(" ")
    }

    pub(super) fn children(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }

    /// The argument at `index`, or an empty text.
    pub(super) fn arg(&self, index: usize) -> &str {
        self.args.get(index).map_or("", String::as_str)
    }

    pub(super) fn fault(&self, message: impl Into<String>) -> ImportFault {
        ImportFault::new(&self.at, message)
    }

    pub(super) fn exact(&self, says: impl Into<String>) {
        self.tell(FindingKind::Exact, says);
    }

    pub(super) fn differs(&self, says: impl Into<String>) {
        self.tell(FindingKind::Difference, says);
    }

    pub(super) fn skips(&self, says: impl Into<String>) {
        self.tell(FindingKind::NotTranslated, says);
    }

    pub(super) fn loses(&self, says: impl Into<String>) {
        self.tell(FindingKind::Lost, says);
    }

    /// Its place has a check that the gateway cannot make.
    pub(super) fn closes(&self, why: &str) {
        self.tell(FindingKind::Closed, format!("answers 403: {why}"));
    }

    /// Exact, or with these differences.
    pub(super) fn becomes(&self, what: &str, differences: &[impl Borrow<str>]) {
        match differences {
            [] => self.exact(what),
            _ => self.differs(format!("{what}: {}", differences.join("; "))),
        }
    }

    pub(super) fn tell(&self, kind: FindingKind, says: impl Into<String>) {
        self.report.borrow_mut().add(kind, &self.at, &self.text(), says.into());
        self.mark();
    }

    /// A difference of something at its line that is not the directive itself.
    pub(super) fn differs_as(&self, what: &str, says: &str) {
        self.report.borrow_mut().differs(&self.at, what, says);
    }

    /// Marks it as one that has its finding.
    pub(super) fn mark(&self) {
        self.has_finding.set(true);
    }

    pub(super) fn is_told(&self) -> bool {
        self.has_finding.get()
    }
}

const DEPTH_MAX: usize = 32;
const INCLUDE_DEPTH_MAX: usize = 16;
const FILES_MAX: usize = 2_000;
const DIRECTIVES_MAX: usize = 200_000;

/// Files of types and parameters that come with nginx and neither limit nor deny.
const STOCK_FILES: &str = "mime.types fastcgi_params fastcgi.conf uwsgi_params scgi_params proxy_params koi-utf \
                           koi-win win-utf modules-enabled/*.conf";

/// Reads a file and everything that it includes.
pub(super) struct ConfParser {
    /// Includes with relative names start here.
    folder: PathBuf,
    count: usize,
    files: usize,
    bytes: u64,
    report: SharedReport,
}

/// A file while its directives are read.
struct OpenFile<'f> {
    tokens: Peekable<IntoIter<ConfToken>>,
    name: &'f str,
    /// The includes that lead to it.
    includes: usize,
}

impl OpenFile<'_> {
    fn line_of(&self, token: &ConfToken) -> ImportedLine {
        ImportedLine { file: self.name.to_owned(), line: token.line }
    }
}

impl ConfParser {
    fn new(folder: PathBuf, report: &SharedReport) -> ConfParser {
        ConfParser { folder, count: 0, files: 0, bytes: 0, report: report.clone() }
    }

    pub(super) fn read_file(path: &Path, report: &SharedReport) -> Result<Vec<Directive>, ImportFault> {
        let mut parser = ConfParser::new(path.parent().map(Path::to_path_buf).unwrap_or_default(), report);
        parser.read_included(path, &ImportedLine::start_of(path.display()), 0, 0)
    }

    fn read_included(
        &mut self,
        path: &Path,
        from: &ImportedLine,
        includes: usize,
        depth: usize,
    ) -> Result<Vec<Directive>, ImportFault> {
        let name = path.display().to_string();
        self.files += 1;
        if includes > INCLUDE_DEPTH_MAX || self.files > FILES_MAX {
            let message = format!("`{name}` is included too deeply, or includes too many files");
            return Err(ImportFault::new(from, message));
        }
        let bytes = file::read_capped(path, FILE_BYTES_MAX)
            .map_err(|why| ImportFault::new(from, format!("the file `{name}` {why}")))?;
        self.bytes += bytes.len() as u64;
        if self.bytes > FILE_BYTES_MAX {
            let message = format!("with `{name}`, the files are larger than {} MiB", FILE_BYTES_MAX >> 20);
            return Err(ImportFault::new(from, message));
        }
        let text = String::from_utf8(bytes)
            .map_err(|_| ImportFault::new(from, format!("the file `{name}` is not UTF-8 text")))?;
        self.read_tokens_of(&text, &name, includes, depth)
    }

    fn read_tokens_of(
        &mut self,
        text: &str,
        name: &str,
        includes: usize,
        depth: usize,
    ) -> Result<Vec<Directive>, ImportFault> {
        let tokens = read_tokens(text, name)?.into_iter().peekable();
        let mut file = OpenFile { tokens, name, includes };
        let found = self.read_block(&mut file, depth)?;
        match file.tokens.next() {
            None => Ok(found),
            Some(token) => Err(ImportFault::new(&file.line_of(&token), "unexpected `}`")),
        }
    }

    /// Reads a text with includes that are relative to the working folder.
    #[cfg(test)]
    pub(super) fn read_text(text: &str, name: &str) -> Result<Vec<Directive>, ImportFault> {
        ConfParser::new(PathBuf::new(), &SharedReport::default()).read_tokens_of(text, name, 0, 0)
    }

    /// The directives up to the end or a closing brace, which is left for the caller.
    fn read_block(&mut self, file: &mut OpenFile<'_>, depth: usize) -> Result<Vec<Directive>, ImportFault> {
        let mut found = Vec::new();
        while let Some(token) = file.tokens.next_if(|token| token.kind != TokenKind::Close) {
            let at = file.line_of(&token);
            let wrong = |message: &str| Err(ImportFault::new(&at, message));
            if depth > DEPTH_MAX {
                return wrong("the blocks are nested too deeply");
            }
            let mut words = Vec::new();
            let mut next = Some(token);
            while let Some(ConfToken { kind: TokenKind::Word(word), .. }) = next {
                words.push(word);
                next = file.tokens.next();
            }
            let mut block = None;
            match next.map(|token| token.kind) {
                _ if words.is_empty() => return wrong("a directive is missing here"),
                Some(TokenKind::Semicolon | TokenKind::Code) => {}
                Some(TokenKind::Open) => {
                    block = Some(self.read_block(file, depth + 1)?);
                    if file.tokens.next().is_none() {
                        return wrong(&format!("the block of `{}` is not closed", words[0]));
                    }
                }
                _ => return wrong(&format!("`{}` does not end with `;`", words[0])),
            }
            self.count += 1;
            if self.count > DIRECTIVES_MAX {
                return wrong("the configuration has too many directives");
            }
            let name = words.remove(0);
            let report = self.report.clone();
            let has_finding = Cell::new(false);
            let mut directive =
                Directive { id: self.count, name, args: words, at, block, report, has_finding };
            if directive.name == "include" && directive.block.is_none() {
                self.read_include(&mut directive, file.includes, depth, &mut found)?;
            }
            found.push(directive);
        }
        Ok(found)
    }

    /// Adds the directives in the files of an `include`.
    fn read_include(
        &mut self,
        directive: &mut Directive,
        includes: usize,
        depth: usize,
        found: &mut Vec<Directive>,
    ) -> Result<(), ImportFault> {
        let [pattern] = directive.args.as_slice() else {
            return Err(directive.fault("`include` takes one name"));
        };
        let full = self.folder.join(pattern);
        let is_stock = STOCK_FILES.split(' ').any(|name| full.ends_with(name));
        let files = match glob::is_pattern(pattern) {
            true => glob::find_files(&full).map_err(|why| directive.fault(why))?,
            false => vec![full.clone()],
        };
        // A pattern for nothing is told by its empty block.
        directive.block = files.is_empty().then(Vec::new);
        for file in files {
            if !file.exists() && is_stock {
                continue;
            }
            found.extend(self.read_included(&file, &directive.at, includes + 1, depth)?);
        }
        Ok(())
    }
}

/// Blocks of values, with lines that are no directives.
const VALUE_BLOCKS: [&str; 7] = ["types", "charset_map", "split_clients", "map", "geo", "match", "geoip2"];

/// Every directive of the configuration, those inside blocks too.
pub(super) fn visit_all<'d>(directives: &'d [Directive], visitor: &mut impl FnMut(&'d Directive)) {
    for directive in directives {
        visitor(directive);
        if !VALUE_BLOCKS.contains(&directive.name.as_str()) {
            visit_all(directive.children(), visitor);
        }
    }
}

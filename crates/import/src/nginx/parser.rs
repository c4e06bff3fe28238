//! Directives and blocks of an nginx configuration, with its includes in their places.

use std::path::{Path, PathBuf};

use super::glob;
use super::lexer::{ConfToken, TokenKind, read_tokens};
use crate::source::FILE_BYTES_MAX;
use crate::{ImportFault, ImportedLine};
use sluicegate_base::file;

/// One directive; its number is unique in the configuration.
#[derive(Debug)]
pub(super) struct Directive {
    pub id: usize,
    pub name: String,
    pub args: Vec<String>,
    pub at: ImportedLine,
    pub block: Option<Vec<Directive>>,
}

impl Directive {
    /// The directive as text, without its block.
    pub fn text(&self) -> String {
        let words: Vec<&str> = std::iter::once(&self.name).chain(&self.args).map(String::as_str).collect();
        words.join(" ")
    }

    pub fn children(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }

    /// The argument at `index`, or an empty text.
    pub fn arg(&self, index: usize) -> &str {
        self.args.get(index).map_or("", String::as_str)
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
}

impl ConfParser {
    pub fn read_file(path: &Path) -> Result<Vec<Directive>, ImportFault> {
        let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
        let mut parser = ConfParser { folder, count: 0, files: 0, bytes: 0 };
        let name = path.display().to_string();
        parser.read_included(path, &ImportedLine { file: name, line: 1 }, 0, 0)
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
            return Err(ImportFault::new(
                from,
                format!("`{name}` is included too deeply, or includes too many files"),
            ));
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
        let tokens = read_tokens(text, name)?;
        let mut place = 0;
        let found = self.read_block(&tokens, &mut place, name, includes, depth)?;
        match tokens.get(place) {
            None => Ok(found),
            Some(token) => {
                let at = ImportedLine { file: name.to_owned(), line: token.line };
                Err(ImportFault::new(&at, "unexpected `}`"))
            }
        }
    }

    /// Reads a text with includes that are relative to the working folder.
    #[cfg(test)]
    pub fn read_text(text: &str, name: &str) -> Result<Vec<Directive>, ImportFault> {
        ConfParser { folder: PathBuf::new(), count: 0, files: 0, bytes: 0 }.read_tokens_of(text, name, 0, 0)
    }

    /// The directives up to the end or a closing brace, which is left for the caller.
    fn read_block(
        &mut self,
        tokens: &[ConfToken],
        place: &mut usize,
        file: &str,
        includes: usize,
        depth: usize,
    ) -> Result<Vec<Directive>, ImportFault> {
        let mut found = Vec::new();
        while let Some(token) = tokens.get(*place) {
            let at = ImportedLine { file: file.to_owned(), line: token.line };
            if token.kind == TokenKind::Close {
                break;
            }
            if depth > DEPTH_MAX {
                return Err(ImportFault::new(&at, "the blocks are nested too deeply"));
            }
            let mut words = Vec::new();
            while let Some(ConfToken { kind: TokenKind::Word(word), .. }) = tokens.get(*place) {
                words.push(word.clone());
                *place += 1;
            }
            let mark = tokens.get(*place).map(|token| &token.kind);
            *place += 1;
            let mut block = None;
            match mark {
                _ if words.is_empty() => return Err(ImportFault::new(&at, "a directive is missing here")),
                Some(TokenKind::Semicolon | TokenKind::Code) => {}
                Some(TokenKind::Open) => {
                    block = Some(self.read_block(tokens, place, file, includes, depth + 1)?);
                    if tokens.get(*place).is_none() {
                        return Err(ImportFault::new(
                            &at,
                            format!("the block of `{}` is not closed", words[0]),
                        ));
                    }
                    *place += 1;
                }
                _ => return Err(ImportFault::new(&at, format!("`{}` does not end with `;`", words[0]))),
            }
            self.count += 1;
            if self.count > DIRECTIVES_MAX {
                return Err(ImportFault::new(&at, "the configuration has too many directives"));
            }
            let name = words.remove(0);
            let mut directive = Directive { id: self.count, name, args: words, at, block };
            if directive.name == "include" && directive.block.is_none() {
                self.read_include(&mut directive, includes, depth, &mut found)?;
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
            return Err(ImportFault::new(&directive.at, "`include` takes one name"));
        };
        let full = self.folder.join(pattern);
        let is_stock = STOCK_FILES.split(' ').any(|name| full.ends_with(name));
        let files = match glob::is_pattern(pattern) {
            true => glob::find_files(&full).map_err(|why| ImportFault::new(&directive.at, why))?,
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

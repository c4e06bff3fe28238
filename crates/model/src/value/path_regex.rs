//! A compiled regular expression of a location, with the literals that each of its matches begins or ends with.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use regex_automata::nfa::thompson::WhichCaptures;
use regex_automata::{Input, meta};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::literal::{ExtractKind, Extractor};
use regex_syntax::hir::{Hir, Look};

/// A pattern that compiles to a larger program is a mistake, and would slow every request.
const PROGRAM_MAX_BYTES: usize = 1 << 20;
/// The states of one expression that each worker keeps while it matches.
const CACHE_BYTES: usize = 1 << 18;
/// Alternatives of one expression, e.g. two for `\.(gif|jpg)$`; with more, only their common part is kept.
const LITERALS_MAX: usize = 64;
const LITERAL_MAX_BYTES: usize = 64;

/// A compiled regular expression; clones share it.
#[derive(Clone)]
pub struct PathRegex(Arc<CompiledRegex>);

struct CompiledRegex {
    pattern: String,
    /// Matches the empty text and no other.
    is_empty_alone: bool,
    program: meta::Regex,
    /// Matches bytes that are no UTF-8.
    takes_bytes: bool,
    prefixes: Option<Literals>,
    suffixes: Option<Literals>,
}

/// Every text that matches has one of them.
type Literals = Box<[Box<[u8]>]>;

impl PathRegex {
    /// # Errors
    /// The reason why the pattern cannot be compiled: "unclosed group".
    pub fn compile(pattern: &str, case_insensitive: bool) -> Result<PathRegex, String> {
        PathRegex::compile_or_locate(pattern, case_insensitive).map_err(|(reason, _)| reason)
    }

    /// # Errors
    /// The reason why the pattern cannot be compiled, and the bytes of the wrong part.
    pub fn compile_or_locate(
        pattern: &str,
        case_insensitive: bool,
    ) -> Result<PathRegex, (String, Option<Range<usize>>)> {
        PathRegex::compile_with(pattern, case_insensitive, WhichCaptures::None)
    }

    /// An expression for [`PathRegex::find_groups`].
    ///
    /// # Errors
    /// As [`PathRegex::compile_or_locate`].
    pub fn compile_with_groups(pattern: &str) -> Result<PathRegex, (String, Option<Range<usize>>)> {
        PathRegex::compile_with(pattern, false, WhichCaptures::All)
    }

    fn compile_with(
        pattern: &str,
        case_insensitive: bool,
        captures: WhichCaptures,
    ) -> Result<PathRegex, (String, Option<Range<usize>>)> {
        let mut parser = ParserBuilder::new();
        // `(?-u:.)` is one byte.
        let parsed = parser.utf8(false).case_insensitive(case_insensitive).build().parse(pattern);
        let hir = parsed.map_err(|error| describe_parse_error(&error))?;
        let options = meta::Config::new()
            .nfa_size_limit(Some(PROGRAM_MAX_BYTES))
            .hybrid_cache_capacity(CACHE_BYTES)
            .which_captures(captures);
        let program = meta::Builder::new().configure(options).build_from_hir(&hir);
        let program = program.map_err(|error| match error.size_limit() {
            Some(_) => ("it is too large".to_owned(), None),
            None => (error.to_string(), None),
        })?;
        let properties = hir.properties();
        Ok(PathRegex(Arc::new(CompiledRegex {
            pattern: format!("{}{pattern}", if case_insensitive { "(?i)" } else { "" }),
            program,
            is_empty_alone: properties.maximum_len() == Some(0)
                && properties.look_set_prefix().contains(Look::Start)
                && properties.look_set_suffix().contains(Look::End),
            takes_bytes: !properties.is_utf8(),
            prefixes: extract_literals(&hir, ExtractKind::Prefix),
            suffixes: extract_literals(&hir, ExtractKind::Suffix),
        })))
    }

    /// Bytes of `path` that are no UTF-8 match `(?-u:.)`; `lossy` is its text for expressions without such bytes.
    pub fn is_match(&self, path: &[u8], lossy: &str) -> bool {
        self.0.program.is_match(if self.0.takes_bytes { path } else { lossy.as_bytes() })
    }

    /// The parts of `path` that the whole expression and its groups 1 to 9 match, and nothing for a group that takes no
    /// part; `None` = it does not match. Only for expressions that are compiled with groups.
    pub fn find_groups<'p>(&self, path: &'p [u8]) -> Option<[&'p [u8]; 10]> {
        let lossy = String::from_utf8_lossy(path);
        let text = if self.0.takes_bytes { path } else { lossy.as_bytes() };
        let mut slots = [None; 20];
        self.0.program.search_slots(&Input::new(text), &mut slots)?;
        let is_same = text.len() == path.len();
        let place = |slot: usize| {
            let offset = slots[slot]?.get();
            Some(if is_same { offset } else { original_offset(path, offset) })
        };
        let group = |number: usize| path.get(place(2 * number)?..place(2 * number + 1)?);
        Some(std::array::from_fn(|number| group(number).unwrap_or_default()))
    }

    /// The number of groups, without the whole expression.
    pub fn group_count(&self) -> usize {
        self.0.program.captures_len().saturating_sub(1)
    }

    /// The expression as written, after `(?i)` if it ignores case.
    pub fn pattern(&self) -> &str {
        &self.0.pattern
    }

    /// True if it matches the empty text and no other.
    pub fn is_empty_alone(&self) -> bool {
        self.0.is_empty_alone
    }

    /// The literals that matching texts begin with; `None` = any.
    pub fn prefixes(&self) -> Option<&[Box<[u8]>]> {
        self.0.prefixes.as_deref()
    }

    /// The literals that matching texts end with; `None` = any.
    pub fn suffixes(&self) -> Option<&[Box<[u8]>]> {
        self.0.suffixes.as_deref()
    }

    /// Bytes, without the caches of the workers.
    pub fn memory_bytes(&self) -> usize {
        let literals = self.0.prefixes.iter().chain(&self.0.suffixes).flatten();
        self.0.program.memory_usage()
            + literals.map(|literal| literal.len() + size_of::<Box<[u8]>>()).sum::<usize>()
    }
}

impl fmt::Debug for PathRegex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PathRegex").field(&self.0.pattern).finish()
    }
}

/// The place in `path` of an offset into its lossy text, in which U+FFFD stands for each invalid sequence.
fn original_offset(path: &[u8], offset: usize) -> usize {
    let (mut original, mut lossy) = (0, 0);
    for chunk in path.utf8_chunks() {
        let valid = chunk.valid().len();
        if offset <= lossy + valid {
            return original + (offset - lossy);
        }
        lossy += valid + char::REPLACEMENT_CHARACTER.len_utf8();
        original += valid + chunk.invalid().len();
    }
    original
}

fn describe_parse_error(error: &regex_syntax::Error) -> (String, Option<Range<usize>>) {
    match error {
        regex_syntax::Error::Parse(error) => {
            (error.kind().to_string(), Some(error.span().start.offset..error.span().end.offset))
        }
        regex_syntax::Error::Translate(error) => {
            (error.kind().to_string(), Some(error.span().start.offset..error.span().end.offset))
        }
        other => (other.to_string(), None),
    }
}

/// The literals at the beginning or the end of every text that matches; `None` = not only literals can stand there.
fn extract_literals(hir: &Hir, kind: ExtractKind) -> Option<Literals> {
    let properties = hir.properties();
    let is_anchored = match kind {
        ExtractKind::Prefix => properties.look_set_prefix().contains(Look::Start),
        _ => properties.look_set_suffix().contains(Look::End),
    };
    if !is_anchored {
        return None;
    }
    let mut extractor = Extractor::new();
    extractor.kind(kind).limit_total(LITERALS_MAX).limit_literal_len(LITERAL_MAX_BYTES);
    let found = extractor.extract(hir);
    let mut literals: Vec<Box<[u8]>> = found.literals()?.iter().map(|one| one.as_bytes().into()).collect();
    literals.sort_unstable();
    literals.dedup();
    literals.iter().all(|literal| !literal.is_empty()).then(|| literals.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(literals: Option<&[Box<[u8]>]>) -> Vec<&str> {
        literals.map_or(vec!["any"], |all| all.iter().map(|one| std::str::from_utf8(one).unwrap()).collect())
    }

    #[test]
    fn literals_of_anchored_ends() {
        let rows: [(&str, bool, &[&str], &[&str]); 14] = [
            ("^/api/v1/[a-z]+/x$", false, &["/api/v1/"], &["/x"]),
            ("^/(a|bc)/", false, &["/a/", "/bc/"], &["any"]),
            (r"\.(gif|jpg)$", false, &["any"], &[".gif", ".jpg"]),
            (r"\.js$", true, &["any"], &[".JS", ".Js", ".jS", ".js", ".J\u{17f}", ".j\u{17f}"]),
            ("^/a|b$", false, &["any"], &["any"]),
            ("/a", false, &["any"], &["any"]),
            ("^", false, &["any"], &["any"]),
            ("^/a?b", false, &["/ab", "/b"], &["any"]),
            ("^/a*b", false, &["/a", "/b"], &["any"]),
            ("^.*/x$", false, &["any"], &["/x"]),
            ("(?m)^/x$", false, &["any"], &["any"]),
            ("(?i)^/x", false, &["/X", "/x"], &["any"]),
            ("(^/a|^/b)", false, &["/a", "/b"], &["any"]),
            ("^(|/a)", false, &["any"], &["any"]),
        ];
        for (pattern, case_insensitive, prefixes, suffixes) in rows {
            let regex = PathRegex::compile(pattern, case_insensitive).unwrap();
            let mut suffixes = suffixes.to_vec();
            suffixes.sort_unstable();
            assert_eq!(texts(regex.prefixes()), prefixes, "{pattern}");
            assert_eq!(texts(regex.suffixes()), suffixes, "{pattern}");
        }
    }

    #[test]
    fn an_alternative_too_many_leaves_the_common_part() {
        let all = |count: usize| (0..count).map(|n| format!("{n:03}")).collect::<Vec<_>>().join("|");
        let regex = PathRegex::compile(&format!("^/x/({})", all(LITERALS_MAX + 1)), false).unwrap();
        let prefixes = regex.prefixes().unwrap();
        assert!(prefixes.len() <= LITERALS_MAX && prefixes.iter().all(|one| one.starts_with(b"/x/")));
    }

    #[test]
    fn a_bad_pattern_has_a_reason() {
        assert_eq!(PathRegex::compile("(", false).unwrap_err(), "unclosed group");
        assert_eq!(PathRegex::compile("(x{1000}){1000}", false).unwrap_err(), "it is too large");
        assert!(PathRegex::compile("(?=x)", false).unwrap_err().contains("look-around"));
    }
}

//! Paths to values in JSON documents, compiled for a search of all of them at once.

use crate::json_pointer::{JsonPointer, POINTER_SEGMENTS_MAX};

/// The most paths of a set.
pub const PATHS_MAX: usize = 128;

/// Some of the paths of a [`JsonPaths`], by their numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathSet(pub(super) u128);

/// Paths to values, each known by its number: the first that is added has the number 0.
#[derive(Debug, Clone, Default)]
pub struct JsonPaths {
    /// The segments of all paths, by their place on the way.
    levels: Vec<PathLevel>,
    /// The paths that end after so many segments.
    ends: [PathSet; POINTER_SEGMENTS_MAX + 1],
    pub(super) all: PathSet,
    pub(super) texts: PathSet,
    length: usize,
}

/// The segments at one place of the way.
#[derive(Debug, Clone, Default)]
struct PathLevel {
    names: Vec<NamedSegment>,
    /// Lengths of the names as bits; the last stands for all longer ones.
    lengths: u64,
    /// The paths with a wildcard here.
    elements: PathSet,
}

#[derive(Debug, Clone)]
struct NamedSegment {
    name: Box<str>,
    signature: u64,
    /// The element that the name stands for in an array.
    index: Option<u64>,
    paths: PathSet,
}

// === impl JsonPaths ===

impl JsonPaths {
    /// Adds the way to a value, which a visitor receives. `None`: there are [`PATHS_MAX`] paths.
    pub fn add_pointer(&mut self, pointer: &JsonPointer) -> Option<usize> {
        self.add(pointer.segments().iter().map(|segment| Some(segment.as_str())))
    }

    /// Adds the way to a member by the names of members, as `usage/input_tokens`; `*` stands for any element of an
    /// array, as in `choices/*/delta/content`.
    pub fn add_member(&mut self, way: &str) -> Option<usize> {
        self.add(way.split('/').map(|segment| Some(segment).filter(|segment| *segment != "*")))
    }

    /// Adds the way to texts; a visitor receives only their lengths.
    pub fn add_text(&mut self, way: &str) -> Option<usize> {
        let path = self.add_member(way)?;
        self.texts.0 |= 1 << path;
        Some(path)
    }

    /// Segments without a name are wildcards.
    fn add<'a>(&mut self, way: impl Iterator<Item = Option<&'a str>>) -> Option<usize> {
        let path = self.length;
        let segments: Vec<Option<&str>> = way.collect();
        if path == PATHS_MAX || segments.len() > POINTER_SEGMENTS_MAX {
            return None;
        }
        let bit = 1 << path;
        self.levels.resize_with(self.levels.len().max(segments.len()), PathLevel::default);
        for (level, segment) in self.levels.iter_mut().zip(&segments) {
            match segment {
                Some(name) => level.add_name(name, bit),
                None => level.elements.0 |= bit,
            }
        }
        self.ends[segments.len()].0 |= bit;
        self.all.0 |= bit;
        self.length += 1;
        Some(path)
    }

    /// The number of different pointers.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if there is no pointer, so that nothing is read.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The paths that end after so many segments.
    pub(super) fn ends(&self, segments: usize) -> PathSet {
        self.ends.get(segments).copied().unwrap_or_default()
    }

    /// The paths that lead through the member `name` at this place.
    pub(super) fn find_member(&self, place: usize, name: &[u8], live: PathSet) -> PathSet {
        let Some(level) = self.levels.get(place) else { return PathSet::default() };
        if level.lengths & length_bit(name.len()) == 0 {
            return PathSet::default();
        }
        let signature = sign_name(name);
        let mut alike = level.names.iter().filter(|segment| segment.signature == signature);
        let same = alike.find(|segment| segment.name.as_bytes() == name);
        PathSet(same.map_or(0, |segment| segment.paths.0) & live.0)
    }

    /// The paths that lead through the element `index` at this place: by a wildcard, or by its number.
    pub(super) fn find_element(&self, place: usize, index: u64, live: PathSet) -> PathSet {
        let Some(level) = self.levels.get(place) else { return PathSet::default() };
        let same = level.names.iter().filter(|segment| segment.index == Some(index));
        PathSet(same.fold(level.elements.0, |paths, segment| paths | segment.paths.0) & live.0)
    }
}

// === impl PathLevel ===

impl PathLevel {
    fn add_name(&mut self, name: &str, bit: u128) {
        self.lengths |= length_bit(name.len());
        match self.names.iter_mut().find(|segment| &*segment.name == name) {
            Some(segment) => segment.paths.0 |= bit,
            None => {
                let index = parse_index(name);
                let signature = sign_name(name.as_bytes());
                self.names.push(NamedSegment { name: name.into(), signature, index, paths: PathSet(bit) });
            }
        }
    }
}

fn length_bit(length: usize) -> u64 {
    1 << length.min(63)
}

/// Length and ends of a name: of names that differ, most differ here.
fn sign_name(name: &[u8]) -> u64 {
    let (first, last) = (name.first().copied().unwrap_or(0), name.last().copied().unwrap_or(0));
    (name.len() as u64) << 16 | u64::from(first) << 8 | u64::from(last)
}

/// The index of an element (RFC 6901): digits, without a zero in front.
fn parse_index(name: &str) -> Option<u64> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_digit()) && (name == "0" || !name.starts_with('0'));
    name.parse().ok().filter(|_| is_plain)
}

// === impl PathSet ===

impl PathSet {
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True if the path of this number is among them.
    pub fn contains(self, path: usize) -> bool {
        path < PATHS_MAX && self.0 >> path & 1 == 1
    }

    /// The numbers of the paths.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let path = (left != 0).then_some(left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(path)
        })
    }

    /// Adds all paths of `other`.
    pub fn insert(&mut self, other: PathSet) {
        self.0 |= other.0;
    }

    /// Takes all paths of `other` out.
    pub fn remove(&mut self, other: PathSet) {
        self.0 &= !other.0;
    }
}

//! The state that an upgrade hands over beside sockets and counters: sections, each with a name and a version. An
//! unknown section or version is skipped, so that processes of different releases understand each other.
//!
//! File format, per section: the lengths of name and content, and the version, each a little-endian u32; then name and
//! content.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use serde::de::DeserializeOwned;

use sluicegate_base::clock::Now;
use sluicegate_proxy::gateway::Gateway;

/// The most bytes read of a file.
const BYTES_MAX: u64 = 64 << 20;

/// [`SavedNumbers`](sluicegate_proxy::gateway::SavedNumbers) of limits and bans.
pub(crate) const NUMBERS: (&str, u32) = ("numbers", 1);
/// A list of [`SavedServer`](sluicegate_http::upstream::SavedServer).
pub(crate) const SERVERS: (&str, u32) = ("servers", 1);
/// [`StoreHandover`](sluicegate_store::StoreHandover): the state of shared limits.
pub(crate) const STORE: (&str, u32) = ("store", 1);
/// [`SavedHistory`](crate::operate::history::SavedHistory) of the traffic.
pub(crate) const HISTORY: (&str, u32) = ("history", 1);
/// [`SavedOperatorState`](sluicegate_proxy::gateway::SavedOperatorState): bans and grants.
pub(crate) const OPERATORS: (&str, u32) = ("operators", 1);

/// All sections of one process.
#[derive(Debug, Default)]
pub(crate) struct HandoverSections(Vec<HandoverSection>);

/// A name, its version and the content.
type HandoverSection = (String, u32, Vec<u8>);

impl HandoverSections {
    /// Collects the state of `gateway`, which charges the store nothing from now on. `history` is a section as JSON.
    ///
    /// # Errors
    /// The state cannot be serialized.
    pub(crate) fn from_gateway(gateway: &Gateway, history: Vec<u8>) -> io::Result<HandoverSections> {
        let mut sections = HandoverSections::default();
        sections.add_section(STORE, &gateway.known_store())?;
        sections.add_section(NUMBERS, &gateway.save_limit_params())?;
        sections.add_section(SERVERS, &gateway.known_servers())?;
        sections.add_section(OPERATORS, &gateway.save_operator_state(Now::read_clock()))?;
        sections.0.push((HISTORY.0.to_owned(), HISTORY.1, history));
        Ok(sections)
    }

    fn add_section(&mut self, (name, version): (&str, u32), content: &impl Serialize) -> io::Result<()> {
        let content = serde_json::to_vec(content)?;
        self.0.push((name.to_owned(), version, content));
        Ok(())
    }

    /// `None` = the section is missing, has another version only, or is garbled, which is logged.
    pub(crate) fn parse_section<T: DeserializeOwned>(&self, (name, version): (&str, u32)) -> Option<T> {
        let (_, _, content) = self.0.iter().find(|(one, own, _)| one == name && *own == version)?;
        let read = serde_json::from_slice(content);
        read.inspect_err(|error| tracing::warn!(section = name, %error, "the hand-over cannot be read")).ok()
    }

    /// Writes the sections into memory, for another process.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn write_memfd(&self) -> io::Result<File> {
        let mut bytes = Vec::new();
        for (name, version, content) in &self.0 {
            bytes.extend((name.len() as u32).to_le_bytes());
            bytes.extend((content.len() as u32).to_le_bytes());
            bytes.extend(version.to_le_bytes());
            bytes.extend(name.as_bytes());
            bytes.extend(content);
        }
        let mut file = File::from(memfd_create("sections", MemfdFlags::CLOEXEC)?);
        file.write_all(&bytes)?;
        Ok(file)
    }

    /// Reads the sections that another process wrote.
    ///
    /// # Errors
    /// The file cannot be read; a truncated file yields the sections before the cut.
    pub(crate) fn read_memfd(mut file: File) -> io::Result<HandoverSections> {
        file.seek(SeekFrom::Start(0))?;
        let mut bytes = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut bytes)?;
        let mut rest = bytes.as_slice();
        Ok(HandoverSections(std::iter::from_fn(|| split_section(&mut rest)).collect()))
    }
}

fn split_section(bytes: &mut &[u8]) -> Option<HandoverSection> {
    let [name, content, version] = [take_u32(bytes)?, take_u32(bytes)?, take_u32(bytes)?];
    let (name, rest) = bytes.split_at_checked(name as usize)?;
    let (content, rest) = rest.split_at_checked(content as usize)?;
    *bytes = rest;
    Some((String::from_utf8_lossy(name).into_owned(), version, content.to_vec()))
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*head))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_sections_are_skipped() {
        let mut sections = HandoverSections::default();
        for (name, version) in [("colours", 1), ("numbers", 2), ("servers", 1)] {
            sections.add_section((name, version), &vec![7; 3]).unwrap();
        }
        let read = HandoverSections::read_memfd(sections.write_memfd().unwrap()).unwrap();
        assert_eq!(read.parse_section(("servers", 1)), Some(vec![7; 3]));
        assert_eq!(read.parse_section::<Vec<u32>>(("numbers", 1)), None);
        assert_eq!(read.parse_section::<Vec<u32>>(("redis", 1)), None);
        assert_eq!(read.parse_section::<String>(("servers", 1)), None, "garbled");
    }

    #[test]
    fn a_truncated_file_has_its_whole_sections() {
        let mut sections = HandoverSections::default();
        sections.add_section(("a", 1), &"first").unwrap();
        sections.add_section(("b", 1), &"second").unwrap();
        let file = sections.write_memfd().unwrap();
        let length = file.metadata().unwrap().len();
        for cut in 0..length {
            let copy = sections.write_memfd().unwrap();
            copy.set_len(cut).unwrap();
            let read = HandoverSections::read_memfd(copy).unwrap();
            assert!(read.0.len() <= 1 && read.parse_section::<String>(("b", 1)).is_none(), "{cut}");
        }
        assert_eq!(HandoverSections::read_memfd(file).unwrap().0.len(), 2);
    }
}

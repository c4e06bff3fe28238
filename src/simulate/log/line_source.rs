//! The lines of one log: a file or stdin, plain or packed by gzip, which is known by its first bytes.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

use sluicegate_base::file::open_regular;

/// Longer lines are not read; the gateway writes far shorter ones.
const LINE_MAX: u64 = 64 * 1024;
/// A file without an end of line for so many bytes is no log.
const PASSED_OVER_MAX: u64 = 64 << 20;
/// The most bytes of one log, unpacked: 1 TiB. An endless one must end.
const LOG_MAX: u64 = 1 << 40;
const BUFFER: usize = 256 * 1024;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The lines of one log.
pub struct LineSource {
    reader: Box<dyn BufRead>,
    /// The name of the log in messages: its path, or `stdin`.
    pub name: String,
    /// The number of the last line that was read, from 1.
    pub line_number: u64,
    bytes_read: u64,
}

/// Bytes of the files of all logs: read so far, and in total.
#[derive(Debug, Clone, Default)]
pub struct LogBytes {
    read: Rc<Cell<u64>>,
    total: Rc<Cell<u64>>,
}

/// The outcome of reading one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextLine {
    /// A line, perhaps empty.
    Line,
    /// A line longer than any of a log may be, which was passed over.
    TooLong,
    /// The end of the log.
    End,
}

struct CountedRead<R> {
    inner: R,
    bytes: LogBytes,
}

impl<R: Read> Read for CountedRead<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.bytes.read.set(self.bytes.read.get() + count as u64);
        Ok(count)
    }
}

impl LogBytes {
    /// The share that was read, from 0 to 1; `None` where the size is not known, as on stdin.
    pub fn share(&self) -> Option<f64> {
        let total = self.total.get();
        (total > 0).then(|| (self.read.get() as f64 / total as f64).min(1.0))
    }

    /// The bytes that were read.
    pub fn read(&self) -> u64 {
        self.read.get()
    }
}

impl LineSource {
    /// Opens the regular file, or stdin for `-`.
    ///
    /// # Errors
    /// It cannot be opened or read.
    pub fn open(path: &Path, bytes: &LogBytes) -> io::Result<LineSource> {
        if path == Path::new("-") {
            return LineSource::from_reader(io::stdin().lock(), "stdin", bytes);
        }
        let file = open_regular(path)?;
        bytes.total.set(bytes.total.get() + file.metadata()?.len());
        LineSource::from_reader(file, &path.display().to_string(), bytes)
    }

    /// The lines of a reader.
    ///
    /// # Errors
    /// Its first bytes cannot be read.
    pub fn from_reader(reader: impl Read + 'static, name: &str, bytes: &LogBytes) -> io::Result<LineSource> {
        let mut plain = BufReader::with_capacity(BUFFER, CountedRead { inner: reader, bytes: bytes.clone() });
        let is_packed = plain.fill_buf()?.starts_with(&GZIP_MAGIC);
        let reader: Box<dyn BufRead> = match is_packed {
            true => Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(plain))),
            false => Box::new(plain),
        };
        Ok(LineSource { reader, name: name.to_owned(), line_number: 0, bytes_read: 0 })
    }

    /// Reads the next line into `line`, without its end.
    ///
    /// # Errors
    /// The log cannot be read any further, because its gzip is broken or cut for example.
    pub fn read_line(&mut self, line: &mut Vec<u8>) -> io::Result<NextLine> {
        line.clear();
        let mut length = (&mut self.reader).take(LINE_MAX + 1).read_until(b'\n', line)? as u64;
        let has_end = line.pop_if(|byte| *byte == b'\n').is_some();
        let is_too_long = line.len() as u64 > LINE_MAX;
        if is_too_long {
            length += (&mut self.reader).take(PASSED_OVER_MAX).skip_until(b'\n')? as u64;
        }
        self.bytes_read += length;
        if length > PASSED_OVER_MAX || self.bytes_read > LOG_MAX {
            let why = "a line is longer than 64 MiB, or the log than 1 TiB";
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        if length == 0 {
            return Ok(NextLine::End);
        }
        self.line_number += 1;
        if has_end {
            line.pop_if(|byte| *byte == b'\r');
        }
        Ok(if is_too_long { NextLine::TooLong } else { NextLine::Line })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn lines(bytes: Vec<u8>) -> io::Result<Vec<String>> {
        let mut source = LineSource::from_reader(io::Cursor::new(bytes), "x", &LogBytes::default())?;
        let (mut line, mut all) = (Vec::new(), Vec::new());
        loop {
            match source.read_line(&mut line)? {
                NextLine::End => return Ok(all),
                NextLine::Line => all.push(String::from_utf8_lossy(&line).into_owned()),
                NextLine::TooLong => all.push("too long".to_owned()),
            }
        }
    }

    fn packed(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_cut_gzip_is_an_error() {
        let noise: Vec<u8> = (0..50_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let whole = packed(&noise);
        assert!(lines(whole.clone()).is_ok());
        assert!(lines(whole[..whole.len() / 2].to_vec()).is_err());
        assert!(lines(GZIP_MAGIC.to_vec()).is_err());
    }

    #[test]
    fn lines_end_with_the_log_and_long_ones_are_passed_over() {
        assert_eq!(lines(Vec::new()).unwrap(), [""; 0]);
        assert_eq!(lines(b"a\r\n\nb".to_vec()).unwrap(), ["a", "", "b"]);
        let mut long = vec![b'x'; LINE_MAX as usize + 1];
        long.extend_from_slice(b"\nc\n");
        assert_eq!(lines(long).unwrap(), ["too long", "c"]);
    }

    #[test]
    fn several_packed_parts_are_one_log() {
        let both = [packed(b"a\n"), packed(b"b\n")].concat();
        assert_eq!(lines(both).unwrap(), ["a", "b"]);
    }
}

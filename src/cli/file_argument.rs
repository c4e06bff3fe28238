//! The file of a command: by `-c FILE`, as an argument, or from stdin.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{CommandFault, usage};
use sluicegate_config::{self as config, LoadedConfig};
use sluicegate_model::diagnostics::problem::ValueError;
use sluicegate_model::{ProblemReport, codes};

const DEFAULT_FILE: &str = "gateway.yaml";
/// The name that stands for stdin.
const STDIN: &str = "-";
/// Stands for stdin in messages.
const STDIN_NAME: &str = "stdin";

/// The place of a command's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ConfigInput {
    File(PathBuf),
    Stdin,
}

impl ConfigInput {
    /// The input that `-c FILE` and the argument FILE name, if not both do.
    pub(super) fn choose(
        option: Option<PathBuf>,
        argument: Option<PathBuf>,
    ) -> Result<ConfigInput, CommandFault> {
        let path = match (option, argument) {
            (Some(_), Some(_)) => return Err(usage("the file is given twice: by -c and as an argument")),
            (one, other) => one.or(other).unwrap_or_else(|| PathBuf::from(DEFAULT_FILE)),
        };
        Ok(if path == Path::new(STDIN) { ConfigInput::Stdin } else { ConfigInput::File(path) })
    }

    /// The path of the file, for a command that cannot use stdin; the error names `why`.
    pub(super) fn into_file(self, verb: &str, why: &str) -> Result<PathBuf, CommandFault> {
        match self {
            ConfigInput::File(path) => Ok(path),
            ConfigInput::Stdin => {
                Err(usage(format!("`{verb}` cannot use stdin: {why}; name a file with -c FILE")))
            }
        }
    }

    pub(super) fn display_name(&self) -> String {
        match self {
            ConfigInput::File(path) => path.display().to_string(),
            ConfigInput::Stdin => STDIN_NAME.to_owned(),
        }
    }

    /// Reads and checks the configuration.
    pub(super) fn load(&self) -> Result<LoadedConfig, ProblemReport> {
        match self {
            ConfigInput::File(path) => config::load(path),
            ConfigInput::Stdin => {
                let unreadable = |why: String| {
                    ProblemReport::for_file(STDIN_NAME, ValueError::new(codes::UNREADABLE, why))
                };
                let text = read_text(io::stdin().lock()).map_err(unreadable)?;
                config::parse(&text, STDIN_NAME)
            }
        }
    }
}

/// The text of stdin, which may be as long as a file.
fn read_text(stdin: impl Read) -> Result<String, String> {
    let mut bytes = Vec::new();
    stdin
        .take(config::FILE_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("stdin cannot be read: {error}"))?;
    if bytes.len() as u64 > config::FILE_MAX {
        return Err(format!("stdin has more than {} bytes", config::FILE_MAX));
    }
    String::from_utf8(bytes).map_err(|_| "stdin is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_named_once() {
        let path = |text: &str| Some(PathBuf::from(text));
        let file = |text: &str| Ok(ConfigInput::File(PathBuf::from(text)));
        let choose = |option, argument| ConfigInput::choose(option, argument).map_err(|fault| fault.text);
        assert_eq!(choose(None, None), file("gateway.yaml"));
        assert_eq!(choose(path("a"), None), file("a"));
        assert_eq!(choose(None, path("b")), file("b"));
        assert_eq!(choose(None, path("-")), Ok(ConfigInput::Stdin));
        assert_eq!(choose(path("./-"), None), file("./-"));
        assert!(choose(path("a"), path("b")).is_err());
    }

    #[test]
    fn stdin_is_bounded_and_text() {
        assert_eq!(read_text(&b"listen: 1\n"[..]).as_deref(), Ok("listen: 1\n"));
        assert!(read_text(&b"\xff"[..]).unwrap_err().contains("UTF-8"));
        assert!(read_text(io::repeat(b'x')).unwrap_err().contains("more than 1048576 bytes"));
    }
}

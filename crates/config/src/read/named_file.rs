//! Loads files that the configuration names, and that are read again when they change.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::schema::field::Field;
use crate::schema::kinds::Special;
use crate::yaml::field_reader::FieldReader;
use sluicegate_base::file::{self, FileContent, NamedFile, ParseFile};
use sluicegate_model::value::words::parse_or_none;
use sluicegate_model::{ValueError, codes};

/// Loads a named file; `None` after an error, `Some(None)` for `none`.
pub(crate) fn read_named_file<T: FileContent>(
    fields: &FieldReader<'_>,
    field: &Field<Special>,
    parse: ParseFile<T>,
) -> Option<Option<Arc<NamedFile<T>>>> {
    let Some(value) = fields.find(field) else { return Some(None) };
    let (name, folder) = (field.name, value.folder());
    value.parse_with(parse_or_none(|text| {
        if text.is_empty() || text.contains('\0') {
            return Err(ValueError::new(codes::UNREADABLE, format!("`{name}` names no file")));
        }
        if text.starts_with("https://") || text.starts_with("http://") {
            let help = "save it to a file; a file that changes is read again";
            let message = format!("`{text}` is a URL, and `{name}` names a file");
            return Err(ValueError::new(codes::UNREADABLE, message).with_help(help));
        }
        let path: PathBuf = folder.join(text);
        NamedFile::load_file(path, parse).map(Arc::new).map_err(|reason| {
            let help = T::suggest_content(&reason, text);
            let help = help.unwrap_or_else(|| file::explain_path(&folder, Path::new(text)));
            ValueError::new(codes::UNREADABLE, format!("the file `{text}` {reason}")).with_help(help)
        })
    }))
}

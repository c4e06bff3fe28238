//! `GET /` and `GET /page/{file}`: the page for operators, its style and its modules. They hold no data: the
//! modules ask the other endpoints, with a token if they need one.

use bytes::Bytes;
use http::header::{CONTENT_SECURITY_POLICY, REFERRER_POLICY};
use http::{HeaderValue, StatusCode};

use super::answer::{AdminError, Answer};
use super::endpoint::{AdminRequest, Answered, Parameter, ParameterKind};

pub(super) const HTML: &str = "text/html; charset=utf-8";
pub(super) const CSS: &str = "text/css; charset=utf-8";
pub(super) const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

pub(super) const FILE: Parameter =
    Parameter::in_path("file", ParameterKind::Text, "main.js", "The name of the file.");

const PAGE: &str = include_str!("page/index.html");

/// Only files of this listener work in the page, as their types say (`nosniff`), and it talks to no other.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; \
                      require-trusted-types-for 'script'; frame-ancestors 'none'";

macro_rules! page_files {
    ($($name:literal),*) => {
        /// The files with their contents.
        const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("page/", $name)))),*];
    };
}

page_files!(
    "page.css",
    "main.js",
    "actions.js",
    "api.js",
    "assess.js",
    "bans.js",
    "chart.js",
    "dialog.js",
    "dom.js",
    "explain.js",
    "format.js",
    "gateway.js",
    "limits.js",
    "overview.js",
    "refusals.js",
    "servers.js",
    "table.js",
    "timeline.js"
);

pub(super) async fn show_page(_: AdminRequest) -> Answered {
    let headers = vec![
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    ];
    Ok(Answer::fixed(HTML, Bytes::from_static(PAGE.as_bytes())).with_headers(headers))
}

pub(super) async fn show_page_file(request: AdminRequest) -> Answered {
    let name = request.path_value("file");
    let found = FILES.iter().find(|(known, _)| *known == name);
    let (name, content) =
        found.ok_or_else(|| AdminError::new(StatusCode::NOT_FOUND, "the page has no such file"))?;
    let kind = if name.ends_with(".css") { CSS } else { JAVASCRIPT };
    Ok(Answer::fixed(kind, Bytes::from_static(content.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_safe() {
        let all: Vec<&str> = FILES.iter().map(|(_, content)| *content).chain([PAGE]).collect();
        let size: usize = all.iter().map(|text| text.len()).sum();
        assert!(size <= 91 * 1024, "{size}");
        for forbidden in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "http:",
            "https:",
            "style=",
            "import(",
            "url(",
        ] {
            assert!(!all.iter().any(|text| text.contains(forbidden)), "{forbidden}");
        }
        assert_eq!((PAGE.matches("<script").count(), PAGE.matches("<style").count()), (1, 0));
    }

    /// A module that imports another one names a file of the page.
    #[test]
    fn every_file_is_in_the_list() {
        for (_, text) in FILES {
            let imported = text.split("from './").skip(1).chain(text.split("import './").skip(1));
            for name in imported.filter_map(|rest| rest.split('\'').next()) {
                assert!(FILES.iter().any(|(known, _)| *known == name), "{name}");
            }
        }
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/operate/admin/page");
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), FILES.len() + 1);
    }
}

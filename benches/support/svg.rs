//! What the plots share.

/// Colours that can be told apart on white and on black, also by the colour-blind (Okabe and Ito).
pub const COLOURS: [&str; 6] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9"];

/// Follows the reader's colour scheme; no scripts.
const STYLE: &str = "<style>\
text{font:13px system-ui,sans-serif;fill:#24292f}\
.back{fill:#fff}.grid{stroke:#d0d7de;stroke-width:1}.axis{stroke:#57606a;stroke-width:1}\
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.back{fill:#0d1117}.grid{stroke:#30363d}.axis{stroke:#8b949e}}\
</style>";

/// The beginning of a picture, with its background.
pub fn open(width: f64, height: f64, label: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"{label}\">\n{STYLE}\n<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n"
    )
}

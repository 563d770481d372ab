//! Checks that the page of troubles has each error and each warning that users can see.
//!
//! 1. [`rust`] and [`python`] find the texts in the sources: the `#[error("…")]` of public types, the messages
//!    of `warn!` and `tracing::error!`, and those of `warnings.warn`.
//! 2. The fixed words of a text are its parts between placeholders. An error with fewer than [`FEW`] of them is
//!    known by its name, such as `ReaderError::Output`.
//! 3. [`page`] finds the code spans and the headings below "Errors" and "Warnings". One of them must be that
//!    name, or have all fixed words in their order, and there must be a cause and a cure for it.

mod page;
mod python;
mod rust;
mod text;

use std::fmt;
use std::fs;
use std::path::PathBuf;

use crate::{Result, sources};
use page::Page;
use text::Text;

/// The page of troubles.
const PAGE: &str = "docs/guide/troubleshooting.md";

/// The folder with the code of the Python package.
const PYTHON: &str = "python/python/zarrs_cuda";

/// Fewer words than these do not tell one error from another.
const FEW: usize = 4;

/// An error or a warning in the sources.
#[derive(Debug, PartialEq, Eq)]
struct Trouble {
    file: PathBuf,
    line: usize,
    /// The name of an error, such as `ReaderError::Output`; empty for a warning.
    name: String,
    text: Text,
}

/// Checks the page against the sources.
pub(crate) fn check() -> Result<()> {
    let page = fs::read_to_string(PAGE).map_err(|e| format!("{PAGE}: {e}"))?;
    let page = Page::parse(&page);
    let troubles = all()?;
    let missing: Vec<String> = troubles
        .iter()
        .filter_map(|trouble| trouble.missing_on(&page))
        .collect();
    if missing.is_empty() {
        println!(
            "{PAGE} has all {} texts of errors and warnings",
            troubles.len()
        );
        return Ok(());
    }
    Err(format!(
        "{}\n{} of {} texts of errors and warnings are not on {PAGE}: it needs a code span with the fixed \
         words of each, and lines or columns with its cause (`Cause:`) and its cure (`Do:`)",
        missing.join("\n"),
        missing.len(),
        troubles.len(),
    ))
}

/// All errors and warnings in the sources.
fn all() -> Result<Vec<Trouble>> {
    let mut troubles = Vec::new();
    for source in sources::all()? {
        let code = source.library.join("\n");
        rust::find(&source.file, &code, &source.numbers, &mut troubles)?;
    }
    let mut files = Vec::new();
    let entries = fs::read_dir(PYTHON).map_err(|e| format!("{PYTHON}: {e}"))?;
    for entry in entries {
        let path = entry.map_err(|e| format!("{PYTHON}: {e}"))?.path();
        if path.extension().is_some_and(|extension| extension == "py") {
            let code = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            files.push((path, code));
        }
    }
    files.sort();
    python::find(&files, &|file| fs::read_to_string(file), &mut troubles)?;
    Ok(troubles)
}

impl Trouble {
    /// Returns whether the page must have the name of this error, and not the words of its text.
    fn is_named(&self) -> bool {
        !self.name.is_empty() && self.text.count() < FEW
    }

    /// Returns why the page does not have this text; `None` if it does.
    fn missing_on(&self, page: &Page) -> Option<String> {
        let is_it = |span: &str| {
            if self.is_named() {
                span == self.name
            } else {
                self.text.is_in(span)
            }
        };
        let found: Vec<_> = page.spans.iter().filter(|span| is_it(&span.text)).collect();
        let why = match found.first() {
            _ if found.iter().any(|span| span.has_cause && span.has_cure) => return None,
            None => "is not on the page".to_owned(),
            Some(span) if span.has_cause => format!("has no cure (line {} of the page)", span.line),
            Some(span) => format!("has no cause (line {} of the page)", span.line),
        };
        Some(format!("{self} {why}"))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            line,
            name,
            text,
        } = self;
        write!(f, "{}:{line}: ", file.display())?;
        if self.is_named() {
            return write!(
                f,
                "`{name}` (by this name, for \"{text}\" has few fixed words)"
            );
        }
        let space = if name.is_empty() { "" } else { " " };
        write!(f, "{name}{space}{:?}", text.to_string())
    }
}

/// Returns the number of the line of `code` with the byte `at`, counted from 0.
fn line_of(code: &str, at: usize) -> usize {
    code[..at].matches('\n').count()
}

/// Returns the troubles of a file with this `code`.
#[cfg(test)]
fn of_rust(code: &str) -> Vec<Trouble> {
    let mut troubles = Vec::new();
    let numbers: Vec<usize> = (1..=code.lines().count()).collect();
    rust::find("src/error.rs".as_ref(), code, &numbers, &mut troubles).expect("it is understood");
    troubles
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "\
pub enum CopyError {
    #[error(\"cannot copy {key}: {error}. Try \\
             again\")]
    Store { key: String, error: String },
    #[error(\"{reason}\")]
    Other { reason: String },
}
";

    const COMPLETE: &str = "\
## Errors
### `cannot copy {key}: {error}. Try again`
Cause: the store.
Do: wait.
### Others
| text | cause | what to do |
|---|---|---|
| `CopyError::Other`: any text | the caller | read it |
";

    fn missing(code: &str, page: &str) -> Vec<String> {
        let page = Page::parse(page);
        let troubles = of_rust(code);
        troubles
            .iter()
            .filter_map(|trouble| trouble.missing_on(&page))
            .collect()
    }

    #[test]
    fn a_complete_page_lacks_nothing() {
        assert_eq!(missing(CODE, COMPLETE), [""; 0]);
    }

    #[test]
    fn a_new_error_without_a_heading_is_told_with_its_text_and_place() {
        let code = "\npub enum NewError {\n    #[error(\"no room for {key} there\")]\n    Room { key: String },\n}\n";
        assert_eq!(
            missing(code, COMPLETE),
            ["src/error.rs:3: NewError::Room \"no room for … there\" is not on the page"]
        );
        let code = "pub enum NewError {\n    #[error(\"{0}\")]\n    Room(String),\n}\n";
        assert_eq!(
            missing(code, COMPLETE),
            [
                "src/error.rs:2: `NewError::Room` (by this name, for \"…\" has few fixed words) is not on the page"
            ]
        );
    }

    #[test]
    fn a_new_warning_without_a_heading_is_told() {
        let code = "fn f() {\n    tracing::warn!(%error, \"the disk is slow\");\n}\n";
        assert_eq!(
            missing(code, COMPLETE),
            ["src/error.rs:2: \"the disk is slow\" is not on the page"]
        );
    }

    #[test]
    fn a_text_needs_a_cause_and_a_cure() {
        for (line, lacks) in [
            ("Cause: the store.\n", "has no cause (line 2 of the page)"),
            ("Do: wait.\n", "has no cure (line 2 of the page)"),
        ] {
            let found = missing(CODE, &COMPLETE.replace(line, ""));
            assert_eq!(found.len(), 1);
            assert!(found[0].ends_with(lacks), "{found:?}");
        }
        let found = missing(CODE, &COMPLETE.replace("| the caller |", "| |"));
        assert!(
            found[0].ends_with("has no cause (line 8 of the page)"),
            "{found:?}"
        );
    }

    #[test]
    fn words_elsewhere_on_the_page_do_not_count() {
        let page = COMPLETE.replace("## Errors", "## Reads are slow");
        assert_eq!(missing(CODE, &page).len(), 2);
        let page = COMPLETE.replace(
            "### `cannot copy {key}: {error}. Try again`",
            "### Copies\ncannot copy, Try again",
        );
        assert_eq!(missing(CODE, &page).len(), 1);
    }
}

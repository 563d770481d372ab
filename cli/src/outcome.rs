//! The outcome of a subcommand: what it did or found, as text and as JSON.

use std::fs;

use std::path::Path;

use serde_json::Value;
use zarrs_cuda::storage::{Durable, replace};
use zarrs_cuda_convert::Failure;

use crate::exit::Exit;
use crate::failure;
use crate::stdout::print;

/// The outcome of a subcommand, as text for people and as a JSON object.
#[derive(Debug)]
pub(crate) struct Outcome {
    text: String,
    json: Value,
    exit: Exit,
    failures: Vec<Failure>,
}

impl Outcome {
    /// Makes an outcome. `text` has lines without a line break at the end, and may be empty.
    pub(crate) fn new(text: impl Into<String>, json: Value) -> Self {
        Self {
            text: text.into(),
            json,
            exit: Exit::Done,
            failures: Vec::new(),
        }
    }

    /// Sets the exit code to that for damage, differences, and outputs that are not complete.
    pub(crate) fn not_well(mut self) -> Self {
        self.exit = Exit::NotWell;
        self
    }

    /// Adds the failures of parts of the work. If there are any, the exit code is that for a failure.
    pub(crate) fn with_errors(mut self, failures: Vec<Failure>) -> Self {
        if !failures.is_empty() {
            self.exit = Exit::Failed;
        }
        self.failures.extend(failures);
        self
    }

    /// Adds `note` to the text, as a line of its own.
    pub(crate) fn with_note(mut self, note: &str) -> Self {
        let lines = [self.text.as_str(), note];
        self.text = lines
            .into_iter()
            .filter(|line| !line.is_empty())
            .collect::<Vec<_>>()
            .join("\n");
        match &mut self.json["notes"] {
            Value::Array(notes) => notes.push(note.into()),
            notes => *notes = vec![note].into(),
        }
        self
    }

    /// Returns the text, the JSON object, whether all is well, and the failures.
    pub(crate) fn taken(self) -> (String, Value, bool, Vec<Failure>) {
        (self.text, self.json, self.exit == Exit::Done, self.failures)
    }

    /// Adds a member to the JSON object.
    pub(crate) fn with(mut self, name: &str, value: Value) -> Self {
        self.json[name] = value;
        self
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn into_json(self) -> Value {
        self.json
    }

    /// Prints the outcome as text or, if `as_json`, as JSON. Returns the exit code.
    pub(crate) fn print(mut self, as_json: bool) -> u8 {
        for failure in &self.failures {
            failure::print_error(failure);
        }
        if as_json {
            if !self.failures.is_empty() {
                let errors: Vec<_> = self.failures.iter().map(failure::json_of).collect();
                self.json["errors"] = errors.into();
            }
            print(&format!("{:#}\n", self.json));
        } else if !self.text.is_empty() {
            print(&format!("{}\n", self.text));
        }
        self.exit.code()
    }
}

/// Stores an HTML page in the file `file`, as a whole or not at all.
///
/// # Errors
/// The file exists and is no HTML page, or cannot be written.
pub(crate) fn write_page(file: &Path, page: &str) -> Result<(), Failure> {
    if fs::symlink_metadata(file).is_ok() {
        let is_file = fs::metadata(file).is_ok_and(|found| found.is_file());
        let is_page =
            is_file && fs::read(file).is_ok_and(|old| old.is_empty() || old.starts_with(b"<!"));
        if !is_page {
            return Err(Failure::failed(format!(
                "cannot write {}: it is there, and is no page of HTML",
                file.display()
            ))
            .with_remedy("name another --html FILE, or delete this one"));
        }
    }
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let is_there = folder.map_or(Ok(()), |folder| fs::metadata(folder).map(|_| ()));
    let written = is_there.and_then(|()| replace(file, page.as_bytes(), Durable::Bytes));
    written.map_err(|error| {
        Failure::failed(format!("cannot write {}: {error}", file.display()))
            .with_remedy("name another --html FILE, in a directory that exists and has room")
    })
}

/// Returns the text in lines of at most `columns` columns, if words are short enough. Indents continued
/// lines; in a table, up to its last column.
pub(crate) fn wrapped(text: &str, columns: usize) -> String {
    let lines: Vec<_> = text
        .lines()
        .map(|line| wrapped_line(line, columns))
        .collect();
    lines.join("\n")
}

fn wrapped_line(line: &str, columns: usize) -> String {
    let indent = indent_of(line, columns);
    let mut out = String::new();
    let mut width = 0;
    for word in line.split_inclusive(' ') {
        let len = word.trim_end().chars().count();
        if len > 0 && width + len > columns && width > indent {
            out.truncate(out.trim_end().len());
            out += &format!("\n{:indent$}", "");
            width = indent;
        }
        out += word;
        width += word.chars().count();
    }
    out
}

/// Returns the indentation of the lines that continue `line`: the beginning of the last column of a table, if
/// at least half of the width is left.
fn indent_of(line: &str, columns: usize) -> usize {
    const INDENT: usize = 6;
    let begin = line.len() - line.trim_start().len();
    let gap = line.trim_end().rfind("  ").filter(|&gap| gap >= begin);
    let column = gap.map_or(0, |gap| line[..gap + 2].chars().count());
    if (INDENT..=columns / 2).contains(&column) {
        column
    } else {
        INDENT
    }
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn the_last_column_of_a_table_stays_one() {
        assert_eq!(
            wrapped("  ten  host  one two three four", 26),
            "  ten  host  one two three\n             four"
        );
        // It would be too narrow.
        assert_eq!(
            wrapped("  a long name  host  one two", 24),
            "  a long name  host  one\n      two"
        );
    }

    #[test]
    fn lines_are_wrapped_at_words() {
        assert_eq!(wrapped("  a short line", 20), "  a short line");
        assert_eq!(
            wrapped("one two three four", 12),
            "one two\n      three\n      four"
        );
        assert_eq!(
            wrapped("averyverylongword next", 10),
            "averyverylongword\n      next"
        );
    }
}

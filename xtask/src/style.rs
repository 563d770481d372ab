//! Finds comments that do not begin as `STYLE.md` asks.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;

/// Folders with the code that users compile.
const FOLDERS: [&str; 5] = ["src", "crates", "kernels/src", "cli/src", "python/src"];

/// No comment begins with one of these words: a reader has to look for the noun that the word stands for.
const WORDS: [&str; 9] = [
    "Of", "As", "That", "What", "Whoever", "Whatever", "Whose", "Those", "Which",
];

/// Prints each comment that begins with one of [`WORDS`].
pub(crate) fn check() -> Result<()> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        collect(Path::new(folder), &mut files)?;
    }
    files.sort();
    let mut count = 0;
    for file in &files {
        let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        for (line, comment) in wrong(&text) {
            println!("{}:{line}: {comment}", file.display());
            count += 1;
        }
    }
    if count == 0 {
        return Ok(());
    }
    Err(format!(
        "{count} comments begin with one of {WORDS:?}: begin with a verb or a noun (STYLE.md)"
    ))
}

/// Returns the lines of `text` that begin a comment with one of [`WORDS`], and their numbers.
fn wrong(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut before = None;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let begins = !std::mem::replace(&mut before, marker_and_words(line))
            .is_some_and(|(marker, words)| !words.is_empty() && before_is(marker, line));
        let (_, words) = before.filter(|_| begins)?;
        let first = words
            .split(|c: char| !c.is_alphanumeric() && c != '\'')
            .next()?;
        WORDS.contains(&first).then_some((number + 1, line.trim()))
    })
}

/// Returns whether `line` is a comment of `marker`.
fn before_is(marker: &str, line: &str) -> bool {
    marker_and_words(line).is_some_and(|(of_line, _)| of_line == marker)
}

/// Returns the marker of a line that is a comment, and the comment's words.
fn marker_and_words(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let marker = ["//!", "///", "//"]
        .into_iter()
        .find(|m| line.starts_with(m))?;
    Some((marker, line[marker.len()..].trim_start()))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for entry in entries {
        let path = entry
            .map_err(|e| format!("{}: {e}", folder.display()))?
            .path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_of_comments() {
        let text = "\
/// Of a stream.
/// What follows in the same comment is not judged.
fn f() {} // As here, behind code: not judged
    // As above.
//! What this is.
//!
//! That begins a paragraph.
/// Whatsoever is another word.
/// As: above.
";
        let found: Vec<usize> = wrong(text).map(|(line, _)| line).collect();
        assert_eq!(found, [1, 4, 5, 7]);
    }
}

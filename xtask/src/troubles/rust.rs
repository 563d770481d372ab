//! Finds the texts of public errors and of warnings in code of Rust.

use std::path::Path;

use super::text::{Text, arguments, literal};
use super::{Trouble, line_of};
use crate::Result;

/// Adds the troubles of `code` to `found`. Line *n* of `code` is line `numbers[n]` of `file`.
pub(super) fn find(
    file: &Path,
    code: &str,
    numbers: &[usize],
    found: &mut Vec<Trouble>,
) -> Result<()> {
    let line = |at: usize| numbers.get(line_of(code, at)).copied().unwrap_or_default();
    let mut add = |at: usize, name: String, text: Text| {
        found.push(Trouble {
            file: file.to_path_buf(),
            line: line(at),
            name,
            text,
        });
    };
    for (at, mark) in code.match_indices("#[error(") {
        let behind = code[at + mark.len()..].trim_start();
        // The text is that of another error, which is found where it is declared.
        if behind.starts_with("transparent") {
            continue;
        }
        let told = || format!("{}:{}: cannot read this error", file.display(), line(at));
        let text = behind
            .strip_prefix('"')
            .and_then(|text| literal(text, '"'))
            .ok_or_else(told)?;
        let (_, item) = arguments(text.1, &['"']).ok_or_else(told)?;
        if let Some(name) = name(&code[..at], item) {
            add(at, name, Text::parse(&text.0));
        }
    }
    let logged = ["warn!(", "tracing::error!("];
    let logged = logged.iter().flat_map(|mark| code.match_indices(mark));
    for (at, mark) in logged {
        let told = || format!("{}:{}: cannot read this warning", file.display(), line(at));
        let (all, _) = arguments(&code[at + mark.len()..], &['"']).ok_or_else(told)?;
        let message = all.iter().find_map(|argument| argument.strip_prefix('"'));
        let (value, _) = message
            .and_then(|text| literal(text, '"'))
            .ok_or_else(told)?;
        let mut text = Text::parse(&value);
        if !text.has_words() {
            // The text was made before, as a variable.
            let made = text.placeholders.first();
            let made = made.and_then(|name| made_before(&code[..at], name));
            text = made.ok_or_else(told)?;
        }
        add(at, String::new(), text);
    }
    Ok(())
}

/// Returns the name of the error whose declaration goes on with `item`; `None` if it is not public. Its type is
/// declared at the end of `before`, or in `item`.
fn name(before: &str, item: &str) -> Option<String> {
    let lines = item.trim_start_matches(']').lines().map(str::trim_start);
    let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with("#["));
    let item = lines.next()?;
    if let Some((visibility, rest)) = item.split_once("struct ") {
        return (visibility == "pub ").then(|| identifier(rest).to_owned());
    }
    let declared = before.lines().rev().map(str::trim_start);
    let mut declared = declared.filter_map(|line| line.split_once("enum "));
    let (visibility, rest) = declared.next()?;
    (visibility == "pub ").then(|| format!("{}::{}", identifier(rest), identifier(item)))
}

/// Returns the text that the last `let name = …` in `before` has.
fn made_before(before: &str, name: &str) -> Option<Text> {
    let at = before.rfind(&format!("let {name} ="))?;
    let (value, _) = literal(before[at..].split_once('"')?.1, '"')?;
    Some(Text::parse(&value)).filter(Text::has_words)
}

fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use crate::troubles::of_rust;

    fn texts(code: &str) -> Vec<String> {
        let found = of_rust(code);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn errors_have_the_names_of_their_variants() {
        let code = "\
pub enum Error {
    #[error(
        \"two {lines} of one text\"
    )]
    #[allow(dead_code)]
    First,
    #[error(transparent)]
    Passed(#[from] Other),
    #[error(\"{}, at {} or behind it\", f(a, b), c)]
    Second { c: u8 },
}
#[error(\"alone in its type\")]
pub struct Alone;
";
        assert_eq!(
            texts(code),
            [
                "src/error.rs:2: Error::First \"two … of one text\"",
                "src/error.rs:9: Error::Second \"…, at … or behind it\"",
                "src/error.rs:12: Alone \"alone in its type\"",
            ]
        );
    }

    #[test]
    fn errors_that_are_not_public_are_passed_over() {
        let code = "\
pub(super) enum Hidden {
    #[error(\"no user sees this\")]
    A,
}
#[error(\"nor this\")]
struct B;
";
        assert_eq!(texts(code), [""; 0]);
    }

    #[test]
    fn warnings_are_found_behind_their_fields() {
        let code = "\
fn f() {
    tracing::warn!(path = %g(\"a\", b), %error, \"slow: {} of {all}\", n);
    let text = format!(
        \"made {before}\"
    );
    warn!(\"{text}\");
    tracing::error!(reason, \"it ends\");
}
";
        assert_eq!(
            texts(code),
            [
                "src/error.rs:2: \"slow: … of …\"",
                "src/error.rs:6: \"made …\"",
                "src/error.rs:7: \"it ends\"",
            ]
        );
    }
}

//! Finds the texts of warnings in code of Python.
//!
//! A text is an argument of `warnings.warn`, or of a function that passes its parameter on to it. The argument
//! is a literal, or a variable to which literals, or the results of a function, are assigned above.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use super::text::{Text, arguments, literal};
use super::{Trouble, line_of};
use crate::Result;

/// A call of the library whose texts are warned of: the file and the function that makes them.
const OF_LIBRARY: (&str, &str, &str) =
    ("unknown_variables", "cli/src/variables.rs", "unknown_among");

const QUOTES: [char; 2] = ['"', '\''];

/// Reads a file of the library.
type Read<'r> = &'r dyn Fn(&str) -> io::Result<String>;

/// Adds the warnings of `files`, which have paths and contents, to `found`.
pub(super) fn find(
    files: &[(PathBuf, String)],
    read: Read<'_>,
    found: &mut Vec<Trouble>,
) -> Result<()> {
    for (file, code) in files {
        let mut looked = BTreeSet::new();
        let mut functions = vec!["warnings.warn".to_owned()];
        while let Some(function) = functions.pop() {
            if !looked.insert(function.clone()) {
                continue;
            }
            for (at, mark) in code.match_indices(&format!("{function}(")) {
                if code[..at].ends_with("def ") || code[..at].ends_with(char::is_alphanumeric) {
                    continue;
                }
                let line = line_of(code, at) + 1;
                let told = |why: &str| format!("{}:{line}: {why}", file.display());
                let (all, _) = arguments(&code[at + mark.len()..], &QUOTES)
                    .ok_or_else(|| told("cannot read this warning"))?;
                let value = Value {
                    files,
                    read,
                    code,
                    at,
                };
                let texts = match value.texts(all[0])? {
                    Found::Texts(texts) => texts,
                    Found::Passed(by) => {
                        functions.push(by);
                        continue;
                    }
                };
                let texts: Vec<_> = texts.into_iter().filter(Text::has_words).collect();
                if texts.is_empty() {
                    return Err(told(&format!(
                        "cannot find the words of this warning in `{}`: assign a string to it in the same \
                         function",
                        all[0]
                    )));
                }
                found.extend(texts.into_iter().map(|text| Trouble {
                    file: file.clone(),
                    line,
                    name: String::new(),
                    text,
                }));
            }
        }
    }
    Ok(())
}

/// The texts of an argument.
enum Found {
    Texts(Vec<Text>),
    /// The argument is a parameter of this function.
    Passed(String),
}

/// The place of a call.
struct Value<'a> {
    files: &'a [(PathBuf, String)],
    read: Read<'a>,
    code: &'a str,
    at: usize,
}

impl Value<'_> {
    fn texts(&self, argument: &str) -> Result<Found> {
        if let Some(text) = literals(argument) {
            let mut texts = vec![text];
            for name in texts[0].placeholders.clone() {
                texts.extend(self.assigned(&name)?);
            }
            return Ok(Found::Texts(texts));
        }
        let texts = self.assigned(argument)?;
        let (name, signature, _) = self.function();
        let is_parameter = signature
            .split([',', '('])
            .any(|parameter| parameter.trim().split(':').next() == Some(argument));
        Ok(if texts.is_empty() && is_parameter {
            Found::Passed(name)
        } else {
            Found::Texts(texts)
        })
    }

    /// Returns the name, the signature and the body of the function with the call, as far as the call. Code
    /// outside of functions has no name.
    fn function(&self) -> (String, &str, &str) {
        let before = &self.code[..self.at];
        let Some(begin) = before.rfind("def ") else {
            return (String::new(), "", before);
        };
        let text = &before[begin + 4..];
        // A call that is less indented than the function's name is outside of it.
        let indent = |at: usize| {
            let line = &before[before[..at].rfind('\n').map_or(0, |end| end + 1)..];
            line.len() - line.trim_start().len()
        };
        if indent(self.at) <= indent(begin) {
            return (String::new(), "", before);
        }
        let name = text.split('(').next().unwrap_or_default();
        let (signature, body) = text.split_once(":\n").unwrap_or((text, ""));
        (name.to_owned(), signature, body)
    }

    /// Returns the texts that are assigned to the variable `name` before the call.
    fn assigned(&self, name: &str) -> Result<Vec<Text>> {
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
        let (_, _, body) = self.function();
        let mut texts = Vec::new();
        if !is_name {
            return Ok(texts);
        }
        for (at, mark) in body.match_indices(name) {
            if body[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.') {
                continue;
            }
            let behind = body[at + mark.len()..].trim_start();
            let assigned = [":= ", "= ", "+= ", "in "];
            let Some(value) = assigned.iter().find_map(|mark| behind.strip_prefix(mark)) else {
                continue;
            };
            if let Some(text) = literals(value) {
                texts.push(text);
            } else if let Some((function, _)) = value.split_once('(') {
                texts.extend(self.returned(function, value)?);
            }
        }
        Ok(texts)
    }

    /// Returns the texts that a function of this package returns.
    fn returned(&self, function: &str, value: &str) -> Result<Vec<Text>> {
        let (called, file, made_by) = OF_LIBRARY;
        if value.starts_with(&format!("native().{called}()")) {
            let code = (self.read)(file).map_err(|e| format!("{file}: {e}"))?;
            let made = code
                .split_once(&format!("fn {made_by}("))
                .map(|(_, behind)| behind);
            let made = made.and_then(|made| made.split("\n}\n").next());
            let made = made.ok_or_else(|| format!("{file} has no function `{made_by}`"))?;
            let texts = made.split("format!(").skip(1).filter_map(|text| {
                let (value, _) = literal(text.trim_start().strip_prefix('"')?, '"')?;
                Some(Text::parse(&value))
            });
            return Ok(texts.filter(Text::has_words).collect());
        }
        let name = function.rsplit('.').next().unwrap_or(function);
        let begin = format!("\ndef {name}(");
        let bodies = self.files.iter().filter_map(|(_, code)| {
            let (_, body) = code.split_once(&begin)?;
            Some(body.split("\ndef ").next().unwrap_or(body))
        });
        let returned = bodies.flat_map(|body| body.split("return ").skip(1));
        Ok(returned.filter_map(literals).collect())
    }
}

/// Reads the literals at the start of `value`, in brackets or not, which Python joins. Returns `None` if there
/// is none.
fn literals(value: &str) -> Option<Text> {
    let mut rest = value.trim_start().trim_start_matches('(').trim_start();
    let mut whole: Option<Text> = None;
    loop {
        let at = rest.find(QUOTES);
        let Some(at) = at.filter(|&at| rest[..at].chars().all(|c| "fr".contains(c))) else {
            return whole;
        };
        let is_formatted = rest[..at].contains('f');
        let quote = rest[at..].chars().next()?;
        let (value, behind) = literal(&rest[at + 1..], quote)?;
        let text = if is_formatted {
            Text::parse(&value)
        } else {
            Text::fixed(&value)
        };
        match &mut whole {
            Some(whole) => whole.append(text),
            None => whole = Some(text),
        }
        rest = behind.trim_start();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(code: &str) -> Result<Vec<String>> {
        let files = [
            (PathBuf::from("a.py"), code.to_owned()),
            (
                PathBuf::from("b.py"),
                "\ndef why() -> str:\n    return (\n        f\"{x} does \"\n        \"nothing\"\n    )\n".to_owned(),
            ),
        ];
        let library = "fn unknown_among() {\n    format!(\n        \"{name} is unknown\")\n}\n";
        let mut found = Vec::new();
        find(&files, &|_| Ok(library.to_owned()), &mut found)?;
        Ok(found.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn literals_variables_and_parameters_are_followed() {
        let code = "\
def a(n: int) -> None:
    warnings.warn(f\"subchunks of {n} shards \" 'wait for {nobody}', FramesWarning, stacklevel=3)


def b(self) -> None:
    msg = f\"`{self}` ended\"
    if lost:
        msg += \" with losses\"
    warnings.warn(msg, RuntimeWarning)


def c() -> None:
    if told := b.why():
        tell(told, 3)
    for one in native().unknown_variables():
        tell(one, 5)


def tell(why: str, level: int) -> None:
    warnings.warn(why, RuntimeWarning, stacklevel=level)
";
        assert_eq!(
            texts(code).expect("all are found"),
            [
                "a.py:2: \"subchunks of … shards wait for {nobody}\"",
                "a.py:9: \"`…` ended\"",
                "a.py:9: \"with losses\"",
                "a.py:14: \"… does nothing\"",
                "a.py:16: \"… is unknown\"",
            ]
        );
    }

    #[test]
    fn a_warning_without_words_is_an_error() {
        let failed =
            texts("def a() -> None:\n    warnings.warn(text_of(x))\n").expect_err("no words");
        assert!(
            failed.starts_with("a.py:2: cannot find the words"),
            "{failed}"
        );
    }
}

//! Reads a literal of Rust or Python, and finds the fixed words of a text.

use std::fmt;

/// The fixed parts of a text: what lies between its placeholders, with single spaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Text {
    parts: Vec<String>,
    /// The contents of the placeholders.
    pub(super) placeholders: Vec<String>,
}

impl Text {
    /// Splits the value of a literal at its placeholders, `{…}`. Two braces are one brace.
    pub(super) fn parse(value: &str) -> Self {
        let mut text = Self::default();
        let (mut part, mut rest) = (String::new(), value);
        while let Some(at) = rest.find(['{', '}']) {
            part.push_str(&rest[..at]);
            let (brace, behind) = rest[at..].split_at(1);
            if let Some(behind) = behind.strip_prefix(brace) {
                part.push_str(brace);
                rest = behind;
                continue;
            }
            let end = end_of_placeholder(behind);
            text.placeholders.push(behind[..end].to_owned());
            rest = behind.get(end + 1..).unwrap_or_default();
            text.push(&std::mem::take(&mut part));
        }
        part.push_str(rest);
        text.push(&part);
        text
    }

    /// Returns a text without placeholders.
    pub(super) fn fixed(value: &str) -> Self {
        let mut text = Self::default();
        text.push(value);
        text
    }

    /// Adds the next part of a literal that consists of several.
    pub(super) fn append(&mut self, other: Self) {
        let mut parts = other.parts.into_iter();
        if let (Some(last), Some(first)) = (self.parts.last_mut(), parts.next()) {
            last.push_str(&first);
        }
        self.parts.extend(parts);
        self.placeholders.extend(other.placeholders);
    }

    fn push(&mut self, part: &str) {
        self.parts.push(part.to_owned());
    }

    fn words(&self) -> impl Iterator<Item = String> {
        let parts = self.parts.iter().map(|part| one_line(part));
        parts.filter(|part| part.chars().any(char::is_alphanumeric))
    }

    /// Returns whether there are words outside of placeholders.
    pub(super) fn has_words(&self) -> bool {
        self.words().next().is_some()
    }

    /// Returns the number of words outside of placeholders.
    pub(super) fn count(&self) -> usize {
        self.words().map(|part| part.split(' ').count()).sum()
    }

    /// Returns whether `span` has all fixed words, in their order.
    pub(super) fn is_in(&self, span: &str) -> bool {
        let mut rest = span;
        self.words().all(|part| match rest.split_once(&*part) {
            Some((_, behind)) => {
                rest = behind;
                true
            }
            None => false,
        })
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&one_line(&self.parts.join("…")))
    }
}

/// Returns `text` without white space at its ends, and with single spaces in between.
pub(super) fn one_line(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ")
}

/// Returns the position of the brace that ends the placeholder at the start of `text`.
fn end_of_placeholder(text: &str) -> usize {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return at,
            '}' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

/// Reads a literal behind its first quote. Returns the value and the text behind the last quote; `None` if the
/// literal does not end.
pub(super) fn literal(text: &str, quote: char) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            c if c == quote => return Some((value, &text[at + c.len_utf8()..])),
            '\\' => match chars.next()?.1 {
                '\n' => {
                    // The next line goes on at its first word.
                    let behind = chars.as_str().trim_start();
                    let (more, rest) = literal(behind, quote)?;
                    return Some((value + &more, rest));
                }
                'n' | 't' => value.push(' '),
                other => value.push(other),
            },
            c => value.push(c),
        }
    }
    None
}

/// Splits the arguments behind an opening bracket at their commas. Returns them and the text behind the closing
/// bracket; `None` if there is no such bracket.
pub(super) fn arguments<'t>(text: &'t str, quotes: &[char]) -> Option<(Vec<&'t str>, &'t str)> {
    let (mut found, mut begin, mut depth) = (Vec::new(), 0, 0);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let at = text.len() - rest.len();
        let behind = &rest[c.len_utf8()..];
        rest = if quotes.contains(&c) {
            literal(behind, c)?.1
        } else {
            behind
        };
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => {
                found.push(text[begin..at].trim());
                return Some((found, rest));
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(text[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_words_are_between_placeholders() {
        let text = Text::parse("cannot {doing} {{it}}:\n  {error}. Try {0:?} again");
        assert_eq!(text.to_string(), "cannot … {it}: …. Try … again");
        assert_eq!(text.placeholders, ["doing", "error", "0:?"]);
        assert!(text.is_in("cannot read {it}: no. Try 3 again"));
        assert!(!text.is_in("cannot read it: no. Try 3 again"));
        assert!(!text.is_in("Try again. cannot {it}:"));
        assert!(!Text::parse("{0}: {1}").has_words());
    }

    #[test]
    fn literals_and_arguments_end_at_their_own_marks() {
        let (value, rest) = literal("a \\\"b\\\" \\\n     c\", d", '"').expect("it ends");
        assert_eq!((&*value, rest), ("a \"b\" c", ", d"));
        let (found, rest) = arguments("a, f(b, \"),\"), {c, d}) + e", &['"']).expect("it ends");
        assert_eq!(found, ["a", "f(b, \"),\")", "{c, d}"]);
        assert_eq!(rest, " + e");
        assert!(arguments("a, \"b", &['"']).is_none());
    }
}

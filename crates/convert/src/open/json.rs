//! Reads metadata in which Python has written numbers that are not JSON.
//!
//! Python's `json` reads and writes `NaN`, `Infinity` and `-Infinity`, which JSON does not have. zarr-python
//! before 3.0.2 wrote them to metadata. A parser of JSON refuses such a file as a whole.

use std::borrow::Cow;

/// The numbers that Python's `json` writes and JSON does not have.
const BARE: [&str; 3] = ["NaN", "Infinity", "-Infinity"];

/// Metadata as text that a parser of JSON accepts, and its differences from the stored text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plain<'a> {
    pub text: Cow<'a, str>,
    pub repairs: Vec<Repair>,
}

/// A difference between stored metadata and the metadata that are read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Repair {
    /// The text begins with a byte order mark, which is skipped.
    ByteOrderMark,
    /// The number at `member`, a path such as `attributes.range[1]`, has no quotation marks, and is read as a
    /// string.
    Quoted {
        member: String,
        number: &'static str,
    },
    /// The integer at `member` has more than 64 bits, and is read as a double.
    Long { member: String, number: String },
    /// The `fill_value` of Zarr v2 has another JSON type than its data type, and is read as numpy reads it.
    FillValue { stored: String, read: String },
}

/// Returns `text` without a byte order mark, and with quotation marks around numbers that JSON does not have.
pub(super) fn plain(text: &str) -> Plain<'_> {
    let mut repairs = Vec::new();
    let text = match text.strip_prefix('\u{feff}') {
        Some(rest) => {
            repairs.push(Repair::ByteOrderMark);
            rest
        }
        None => text,
    };
    let mut quoted = String::new();
    let mut copied = 0;
    for (start, number, member) in bare_numbers(text, &mut repairs) {
        quoted += &text[copied..start];
        quoted += &format!("\"{number}\"");
        copied = start + number.len();
        repairs.push(Repair::Quoted { member, number });
    }
    let text = if copied == 0 {
        text.into()
    } else {
        quoted += &text[copied..];
        quoted.into()
    };
    Plain { text, repairs }
}

/// A step of the path from the root of a document to a value.
enum Step {
    Member(String),
    Element(usize),
}

/// Returns, for each number of Python outside of strings, its position, the number, and the path of its
/// member. If the text is no JSON for another reason, some numbers may be missing: the parser refuses the
/// text later. Adds integers of more than 64 bits to `repairs`.
fn bare_numbers(text: &str, repairs: &mut Vec<Repair>) -> Vec<(usize, &'static str, String)> {
    let mut found = Vec::new();
    let mut path: Vec<Step> = Vec::new();
    // Whether the next string is the name of a member.
    let mut is_name = false;
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => {
                let end = end_of_string(bytes, at);
                if is_name && let Some(Step::Member(name)) = path.last_mut() {
                    *name = text.get(at + 1..end - 1).unwrap_or_default().to_string();
                }
                is_name = false;
                at = end;
                continue;
            }
            b'{' => {
                path.push(Step::Member(String::new()));
                is_name = true;
            }
            b'[' => path.push(Step::Element(0)),
            b'}' | b']' => {
                path.pop();
            }
            b',' => match path.last_mut() {
                Some(Step::Element(element)) => *element += 1,
                Some(Step::Member(_)) => is_name = true,
                None => {}
            },
            b'N' | b'I' | b'-' => {
                let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
                let rest = &bytes[at..];
                let number = BARE.into_iter().find(|number| {
                    rest.starts_with(number.as_bytes())
                        && !rest.get(number.len()).is_some_and(is_word)
                });
                let is_first = !at
                    .checked_sub(1)
                    .is_some_and(|before| is_word(&bytes[before]));
                if let Some(number) = number.filter(|_| is_first) {
                    found.push((at, number, text_of(&path)));
                    at += number.len();
                    continue;
                }
            }
            b'0'..=b'9' => {
                let is_negative = at > 0 && bytes[at - 1] == b'-';
                let len = bytes[at..]
                    .iter()
                    .take_while(|byte| {
                        matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-')
                    })
                    .count();
                let number = text.get(at - usize::from(is_negative)..at + len);
                let number = number.unwrap_or_default();
                let is_long = number
                    .bytes()
                    .skip(usize::from(is_negative))
                    .all(|b| b.is_ascii_digit())
                    && number.parse::<i64>().is_err()
                    && number.parse::<u64>().is_err();
                if is_long {
                    repairs.push(Repair::Long {
                        member: text_of(&path),
                        number: number.to_string(),
                    });
                }
                at += len;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Returns the position behind the string that begins at `start`. Returns more than the length of the text if
/// the string has no end.
fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    // The text ends within the string. One more than its length, because the caller strips a closing
    // quotation mark.
    bytes.len() + 1
}

fn text_of(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Member(name) if text.is_empty() => text += name,
            Step::Member(name) => text += &format!(".{name}"),
            Step::Element(element) => text += &format!("[{element}]"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{Repair, plain};

    fn quoted(text: &str) -> Vec<(String, &'static str)> {
        let quoted = plain(text)
            .repairs
            .into_iter()
            .filter_map(|repair| match repair {
                Repair::Quoted { member, number } => Some((member, number)),
                _ => None,
            });
        quoted.collect()
    }

    #[test]
    fn bare_numbers_become_strings_where_they_are() {
        let text = r#"{"a": NaN, "b": [1, -Infinity, {"c\"]": Infinity}], "NaN": "NaN, Infinity"}"#;
        let read = plain(text);
        let value: Value = serde_json::from_str(&read.text).unwrap();
        assert_eq!(
            value,
            serde_json::json!({"a": "NaN", "b": [1, "-Infinity", {"c\"]": "Infinity"}], "NaN": "NaN, Infinity"})
        );
        let places = quoted(text);
        let expected = [
            ("a", "NaN"),
            ("b[1]", "-Infinity"),
            (r#"b[2].c\"]"#, "Infinity"),
        ];
        let expected = expected.map(|(member, number)| (member.to_string(), number));
        assert_eq!(places, expected);
        assert_eq!(quoted("NaN"), [(String::new(), "NaN")]);
    }

    #[test]
    fn other_text_stays() {
        for text in [
            "",
            "{}",
            r#"{"a": "NaN"}"#,
            r#"{"a": "\\", "b": 1}"#,
            "[NaNs, xNaN, Infinity2]",
            r#"{"a": "cut off NaN"#,
            r#"{"a": "cut off \"#,
            "é\u{feff}",
            "[1, -1, -2.5e-3]",
        ] {
            let read = plain(text);
            assert_eq!(read.text, text);
            assert!(read.repairs.is_empty(), "{text}");
        }
    }

    #[test]
    fn long_integers_are_told() {
        let text = r#"{"a": [18446744073709551616, -9223372036854775809, 18446744073709551615],
            "b": {"c": 1e300, "d": -1.5, "e": 12, "f": "18446744073709551616"}}"#;
        let read = plain(text);
        assert_eq!(read.text, text);
        let long = |member: &str, number: &str| Repair::Long {
            member: member.to_string(),
            number: number.to_string(),
        };
        assert_eq!(
            read.repairs,
            [
                long("a[0]", "18446744073709551616"),
                long("a[1]", "-9223372036854775809")
            ]
        );
    }

    #[test]
    fn a_byte_order_mark_is_skipped() {
        let read = plain("\u{feff}{\"a\": NaN}");
        assert_eq!(read.text, r#"{"a": "NaN"}"#);
        assert_eq!(read.repairs[0], Repair::ByteOrderMark);
        assert_eq!(read.repairs.len(), 2);
    }

    /// Every prefix of a document, and every document with one byte changed, is read without a panic.
    #[test]
    fn cut_and_changed_text_is_read() {
        let text = "\u{feff}{\"a\\\"é\": [NaN, -Infinity, {}], \"b\": {\"c\": Infinity, \"d\": \"NaN\\\\\"}}";
        for end in 0..=text.len() {
            if let Some(cut) = text.get(..end) {
                plain(cut);
            }
            for byte in [b'"', b'\\', b'{', b']', b',', b'N', b' '] {
                let mut changed = text.as_bytes().to_vec();
                if let Some(changed) = changed.get_mut(end) {
                    *changed = byte;
                }
                if let Ok(changed) = str::from_utf8(&changed) {
                    plain(changed);
                }
            }
        }
    }
}

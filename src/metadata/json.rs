//! Reads or replaces some members of metadata, and leaves everything else as it is.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::value::RawValue;

/// A JSON object: its text, and the places of its members in the text.
#[derive(Debug)]
pub(crate) struct Document<'a> {
    text: &'a str,
    members: HashMap<String, &'a RawValue>,
}

/// Returns the range of `part` in `text`; `None` if `part` is not a slice of `text`.
pub(crate) fn span(text: &str, part: &str) -> Option<Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(text.as_ptr().addr())?;
    let end = start.checked_add(part.len())?;
    (end <= text.len()).then_some(start..end)
}

impl<'a> Document<'a> {
    /// Parses `bytes` as a JSON object.
    ///
    /// # Errors
    /// The reason why `bytes` are not a JSON object.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, String> {
        let text = str::from_utf8(bytes).map_err(|error| error.to_string())?;
        let members = serde_json::from_str(text).map_err(|error| error.to_string())?;
        Ok(Self { text, members })
    }

    /// Returns the text of the value of a member; `None` if there is no such member.
    pub(crate) fn member(&self, name: &str) -> Option<&'a str> {
        self.members.get(name).map(|value| value.get())
    }

    /// Returns the texts of the elements of a member that is an array.
    ///
    /// # Errors
    /// The reason why the member is missing, or is no array.
    pub(crate) fn elements(&self, name: &str) -> Result<Vec<&'a str>, String> {
        let array = self
            .member(name)
            .ok_or_else(|| format!("it has no {name}"))?;
        let elements: Vec<&RawValue> = serde_json::from_str(array)
            .map_err(|error| format!("its {name} is no array: {error}"))?;
        Ok(elements.into_iter().map(RawValue::get).collect())
    }

    /// Returns the text with `new` in the place of `part`; `None` if `part` is not a slice of the text.
    pub(crate) fn with_part(&self, part: &str, new: &str) -> Option<String> {
        let place = span(self.text, part)?;
        let (before, after) = (&self.text[..place.start], &self.text[place.end..]);
        Some([before, new, after].concat())
    }

    /// Returns the text with new values for the members that it has. Members that it lacks are ignored.
    pub(crate) fn with(&self, values: &[(&str, &str)]) -> String {
        let mut places: Vec<_> = values
            .iter()
            .filter_map(|(name, value)| Some((span(self.text, self.member(name)?)?, *value)))
            .collect();
        places.sort_by_key(|(place, _)| place.start);
        let mut text = String::with_capacity(self.text.len());
        let mut from = 0;
        for (place, value) in places {
            text.push_str(&self.text[from..place.start]);
            text.push_str(value);
            from = place.end;
        }
        text.push_str(&self.text[from..]);
        text
    }

    /// Returns the text with one more member, as the last one. [`without`](Self::without) is the inverse.
    pub(crate) fn with_last(&self, name: &str, value: &str) -> Option<String> {
        let object = self.text.trim_end().strip_suffix('}')?.trim_end();
        let behind = self.text.get(object.len()..)?;
        let (line, space) = if object.contains('\n') {
            ("\n  ", " ")
        } else {
            ("", "")
        };
        let comma = if self.members.is_empty() { "" } else { "," };
        Some(format!(
            "{object}{comma}{line}\"{name}\":{space}{value}{behind}"
        ))
    }

    /// Returns the text without a member, whose name has no quotation mark in it; `None` if there is no such
    /// member.
    pub(crate) fn without(&self, name: &str) -> Option<String> {
        let value = span(self.text, self.member(name)?)?;
        let key = self.text.get(..value.start)?.trim_end().strip_suffix(':')?;
        let key = key.trim_end().strip_suffix('"')?;
        // The name of the member has no quotation mark, so this mark begins the name.
        let before = key.get(..key.rfind('"')?)?.trim_end();
        let behind = self.text.get(value.end..)?;
        if let Some(before) = before.strip_suffix(',') {
            return Some([before, behind].concat());
        }
        let behind = behind.trim_start();
        Some([before, behind.strip_prefix(',').unwrap_or(behind)].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_replaced_where_they_are() {
        let text =
            r#" {"b" : [1, {"a": 2}],"a":3 , "n": 123456789012345678901234567890, "c": "ü"} "#;
        let document = Document::parse(text.as_bytes()).unwrap();
        assert_eq!(document.member("b"), Some(r#"[1, {"a": 2}]"#));
        assert_eq!(document.member("d"), None);
        assert_eq!(document.with(&[]), text);
        let changed = document.with(&[("c", "null"), ("b", "{}"), ("d", "4")]);
        assert_eq!(
            changed,
            r#" {"b" : {},"a":3 , "n": 123456789012345678901234567890, "c": null} "#
        );
        for invalid in [&b"[]"[..], b"{", b"\xff", b""] {
            assert!(Document::parse(invalid).is_err());
        }
    }

    #[test]
    fn members_come_and_go() {
        for (text, with) in [
            ("{}", r#"{"é":[2]}"#),
            (r#" {"a":1 } "#, r#" {"a":1,"é":[2] } "#),
            ("{\n  \"a\": 1\n}\n", "{\n  \"a\": 1,\n  \"é\": [2]\n}\n"),
        ] {
            let document = Document::parse(text.as_bytes()).unwrap();
            assert_eq!(document.with_last("é", "[2]").unwrap(), with);
            assert_eq!(document.without("é"), None);
            let longer = Document::parse(with.as_bytes()).unwrap();
            assert_eq!(longer.without("é").unwrap(), text);
        }
        let text = r#"{ "\u00e9" : {"a":"\""} , "a":1, "b" :2}"#;
        let document = Document::parse(text.as_bytes()).unwrap();
        assert_eq!(document.without("é").unwrap(), r#"{ "a":1, "b" :2}"#);
        assert_eq!(
            document.without("a").unwrap(),
            r#"{ "\u00e9" : {"a":"\""} , "b" :2}"#
        );
    }

    #[test]
    fn parts_of_texts() {
        let text = "abcdef";
        assert_eq!(span(text, &text[2..4]), Some(2..4));
        assert_eq!(span(&text[..3], &text[2..4]), None);
        assert_eq!(span(&text[3..], &text[2..4]), None);
    }
}

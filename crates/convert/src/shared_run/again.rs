//! The command that makes a part of a planned run again, as a line of a shell.

use std::path::Path;

use serde_json::Value;

use super::RunPlan;
use crate::open::Place;
use crate::words::quoted;

/// The values that options of the command have if they are not given. They are left out.
const USUAL: [(&str, &str); 4] = [
    ("--codec", "zstd:3"),
    ("--index", "end"),
    ("--shard-size", "134217728"),
    ("--subchunk-size", "131072"),
];

impl RunPlan {
    /// Returns the command that makes a part of this run at `output`. `part` is for example `2/3`. The options of a
    /// machine, such as its memory, are not known.
    pub(super) fn command_line(&self, output: &Place, part: &str) -> String {
        let mut words = vec!["zarrs-cuda".to_owned(), self.command().to_owned()];
        words.push(near(self.input(), output));
        // The levels of an image are beside the input.
        if self.made_apart.is_none() {
            words.push(output.to_string());
        }
        for (option, value) in self.arguments() {
            if option.starts_with("--") {
                words.extend(words_of(option, value));
            }
        }
        if !matches!(self.backend(), "auto" | "none") {
            words.extend(["--backend".to_owned(), self.backend().to_owned()]);
        }
        if !self.left_out.is_empty() {
            words.push("--keep-going".to_owned());
        }
        if self.is_of_an_empty_array() && self.command() != "reshard" {
            words.push("--allow-empty".to_owned());
        }
        words.extend(["--part".to_owned(), part.to_owned()]);
        let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        words.join(" ")
    }
}

/// Returns the words for an option with its value.
fn words_of(option: &str, value: &Value) -> Vec<String> {
    let values: Vec<String> = match value {
        Value::Null | Value::Bool(false) => Vec::new(),
        Value::Bool(true) => return vec![option.to_owned()],
        Value::String(text) => vec![text.clone()],
        Value::Number(number) => vec![number.to_string()],
        Value::Array(values) if values.iter().all(Value::is_string) => {
            let texts = values.iter().filter_map(Value::as_str);
            let texts = texts.map(|text| match option {
                // No shape of a subchunk follows.
                "--shape-for" => text.trim_end_matches('/').to_owned(),
                _ => text.to_owned(),
            });
            texts.collect()
        }
        Value::Array(extents) => {
            let extents: Vec<String> = extents.iter().map(ToString::to_string).collect();
            vec![extents.join(",")]
        }
        // The encoding of keys.
        Value::Object(_) => {
            let name = value["name"].as_str().unwrap_or_default();
            let separator = value["configuration"]["separator"].as_str();
            vec![format!("{name}{}", separator.unwrap_or_default())]
        }
    };
    let values = values
        .into_iter()
        .filter(|value| !USUAL.contains(&(option, value.as_str())));
    values
        .flat_map(|value| {
            if value.starts_with('-') {
                vec![format!("{option}={value}")]
            } else {
                vec![option.to_owned(), value]
            }
        })
        .collect()
}

/// Returns the place `input` as it is written where `output` is: relative to the working directory if `output` is, and
/// `input` lies there.
fn near(input: &str, output: &Place) -> String {
    let is_relative = matches!(output, Place::Directory(path) if path.is_relative());
    let here = std::env::current_dir().and_then(|here| here.canonicalize());
    if is_relative
        && let Ok(here) = here
        && let Ok(path) = Path::new(input).strip_prefix(here)
        && path.parent().is_some()
    {
        return path.to_string_lossy().into_owned();
    }
    input.to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{USUAL, words_of};
    use crate::Reencode;

    /// Values are left out that are those of a run without options.
    #[test]
    fn usual_values_are_those_of_the_settings() {
        let arguments = crate::reencode::arguments_of_group(&Reencode::new("in", "out"));
        for (option, value) in USUAL {
            let usual = &arguments[option];
            let usual = usual
                .as_str()
                .map_or_else(|| usual.to_string(), str::to_owned);
            assert_eq!(usual, value, "{option}");
        }
        let words = arguments
            .iter()
            .flat_map(|(option, value)| words_of(option, value));
        assert_eq!(words.collect::<Vec<_>>(), Vec::<String>::new());
    }

    #[test]
    fn arguments_become_words() {
        for (option, value, words) in [
            ("--recursive", json!(true), &["--recursive"][..]),
            ("--shard", json!("8,8"), &["--shard", "8,8"]),
            ("--shard", json!([8, 16]), &["--shard", "8,16"]),
            ("--codec", json!("zstd:5"), &["--codec", "zstd:5"]),
            ("--codec", json!("zstd:3"), &[]),
            (
                "--include",
                json!(["a", "-b"]),
                &["--include", "a", "--include=-b"],
            ),
            ("--shape-for", json!(["a=8,8/"]), &["--shape-for", "a=8,8"]),
            (
                "--shape-for",
                json!(["a=8,8/4,4"]),
                &["--shape-for", "a=8,8/4,4"],
            ),
            (
                "--chunk-keys",
                json!({ "name": "v2", "configuration": { "separator": "." } }),
                &["--chunk-keys", "v2."],
            ),
            ("--chunk-keys", json!(null), &[]),
        ] {
            assert_eq!(words_of(option, &value), words, "{option} {value}");
        }
    }
}

//! Formats numbers and shapes for people.

use std::fmt;

use unit_prefix::NumberPrefix;

/// Returns a number of bytes as text: `169.17 KiB`.
#[allow(clippy::cast_precision_loss, reason = "rounded for people")]
pub fn bytes_text(bytes: u64) -> String {
    match NumberPrefix::binary(bytes as f64) {
        NumberPrefix::Standalone(number) => format!("{number:.0} B"),
        NumberPrefix::Prefixed(prefix, number) => format!("{number:.2} {prefix}B"),
    }
}

/// Returns a number of things as text: `1 shard`, `2 shards`.
pub fn counted(number: impl TryInto<u128>, thing: &str) -> String {
    let number = number.try_into().unwrap_or(u128::MAX);
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

/// Returns the verb for a number of things.
pub fn is_or_are(number: u64) -> &'static str {
    if number == 1 { "is" } else { "are" }
}

/// Returns `word` as a shell takes it for one word.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns a shape as text: `64,64,64`.
pub fn shape_text<T: fmt::Display>(shape: &[T]) -> String {
    let extents: Vec<_> = shape.iter().map(ToString::to_string).collect();
    extents.join(",")
}

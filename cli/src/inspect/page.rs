//! Writes a survey as one HTML file, which needs no network, light and dark.
//!
//! The survey is packed as numbers of variable length (LEB128), in base64. `page.js` unpacks it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::facts::Facts;
use super::look::{Look, State};
use super::survey::Survey;

const HTML: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Returns the HTML of the page about the array with this `name`.
pub(super) fn html(name: &str, facts: &Facts, survey: &Survey) -> String {
    let about = about(name, facts, survey);
    // Escape `<`, which could end the script.
    let about = about.to_string().replace('<', "\\u003c");
    let looks = pack_looks(&survey.looks);
    let sizes = pack_sizes(&survey.stored);
    let parts = BTreeMap::from([
        ("{{title}}", escaped(name)),
        ("{{style}}", STYLE.to_string()),
        ("{{about}}", about),
        ("{{sizes}}", base64(&sizes)),
        ("{{looks}}", base64(&looks)),
        ("{{script}}", SCRIPT.to_string()),
    ]);
    let mut page =
        String::with_capacity(parts.values().map(String::len).sum::<usize>() + HTML.len());
    let mut rest = HTML;
    while let Some(at) = rest.find("{{") {
        let (before, from) = rest.split_at(at);
        let end = from.find("}}").map_or(from.len(), |end| end + 2);
        page.push_str(before);
        page.push_str(parts.get(&from[..end]).map_or("", String::as_str));
        rest = &from[end..];
    }
    page.push_str(rest);
    page
}

fn about(name: &str, facts: &Facts, survey: &Survey) -> Value {
    let names: Vec<_> = (0..facts.shape.len())
        .map(|axis| facts.axis(axis))
        .collect();
    let states: Vec<_> = State::ALL.map(State::name).into();
    json!({
        "name": name,
        "shape": facts.shape,
        "shard": facts.shard,
        "subchunk": facts.subchunk,
        "counts": facts.counts(),
        "grid": survey.grid,
        "axes": names,
        "dataType": facts.data_type,
        "element": facts.element,
        "chain": facts.chain,
        "index": facts.index,
        "states": states,
        "framed": survey.framed,
        "bins": survey.sizes.bins,
        "emptySubchunks": survey.sizes.empty,
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// Packs the number of stored shards and, for each, the count of shards that are skipped since the one
/// before, and its size.
fn pack_sizes(stored: &[(u64, u64)]) -> Vec<u8> {
    let mut packed = Vec::new();
    push(&mut packed, stored.len() as u64);
    let mut next = 0;
    for &(number, size) in stored {
        push(&mut packed, number - next);
        push(&mut packed, size);
        next = number + 1;
    }
    packed
}

/// Packs the number of shards that were read and, for each: the count of shards that are skipped since the
/// one before; the number of bytes that follow; its state, live bytes and stored subchunks; its problem, as a
/// length and UTF-8; its strip, as a count, and for each run its length · 4 + kind; its subchunks, as a
/// count, and for each its size + 1, or 0.
fn pack_looks(looks: &BTreeMap<u64, Look>) -> Vec<u8> {
    let mut packed = Vec::new();
    push(&mut packed, looks.len() as u64);
    let mut next = 0;
    for (&number, look) in looks {
        push(&mut packed, number - next);
        next = number + 1;
        let mut one = Vec::new();
        push(&mut one, look.state as u64);
        push(&mut one, look.live);
        push(&mut one, look.stored);
        let problem = look.problem.as_deref().unwrap_or_default();
        push(&mut one, problem.len() as u64);
        one.extend_from_slice(problem.as_bytes());
        push(&mut one, look.strip.len() as u64);
        for &(kind, len) in &look.strip {
            push(&mut one, len.saturating_mul(4) + kind as u64);
        }
        push(&mut one, look.subchunks.len() as u64);
        for &subchunk in &look.subchunks {
            push(&mut one, subchunk);
        }
        push(&mut packed, one.len() as u64);
        packed.extend(one);
    }
    packed
}

/// Appends a number in groups of seven bits, the lowest first. All bytes except for the last have the highest
/// bit set.
fn push(bytes: &mut Vec<u8>, mut number: u64) {
    loop {
        #[allow(clippy::cast_possible_truncation, reason = "seven bits")]
        let group = (number & 0x7F) as u8;
        number >>= 7;
        if number == 0 {
            bytes.push(group);
            return;
        }
        bytes.push(group | 0x80);
    }
}

/// Returns base64 as in RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let [a, b, c] = [0, 1, 2].map(|at| u32::from(group.get(at).copied().unwrap_or(0)));
        let bits = a << 16 | b << 8 | c;
        for digit in 0..4 {
            if digit <= group.len() {
                let value = bits >> (18 - 6 * digit) & 0x3F;
                text.push(char::from(DIGITS[value as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

/// Returns text with the characters escaped that HTML reserves.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::{base64, push};

    #[test]
    fn base64_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn numbers_of_variable_length() {
        let packed = |number| {
            let mut bytes = Vec::new();
            push(&mut bytes, number);
            bytes
        };
        assert_eq!(packed(0), [0]);
        assert_eq!(packed(127), [127]);
        assert_eq!(packed(128), [0x80, 1]);
        assert_eq!(packed(624_485), [0xE5, 0x8E, 0x26]);
        assert_eq!(packed(u64::MAX).len(), 10);
    }
}

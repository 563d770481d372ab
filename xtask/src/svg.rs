//! The text of a picture, and its address with the picture in it, for pages that cannot have files beside them.

use std::fmt::Write as _;

/// Characters that stay as they are; a Markdown address may have all of them.
const SAFE: &[u8] = b"-._~/:=;,!";

/// Returns `text` with the characters that XML reserves as entities.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Returns the address that has the picture `svg` in it.
pub(crate) fn in_address(svg: &str) -> String {
    let mut address = String::from("data:image/svg+xml,");
    for byte in svg.bytes() {
        if byte.is_ascii_alphanumeric() || SAFE.contains(&byte) {
            address.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(address, "%{byte:02X}");
        }
    }
    address
}

#[cfg(test)]
mod tests {
    #[test]
    fn other_characters_are_escaped() {
        let address = super::in_address("<a b=\"2⁶\">\n(#&)");
        let escaped = "%3Ca%20b=%222%E2%81%B6%22%3E%0A%28%23%26%29";
        assert_eq!(address, format!("data:image/svg+xml,{escaped}"));
    }
}

//! Names of arrays and groups in object stores.
//!
//! `object_store` has two functions that turn a key into a path. `Path::parse` keeps all characters, and this
//! command uses it for all keys. `Path::from` encodes some characters as `%` and two hexadecimal digits.
//! zarrs uses `Path::from`, and so did an earlier version of this command.

/// The characters that `object_store::path::Path::from` encodes, besides control characters and characters
/// outside of ASCII.
const ENCODED: &[u8] = br#"\{^}%`]">[~<#|*?"#;

/// Returns the path whose encoded form is `path`; `None` if `path` has no encoded characters.
pub(crate) fn decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).filter(|_| *first == b'%');
        let digits = digits.and_then(|digits| str::from_utf8(digits).ok());
        if let Some(byte) = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            bytes.push(byte);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    let decoded = String::from_utf8(bytes).ok()?;
    (decoded != path && encoded(&decoded) == path).then_some(decoded)
}

/// Returns `path` in the form into which `Path::from` encodes it.
pub(crate) fn encoded(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    for &byte in path.as_bytes() {
        if !byte.is_ascii() || byte.is_ascii_control() || ENCODED.contains(&byte) {
            encoded += &format!("%{byte:02X}");
        } else {
            encoded.push(char::from(byte));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::{decoded, encoded};

    #[test]
    fn encoded_names_are_recognised() {
        for (path, stored) in [
            ("õ", "%C3%B5"),
            ("a~b/c", "a%7Eb/c"),
            ("#", "%23"),
            ("%25", "%2525"),
            ("[x]{y}", "%5Bx%5D%7By%7D"),
        ] {
            assert_eq!(encoded(path), stored);
            assert_eq!(decoded(stored).as_deref(), Some(path));
            assert_eq!(decoded(path).is_some(), path == "%25");
        }
        for path in ["", "a b", "100%", "%zz", "%c3%b5", "%20", "%FF", "a/%"] {
            assert_eq!(decoded(path), None, "{path}");
        }
    }

    /// The characters are those of `object_store`.
    #[cfg(feature = "remote")]
    #[test]
    fn encodes_as_object_store() {
        let all: String = (1..=0x17f_u32).filter_map(char::from_u32).collect();
        for character in all.chars().filter(|character| *character != '/') {
            let name = format!("a{character}b");
            let path = object_store::path::Path::from(name.as_str());
            assert_eq!(encoded(&name), path.as_ref());
        }
    }
}

//! Patterns of paths of arrays, as `surface/*` and `**/t2m`.

use std::fmt;
use std::str::FromStr;

use crate::failure::Failure;

/// A pattern of the paths of arrays in a group: `*` is any characters but `/`, and `**` any characters. `**/` at the
/// beginning of a name is also nothing, so that `**/t2m` matches `t2m`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Returns whether the whole of `path`, which has no slash in front, is as the pattern says.
    pub fn matches(&self, path: &str) -> bool {
        reached(self.0.as_bytes(), path).last() == Some(&true)
    }

    /// Returns whether the pattern matches some path below `path`.
    pub(crate) fn matches_below(&self, path: &str) -> bool {
        reached(self.0.as_bytes(), &format!("{path}/")).contains(&true)
    }
}

/// Returns, for each position in the pattern and its end, whether the whole of `path` may reach it.
fn reached(pattern: &[u8], path: &str) -> Vec<bool> {
    let mut reached = vec![false; pattern.len() + 1];
    reached[0] = true;
    close(pattern, &mut reached, true);
    for &byte in path.as_bytes() {
        let mut next = vec![false; pattern.len() + 1];
        for at in (0..pattern.len()).filter(|&at| reached[at]) {
            match pattern[at] {
                b'*' if byte != b'/' || is_double(pattern, at) => next[at] = true,
                b'*' => {}
                same if same == byte => next[at + 1] = true,
                _ => {}
            }
        }
        close(pattern, &mut next, byte == b'/');
        reached = next;
    }
    reached
}

/// Returns whether the star at `at` is one of two.
fn is_double(pattern: &[u8], at: usize) -> bool {
    pattern.get(at + 1) == Some(&b'*')
        || at.checked_sub(1).map(|before| pattern[before]) == Some(b'*')
}

/// Adds the positions that are reached without a character: behind a star and, where a name begins in the path, behind
/// `**/`.
fn close(pattern: &[u8], reached: &mut [bool], name_begins: bool) {
    for at in 0..pattern.len() {
        if !reached[at] {
            continue;
        }
        if pattern[at] == b'*' {
            reached[at + 1] = true;
        }
        let is_begin = at == 0 || pattern[at - 1] == b'/';
        if name_begins && is_begin && pattern[at..].starts_with(b"**/") {
            reached[at + 3] = true;
        }
    }
}

impl FromStr for Pattern {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let text = text.trim_start_matches('/');
        if text.is_empty() {
            return Err(Failure::usage(
                "an empty pattern is the path of no array: write `**` for all",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn stars_are_wildcards() {
        for (pattern, matching, others) in [
            ("t2m", &["t2m"][..], &["t2", "t2mm", "a/t2m", ""][..]),
            ("/t2m", &["t2m"], &["a/t2m"]),
            ("*", &["t2m", "x"], &["a/t2m"]),
            ("**", &["t2m", "a/b/c"], &[]),
            (
                "**/t2m",
                &["t2m", "a/t2m", "a/b/t2m"],
                &["a/t2", "a/t2m/x", "xt2m"],
            ),
            (
                "a/**/b",
                &["a/b", "a/x/b", "a/x/y/b"],
                &["ab", "a/xb", "xa/b"],
            ),
            ("**t2m", &["t2m", "a/t2m"], &["a/t2m/x"]),
            ("*/*", &["a/b"], &["a", "a/b/c"]),
            (
                "a*c*e",
                &["ace", "abcde", "acce", "acece"],
                &["abcd", "ac/e", "abe"],
            ),
            ("a**e", &["ae", "a/b/e"], &["a/b/f", "be"]),
            ("?.[x]", &["?.[x]"], &["a.[x]", "?.x"]),
        ] {
            let pattern: Pattern = pattern.parse().unwrap();
            for path in matching {
                assert!(pattern.matches(path), "{pattern} {path}");
            }
            for path in others {
                assert!(!pattern.matches(path), "{pattern} {path}");
            }
        }
        for (pattern, above, others) in [
            (
                "a/b/t2m",
                &["a", "a/b"][..],
                &["t2m", "b", "a/b/t2m", "a/bc"][..],
            ),
            ("*", &[], &["a", "a/b"]),
            ("*/t2m", &["a", "xyz"], &["a/b"]),
            ("**/t2m", &["a", "a/b", "t2m"], &[]),
            ("a/**", &["a", "a/b"], &["b", "ab"]),
        ] {
            let pattern: Pattern = pattern.parse().unwrap();
            for path in above {
                assert!(pattern.matches_below(path), "{pattern} {path}");
            }
            for path in others {
                assert!(!pattern.matches_below(path), "{pattern} {path}");
            }
        }
        assert!("".parse::<Pattern>().is_err());
        // A pattern that takes other matchers exponential time.
        let pattern: Pattern = "*a".repeat(40).parse().unwrap();
        assert!(!pattern.matches(&"a".repeat(39)));
        assert!(pattern.matches(&"ba".repeat(40)));
    }
}

//! How many lines of code the library has.
//!
//! A line counts if it is neither blank nor a comment, and is part of what users compile. What is behind
//! `cfg(test)` or a feature for this repository's own programs is counted apart.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;

/// Conditions of code that users do not compile.
const NOT_FOR_USERS: [&str; 3] = [
    "test",
    "feature = \"conformance\"",
    "feature = \"internals\"",
];

/// Lines of code: for users, and for this repository.
#[derive(Clone, Copy, Default)]
struct Lines {
    library: usize,
    apart: usize,
}

/// Print the lines of each folder of `src`, and of all.
pub(crate) fn print() -> Result<()> {
    let mut folders = BTreeMap::new();
    let src = Path::new("src");
    count(&src.join("lib.rs"), src, false, &mut folders)?;
    let mut all = Lines::default();
    println!("{:>8} {:>8}", "library", "apart");
    for (folder, lines) in &folders {
        println!(
            "{:>8} {:>8}  {}",
            lines.library,
            lines.apart,
            folder.display()
        );
        all.library += lines.library;
        all.apart += lines.apart;
    }
    println!("{:>8} {:>8}  all", all.library, all.apart);
    Ok(())
}

/// Count the lines of a file and of its modules, whose files are in `children` or folders of their
/// names. A file that is `apart` has all its modules apart.
fn count(
    file: &Path,
    children: &Path,
    apart: bool,
    folders: &mut BTreeMap<PathBuf, Lines>,
) -> Result<()> {
    let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let folder = file.parent().unwrap_or(Path::new("src"));
    let mut counted = Lines::default();
    // What the attributes before an item say, and where an item that is apart ends.
    let mut attributes = Attributes::default();
    let mut until: Option<String> = None;
    for line in text.lines() {
        let code = line.trim();
        if code.is_empty() || code.starts_with("//") {
            continue;
        }
        let item_apart = attributes.apart || code.starts_with("#[cfg(") && is_apart(code);
        if apart || until.is_some() || item_apart {
            counted.apart += 1;
        } else {
            counted.library += 1;
        }
        if let Some(end) = &until {
            if line == end {
                until = None;
            }
            continue;
        }
        if code.starts_with("#[") || code.starts_with("#![") {
            attributes.read(code);
            continue;
        }
        let Attributes { apart: this, path } = std::mem::take(&mut attributes);
        if let Some(module) = declared(code) {
            let (next, its_children) = files(children, folder, module, path.as_deref());
            count(&next, &its_children, apart || this, folders)?;
        } else if this && !code.ends_with(';') && !code.ends_with('}') && !code.ends_with(',') {
            let indent = &line[..line.len() - line.trim_start().len()];
            // rustfmt closes an item where it began.
            until = Some(format!("{indent}}}"));
        }
    }
    let place = folders.entry(folder.to_path_buf()).or_default();
    place.library += counted.library;
    place.apart += counted.apart;
    Ok(())
}

#[derive(Default)]
struct Attributes {
    apart: bool,
    path: Option<String>,
}

impl Attributes {
    fn read(&mut self, attribute: &str) {
        self.apart |= attribute.starts_with("#[cfg(") && is_apart(attribute);
        if let Some(path) = attribute.strip_prefix("#[path = \"") {
            self.path = path.strip_suffix("\"]").map(str::to_owned);
        }
    }
}

/// Whether users do not compile what has this attribute.
fn is_apart(attribute: &str) -> bool {
    // `any(target_os = "linux", test)` is compiled by some users.
    let condition = attribute
        .trim_start_matches("#[cfg(")
        .trim_end_matches(")]");
    let (any, condition) = match condition.strip_prefix("any(") {
        Some(rest) => (true, rest.trim_end_matches(')')),
        None => (
            false,
            condition.trim_start_matches("all(").trim_end_matches(')'),
        ),
    };
    let mut conditions = condition.split(", ");
    let ours = |condition: &str| NOT_FOR_USERS.contains(&condition);
    if any {
        conditions.all(ours)
    } else {
        conditions.any(ours)
    }
}

/// The name of a module in a file of its own.
fn declared(code: &str) -> Option<&str> {
    let module = code.strip_suffix(';')?;
    let (visibility, name) = module.rsplit_once("mod ")?;
    let visible = visibility.is_empty() || visibility.starts_with("pub");
    let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_');
    (visible && is_name).then_some(name)
}

/// The file of a module, and the folder of its own modules.
fn files(children: &Path, folder: &Path, module: &str, path: Option<&str>) -> (PathBuf, PathBuf) {
    if let Some(path) = path {
        let file = folder.join(path);
        let its_children = file.parent().unwrap_or(folder).to_path_buf();
        return (file, its_children);
    }
    let own = children.join(module);
    let file = children.join(format!("{module}.rs"));
    if file.exists() {
        (file, own)
    } else {
        (own.join("mod.rs"), own)
    }
}

//! Follows the paths in source files to the items that they name.

use std::collections::{BTreeMap, BTreeSet};

use super::Arrows;
use crate::sources::Source;

/// The path of a module, which begins with the name of its package.
type Path = Vec<String>;

/// The content of a module.
#[derive(Default)]
struct Module {
    /// The module's file.
    file: String,
    defined: BTreeSet<String>,
    /// Imported or re-exported names, and their paths.
    imported: BTreeMap<String, Path>,
    /// Modules that are imported with a glob.
    globs: Vec<Path>,
}

/// A path as written, and the module that contains it.
struct Written {
    module: Path,
    path: Path,
    /// The name that an import gives to the path.
    name: Option<String>,
    is_import: bool,
}

/// Returns which files use which.
pub(super) fn arrows(sources: &[Source]) -> Arrows {
    let mut modules: BTreeMap<Path, Module> = BTreeMap::new();
    let mut written = Vec::new();
    for source in sources.iter().filter(|source| !source.library.is_empty()) {
        let file = source.file.to_string_lossy().into_owned();
        read(
            &source.module,
            &file,
            &source.library,
            &mut modules,
            &mut written,
        );
    }
    let known: BTreeSet<Path> = modules.keys().cloned().collect();
    // Imports are resolved first: other paths may start with imported names.
    for import in written.iter().filter(|written| written.is_import) {
        let Some(path) = absolute(import, &modules, &known) else {
            continue;
        };
        let Some(module) = modules.get_mut(&import.module) else {
            continue;
        };
        match (&import.name, path.last().map(String::as_str)) {
            (_, Some("*")) => module.globs.push(path[..path.len() - 1].to_vec()),
            (Some(name), _) => drop(module.imported.insert(name.clone(), path)),
            (None, Some(name)) => drop(module.imported.insert(name.to_owned(), path.clone())),
            (None, None) => {}
        }
    }
    let mut arrows = Arrows::new();
    for module in modules.values() {
        arrows.entry(module.file.clone()).or_default();
    }
    for one in &written {
        let Some(path) = absolute(one, &modules, &known) else {
            continue;
        };
        let Some(file) = defines(&path, &modules, 0) else {
            continue;
        };
        let from = &modules[&one.module].file;
        if *from != file {
            arrows.entry(from.clone()).or_default().insert(file);
        }
    }
    arrows
}

/// The path from the name of a package; `None` for paths to other packages, or within an item.
fn absolute(
    written: &Written,
    modules: &BTreeMap<Path, Module>,
    known: &BTreeSet<Path>,
) -> Option<Path> {
    let (first, rest) = written.path.split_first()?;
    let mut path = match first.as_str() {
        "crate" => vec![written.module.first()?.clone()],
        "self" => written.module.clone(),
        "super" => written.module.split_last()?.1.to_vec(),
        name => {
            let child = [&written.module[..], &[name.to_owned()]].concat();
            let package = vec![name.to_owned()];
            if known.contains(&child) {
                child
            } else if known.contains(&package) {
                package
            } else if written.is_import {
                return None;
            } else {
                // An imported name, if it is a module or has associated names.
                modules.get(&written.module)?.imported.get(name)?.clone()
            }
        }
    };
    for name in rest {
        match name.as_str() {
            "super" => drop(path.pop()),
            "self" => {}
            name => path.push(name.to_owned()),
        }
    }
    Some(path)
}

/// The file that defines the item at `path`.
fn defines(path: &[String], modules: &BTreeMap<Path, Module>, depth: usize) -> Option<String> {
    let mut len = 0;
    while len < path.len() && modules.contains_key(&path[..=len]) {
        len += 1;
    }
    let module = modules.get(&path[..len])?;
    let Some(name) = path.get(len).filter(|name| *name != "*") else {
        return Some(module.file.clone());
    };
    if module.defined.contains(name) || depth > 8 {
        return Some(module.file.clone());
    }
    if let Some(to) = module.imported.get(name) {
        let to = [&to[..], &path[len + 1..]].concat();
        return defines(&to, modules, depth + 1);
    }
    for glob in &module.globs {
        let is_there = modules
            .get(glob)
            .is_some_and(|m| m.defined.contains(name) || m.imported.contains_key(name));
        if is_there {
            let to = [&glob[..], &path[len..]].concat();
            return defines(&to, modules, depth + 1);
        }
    }
    // The module does not show which file defines the name.
    None
}

/// Reads the modules and paths from the lines of a file.
fn read(
    module: &[String],
    file: &str,
    lines: &[String],
    modules: &mut BTreeMap<Path, Module>,
    written: &mut Vec<Written>,
) {
    let tokens = tokens(lines);
    let is = |at: usize, text: &str| tokens.get(at).is_some_and(|token| token == text);
    // The open modules, and the number of open braces before each.
    let mut open = vec![(module.to_vec(), 0)];
    let mut braces = 0;
    let new = || Module {
        file: file.to_owned(),
        ..Module::default()
    };
    modules.entry(module.to_vec()).or_insert_with(new);
    let mut at = 0;
    while at < tokens.len() {
        let here = open.last().map_or_else(Vec::new, |(path, _)| path.clone());
        let token = tokens[at].as_str();
        match token {
            "{" => braces += 1,
            "}" => {
                braces -= 1;
                if open.len() > 1 && open.last().is_some_and(|(_, before)| *before == braces) {
                    open.pop();
                }
            }
            "mod" if is(at + 2, "{") => {
                let path = [&here[..], &[tokens[at + 1].clone()]].concat();
                modules.entry(path.clone()).or_insert_with(new);
                open.push((path, braces));
                braces += 1;
                at += 2;
            }
            "struct" | "enum" | "trait" | "fn" | "const" | "static" | "type" | "union"
            | "macro_rules!" => {
                if let (Some(name), Some(module)) = (tokens.get(at + 1), modules.get_mut(&here)) {
                    module.defined.insert(name.clone());
                }
            }
            // Skips `use<…>` in types.
            "use" if !is(at + 1, "<") => {
                let mut trees = Vec::new();
                at = tree(&tokens, at + 1, &mut vec![], &mut trees);
                for (path, name) in trees {
                    written.push(Written {
                        module: here.clone(),
                        path,
                        name,
                        is_import: true,
                    });
                }
                continue;
            }
            _ => {
                let begins = is_name(token)
                    && is(at + 1, "::")
                    && (at == 0 || !["::", "."].contains(&tokens[at - 1].as_str()));
                if begins {
                    let mut path = vec![token.to_owned()];
                    while is(at + 1, "::") && tokens.get(at + 2).is_some_and(|t| is_name(t)) {
                        path.push(tokens[at + 2].clone());
                        at += 2;
                    }
                    written.push(Written {
                        module: here,
                        path,
                        name: None,
                        is_import: false,
                    });
                }
            }
        }
        at += 1;
    }
}

/// Reads the paths of an import, and their names. Returns the position after the import.
fn tree(
    tokens: &[String],
    mut at: usize,
    before: &mut Path,
    trees: &mut Vec<(Path, Option<String>)>,
) -> usize {
    let len = before.len();
    while let Some(token) = tokens.get(at) {
        match token.as_str() {
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token != "}") {
                    let (mut inner, begin) = (before.clone(), at);
                    at = tree(tokens, at, &mut inner, trees);
                    at += usize::from(tokens.get(at).is_some_and(|token| token == ","));
                    if at == begin {
                        return at;
                    }
                }
                before.truncate(len);
                return at + 1;
            }
            "::" => {}
            "as" => {
                trees.push((before.clone(), tokens.get(at + 1).cloned()));
                before.truncate(len);
                return at + 2;
            }
            "," | "}" | ";" => break,
            name => before.push(name.to_owned()),
        }
        at += 1;
    }
    if before.len() > len {
        let is_self = before.last().is_some_and(|last| last == "self") && before.len() > 1;
        let path = before[..before.len() - usize::from(is_self)].to_vec();
        trees.push((path, None));
    }
    before.truncate(len);
    at
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_' || c == '*')
}

/// Splits lines into names, `::`, and single characters. Skips comments, strings and character
/// literals.
fn tokens(lines: &[String]) -> Vec<String> {
    let text = lines.join("\n");
    let mut tokens = Vec::new();
    let mut rest = text.as_str();
    while let Some(first) = rest.chars().next() {
        let len = if first.is_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
            let end = end.unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            if name == "macro_rules" && after.starts_with('!') {
                tokens.push("macro_rules!".to_owned());
                end + 1
            } else {
                let hashes = after.len() - after.trim_start_matches('#').len();
                let quoted = after[hashes..].starts_with('"');
                if quoted && ["r", "br"].contains(&name) {
                    let close = format!("\"{}", "#".repeat(hashes));
                    let inside = &after[hashes + 1..];
                    end + hashes
                        + 1
                        + inside
                            .find(&close)
                            .map_or(inside.len(), |at| at + close.len())
                } else {
                    tokens.push(name.to_owned());
                    end
                }
            }
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            tokens.push("::".to_owned());
            2
        } else if first == '"' {
            quoted(rest, '"')
        } else if first == '\'' {
            // A character literal or a lifetime.
            let mut chars = rest.chars().skip(1);
            match (chars.next(), chars.next()) {
                (Some('\\'), _) => quoted(rest, '\''),
                (Some(c), Some('\'')) => 2 + c.len_utf8(),
                _ => 1,
            }
        } else {
            if !first.is_whitespace() {
                tokens.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[len..];
    }
    tokens
}

/// The length of a literal between two `quote`s, in bytes.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if c == quote && !escaped {
            return at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

//! The source files of the packages, without code that users do not compile.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;

/// Conditions of code that users do not compile.
const NOT_FOR_USERS: [&str; 2] = ["test", "feature = \"fakes\""];

/// The packages that users compile: the name in paths of other packages, and the root.
const PACKAGES: [(&str, &str); 5] = [
    ("zarrs_cuda", "src/lib.rs"),
    ("zarrs_cuda_engine", "crates/engine/src/lib.rs"),
    ("zarrs_cuda_convert", "crates/convert/src/lib.rs"),
    ("zarrs_cuda_cli", "cli/src/lib.rs"),
    ("zarrs_cuda_python", "python/src/lib.rs"),
];

/// A file of a package.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) file: PathBuf,
    /// The path of the module, which begins with the name of the package.
    pub(crate) module: Vec<String>,
    /// Lines of code that users compile: neither blank nor a comment.
    pub(crate) library: Vec<String>,
    /// The number of each of these lines in the file, counted from 1.
    pub(crate) numbers: Vec<usize>,
    /// The number of lines of code that users do not compile.
    pub(crate) apart: usize,
}

/// All files of the packages.
pub(crate) fn all() -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for (name, root) in PACKAGES {
        let root = Path::new(root);
        let folder = root.parent().unwrap_or(root);
        read(root, folder, &[name.to_owned()], false, &mut sources)?;
    }
    Ok(sources)
}

/// Reads a file and its modules. Their files are in `children`, or in folders with their names. If
/// the file is `apart`, so are all of its modules.
fn read(
    file: &Path,
    children: &Path,
    module: &[String],
    apart: bool,
    sources: &mut Vec<Source>,
) -> Result<()> {
    let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let folder = file.parent().unwrap_or(Path::new("src"));
    let mut source = Source {
        file: file.to_path_buf(),
        module: module.to_vec(),
        library: Vec::new(),
        numbers: Vec::new(),
        apart: 0,
    };
    // The attributes before an item, and the end of an item that is apart.
    let mut attributes = Attributes::default();
    let mut until: Option<String> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let code = line.trim();
        if code.is_empty() || code.starts_with("//") {
            continue;
        }
        let item_apart = attributes.apart || code.starts_with("#[cfg(") && is_apart(code);
        if apart || until.is_some() || item_apart {
            source.apart += 1;
        } else {
            source.library.push(line.to_owned());
            source.numbers.push(number);
        }
        if let Some(end) = &until {
            if line.trim_end_matches(';') == end {
                until = None;
            }
            continue;
        }
        if code.starts_with("#[") || code.starts_with("#![") {
            attributes.read(code);
            continue;
        }
        let Attributes { apart: this, path } = std::mem::take(&mut attributes);
        if let Some(name) = declared(code) {
            let (next, its_children) = files(children, folder, name, path.as_deref());
            let module = [module, &[name.to_owned()]].concat();
            read(&next, &its_children, &module, apart || this, sources)?;
        } else if this && !code.ends_with(';') && !code.ends_with('}') && !code.ends_with(',') {
            let indent = &line[..line.len() - line.trim_start().len()];
            // rustfmt indents the closing brace like the start of the item.
            until = Some(format!("{indent}}}"));
        }
    }
    sources.push(source);
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

/// Whether the attribute keeps its item from users.
fn is_apart(attribute: &str) -> bool {
    // Some users compile `any(target_os = "linux", test)`.
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

/// The file of a module, and the folder of its child modules.
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

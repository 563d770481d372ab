//! Checks the links in the documentation, as GitHub and rustdoc render it.
//!
//! The check supports the Markdown of this repository: inline links, links by reference and their
//! definitions. Only rustdoc pages that can be reached from the crate's first page count, because
//! `target/doc` may have older ones. Links to other sites are not checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::Result;

/// Items of this crate on docs.rs, which are checked in rustdoc's pages.
const ITEMS: &str = "https://docs.rs/zarrs_cuda/latest/";

/// Files of this crate on docs.rs, which must be in the package.
const FILES: &str = "https://docs.rs/crate/zarrs_cuda/latest/source/";

/// Folders without this repository's documentation.
const PASSED_OVER: [&str; 3] = ["target", "node_modules", "corpus"];

/// Checks every link. rustdoc's pages must exist.
pub(crate) fn check() -> Result<()> {
    let doc = crate::target().join("doc");
    let first = doc.join("zarrs_cuda/index.html");
    if !first.exists() {
        return Err(format!(
            "{} is missing: run `cargo doc --no-deps --all-features` first",
            first.display()
        ));
    }
    let mut site = Site {
        packaged: Packaged::read()?,
        doc,
        anchors: BTreeMap::new(),
        broken: BTreeSet::new(),
    };
    let mut links = 0;
    let mut files = Vec::new();
    find_markdown(Path::new("."), &mut files)?;
    for file in &files {
        links += site.check_markdown(file)?;
    }
    let pages = site.check_pages(&first, &mut links)?;
    if site.broken.is_empty() {
        println!(
            "{links} links of {} Markdown files and {pages} pages of rustdoc lead somewhere",
            files.len()
        );
        return Ok(());
    }
    let broken: Vec<String> = site.broken.into_iter().collect();
    Err(format!("broken links:\n  {}", broken.join("\n  ")))
}

pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn find_markdown(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for entry in entries {
        let path = entry.map_err(|e| e.to_string())?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let hidden = name.starts_with('.');
        // Definitions for rustdoc alone, which adds them to its pages.
        let of_rustdoc = ["links.md", "charts.md"]
            .iter()
            .any(|file| path.ends_with(Path::new("src/guide").join(file)));
        if hidden || of_rustdoc || PASSED_OVER.contains(&&*name) {
            continue;
        }
        if path.is_dir() {
            find_markdown(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found.sort();
    Ok(())
}

/// The files in the package.
struct Packaged {
    excluded: Vec<String>,
}

impl Packaged {
    /// Reads the line `exclude = [...]` of the manifest.
    fn read() -> Result<Self> {
        let manifest = read(Path::new("Cargo.toml"))?;
        let list = manifest
            .lines()
            .find_map(|line| line.strip_prefix("exclude = ["))
            .ok_or("Cargo.toml has no line `exclude = [...]`")?;
        let excluded = list.split('"').skip(1).step_by(2);
        Ok(Self {
            excluded: excluded
                .map(|path| path.trim_start_matches('/').to_string())
                .collect(),
        })
    }

    fn has(&self, path: &str) -> bool {
        Path::new(path).exists()
            && !self
                .excluded
                .iter()
                .any(|out| Path::new(path).starts_with(out))
    }
}

struct Site {
    packaged: Packaged,
    doc: PathBuf,
    /// The anchors of each file that a link leads to.
    anchors: BTreeMap<PathBuf, BTreeSet<String>>,
    broken: BTreeSet<String>,
}

impl Site {
    fn check_markdown(&mut self, file: &Path) -> Result<usize> {
        let page = Markdown::parse(&read(file)?);
        for label in &page.undefined {
            self.broken
                .insert(format!("{}: [{label}] is not defined", file.display()));
        }
        for label in &page.unused {
            self.broken
                .insert(format!("{}: [{label}] is not used", file.display()));
        }
        for link in &page.links {
            self.check_link(file, link)?;
        }
        Ok(page.links.len())
    }

    /// Checks the pages of the crate, starting at `first`. Returns their number.
    fn check_pages(&mut self, first: &Path, links: &mut usize) -> Result<usize> {
        let mut waiting = vec![normal(first)];
        let mut seen = BTreeSet::from([normal(first)]);
        let of_crate = normal(&self.doc.join("zarrs_cuda"));
        while let Some(page) = waiting.pop() {
            let html = read(&page)?;
            // Documentation and links of other crates follow this heading.
            let own = html.split("id=\"blanket-implementations\"").next();
            for link in attributes(own.unwrap_or(&html), "href") {
                *links += 1;
                self.check_link(&page, link)?;
                if let Some(target) = local(&page, link)
                    && target.starts_with(&of_crate)
                    && target
                        .extension()
                        .is_some_and(|extension| extension == "html")
                    && target.exists()
                    && seen.insert(target.clone())
                {
                    waiting.push(target);
                }
            }
        }
        Ok(seen.len())
    }

    /// Checks a link of `file`, and records it if it is broken.
    fn check_link(&mut self, file: &Path, link: &str) -> Result<()> {
        let broken = if let Some(item) = link.strip_prefix(ITEMS) {
            let page = self.doc.join("index.html");
            self.is_broken(&page, item)?
        } else if let Some(path) = link.strip_prefix(FILES) {
            !self.packaged.has(path)
        } else {
            self.is_broken(file, link)?
        };
        if broken {
            let file = file.strip_prefix(crate::root()).unwrap_or(file);
            self.broken.insert(format!("{}: {link}", file.display()));
        }
        Ok(())
    }

    fn is_broken(&mut self, file: &Path, link: &str) -> Result<bool> {
        let Some(target) = local(file, link) else {
            return Ok(false);
        };
        if !target.exists() {
            return Ok(true);
        }
        let Some((_, anchor)) = link.split_once('#') else {
            return Ok(false);
        };
        // Line anchors of a source file, which a script of rustdoc handles.
        if anchor.is_empty() || target.components().any(|part| part.as_os_str() == "src") {
            return Ok(false);
        }
        if !self.anchors.contains_key(&target) {
            let text = read(&target)?;
            let anchors = if target
                .extension()
                .is_some_and(|extension| extension == "md")
            {
                Markdown::parse(&text).anchors
            } else {
                attributes(&text, "id").map(str::to_string).collect()
            };
            self.anchors.insert(target.clone(), anchors);
        }
        Ok(!self.anchors[&target].contains(anchor))
    }
}

/// The file that a link of `file` leads to; `None` for other sites. rustdoc leaves paths of items
/// unchanged if it does not document their crates, and it checks those paths itself.
pub(crate) fn local(file: &Path, link: &str) -> Option<PathBuf> {
    if link.contains("::")
        || link.contains("://")
        || link.starts_with("mailto:")
        || link.starts_with("javascript:")
    {
        return None;
    }
    let path = link.split(['#', '?']).next().unwrap_or(link);
    if path.is_empty() {
        return Some(normal(file));
    }
    Some(normal(&file.parent().unwrap_or(Path::new(".")).join(path)))
}

/// `path` without `.` and `..`.
pub(crate) fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir if normal.pop() => {}
            other => normal.push(other),
        }
    }
    normal
}

/// The values of an attribute in a rustdoc page, where all values are quoted.
pub(crate) fn attributes<'a>(html: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let start = format!(" {name}=\"");
    html.match_indices(&start)
        .map(|(at, start)| &html[at + start.len()..])
        .filter_map(|rest| rest.split('"').next())
        .collect::<Vec<_>>()
        .into_iter()
}

#[derive(Default)]
pub(crate) struct Markdown {
    pub(crate) links: Vec<String>,
    anchors: BTreeSet<String>,
    undefined: BTreeSet<String>,
    unused: BTreeSet<String>,
}

impl Markdown {
    pub(crate) fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let mut defined = BTreeMap::new();
        let mut used = BTreeSet::new();
        let mut in_code = false;
        for line in text.lines() {
            if line.trim_start().starts_with("```") {
                in_code = !in_code;
            } else if in_code {
            } else if let Some(heading) = line.strip_prefix('#') {
                let slug = slug(heading.trim_start_matches('#'));
                let again = (1..).map(|n| format!("{slug}-{n}"));
                let slug = std::iter::once(slug.clone())
                    .chain(again)
                    .find(|slug| !page.anchors.contains(slug));
                page.anchors.extend(slug);
            } else if let Some((label, link)) = definition(line) {
                defined.insert(label.to_string(), link.to_string());
            } else {
                page.read_line(&without_code(line), &mut used);
            }
        }
        for label in used {
            match defined.remove(&label) {
                Some(link) => page.links.push(link),
                None => {
                    page.undefined.insert(label);
                }
            }
        }
        page.unused = defined.into_keys().collect();
        page
    }

    /// Reads the links of a line whose code is masked.
    fn read_line(&mut self, line: &str, used: &mut BTreeSet<String>) {
        for (at, _) in line.match_indices("](") {
            let link = line[at + 2..].split(')').next().unwrap_or_default();
            self.links.push(link.to_string());
        }
        for (at, _) in line.match_indices("][") {
            if let Some((label, _)) = line[at + 2..].split_once(']') {
                used.insert(label.to_string());
            }
        }
    }
}

/// A label and its destination.
fn definition(line: &str) -> Option<(&str, &str)> {
    let (label, link) = line.strip_prefix('[')?.split_once("]: ")?;
    (!label.contains('[')).then_some((label, link))
}

/// Replaces everything in backticks by `x`, except for labels of links, which may be code.
fn without_code(line: &str) -> String {
    let mut text = String::new();
    for (n, part) in line.split('`').enumerate() {
        let is_label = text.ends_with("][") && n % 2 == 1;
        if is_label {
            text.extend(["`", part, "`"]);
        } else if n % 2 == 1 {
            text.push('x');
        } else {
            text.push_str(part);
        }
    }
    text
}

/// The anchor that GitHub and rustdoc give to a heading.
fn slug(heading: &str) -> String {
    heading
        .trim()
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_anchors_are_found() {
        let page = Markdown::parse(
            "# A `b`, c\n## x\n## x\n[a](b.md#c) `[no](link)` [d][e] [`f`][`g`] [h][i]\n\n```\n[no](code)\n```\n[e]: f.md\n[`g`]: h.md\n[j]: k.md\n",
        );
        assert_eq!(page.links, ["b.md#c", "h.md", "f.md"]);
        let anchors: Vec<_> = page.anchors.iter().map(String::as_str).collect();
        assert_eq!(anchors, ["a-b-c", "x", "x-1"]);
        assert_eq!(page.undefined, BTreeSet::from(["i".to_string()]));
        assert_eq!(page.unused, BTreeSet::from(["j".to_string()]));
    }

    #[test]
    fn relative_links_lead_to_files() {
        let from = Path::new("docs/guide/start.md");
        assert_eq!(
            local(from, "../reference/updates.md#recovery"),
            Some(PathBuf::from("docs/reference/updates.md"))
        );
        assert_eq!(local(from, "#here"), Some(from.to_path_buf()));
        assert_eq!(local(from, "https://zarr.dev"), None);
    }
}

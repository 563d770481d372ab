//! Builds the book of the documentation with mdBook, and checks the links of its pages.
//!
//! The pages keep their places in the repository, so links between them work on GitHub, too. A file that a page
//! links to, such as an example, is copied into the book.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::links::{Markdown, attributes, local, normal, read};
use crate::{Result, output, pypi, target};

/// The list of the pages, with links from its own folder.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Builds `target/book`.
pub(crate) fn build() -> Result<()> {
    let packages = pypi::install("mdbook.txt")?;
    let (source, book) = (target().join("book-source"), target().join("book"));
    for folder in [&source, &book] {
        if folder.exists() {
            fs::remove_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
    }
    let summary = with_results(&read(Path::new(SUMMARY))?)?;
    let pages = pages(&summary)?;
    stage(&pages, &source)?;
    let list = source.join("SUMMARY.md");
    fs::write(&list, from_root(&summary)).map_err(|e| format!("{}: {e}", list.display()))?;
    copy(Path::new("book.toml"), &source)?;
    let mut mdbook = Command::new(packages.join("bin/mdbook"));
    output(mdbook.arg("build").arg(&source))?;
    let links = check(&pages, &book)?;
    let index = book.join("index.html");
    println!(
        "{}: {} pages, of which {links} links lead somewhere",
        index.display(),
        pages.len()
    );
    Ok(())
}

/// Returns `summary` with the pages of results below the page that lists them.
fn with_results(summary: &str) -> Result<String> {
    let mut text = String::new();
    for line in summary.lines() {
        text.extend([line, "\n"]);
        let Some((indent, _)) = line.split_once("- [Results](results/README.md)") else {
            continue;
        };
        let folder = Path::new("docs/results");
        let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let mut names = BTreeSet::new();
        for entry in entries {
            names.insert(entry.map_err(|e| e.to_string())?.file_name());
        }
        for name in names.iter().filter(|name| *name != "README.md") {
            let name = name.to_string_lossy();
            let page = read(&folder.join(&*name))?;
            let title = page.lines().find_map(|line| line.strip_prefix("# "));
            let title = title.unwrap_or(&name);
            let place = format!("](results/{name})\n");
            text.extend([indent, "  - [", title, &place]);
        }
    }
    Ok(text)
}

/// Returns the pages that `summary` lists, as paths from the root of the repository.
fn pages(summary: &str) -> Result<BTreeSet<PathBuf>> {
    let links = Markdown::parse(summary).links;
    let pages: BTreeSet<PathBuf> = links
        .iter()
        .filter_map(|link| local(Path::new(SUMMARY), link))
        .collect();
    if pages.len() < links.len() {
        return Err(format!("{SUMMARY} lists a page twice, or one elsewhere"));
    }
    Ok(pages)
}

/// Returns `summary` with links from the root of the repository.
fn from_root(summary: &str) -> String {
    let mut parts = summary.split("](");
    let mut text = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let (link, rest) = part.split_once(')').unwrap_or((part, ""));
        let path = local(Path::new(SUMMARY), link).unwrap_or_else(|| link.into());
        text.extend(["](", &path.to_string_lossy(), ")", rest]);
    }
    text
}

/// Copies `pages`, and the files that they link to, to `source`.
fn stage(pages: &BTreeSet<PathBuf>, source: &Path) -> Result<()> {
    let mut wrong = Vec::new();
    for page in pages {
        copy(page, source)?;
        for link in Markdown::parse(&read(page)?).links {
            let Some(file) = local(page, &link) else {
                continue;
            };
            if pages.contains(&file) {
                continue;
            }
            let is_page = file.extension().is_some_and(|extension| extension == "md");
            if is_page || !file.is_file() {
                wrong.push(format!("{}: {link}", page.display()));
            } else {
                copy(&file, source)?;
            }
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!(
        "pages of the book link to pages that {SUMMARY} does not list, or to folders:\n  {}",
        wrong.join("\n  ")
    ))
}

/// Copies the file `path` to the same place below `source`.
fn copy(path: &Path, source: &Path) -> Result<()> {
    let to = source.join(path);
    let folder = to.parent().unwrap_or(source);
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    fs::copy(path, &to).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(())
}

/// Checks the links of the rendered pages. Returns their number.
fn check(pages: &BTreeSet<PathBuf>, book: &Path) -> Result<usize> {
    let (mut links, mut broken) = (0, Vec::new());
    for page in pages {
        let page = book.join(page.with_extension("html"));
        let html = read(&page)?;
        let of_page = attributes(&html, "href").chain(attributes(&html, "src"));
        for link in of_page {
            links += 1;
            if !leads_somewhere(&page, link)? {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    if broken.is_empty() {
        return Ok(links);
    }
    broken.sort();
    broken.dedup();
    Err(format!(
        "broken links of the book:\n  {}",
        broken.join("\n  ")
    ))
}

fn leads_somewhere(page: &Path, link: &str) -> Result<bool> {
    let Some(file) = local(page, link) else {
        return Ok(true);
    };
    let file = normal(&file);
    let is_page = file
        .extension()
        .is_some_and(|extension| extension == "html");
    match link.split_once('#') {
        _ if !file.is_file() => Ok(false),
        Some((_, anchor)) if is_page && !anchor.is_empty() => {
            Ok(attributes(&read(&file)?, "id").any(|id| id == anchor))
        }
        _ => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_the_list_are_from_the_root() {
        let summary = "# Summary\n\n- [Start](guide/start.md)\n  - [Python](../python/README.md)\n";
        let told = "# Summary\n\n- [Start](docs/guide/start.md)\n  - [Python](python/README.md)\n";
        assert_eq!(from_root(summary), told);
        assert_eq!(pages(summary).map(|pages| pages.len()), Ok(2));
        assert!(super::pages("[a](a.md) [b](./a.md)").is_err());
    }
}

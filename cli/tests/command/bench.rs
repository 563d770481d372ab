//! `zarrs-cuda bench`, and its page in a browser.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::browser::Browser;
use crate::program::json;

#[test]
fn bench_writes_a_table_and_a_page() {
    let folder = TempDir::new().unwrap();
    let html = folder.path().join("page.html");
    let found = json(
        &[
            &"bench",
            &folder.path(),
            &"--size",
            &"4MiB",
            &"--rounds",
            &"1",
            &"--html",
            &html,
        ],
        0,
    );
    assert_eq!(found["cases"].as_array().unwrap().len(), 6, "{found}");
    for case in found["cases"].as_array().unwrap() {
        assert!(
            case["seconds"]["ours"].is_number() || case["seconds"]["ours, ArrayReader"].is_number()
        );
        assert!(case["seconds"]["zarrs"].as_f64().unwrap() > 0.0);
    }
    let page = fs::read_to_string(&html).unwrap();
    assert_eq!(page.matches("<table>").count(), 6);
    assert!(!page.contains("http"), "the page needs a network");
    // Only the page is left.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// A page with measurements, for the browser.
fn measured(folder: &Path) -> std::path::PathBuf {
    let page = folder.join("page.html");
    let arguments: [&dyn AsRef<std::ffi::OsStr>; 8] = [
        &"bench",
        &folder,
        &"--size",
        &"4MiB",
        &"--rounds",
        &"1",
        &"--html",
        &page,
    ];
    json(&arguments, 0);
    page
}

#[test]
fn the_page_in_a_browser() {
    let folder = TempDir::new().unwrap();
    // As a window, and as a telephone.
    for (width, name) in [(1440, "wide"), (390, "narrow")] {
        let Some(mut browser) = Browser::start(width, 900) else {
            return;
        };
        browser.open(&measured(folder.path()));
        for scheme in ["light", "dark"] {
            browser.colour_scheme(scheme);
            browser.screenshot(&format!("bench-{name}-{scheme}"));
            // Nothing is wider than the window, and the words are large enough to be read.
            let inside = browser.evaluate(
                "document.documentElement.scrollWidth <= innerWidth && \
                 [...document.querySelectorAll('td')].every((cell) => { \
                 const words = document.createRange(); \
                 words.selectNodeContents(cell); \
                 const box = words.getBoundingClientRect(); \
                 return box.height > 10 && box.right <= innerWidth; })",
            );
            assert_eq!(inside, true, "{name} {scheme}");
        }
        let bars = browser.evaluate("document.querySelectorAll('td span').length");
        assert_eq!(bars, 15);
        assert_eq!(browser.errors, Vec::<String>::new());
    }
}

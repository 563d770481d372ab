//! The page, in a browser.

use std::path::Path;

use tempfile::tempdir;

use crate::browser::Browser;
use crate::{arrays, said};

/// Writes the page of an array, and opens it.
fn opened(browser: &mut Browser, array: &Path, code: i32) {
    let page = array.with_extension("html");
    said(array, &["--html", page.to_str().unwrap()], code);
    browser.open(&page);
}

/// The middle of a cell of the map of four shards, in the window.
fn cell(browser: &mut Browser, row: usize, column: usize, [rows, columns]: [usize; 2]) -> [f64; 2] {
    // A cell has as many pixels as fit, and 128 at most; axes are to its left and above it.
    let expression = "(() => { const box = document.getElementById('map').getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; })()";
    let map = browser.evaluate(expression);
    let at = |number: usize| map[number].as_f64().unwrap();
    let size = ((at(2) - 54.0) / columns as f64)
        .min((at(3) - 42.0) / rows as f64)
        .min(128.0);
    let side = |room: f64, cells: usize| (room / cells as f64).min(size * 8.0).min(128.0);
    let (width, height) = (side(at(2) - 54.0, columns), side(at(3) - 42.0, rows));
    [
        at(0) + 52.0 + (column as f64 + 0.5) * width,
        at(1) + 40.0 + (row as f64 + 0.5) * height,
    ]
}

fn text(browser: &mut Browser, id: &str) -> String {
    let value = browser.evaluate(&format!("document.getElementById('{id}').innerText"));
    let words: Vec<_> = value.as_str().unwrap().split_whitespace().collect();
    words.join(" ")
}

#[test]
fn four_shards() {
    let Some(mut browser) = Browser::start(1440, 900) else {
        return;
    };
    let directory = tempdir().unwrap();
    opened(&mut browser, &arrays::four(&directory), 3);
    assert_eq!(text(&mut browser, "name"), "volume.zarr");
    assert!(text(&mut browser, "tiles").contains("1 damaged"));
    browser.colour_scheme("light");
    browser.screenshot("four-light");

    let at = cell(&mut browser, 1, 0, [2, 2]);
    browser.hover(at);
    assert!(text(&mut browser, "tip").starts_with("Shard 1, 0"));
    browser.click(at);
    let shard = text(&mut browser, "shard");
    assert_eq!(text(&mut browser, "shard-title"), "Shard 1, 0");
    for words in [
        "elements 64–127 × 0–63",
        "to compact",
        "12 of 16",
        "record",
        "unused",
    ] {
        assert!(shard.contains(words), "no `{words}` in {shard}");
    }
    browser.screenshot("four-light-selected");
    let at = cell(&mut browser, 1, 1, [2, 2]);
    browser.click(at);
    let shard = text(&mut browser, "shard");
    assert!(
        shard.contains("damaged") && shard.contains("checksum"),
        "{shard}"
    );

    browser.colour_scheme("dark");
    browser.screenshot("four-dark");
    browser.evaluate("document.querySelector('[data-metric=state]').click()");
    let legend = text(&mut browser, "legend");
    for words in ["whole 2", "to compact 1", "damaged 1"] {
        assert!(legend.contains(words), "no `{words}` in {legend}");
    }
    browser.settle();
    browser.screenshot("four-dark-state");
    assert_eq!(browser.errors, Vec::<String>::new());
}

#[test]
fn three_axes() {
    let Some(mut browser) = Browser::start(1440, 900) else {
        return;
    };
    let directory = tempdir().unwrap();
    opened(&mut browser, &arrays::many(&directory), 3);
    browser.screenshot("many-light");
    let axes = text(&mut browser, "axes");
    assert!(axes.contains("0 of 2"), "{axes}");
    // The slider of the third axis.
    browser.evaluate("(() => { const slider = document.querySelector('input[data-axis=\"0\"]'); slider.value = 1; slider.dispatchEvent(new Event('input')); })()");
    let at = cell(&mut browser, 4, 7, [10, 16]);
    browser.click(at);
    assert_eq!(text(&mut browser, "shard-title"), "Shard 1, 4, 7");
    let shard = text(&mut browser, "shard");
    assert!(
        shard.contains("to recover") && shard.contains("undone"),
        "{shard}"
    );
    let at = cell(&mut browser, 0, 0, [10, 16]);
    browser.click(at);
    let shard = text(&mut browser, "shard");
    assert!(shard.contains("not stored"), "{shard}");
    // Other axes.
    browser.evaluate("(() => { const list = document.getElementById('row'); list.value = 0; list.dispatchEvent(new Event('change')); })()");
    browser.settle();
    let axes = text(&mut browser, "axes");
    assert!(axes.contains("of 9"), "{axes}");
    browser.evaluate("document.querySelector('[data-metric=ratio]').click()");
    let at = cell(&mut browser, 2, 15, [3, 16]);
    browser.click(at);
    assert_eq!(text(&mut browser, "shard-title"), "Shard 2, 0, 15");
    // Zoomed at a cell, the same cell stays there.
    let at = cell(&mut browser, 1, 3, [3, 16]);
    browser.wheel(at, -300.0);
    browser.click(at);
    assert_eq!(text(&mut browser, "shard-title"), "Shard 1, 0, 3");
    browser.colour_scheme("dark");
    browser.screenshot("many-dark");
    assert_eq!(browser.errors, Vec::<String>::new());
}

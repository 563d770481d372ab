//! The page of a million shards, which no test stores.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::unwrap_used,
    reason = "made-up data, and a test's way to fail"
)]

#[path = "../../tests/inspect/browser.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod browser;

use std::collections::BTreeSet;
use std::time::Instant;

use super::facts::Facts;
use super::look::{Kind, Look, State};
use super::page;
use super::survey::{Histogram, Survey};
use browser::Browser;
use zarrs_cuda_convert::grid::indices_of;

/// A survey of 100 × 100 × 100 shards.
fn million() -> (Facts, Survey) {
    let facts = Facts {
        shape: vec![12_800, 25_600, 25_600],
        shard: vec![128, 256, 256],
        stored_shard: vec![128, 256, 256],
        subchunk: vec![32, 32, 32],
        names: ["z", "y", "x"].map(str::to_string).to_vec(),
        data_type: "uint16".to_string(),
        element: Some(2),
        chain: "bytes (little) → zstd (level 3)".to_string(),
        index: "bytes (little) → crc32c, at the end".to_string(),
        notes: Vec::new(),
    };
    let grid = vec![100, 100, 100];
    let mut random = 1_u64;
    let mut next = move || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as f64 / f64::from(1 << 31)
    };
    let mut survey = Survey {
        grid: grid.clone(),
        ..Survey::default()
    };
    for number in 0..1_000_000 {
        let at = indices_of(number, &grid);
        let [z, y, x] = [0, 1, 2].map(|axis| at[axis] as f64 / 100.0 - 0.5);
        let shape = 0.5 + 0.5 * (9.0 * y + 4.0 * z).sin() * (11.0 * x - 5.0 * z).cos();
        let size = 5e5 + 1.1e7 * shape * (1.0 - 1.2 * (x * x + y * y)) + 1e6 * next();
        let size = size.max(3e5);
        survey.stored.push((number, size as u64));
        if number % 500 == 77 {
            let mut look = Look {
                state: State::Whole,
                live: size as u64,
                stored: 256,
                problem: None,
                strip: vec![(Kind::Live, size as u64 - 4_100), (Kind::Index, 4_100)],
                subchunks: (0..256)
                    .map(|_| (size / 256.0 * (0.7 + 0.6 * next())) as u64)
                    .collect(),
            };
            if number % 50_000 == 77 {
                look.state = State::Damaged;
                look.problem = Some("the checksum of its index is wrong".to_string());
            }
            survey.looks.insert(number, look);
        }
    }
    survey.framed = BTreeSet::from([5, 505_050]);
    survey.sizes = Histogram {
        bins: (0..66)
            .map(|bin: u64| 40_000_u64.saturating_sub(400 * (bin.abs_diff(60)).pow(2) * 25))
            .collect(),
        empty: 1_234,
    };
    (facts, survey)
}

/// The page has 20 MB at most, and is painted within 2 seconds.
#[test]
fn a_page_of_a_million_shards() {
    let (facts, survey) = million();
    let begin = Instant::now();
    let html = page::html("million.zarr", &facts, &survey);
    println!("made in {:?}, {} bytes", begin.elapsed(), html.len());
    assert!(html.len() <= 20_000_000, "{} bytes", html.len());
    let Some(mut browser) = Browser::start(1440, 900) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("million.html");
    std::fs::write(&file, html).unwrap();
    // The best of three: other tests run meanwhile.
    let mut paint = f64::INFINITY;
    for _ in 0..3 {
        browser.open(&file);
        let painted = browser.evaluate("performance.getEntriesByName('map painted')[0].startTime");
        paint = paint.min(painted.as_f64().unwrap());
    }
    println!("the map was painted after {paint} ms");
    let tiles = browser.evaluate("document.getElementById('tiles').innerText");
    assert!(tiles.as_str().unwrap().contains("1,000,000"), "{tiles}");
    browser.colour_scheme("light");
    browser.screenshot("million-light");
    let map = browser.evaluate(
        "(() => { const box = document.getElementById('map').getBoundingClientRect(); return [box.left, box.top]; })()",
    );
    let [left, top] = [0, 1].map(|n| map[n].as_f64().unwrap());
    browser.click([left + 52.0 + 1.0, top + 40.0 + 1.0]);
    let title = browser.evaluate("document.getElementById('shard-title').innerText");
    assert_eq!(title, "Shard 0, 0, 0");
    let shard = browser.evaluate("document.getElementById('shard').innerText");
    assert!(shard.as_str().unwrap().contains("not read"), "{shard}");
    browser.colour_scheme("dark");
    browser.screenshot("million-dark");
    assert_eq!(browser.errors, Vec::<String>::new());
    assert!(paint <= 2_000.0, "painted after {paint} ms");
}

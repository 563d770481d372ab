//! The streams of a lane while a shard is encoded, and the edges between them.

use super::drawing::{Anchor, Drawing, Tone, Weight, area};

/// The base of each row, from the host's copies to the host's copies.
const ROWS: [(i32, &str, &str); 7] = [
    (44, "copiers", "host threads"),
    (102, "`up`", "stream"),
    (160, "`compute`", "stream"),
    (218, "`answers`", "stream"),
    (276, "one thread", "host"),
    (334, "`down`", "stream"),
    (392, "copiers", "host threads"),
];

/// The height of a box.
const HEIGHT: i32 = 38;

/// The edges: number, name, producer, consumer, and what the edge guards.
const EDGES: [(&str, &str, &str, &str); 6] = [
    (
        "1",
        "`UPLOADED`",
        "copy of a slab (`up`) → scatter (`compute`); the copiers",
        "the slab on the device; its pinned place",
    ),
    (
        "2",
        "`SCATTERED`",
        "scatter (`compute`) → copy of a later slab (`up`)",
        "the slab on the device",
    ),
    (
        "3",
        "`AGGREGATED`",
        "gather (`compute`) → copy of the offsets (`answers`)",
        "offsets and dense bytes",
    ),
    (
        "4",
        "`ANSWERED`",
        "copy of the offsets (`answers`) → the host",
        "offsets in pinned memory, dense bytes",
    ),
    (
        "5",
        "",
        "the host → copies of exactly the bytes used (`down`)",
        "no edge: the host enqueues them",
    ),
    (
        "6",
        "`DOWNLOADED`",
        "copy of a piece (`down`) → copiers",
        "a place of the pinned ring",
    ),
];

pub(crate) fn draw() -> Drawing {
    let mut d = Drawing::new(
        668,
        "The streams of a lane, and the edges between them",
        "A shard is encoded in a lane, batch after batch. Host threads copy a slab to pinned memory. The stream \
         up copies the slab to the device. The stream compute scatters the slabs of a batch, then computes \
         checksums, compresses, scans the sizes and gathers the subchunks. The stream answers copies the offsets \
         back. The host reads them, and enqueues copies of exactly the bytes used in the stream down. Host \
         threads copy these pieces to the shard. Events order the streams: UPLOADED, SCATTERED, AGGREGATED, \
         ANSWERED and DOWNLOADED. Meanwhile the next batches are under way.",
    );
    for (y, name, what) in ROWS {
        d.words((14, y + 15), Weight::Normal, Anchor::Start, name);
        d.note(14, y + 31, what);
    }
    batches(&mut d);
    edges(&mut d);
    table(&mut d);
    d
}

/// Draws a box of a row, from `from` to `to`.
fn work(d: &mut Drawing, row: usize, (from, to): (i32, i32), batch: usize, words: &[&str]) {
    let tone = [Tone::Data, Tone::New, Tone::Record][batch];
    d.small_block(area(from, ROWS[row].0, to - from, HEIGHT), tone, words);
}

/// Draws the work of three batches of two slabs.
fn batches(d: &mut Drawing) {
    d.note(110, 24, "batches:");
    for (batch, x) in [(0, 166), (1, 206), (2, 246)] {
        let tone = [Tone::Data, Tone::New, Tone::Record][batch];
        d.small_block(area(x, 10, 34, 20), tone, &[&batch.to_string()]);
    }
    d.arrow(&[(680, 20), (746, 20)]);
    d.note(644, 24, "time");
    for batch in 0..3 {
        for slab in 0..2 {
            let n = i32::try_from(batch * 2 + slab).unwrap_or(0);
            work(d, 0, (110 + 52 * n, 158 + 52 * n), batch, &["slab"]);
            work(d, 1, (166 + 52 * n, 214 + 52 * n), batch, &["slab"]);
        }
    }
    for (batch, x) in [(0, 222), (1, 426)] {
        work(d, 2, (x, x + 54), batch, &["scatter"]);
        work(d, 2, (x + 58, x + 112), batch, &["scatter"]);
        work(
            d,
            2,
            (x + 116, x + 200),
            batch,
            &["compress,", "scan, gather"],
        );
    }
    work(d, 2, (630, 684), 2, &["scatter"]);
    work(d, 2, (688, 742), 2, &["scatter"]);
    work(d, 3, (430, 482), 0, &["offsets"]);
    work(d, 3, (634, 686), 1, &["offsets"]);
    work(d, 4, (484, 564), 0, &["reads them"]);
    work(d, 4, (692, 746), 1, &["reads"]);
    for n in 0..2 {
        work(d, 5, (568 + 52 * n, 616 + 52 * n), 0, &["piece"]);
        work(d, 6, (624 + 52 * n, 672 + 52 * n), 0, &["piece"]);
    }
}

/// Draws the edges of the first batch.
fn edges(d: &mut Drawing) {
    let bottom = |row: usize| ROWS[row].0 + HEIGHT;
    let top = |row: usize| ROWS[row].0;
    // The first slab: to its scatter, and to the copiers that write its place again.
    d.arrow(&[(206, bottom(1)), (206, 148), (228, 148), (228, top(2))]);
    number(d, 196, 148, "1");
    d.arrow(&[(206, top(1)), (206, 90), (324, 90), (324, bottom(0))]);
    number(d, 196, 90, "1");
    // The scatter, and a later slab in the same place on the device.
    d.arrow(&[(268, top(2)), (268, 148), (380, 148), (380, bottom(1))]);
    number(d, 392, 148, "2");
    d.arrow(&[(414, bottom(2)), (414, 206), (440, 206), (440, top(3))]);
    number(d, 402, 206, "3");
    d.arrow(&[(474, bottom(3)), (474, 264), (500, 264), (500, top(4))]);
    number(d, 462, 264, "4");
    d.dashed_arrow(&[(552, bottom(4)), (552, 322), (578, 322), (578, top(5))]);
    number(d, 540, 322, "5");
    d.arrow(&[(608, bottom(5)), (608, 380), (634, 380), (634, top(6))]);
    number(d, 596, 380, "6");
}

/// Writes the number of an edge.
fn number(d: &mut Drawing, x: i32, y: i32, number: &str) {
    d.words((x, y + 5), Weight::Heading, Anchor::Middle, number);
}

/// Draws the table of the edges.
fn table(d: &mut Drawing) {
    let y = 470;
    for (x, head) in [(14, "edge"), (140, "producer → consumer"), (506, "guards")] {
        d.note(x, y, head);
    }
    for (n, (number, name, ends, guards)) in EDGES.into_iter().enumerate() {
        let y = y + 24 + 22 * i32::try_from(n).unwrap_or(0);
        d.words((14, y), Weight::Heading, Anchor::Start, number);
        if !name.is_empty() {
            d.words((34, y), Weight::Small, Anchor::Start, name);
        }
        d.words((140, y), Weight::Small, Anchor::Start, ends);
        d.words((506, y), Weight::Small, Anchor::Start, guards);
    }
    d.note(14, 628, "A ring has four slabs, and a lane has one stream `compute`, or up to three, with which batches take turns.");
    d.note(
        14,
        648,
        "A stream of slices has more edges: `cuda/stream/encoder.rs` begins with their table.",
    );
}

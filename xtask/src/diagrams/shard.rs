//! The bytes of a shard: subchunks, the index, and unused bytes.

use super::drawing::{Anchor, Drawing, Tone, Weight, area};

/// A part of a shard: its kind, its words, its width in the picture and its offset in bytes.
type Part = (Tone, &'static str, i32, i32);

/// The shard with its index at the end.
const AT_END: [Part; 6] = [
    (Tone::Data, "0", 120, 0),
    (Tone::Data, "1", 94, 812),
    (Tone::Data, "2", 134, 1452),
    (Tone::Data, "4", 108, 2357),
    (Tone::Data, "5", 88, 3087),
    (Tone::Index, "index", 70, 3675),
];

/// The same shard with its index at the start.
const AT_START: [Part; 6] = [
    (Tone::Index, "index", 70, 0),
    (Tone::Data, "0", 120, 100),
    (Tone::Data, "1", 94, 912),
    (Tone::Data, "2", 134, 1552),
    (Tone::Data, "4", 108, 2457),
    (Tone::Data, "5", 88, 3187),
];

/// The first shard after a partial write that changed subchunk 1.
const UPDATED: [Part; 10] = [
    (Tone::Data, "0", 84, 0),
    (Tone::Unused, "", 66, 812),
    (Tone::Data, "2", 94, 1452),
    (Tone::Data, "4", 76, 2357),
    (Tone::Data, "5", 62, 3087),
    (Tone::Unused, "", 64, 3675),
    (Tone::Record, "record", 62, 3775),
    (Tone::Data, "1", 72, 3839),
    (Tone::Record, "record", 62, 4541),
    (Tone::Index, "index", 64, 4605),
];

/// The index of [`AT_END`]: the offset and the number of bytes of each subchunk.
const INDEX: [(&str, &str); 6] = [
    ("0", "812"),
    ("812", "640"),
    ("1452", "905"),
    ("2⁶⁴ − 1", "2⁶⁴ − 1"),
    ("2357", "730"),
    ("3087", "588"),
];

pub(crate) fn draw() -> Drawing {
    let mut d = Drawing::new(
        500,
        "The bytes of a shard",
        "A shard of 2 by 3 subchunks, of which subchunk 3 has only the fill value and is not stored. The index \
         has two unsigned 64-bit numbers for each subchunk, its offset and its number of bytes, and ends in a \
         CRC-32C. A shard that is written as a whole has its subchunks dense, in C order, and the index behind \
         or before them. After a partial write the old bytes of a changed subchunk and the old index are \
         unused; behind them lie a record, the new subchunk, a second record and the new index.",
    );
    grid(&mut d);
    index(&mut d);

    d.heading(20, 210, "written as a whole, index at the end");
    d.note(
        352,
        210,
        "dense, in C order; a reader begins with the last 100 bytes",
    );
    strip(&mut d, 220, &AT_END, 3775);

    d.heading(20, 304, "the same, index at the start");
    d.note(
        352,
        304,
        "`index_location` is `start`: all offsets are 100 bytes more",
    );
    strip(&mut d, 314, &AT_START, 3775);

    d.heading(20, 398, "after a partial write of subchunk 1");
    d.note(
        352,
        398,
        "hatched: unused, the old subchunk and the old index",
    );
    strip(&mut d, 408, &UPDATED, 4705);
    d.note(
        20,
        484,
        "Widths are not to scale; the numbers below the parts are offsets in bytes.",
    );
    d
}

/// Draws the subchunks as a grid.
fn grid(d: &mut Drawing) {
    d.heading(20, 24, "2 × 3 subchunks");
    for n in 0..6 {
        let cell = area(20 + n % 3 * 44, 36 + n / 3 * 40, 44, 40);
        let tone = if n == 3 { Tone::Absent } else { Tone::Data };
        d.block(cell, tone, &[&n.to_string()]);
    }
    d.note(20, 138, "3 has only the fill");
    d.note(20, 154, "value: it is not stored");
}

/// Draws the index.
fn index(d: &mut Drawing) {
    d.heading(
        228,
        24,
        "index: 16 bytes for each subchunk, and a CRC-32C of 4 bytes",
    );
    for (y, name) in [(64, "offset"), (100, "nbytes")] {
        d.words((220, y), Weight::Small, Anchor::End, name);
    }
    let mut x = 228;
    for (n, (offset, nbytes)) in INDEX.iter().enumerate() {
        let w = if n == 3 { 72 } else { 66 };
        d.small_block(area(x, 42, w, 36), Tone::Index, &[offset]);
        d.small_block(area(x, 78, w, 36), Tone::Index, &[nbytes]);
        d.note_around(x + w / 2, 130, &n.to_string());
        x += w;
    }
    d.small_block(area(x, 42, 738 - x, 72), Tone::Index, &["CRC-32C"]);
    d.note(
        228,
        154,
        "Unsigned integers of 64 bits. 2⁶⁴ − 1 twice: not stored, reads as the fill value.",
    );
    d.note(
        228,
        170,
        "Its usual codecs are `bytes`, little-endian, and `crc32c`.",
    );
}

/// Draws the parts of a shard, with their offsets below.
fn strip(d: &mut Drawing, y: i32, parts: &[Part], end: i32) {
    let mut x = 20;
    for &(tone, words, w, offset) in parts {
        let part = area(x, y, w, 36);
        if words.is_empty() {
            d.area(part, tone);
        } else {
            d.block(part, tone, &[words]);
        }
        d.note(x, y + 52, &offset.to_string());
        x += w;
    }
    d.words((x, y + 52), Weight::Note, Anchor::Start, &end.to_string());
}

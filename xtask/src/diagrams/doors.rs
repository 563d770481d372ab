//! An array, a shard, its subchunks and its index, and where each way into the library enters.

use super::drawing::{Anchor, Area, Drawing, Tone, Weight, area};

/// The shards of the array: columns, rows, and the size of each.
const SHARDS: (i32, i32, i32, i32) = (6, 4, 40, 30);

/// The subchunks of the shard, along each axis, and the size of each.
const SUBCHUNKS: (i32, i32) = (4, 30);

/// The upper edge of the pictures of array and shard.
const TOP: i32 = 232;

pub(crate) fn draw() -> Drawing {
    let mut d = Drawing::new(
        484,
        "From an array to its bytes, and where each call enters",
        "An array is a grid of shards. A shard is one file or object: encoded subchunks and an index that says \
         where each subchunk lies. ArrayWriter appends slices to the array, BoxWriter writes boxes, and \
         ArrayReader reads boxes and slices. The codec, after register, stores and reads shards for zarrs' own \
         calls. SparseShardStore stores single subchunks beside their shard, from many processes. The Python \
         package and the command zarrs-cuda use these same parts. An engine on the host or on a CUDA device \
         encodes and decodes subchunks.",
    );
    callers(&mut d);
    array(&mut d);
    shard(&mut d);
    bytes(&mut d);
    engine(&mut d);
    d
}

/// Draws Python and the command, and the bus from them to the doors.
fn callers(d: &mut Drawing) {
    let python = area(12, 10, 362, 40);
    d.block(
        python,
        Tone::Plain,
        &["Python: zarr-python, set up by one line"],
    );
    let command = area(386, 10, 362, 40);
    d.block(
        command,
        Tone::Plain,
        &["the command `zarrs-cuda`: re-encode, verify, …"],
    );
    let bus = 70;
    d.line(&[(python.middle(), python.bottom()), (python.middle(), bus)]);
    d.line(&[
        (command.middle(), command.bottom()),
        (command.middle(), bus),
    ]);
    d.line(&[(62, bus), (650, bus)]);
    for x in [62, 168, 274, 434, 650] {
        d.arrow(&[(x, bus), (x, 92)]);
    }
    d.note_around(354, 64, "both use what Rust programs use");
}

/// Draws the array, and the three doors that take boxes and slices of the array.
fn array(d: &mut Drawing) {
    let (columns, rows, w, h) = SHARDS;
    let left = 60;
    for row in 0..rows {
        for column in 0..columns {
            let tone = match (row, column) {
                (2, 5) => Tone::Data,
                (3, _) => Tone::Absent,
                _ => Tone::Plain,
            };
            d.area(area(left + column * w, TOP + row * h, w, h), tone);
        }
    }
    let written = area(136, TOP + 18, 64, 50);
    d.area(written, Tone::New);
    let read = area(246, TOP + 12, 44, 34);
    d.area(read, Tone::Data);

    let doors = [
        (12, "`ArrayWriter`", "slices in order"),
        (118, "`BoxWriter`", "boxes"),
        (224, "`ArrayReader`", "boxes, slices"),
    ];
    for (x, name, what) in doors {
        d.small_block(area(x, 94, 100, 46), Tone::Plain, &[name, what]);
    }
    d.arrow(&[(36, 140), (36, TOP + 105), (58, TOP + 105)]);
    d.arrow(&[(168, 140), (168, written.y)]);
    d.arrow(&[(268, read.y), (268, 142)]);
    d.note(42, 166, "append");
    d.note(174, 166, "write");
    d.note(274, 166, "read");

    d.words((180, 374), Weight::Heading, Anchor::Middle, "array");
    d.note_around(180, 392, "a grid of shards");
}

/// Draws the shard as a grid of subchunks, and the codec.
fn shard(d: &mut Drawing) {
    let (count, side) = SUBCHUNKS;
    let grid = area(374, TOP, count * side, count * side);
    // The edges of the shard in the array, and of its enlarged picture.
    d.dashes(&[(300, TOP + 60), (grid.x, grid.y)]);
    d.dashes(&[(300, TOP + 90), (grid.x, grid.bottom())]);
    for row in 0..count {
        for column in 0..count {
            let tone = match (row, column) {
                (3, 1) => Tone::Absent,
                _ => Tone::Data,
            };
            d.area(
                area(grid.x + column * side, grid.y + row * side, side, side),
                tone,
            );
        }
    }
    let door = area(342, 94, 184, 62);
    d.small_block(
        door,
        Tone::Plain,
        &[
            "`register`: the codec",
            "of sharded zarrs arrays:",
            "shards, parts of shards",
        ],
    );
    d.arrow_of_two_tips((434, door.bottom() + 2), (434, grid.y - 2));
    d.note(440, 196, "encode, decode");
    d.words((434, 374), Weight::Heading, Anchor::Middle, "shard");
    d.note_around(434, 392, "one file or object: `c/2/5`");
}

/// Draws the bytes of the shard, its index, and the subchunks beside the shard.
fn bytes(d: &mut Drawing) {
    let door = area(552, 94, 196, 62);
    d.small_block(
        door,
        Tone::Plain,
        &[
            "`SparseShardStore`: many",
            "processes write subchunks",
            "of the same shards",
        ],
    );
    let frame = area(570, 196, 160, 26);
    d.arrow_of_two_tips((650, door.bottom() + 2), (650, frame.y));
    d.small_block(frame, Tone::New, &["beside: `c/2/5.frame/`"]);
    d.dashed_arrow(&[(650, frame.bottom()), (650, 262)]);
    d.note(656, 246, "consolidate");

    let strip = area(552, 264, 196, 34);
    d.dashes(&[(494, TOP), (strip.x, strip.y)]);
    d.dashes(&[(494, TOP + 120), (strip.x, strip.bottom())]);
    let mut x = strip.x;
    for (n, w) in [("0", 24), ("1", 30), ("2", 22), ("…", 26), ("15", 30)] {
        d.small_block(area(x, strip.y, w, strip.h), Tone::Data, &[n]);
        x += w;
    }
    let index = area(x, strip.y, strip.right() - x, strip.h);
    d.small_block(index, Tone::Index, &["index"]);
    entries(d, index);
    d.words(
        (650, 374),
        Weight::Heading,
        Anchor::Middle,
        "subchunks, index",
    );
    d.note_around(650, 392, "the bytes of the shard");
}

/// Draws the entries of the index below it.
fn entries(d: &mut Drawing, index: Area) {
    let table = area(608, 318, 140, 34);
    d.dashes(&[(index.x, index.bottom()), (table.x, table.y)]);
    d.dashes(&[(index.right(), index.bottom()), (table.right(), table.y)]);
    d.small_block(table, Tone::Index, &["offset and size", "of each subchunk"]);
}

/// Draws the engine below array and shard.
fn engine(d: &mut Drawing) {
    let engine = area(12, 428, 736, 40);
    d.block(
        engine,
        Tone::Plain,
        &["engine: encodes and decodes many subchunks at once, on the host or, if you ask, on a CUDA device"],
    );
    for x in [180, 434] {
        d.arrow_of_two_tips((x, 400), (x, engine.y));
    }
}

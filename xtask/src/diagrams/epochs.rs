//! A stream of slices: epochs, shard epochs and batches, and the order of the subchunks of an epoch.

use super::drawing::{Anchor, Drawing, Tone, Weight, area};

/// The left edge of the first slice, the width of a slice, the slices of an epoch, and the epochs of a shard
/// epoch.
const LEFT: i32 = 40;
const SLICE: i32 = 14;
const EPOCH: i32 = 4 * SLICE;
const SHARD_EPOCH: i32 = 4 * EPOCH;

/// The upper edges of the three rows of subchunks, and their height. The first two rows are in one shard.
const ROWS: [i32; 3] = [110, 136, 168];
const ROW: i32 = 26;

pub(crate) fn draw() -> Drawing {
    let mut d = Drawing::new(
        524,
        "Slices, epochs, shard epochs and batches of a stream",
        "Slices of an array arrive along the first axis. An epoch is as many slices as a subchunk has, a shard \
         epoch as many as a shard has. A batch is the epochs that are encoded together, here two. The first \
         shard epoch is stored completely, and the shape in zarr.json covers it. The next one is being written. \
         The subchunks of an epoch arrive in C order and are stored by shards: three times three subchunks in \
         shards of two times two come in the order 0 1 3 4, then 2 5, then 6 7, then 8.",
    );
    stream(&mut d);
    front(&mut d);
    d
}

/// Draws the stream from the side.
fn stream(d: &mut Drawing) {
    d.heading(20, 26, "the stream, from the side");
    d.note(
        262,
        26,
        "a subchunk has 4 slices, a shard 16; a batch has 2 epochs here",
    );
    d.brace((LEFT, LEFT + EPOCH), 60, false);
    d.words(
        (LEFT - 16, 54),
        Weight::Small,
        Anchor::Start,
        "epoch: 4 slices",
    );
    d.brace((LEFT + EPOCH * 2, LEFT + SHARD_EPOCH), 60, false);
    d.words(
        (LEFT + EPOCH * 3, 54),
        Weight::Small,
        Anchor::Middle,
        "batch",
    );
    d.brace((LEFT + SHARD_EPOCH, LEFT + 2 * SHARD_EPOCH), 60, false);
    let middle = LEFT + SHARD_EPOCH * 3 / 2;
    d.words(
        (middle, 54),
        Weight::Small,
        Anchor::Middle,
        "shard epoch: 16 slices",
    );

    // A ruler: a mark for each slice, and a longer mark for each epoch.
    for n in 0..=48 {
        let long = n % 4 == 0;
        let x = LEFT + n * SLICE;
        d.line(&[(x, if long { 84 } else { 90 }), (x, 98)]);
    }
    d.line(&[(LEFT, 98), (LEFT + 48 * SLICE, 98)]);

    for epoch in 0..12 {
        for y in ROWS {
            let tone = match epoch {
                0..=3 => Tone::Data,
                4..=5 => Tone::New,
                6 => Tone::Index,
                _ => Tone::Absent,
            };
            d.area(area(LEFT + epoch * EPOCH, y, EPOCH, ROW), tone);
        }
    }
    for y in ROWS {
        d.area(area(LEFT + 7 * EPOCH, y, 2 * SLICE, ROW), Tone::Index);
    }
    for shard_epoch in 1..3 {
        let x = LEFT + shard_epoch * SHARD_EPOCH;
        d.line(&[(x, 104), (x, 212)]);
    }

    d.note(524, 76, "each mark is a slice");

    let below = 204;
    let covered = LEFT + SHARD_EPOCH;
    d.dashed_arrow(&[(covered, 258), (covered, below + 8)]);
    d.words(
        (covered - 6, 232),
        Weight::Small,
        Anchor::End,
        "finished: stored completely",
    );
    d.note_around(covered, 274, "the shape in `zarr.json` ends here");
    d.note_around(covered, 290, "until the next shard epoch is finished");
    d.words(
        (covered + EPOCH + 10, 220),
        Weight::Small,
        Anchor::Middle,
        "encoded: parts",
    );
    d.words(
        (covered + EPOCH + 10, 236),
        Weight::Small,
        Anchor::Middle,
        "of shards",
    );
    d.words(
        (covered + 3 * EPOCH, 220),
        Weight::Small,
        Anchor::Middle,
        "input: the batch",
    );
    d.words(
        (covered + 3 * EPOCH, 236),
        Weight::Small,
        Anchor::Middle,
        "that is filled",
    );
    let append = LEFT + 7 * EPOCH + 2 * SLICE;
    d.arrow(&[(append, 276), (append, 246)]);
    d.note_around(append, 290, "`append`");
    d.words(
        (LEFT + 2 * SHARD_EPOCH + 2 * EPOCH, 220),
        Weight::Small,
        Anchor::Middle,
        "slices to come",
    );
    d.arrow(&[(600, 250), (710, 250)]);
    d.note_around(655, 268, "first axis");
}

/// Draws one epoch from the front, and the order in which its subchunks are stored.
fn front(d: &mut Drawing) {
    d.heading(20, 330, "one epoch, from the front");
    let shards = [Tone::Data, Tone::New, Tone::Record, Tone::Index];
    let (left, top, side) = (40, 348, 44);
    for row in 0..3 {
        for column in 0..3 {
            let shard = usize::from(row == 2) * 2 + usize::from(column == 2);
            let x = left + column * side + if column == 2 { 8 } else { 0 };
            let y = top + row * side + if row == 2 { 8 } else { 0 };
            let n = row * 3 + column;
            d.block(area(x, y, side, side), shards[shard], &[&n.to_string()]);
        }
    }
    d.note(20, 512, "3 × 3 subchunks, in shards of 2 × 2");

    d.heading(250, 330, "subchunks arrive in C order");
    let mut x = 250;
    for n in 0..9 {
        let shard = usize::from(n >= 6) * 2 + usize::from(n % 3 == 2);
        d.block(area(x, 348, 40, 34), shards[shard], &[&n.to_string()]);
        x += 40;
    }
    d.arrow(&[(430, 390), (430, 424)]);
    d.note(442, 411, "the shard permutation");

    d.heading(250, 446, "they are stored by shards");
    let mut x = 250;
    let order: [&[i32]; 4] = [&[0, 1, 3, 4], &[2, 5], &[6, 7], &[8]];
    for (shard, numbers) in order.into_iter().enumerate() {
        let first = x;
        for n in numbers {
            d.block(area(x, 458, 40, 34), shards[shard], &[&n.to_string()]);
            x += 40;
        }
        d.note_around(first.midpoint(x), 512, &format!("shard {shard}"));
        x += 24;
    }
}

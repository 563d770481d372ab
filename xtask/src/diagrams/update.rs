//! A partial write of a shard, and what a reader and `recover` find when the process dies.

use super::drawing::{Anchor, Drawing, Tone, Weight, area};

/// A part of a shard: its kind, its words and its width in the picture.
type Part = (Tone, &'static str, i32);

/// Where a process dies, what a reader finds, and what `recover` does.
struct Death {
    mark: &'static str,
    place: &'static str,
    reader: (Tone, &'static str),
    recover: &'static str,
    /// The values of the touched subchunks in the end.
    values: (Tone, &'static str),
}

const OLD: (Tone, &str) = (Tone::Data, "old");
const NEW: (Tone, &str) = (Tone::New, "new");
const ERROR: (Tone, &str) = (Tone::Wrong, "error");

pub(crate) fn draw() -> Drawing {
    let mut d = Drawing::new(
        766,
        "A partial write, and what is left if the process dies",
        "Subchunk 1 of a shard is changed by the strategy Append. With the index at the end, one write puts a \
         record, the new subchunk, a second record and the new index behind the old bytes. If the process dies \
         inside this write, a reader gets an error, and recover puts the old index back at the end: the old \
         values. With the index at the start, a first write puts a record, the new subchunk, a record and a \
         copy of the new index behind the old bytes, and a second write replaces the index at the start. Until \
         the second write, a reader finds the old values. If the process dies inside the second write, a reader \
         gets an error, and recover writes the copy to the start: the new values.",
    );
    at_end(&mut d);
    at_start(&mut d);
    let notes = [
        "Drawn is `Append`, with the usual checksum of the index. An error lasts until `recover` runs.",
        "A reader that has read the index before sees the old values with `Append`, until a compaction.",
        "A torn subchunk that is a shard itself can look like an index: a reader then gets wrong elements.",
    ];
    for (y, note) in [718, 736, 754].into_iter().zip(notes) {
        d.note(20, y, note);
    }
    d
}

fn at_end(d: &mut Drawing) {
    d.heading(20, 24, "index at the end: one write");
    let old = [
        (Tone::Data, "0", 62),
        (Tone::Data, "1", 62),
        (Tone::Data, "2", 62),
        (Tone::Data, "3", 62),
        (Tone::Index, "index", 92),
    ];
    let new = [
        (Tone::Record, "record", 70),
        (Tone::New, "1", 110),
        (Tone::Record, "record", 70),
        (Tone::Index, "new index", 130),
    ];
    let write = parts(d, (20, 76), &old);
    let end = parts(d, (write, 76), &new);
    d.brace((write, end), 126, true);
    d.note_around(write.midpoint(end), 142, "the write, from left to right");
    d.note_around(
        190,
        142,
        "the shard as it was; nothing of it is overwritten",
    );
    marks(
        d,
        76,
        &[
            ("A", write),
            ("B", write + 35),
            ("C", write + 190),
            ("D", end),
        ],
    );
    let deaths = [
        Death {
            mark: "A",
            place: "before the first byte",
            reader: OLD,
            recover: "has nothing to do",
            values: OLD,
        },
        Death {
            mark: "B",
            place: "inside the first record",
            reader: ERROR,
            recover: "writes a whole record and the old index there",
            values: OLD,
        },
        Death {
            mark: "C",
            place: "anywhere behind it",
            reader: ERROR,
            recover: "writes the old index as the last bytes",
            values: OLD,
        },
        Death {
            mark: "D",
            place: "after the last byte",
            reader: NEW,
            recover: "has nothing to do",
            values: NEW,
        },
    ];
    table(d, 176, &deaths);
}

fn at_start(d: &mut Drawing) {
    let y = 428;
    d.heading(20, y - 52, "index at the start: two writes");
    let old = [
        (Tone::Index, "index", 92),
        (Tone::Data, "0", 62),
        (Tone::Data, "1", 62),
        (Tone::Data, "2", 62),
        (Tone::Data, "3", 62),
    ];
    let new = [
        (Tone::Record, "record", 70),
        (Tone::New, "1", 110),
        (Tone::Record, "record", 70),
        (Tone::Index, "copy of new index", 130),
    ];
    let write = parts(d, (20, y), &old);
    let end = parts(d, (write, y), &new);
    d.brace((write, end), y + 50, true);
    d.note_around(write.midpoint(end), y + 66, "first write");
    d.brace((20, 112), y + 50, true);
    d.note(20, y + 66, "second write: the new index");
    marks(
        d,
        y,
        &[("A", write + 190), ("B", end), ("C", 66), ("D", 112)],
    );
    let deaths = [
        Death {
            mark: "A",
            place: "inside the first write",
            reader: OLD,
            recover: "has nothing to do",
            values: OLD,
        },
        Death {
            mark: "B",
            place: "between the writes",
            reader: OLD,
            recover: "has nothing to do",
            values: OLD,
        },
        Death {
            mark: "C",
            place: "inside the second write",
            reader: ERROR,
            recover: "writes the copy to the start",
            values: NEW,
        },
        Death {
            mark: "D",
            place: "after the second write",
            reader: NEW,
            recover: "has nothing to do",
            values: NEW,
        },
    ];
    table(d, y + 100, &deaths);
}

/// Draws parts of a shard from left to right. Returns their end.
fn parts(d: &mut Drawing, (mut x, y): (i32, i32), parts: &[Part]) -> i32 {
    for &(tone, words, w) in parts {
        d.small_block(area(x, y, w, 36), tone, &[words]);
        x += w;
    }
    x
}

/// Draws the places at which a process dies: a letter, and an arrow to the place.
fn marks(d: &mut Drawing, y: i32, marks: &[(&str, i32)]) {
    for &(mark, x) in marks {
        d.arrow(&[(x, y - 14), (x, y - 1)]);
        d.words((x, y - 18), Weight::Heading, Anchor::Middle, mark);
    }
}

/// Draws the table of the places at which a process dies.
fn table(d: &mut Drawing, y: i32, deaths: &[Death]) {
    let columns = [20, 240, 346, 656];
    let heads = [
        "the process dies",
        "a reader gets",
        "`recover`",
        "subchunk 1 is",
    ];
    for (x, head) in columns.into_iter().zip(heads) {
        d.note(x, y, head);
    }
    for (row, death) in deaths.iter().enumerate() {
        let base = y + 32 + 38 * i32::try_from(row).unwrap_or(0);
        d.line(&[(20, base - 22), (740, base - 22)]);
        d.words((20, base), Weight::Heading, Anchor::Start, death.mark);
        d.words((46, base), Weight::Normal, Anchor::Start, death.place);
        for (x, (tone, words)) in [(columns[1], death.reader), (columns[3], death.values)] {
            d.block(area(x, base - 17, 64, 26), tone, &[words]);
        }
        d.words(
            (columns[2], base),
            Weight::Normal,
            Anchor::Start,
            death.recover,
        );
    }
}

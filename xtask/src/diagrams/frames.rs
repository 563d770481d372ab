//! Subchunks beside a shard: writes, reads, and the consolidation that packs them.

use super::drawing::{Anchor, Drawing, Tone, Weight, area};

pub(crate) fn draw() -> Drawing {
    let mut d = Drawing::new(
        624,
        "Subchunks beside a shard, and their consolidation",
        "Many processes write subchunks of one shard. Each write stores the subchunk as a new object in the \
         frame, a prefix beside the shard; the shard is not touched. A read lists the frame, and takes the \
         newest valid version of the subchunk, or the subchunk of the shard if the frame has none. A \
         consolidation lists the frame twice, reads the newest valid versions and the shard, replaces the shard \
         at once, and then deletes the listed versions, of each subchunk the newest last. If it dies, the next \
         one packs what was not deleted. The name of an object has the number of the subchunk, the version and \
         the writer. The object has the encoded subchunk and 16 bytes behind it.",
    );
    write(&mut d);
    read(&mut d);
    consolidate(&mut d);
    name(&mut d);
    object(&mut d);
    d
}

/// Draws the shard and the objects of its frame.
fn stored(d: &mut Drawing, x: i32, y: i32) {
    d.block(area(x, y, 92, 108), Tone::Data, &["shard", "`c/0/1`"]);
    let frame = area(x + 104, y, 124, 108);
    d.area(frame, Tone::Absent);
    d.words(
        (frame.middle(), y + 17),
        Weight::Note,
        Anchor::Middle,
        "`c/0/1.frame/`",
    );
    for (n, words) in ["7, version 1", "46, version 3", "46, version 4"]
        .iter()
        .enumerate()
    {
        let y = y + 26 + 26 * i32::try_from(n).unwrap_or(0);
        d.small_block(area(frame.x + 10, y, 104, 22), Tone::New, &[words]);
    }
}

fn write(d: &mut Drawing) {
    d.heading(14, 26, "1. Processes write");
    for (x, words) in [(14, "process"), (90, "process"), (166, "process")] {
        d.small_block(area(x, 40, 66, 28), Tone::Plain, &[words]);
        d.line(&[(x + 33, 68), (x + 33, 84)]);
    }
    d.line(&[(47, 84), (199, 84)]);
    d.arrow(&[(180, 84), (180, 108)]);
    stored(d, 14, 110);
    d.words(
        (14, 242),
        Weight::Small,
        Anchor::Start,
        "Each write is a new object beside the",
    );
    d.words(
        (14, 258),
        Weight::Small,
        Anchor::Start,
        "shard, with the highest version that",
    );
    d.words(
        (14, 274),
        Weight::Small,
        Anchor::Start,
        "is listed of its subchunk, plus 1.",
    );
}

fn read(d: &mut Drawing) {
    d.heading(266, 26, "2. A reader reads");
    d.small_block(area(318, 40, 132, 28), Tone::Plain, &["a reader"]);
    stored(d, 266, 110);
    d.arrow(&[(432, 110), (432, 70)]);
    d.dashed_arrow(&[(336, 110), (336, 70)]);
    d.note(440, 94, "7, 46");
    d.note(342, 94, "others");
    d.words(
        (266, 242),
        Weight::Small,
        Anchor::Start,
        "List the frame; take the newest valid",
    );
    d.words(
        (266, 258),
        Weight::Small,
        Anchor::Start,
        "version. Without one, take the",
    );
    d.words(
        (266, 274),
        Weight::Small,
        Anchor::Start,
        "subchunk of the shard.",
    );
}

fn consolidate(d: &mut Drawing) {
    d.heading(518, 26, "3. Consolidation");
    d.block(
        area(518, 110, 92, 108),
        Tone::New,
        &["new shard", "`c/0/1`"],
    );
    let frame = area(622, 110, 124, 108);
    d.area(frame, Tone::Absent);
    d.words(
        (frame.middle(), 127),
        Weight::Note,
        Anchor::Middle,
        "`c/0/1.frame/`",
    );
    for n in 0..3 {
        d.area(area(632, 136 + 26 * n, 104, 22), Tone::Absent);
    }
    d.small_block(area(518, 40, 92, 28), Tone::Plain, &["`c/0/1.tmp`"]);
    d.arrow(&[(564, 68), (564, 108)]);
    d.note(572, 92, "rename (on files)");
    d.words(
        (518, 242),
        Weight::Small,
        Anchor::Start,
        "List twice; read the versions and the",
    );
    d.words(
        (518, 258),
        Weight::Small,
        Anchor::Start,
        "shard; replace the shard at once;",
    );
    d.words(
        (518, 274),
        Weight::Small,
        Anchor::Start,
        "delete what was listed, newest last.",
    );

    d.heading(14, 316, "if the consolidation dies");
    let steps = [
        (
            14,
            "before the shard is replaced",
            "old shard, all versions: as before",
        ),
        (
            386,
            "after that, while it deletes",
            "new shard, some versions: the same values",
        ),
    ];
    for (x, when, what) in steps {
        let at = area(x, 328, 360, 44);
        d.small_block(at, Tone::Plain, &[when, what]);
    }
    d.note(
        14,
        392,
        "All readers read valid shards, and another call of `consolidate` completes it.",
    );
}

/// Draws the parts of the name of an object.
fn name(d: &mut Drawing) {
    d.heading(14, 430, "the name of an object");
    let parts = [
        ("`c/0/1.frame/`", 106, Tone::Plain, "the frame", ""),
        ("`0000002E.`", 84, Tone::Data, "number: 46,", "in C order"),
        ("`0000000000000003.`", 140, Tone::New, "version", ""),
        (
            "`9F31C02E5B7A44D00000000A`",
            190,
            Tone::Record,
            "writer: a random name,",
            "and a count of its writes",
        ),
        ("`.chunk`", 60, Tone::Plain, "", ""),
    ];
    let mut x = 14;
    for (words, w, tone, what, more) in parts {
        d.small_block(area(x, 442, w, 30), tone, &[words]);
        if !what.is_empty() {
            d.note_around(x + w / 2, 490, what);
        }
        if !more.is_empty() {
            d.note_around(x + w / 2, 506, more);
        }
        x += w;
    }
}

/// Draws the bytes of an object.
fn object(d: &mut Drawing) {
    d.heading(14, 546, "its bytes");
    d.note(
        124,
        546,
        "valid only if the length and the checksum are right",
    );
    let parts = [
        ("the encoded subchunk", 270, Tone::Data, "as in the shard"),
        ("`ZSF`", 70, Tone::Plain, "3 bytes"),
        ("`D` or `T`", 150, Tone::Plain, "1 byte: data or erased"),
        ("length", 80, Tone::Plain, "8 bytes"),
        ("CRC-32C", 160, Tone::Index, "4 bytes, of all before"),
    ];
    let mut x = 14;
    for (words, w, tone, what) in parts {
        d.small_block(area(x, 558, w, 34), tone, &[words]);
        d.note_around(x + w / 2, 610, what);
        x += w;
    }
}

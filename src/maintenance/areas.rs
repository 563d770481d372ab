//! What lies where in a shard: the bytes that something uses, and a picture of them.

use std::fmt;
use std::ops::Range;

/// Sorted ranges that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Areas(Vec<Range<u64>>);

impl Areas {
    pub(super) fn of(ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut areas: Vec<Range<u64>> = Vec::new();
        let mut is_sorted = true;
        for range in ranges.into_iter().filter(|range| !range.is_empty()) {
            match areas.last_mut() {
                // Most subchunks follow the one before.
                Some(last) if last.end == range.start => last.end = range.end,
                last => {
                    is_sorted &= last.is_none_or(|last| last.end < range.start);
                    areas.push(range);
                }
            }
        }
        if !is_sorted {
            areas.sort_by_key(|area| area.start);
            areas.dedup_by(|next, area| {
                let merges = next.start <= area.end;
                if merges {
                    area.end = area.end.max(next.end);
                }
                merges
            });
        }
        Self(areas)
    }

    /// How many bytes they have.
    pub(super) fn len(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// How many of their bytes are in each of the cells of `cell` bytes.
    fn in_cells(&self, cells: usize, cell: u64) -> Vec<u64> {
        let mut counts = vec![0; cells];
        for range in &self.0 {
            for (number, count) in (range.start / cell..).zip(
                counts
                    .iter_mut()
                    .skip(usize::try_from(range.start / cell).unwrap_or(usize::MAX)),
            ) {
                let (start, end) = (number * cell, (number + 1).saturating_mul(cell));
                if range.end <= start {
                    break;
                }
                *count += range.end.min(end) - range.start.max(start);
            }
        }
        counts
    }
}

/// A shard of `size` bytes as rows of characters.
pub(super) struct Picture<'a> {
    pub(super) size: u64,
    pub(super) index: &'a Areas,
    pub(super) records: &'a Areas,
    pub(super) live: &'a Areas,
}

impl Picture<'_> {
    const COLUMNS: usize = 64;
    const ROWS: u64 = 16;
}

impl fmt::Display for Picture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.size == 0 {
            return Ok(());
        }
        let cell = self.size.div_ceil(Self::COLUMNS as u64 * Self::ROWS);
        let cells = usize::try_from(self.size.div_ceil(cell)).unwrap_or(0);
        let [index, records, live] =
            [self.index, self.records, self.live].map(|areas| areas.in_cells(cells, cell));
        let row_bytes = cell * Self::COLUMNS as u64;
        for first in (0..cells).step_by(Self::COLUMNS) {
            write!(
                f,
                "{:>14} ",
                first as u64 / Self::COLUMNS as u64 * row_bytes
            )?;
            for number in first..cells.min(first + Self::COLUMNS) {
                let len = cell.min(self.size - number as u64 * cell);
                f.write_str(match live[number] {
                    _ if index[number] > 0 => "I",
                    0 if records[number] > 0 => "r",
                    0 => ".",
                    live if live == len => "#",
                    live if 2 * live >= len => "+",
                    _ => "-",
                })?;
            }
            writeln!(f)?;
        }
        write!(
            f,
            "{:>14} {} of {cell} bytes each: I index, # live, + more than half live, - less, r record of an update, . unused",
            "",
            if cell == 1 { "characters" } else { "cells" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_or_touch_are_one() {
        let areas = Areas::of([5..7, 0..2, 2..3, 6..6, 1..2, 9..9, 6..10]);
        assert_eq!(areas.0, [0..3, 5..10]);
        assert_eq!(areas.len(), 8);
    }

    #[test]
    fn bytes_in_cells() {
        let areas = Areas::of([1..3, 7..17, 19..20]);
        for cell in 1..=25 {
            let cells = 20_usize.div_ceil(cell);
            let expected: Vec<u64> = (0..cells)
                .map(|number| {
                    let bytes = number * cell..20.min((number + 1) * cell);
                    bytes
                        .filter(|&at| areas.0.iter().any(|r| r.contains(&(at as u64))))
                        .count() as u64
                })
                .collect();
            assert_eq!(areas.in_cells(cells, cell as u64), expected, "{cell}");
        }
    }

    #[test]
    fn a_picture() {
        let picture = |size, index, records, live: &[Range<u64>]| {
            let [index, records] = [index, records].map(|range| Areas::of([range]));
            let live = Areas::of(live.iter().cloned());
            let picture = Picture {
                size,
                index: &index,
                records: &records,
                live: &live,
            };
            picture.to_string()
        };
        let small = picture(10, 8..10, 3..5, &[0..2, 6..7]);
        assert_eq!(small.lines().next(), Some("             0 ##.rr.#.II"));
        // Cells of 1000 bytes, in 16 rows.
        let large = picture(
            1_024_000,
            0..1,
            70_000..70_064,
            &[2_000..3_000, 4_499..5_000, 6_501..7_000],
        );
        let rows: Vec<&str> = large.lines().collect();
        assert_eq!(rows.len(), 17);
        assert!(rows[0].starts_with("             0 I.#.+.-..."), "{large}");
        assert!(rows[1].starts_with("         64000 ......r..."), "{large}");
        assert!(rows.iter().take(16).all(|row| row.len() == 15 + 64));
        assert_eq!(picture(0, 0..0, 0..0, &[]), "");
    }
}

//! Draws a shard as text, which shows its used bytes.

use std::fmt;

use crate::store::ranges::Merged;

/// A shard of `size` bytes, drawn as rows of characters.
pub(super) struct Picture<'a> {
    pub(super) size: u64,
    pub(super) index: &'a Merged,
    pub(super) records: &'a Merged,
    pub(super) live: &'a Merged,
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
            [self.index, self.records, self.live].map(|areas| in_cells(areas, cells, cell));
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
        let cells_are = if cell == 1 { "characters" } else { "cells" };
        write!(
            f,
            "{0:>14} {cells_are} of {cell} bytes each:\n\
             {0:>14} I index, # live, + over half live, - less, r record, . unused",
            ""
        )
    }
}

/// Returns, for each of the `cells` cells of `cell` bytes, the number of its bytes that are in `areas`.
fn in_cells(areas: &Merged, cells: usize, cell: u64) -> Vec<u64> {
    let mut counts = vec![0; cells];
    for range in areas.iter() {
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

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    #[test]
    fn bytes_in_cells() {
        let areas = Merged::of([1..3, 7..17, 19..20]);
        for cell in 1..=25 {
            let cells = 20_usize.div_ceil(cell);
            let expected: Vec<u64> = (0..cells)
                .map(|number| {
                    let bytes = number * cell..20.min((number + 1) * cell);
                    bytes
                        .filter(|&at| areas.iter().any(|r| r.contains(&(at as u64))))
                        .count() as u64
                })
                .collect();
            assert_eq!(in_cells(&areas, cells, cell as u64), expected, "{cell}");
        }
    }

    #[test]
    fn a_picture() {
        let picture = |size, index, records, live: &[Range<u64>]| {
            let [index, records] = [index, records].map(|range| Merged::of([range]));
            let live = Merged::of(live.iter().cloned());
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
        assert_eq!(rows.len(), 18);
        assert!(rows[0].starts_with("             0 I.#.+.-..."), "{large}");
        assert!(rows[1].starts_with("         64000 ......r..."), "{large}");
        assert!(rows.iter().take(16).all(|row| row.len() == 15 + 64));
        assert_eq!(picture(0, 0..0, 0..0, &[]), "");
    }
}

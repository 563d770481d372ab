//! Divides a shard into batches of whole subchunks, and a batch into slabs of its elements.

use super::{SubchunkGrid, c_order};

/// A box of the grid of subchunks whose subchunks follow one another in C order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The number of the batch's first subchunk.
    pub(crate) first: usize,
    /// The number of subchunks along each axis.
    pub(crate) counts: Vec<usize>,
    /// The coordinates in the shard of the batch's first element.
    pub(crate) origin: Vec<usize>,
}

/// A box of a batch's elements that is moved at once. Its dense form is in C order. Along each axis, the box
/// lies within one subchunk or covers whole subchunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slab {
    /// The coordinates in the batch of the slab's first element.
    pub start: Vec<usize>,
    /// The number of elements along each axis.
    pub shape: Vec<usize>,
}

impl Batch {
    /// Returns the number of subchunks.
    pub(crate) fn len(&self) -> usize {
        self.counts.iter().product()
    }

    /// Returns the number of elements along each axis.
    pub(crate) fn shape(&self, grid: &SubchunkGrid) -> Vec<usize> {
        std::iter::zip(&self.counts, grid.subchunk())
            .map(|(count, extent)| count * extent)
            .collect()
    }
}

impl Slab {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Divides the subchunks of `grid` into batches in C order. Each has at most `most` subchunks, and at least
/// one.
pub fn batches(grid: &SubchunkGrid, most: usize) -> Vec<Batch> {
    let steps = boxes(grid.counts(), &vec![1; grid.counts().len()], most.max(1));
    let mut first = 0;
    steps
        .into_iter()
        .map(|step| {
            let batch = Batch {
                first,
                origin: std::iter::zip(&step.start, grid.subchunk())
                    .map(|(start, extent)| start * extent)
                    .collect(),
                counts: step.shape,
            };
            first += batch.len();
            batch
        })
        .collect()
}

/// Divides the elements of a batch into slabs in C order. Each has at most `most` elements, and at least one.
pub fn slabs(grid: &SubchunkGrid, batch: &Batch, most: usize) -> Vec<Slab> {
    boxes(&batch.shape(grid), grid.subchunk(), most.max(1))
}

/// Divides a box of `shape` into boxes of at most `most` elements that follow one another in C order. Their
/// shape is `(1, …, 1, n, full, …)`, where `n` is a multiple of `unit` along its axis, or divides one unit.
pub fn boxes(shape: &[usize], unit: &[usize], most: usize) -> Vec<Slab> {
    // Find the first axis of which a single step fits. `step` is the number of elements in one step along it.
    let mut axis = shape.len();
    let mut step = 1;
    while axis > 0 && step * shape[axis - 1] <= most {
        axis -= 1;
        step *= shape[axis];
    }
    if axis == 0 {
        return vec![Slab {
            start: vec![0; shape.len()],
            shape: shape.to_vec(),
        }];
    }
    // Take the axes before `split` one coordinate at a time, `split` in parts, and the later axes whole.
    let split = axis - 1;
    let parts = parts(shape[split], unit[split], most / step);
    let outer: usize = shape[..split].iter().product();
    let mut boxes = Vec::with_capacity(outer * parts.len());
    for number in 0..outer {
        let mut start = c_order::coordinates(number, &shape[..split]);
        start.resize(shape.len(), 0);
        for &(first, len) in &parts {
            let mut of_box = vec![1; split];
            of_box.push(len);
            of_box.extend_from_slice(&shape[split + 1..]);
            start[split] = first;
            boxes.push(Slab {
                start: start.clone(),
                shape: of_box,
            });
        }
    }
    boxes
}

/// Divides `0..extent` into as few parts, `(first, len)`, of at most `most` as possible. Parts have about
/// equal numbers of units, or of steps within a unit.
fn parts(extent: usize, unit: usize, most: usize) -> Vec<(usize, usize)> {
    let most = most.max(1);
    // Divides `all` into the fewest shares of at most `most`, and returns the size of these shares, as equal
    // as possible.
    let share = |all: usize, most: usize| all.div_ceil(all.div_ceil(most).max(1)).max(1);
    let len = if most >= unit {
        share(extent / unit, most / unit) * unit
    } else {
        share(unit, most)
    };
    let within = if most >= unit { extent } else { unit };
    let mut parts = Vec::new();
    for first_of_unit in (0..extent).step_by(within.max(1)) {
        for first in (0..within).step_by(len) {
            parts.push((first_of_unit + first, len.min(within - first)));
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn grids() -> impl Strategy<Value = SubchunkGrid> {
        prop::collection::vec((1_u64..5, 1_u64..6), 0..4).prop_map(|axes| {
            let shard: Vec<u64> = axes.iter().map(|(count, extent)| count * extent).collect();
            let subchunk: Vec<u64> = axes.iter().map(|(_, extent)| *extent).collect();
            SubchunkGrid::new(&shard, &subchunk, 2).expect("divides")
        })
    }

    /// Returns the elements of a box in C order, as linear indices of a C-order array of `shape`.
    fn elements(shape: &[usize], slab: &Slab) -> Vec<usize> {
        (0..slab.len())
            .map(|mut number| {
                let mut at = vec![0; shape.len()];
                for d in (0..shape.len()).rev() {
                    at[d] = slab.start[d] + number % slab.shape[d];
                    number /= slab.shape[d];
                }
                std::iter::zip(shape, at).fold(0, |index, (extent, at)| index * extent + at)
            })
            .collect()
    }

    proptest! {
        #![proptest_config(zarrs_cuda_testing::effort::config(128))]

        #[test]
        fn batches_are_the_subchunks_in_c_order(grid in grids(), most in 1_usize..200) {
            let mut seen = 0;
            for batch in batches(&grid, most) {
                prop_assert!(batch.len() <= most);
                prop_assert_eq!(batch.first, seen);
                prop_assert_eq!(&batch.origin, &grid.origin(seen));
                let start = std::iter::zip(&batch.origin, grid.subchunk());
                let in_grid = Slab {
                    start: start.map(|(origin, extent)| origin / extent).collect(),
                    shape: batch.counts.clone(),
                };
                let numbers: Vec<usize> = (seen..seen + batch.len()).collect();
                prop_assert_eq!(elements(grid.counts(), &in_grid), numbers);
                seen += batch.len();
            }
            prop_assert_eq!(seen, grid.num_subchunks());
        }

        #[test]
        fn slabs_are_the_elements_in_c_order(
            grid in grids(),
            batch in 1_usize..50,
            most in 1_usize..500,
        ) {
            for batch in batches(&grid, batch) {
                let shape = batch.shape(&grid);
                let mut seen = Vec::new();
                for slab in slabs(&grid, &batch, most) {
                    prop_assert!(slab.len() <= most && slab.len() > 0);
                    for ((start, len), extent) in
                        std::iter::zip(&slab.start, &slab.shape).zip(grid.subchunk())
                    {
                        let whole = start % extent == 0 && len % extent == 0;
                        let within = start / extent == (start + len - 1) / extent;
                        prop_assert!(whole || within, "{slab:?} of {shape:?}");
                    }
                    seen.extend(elements(&shape, &slab));
                }
                let all: Vec<usize> = (0..shape.iter().product()).collect();
                prop_assert_eq!(seen, all);
            }
        }
    }

    #[test]
    fn parts_are_equal_shares() {
        assert_eq!(parts(129, 1, 128), [(0, 65), (65, 64)]);
        assert_eq!(parts(36, 4, 20), [(0, 20), (20, 16)]);
        assert_eq!(parts(18, 9, 8), [(0, 5), (5, 4), (9, 5), (14, 4)]);
        assert_eq!(parts(5, 5, 100), [(0, 5)]);
    }

    #[test]
    fn a_row_of_subchunks_is_a_batch_and_planes_are_slabs() {
        let grid = SubchunkGrid::new(&[256, 256, 256], &[32, 32, 32], 2).expect("divides");
        let rows = batches(&grid, 100);
        assert_eq!(rows.len(), 8);
        assert_eq!(rows[1].counts, [1, 8, 8]);
        assert_eq!(rows[1].origin, [32, 0, 0]);
        let planes = slabs(&grid, &rows[1], 1 << 20);
        assert_eq!(planes.len(), 2);
        assert_eq!(planes[1].start, [16, 0, 0]);
        assert_eq!(planes[1].shape, [16, 256, 256]);
    }
}

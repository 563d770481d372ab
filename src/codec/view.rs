//! zarrs' view of an output array, written by rows of subchunks from many threads.
//!
//! The memory belongs to zarrs, and is written by a function of zarrs. This function copies one run of the
//! output after the other, and takes longer to find a short run than to copy the run. So neighbouring subchunks
//! are first put side by side, which makes the runs long.

use zarrs::array::ArraySubset;
use zarrs_codec::{ArrayBytesFixedDisjointView, CodecError};

use crate::shard::sharding::Sharding;
use zarrs_cuda_engine::contract::{EngineError, NeighbourSink};
use zarrs_cuda_engine::layout::Slab;
use zarrs_cuda_engine::memory::allocate;
use zarrs_cuda_engine::memory::disjoint::Shares;

/// A view of zarrs that shows a part of a shard, as a place into which subchunks are decoded.
pub(super) struct ViewOfShard<'a, 'v> {
    view: &'a ArrayBytesFixedDisjointView<'v>,
    shares: Shares<'a>,
}

impl<'a, 'v> ViewOfShard<'a, 'v> {
    /// Returns the part of a shard of `shards` that `view` shows: its box from `start`, of shape `shape`
    /// (elements). Returns `None` if the view has another shape.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the box is not inside the shard.
    pub(super) fn new(
        view: &'a ArrayBytesFixedDisjointView<'v>,
        shards: &'a Sharding,
        start: Vec<usize>,
        shape: Vec<usize>,
    ) -> Result<Option<Self>, EngineError> {
        let shown = view.subset().shape().iter().map(|&d| usize::try_from(d));
        if !shown.eq(shape.iter().map(|&d| Ok(d))) {
            return Ok(None);
        }
        let shares = Shares::new(&shards.grid, &shards.order(), start, shape)?;
        Ok(Some(Self { view, shares }))
    }

    /// Writes `elements`, in C order, to the elements of the view that subchunk `number` has.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if these elements were written before; [`EngineError::Foreign`] if zarrs
    /// refuses them.
    pub(super) fn write_part(&self, number: usize, elements: &[u8]) -> Result<(), EngineError> {
        let share = self.shares.claim(number, 1)?;
        // SAFETY: `share` was claimed above, so no other call writes it.
        unsafe { self.write_box(&share, |view| Ok(view.copy_from_slice(elements)?)) }
    }

    /// Calls `write` with zarrs' view of the box `slab` of this view.
    ///
    /// # Safety
    /// The caller claimed `slab`, and nothing else writes it at the same time.
    unsafe fn write_box(
        &self,
        slab: &Slab,
        write: impl FnOnce(&mut ArrayBytesFixedDisjointView<'_>) -> Result<(), CodecError>,
    ) -> Result<(), EngineError> {
        let start = std::iter::zip(self.view.subset().start(), &slab.start)
            .map(|(start, within)| start + *within as u64)
            .collect();
        let shape = slab.shape.iter().map(|&extent| extent as u64).collect();
        let subset = ArraySubset::new_with_start_shape(start, shape)
            .map_err(|error| EngineError::Foreign(Box::new(CodecError::from(error))))?;
        // SAFETY: the shares of different subchunks do not overlap, and the caller claimed the shares in
        // `slab`.
        let view = unsafe { self.view.subdivide(subset) };
        view.map_err(CodecError::from)
            .and_then(|mut view| write(&mut view))
            .map_err(|error| EngineError::Foreign(Box::new(error)))
    }
}

impl NeighbourSink for ViewOfShard<'_, '_> {
    fn row_len(&self, first: usize, count: usize) -> usize {
        /// The number of bytes of a run that takes much longer to copy than to find.
        const RUN: usize = 4 << 10;
        self.shares.row_len(first, count, RUN)
    }

    fn most_bytes(&self) -> usize {
        // Two copies by way of the second-level cache are still faster than many short runs.
        2 << 20
    }

    fn write_neighbours(
        &self,
        first: usize,
        sources: &[&[u8]],
        buffer: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        /// The number of bytes of a box that stays in the cache between the two copies.
        const SLAB: usize = if cfg!(test) { 24 } else { 128 << 10 };
        let row = self.shares.claim(first, sources.len())?;
        if let [source] = sources
            && self.shares.is_dense(first)
        {
            // SAFETY: `row` was claimed above, so no other call writes it.
            return unsafe { self.write_box(&row, |view| Ok(view.copy_from_slice(source)?)) };
        }
        for slab in self.shares.slabs(&row, SLAB) {
            let len = slab.len() * self.shares.grid().element_size();
            let elements = allocate::at_least(buffer, len)?;
            self.shares.gather(first, sources, &slab, elements)?;
            // SAFETY: `row` was claimed above, and its boxes are written one after the other.
            unsafe { self.write_box(&slab, |view| Ok(view.copy_from_slice(elements)?))? };
        }
        Ok(())
    }

    fn fill_neighbours(
        &self,
        first: usize,
        count: usize,
        element: &[u8],
    ) -> Result<(), EngineError> {
        let row = self.shares.claim(first, count)?;
        // SAFETY: `row` was claimed above, so no other call writes it.
        unsafe { self.write_box(&row, |view| Ok(view.fill(element)?)) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unsafe_cell_slice::UnsafeCellSlice;

    use super::*;
    use crate::codec::CudaShardingCodecBuilder;
    use zarrs_cuda_engine::layout::{SubchunkPart, strides_in};

    /// One axis: the extent of a subchunk, how many of them, where the view begins, how much it
    /// shows, and how much of the array lies before and behind it.
    type Axis = (usize, usize, (usize, usize), (usize, usize));

    fn axes() -> impl Strategy<Value = Vec<Axis>> {
        let axis = (1_usize..5, 1_usize..5).prop_flat_map(|(extent, count)| {
            let shard = extent * count;
            let window = (0..shard).prop_flat_map(move |start| (Just(start), 1..=shard - start));
            (Just(extent), Just(count), window, (0_usize..3, 0_usize..3))
        });
        prop::collection::vec(axis, 1..4)
    }

    proptest! {
        #![proptest_config(zarrs_cuda_testing::effort::config(96))]

        #[test]
        fn a_view_is_the_shares_of_its_subchunks(
            axes in axes(),
            order in Just(vec![0, 1, 2]).prop_shuffle(),
            rows in prop::collection::vec((1_usize..9, 0_u8..4), 1..20),
        ) {
            let order: Vec<usize> = order.into_iter().filter(|axis| *axis < axes.len()).collect();
            let each = |f: &dyn Fn(&Axis) -> usize| axes.iter().map(f).collect::<Vec<_>>();
            let to_u64 = |v: &[usize]| v.iter().map(|&n| n as u64).collect::<Vec<_>>();
            let shard = to_u64(&each(&|axis| axis.0 * axis.1));
            let non_zero = |v: &[u64]| v.iter().map(|&n| n.try_into().unwrap()).collect::<Vec<_>>();
            let subchunk = non_zero(&to_u64(&each(&|axis| axis.0)));
            let data_type = zarrs::array::data_type::uint16();
            let mut builder = CudaShardingCodecBuilder::new(subchunk, &data_type);
            let transpose = zarrs::array::codec::TransposeOrder::new(&order).unwrap();
            let transpose = zarrs::array::codec::TransposeCodec::new(transpose);
            builder.array_to_array_codecs(vec![std::sync::Arc::new(transpose)]);
            let codec = builder.build_arc().unwrap();
            let shards = codec.sharding(&non_zero(&shard), &data_type, &0_u16.into()).unwrap();

            // The element of the shard at each place, and the array around the view.
            let (start, shape) = (each(&|axis| axis.2.0), each(&|axis| axis.2.1));
            let around = each(&|axis| axis.3.0 + axis.2.1 + axis.3.1);
            let value = |at: &[usize]| {
                std::iter::zip(at, &shard).fold(1, |n, (at, extent)| n * *extent as u16 + *at as u16)
            };
            let mut expected = vec![0_u16; around.iter().product()];
            let place = |within: &[usize]| {
                let at = std::iter::zip(within, &axes).map(|(at, axis)| axis.3.0 + at);
                std::iter::zip(at, &around).fold(0, |n, (at, extent)| n * extent + at)
            };
            let coordinates = |number: usize, shape: &[usize]| {
                zarrs_cuda_engine::layout::c_order::coordinates(number, shape)
            };
            let mut array = vec![0_u8; expected.len() * 2];
            let array_shape = to_u64(&around);
            let subset = ArraySubset::new_with_start_shape(
                to_u64(&each(&|axis| axis.3.0)),
                to_u64(&shape),
            );
            // SAFETY: the only view of this memory.
            let view = unsafe {
                let memory = UnsafeCellSlice::new(&mut array);
                ArrayBytesFixedDisjointView::new(memory, 2, &array_shape, subset.unwrap())
            };
            let view = view.unwrap();
            let output = ViewOfShard::new(&view, &shards, start.clone(), shape.clone());
            let output = output.unwrap().expect("the shape of the view");

            let grid = &shards.grid;
            let strides = strides_in(&order, grid.subchunk(), 2);
            let decoded = |number: usize| {
                let mut bytes = vec![0; grid.subchunk_bytes()];
                let origin = grid.origin(number);
                for n in 0..grid.subchunk().iter().product() {
                    let within = coordinates(n, grid.subchunk());
                    let at: Vec<usize> = std::iter::zip(&origin, &within).map(|(a, b)| a + b).collect();
                    let offset: usize = std::iter::zip(&within, &strides).map(|(a, b)| a * b).sum();
                    bytes[offset..offset + 2].copy_from_slice(&value(&at).to_ne_bytes());
                }
                bytes
            };
            let (mut number, mut buffer) = (0, Vec::new());
            for (count, kind) in rows.iter().cycle() {
                if number == grid.num_subchunks() {
                    break;
                }
                if SubchunkPart::new(grid, number, &start, &shape).len() == 0 {
                    prop_assert!(output.fill_neighbours(number, 1, &[0; 2]).is_err(), "not in the view");
                    number += 1;
                    continue;
                }
                let meets = |number: &usize| SubchunkPart::new(grid, *number, &start, &shape).len() > 0;
                let left = (number..grid.num_subchunks()).take_while(meets).count();
                let count = output.row_len(number, left).min(*count);
                for number in number..number + count {
                    let part = SubchunkPart::new(grid, number, &start, &shape);
                    for n in 0..part.shape().iter().product() {
                        let within = coordinates(n, part.shape());
                        let add = |to: &[usize]| -> Vec<usize> {
                            std::iter::zip(to, &within).map(|(a, b)| a + b).collect()
                        };
                        let at = add(part.start_in_subchunk());
                        let origin = grid.origin(number);
                        let at: Vec<usize> = std::iter::zip(at, origin).map(|(a, b)| a + b).collect();
                        let value = if *kind == 0 { 9 } else { value(&at) };
                        expected[place(&add(part.start_in_window()))] = value;
                    }
                }
                let written = if *kind == 0 {
                    output.fill_neighbours(number, count, &9_u16.to_ne_bytes())
                } else {
                    let sources: Vec<_> = (number..number + count).map(decoded).collect();
                    let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
                    output.write_neighbours(number, &sources, &mut buffer)
                };
                written.unwrap();
                prop_assert!(output.fill_neighbours(number, 1, &[0; 2]).is_err(), "written before");
                number += count;
            }
            drop(output);
            let found: Vec<u16> = array
                .chunks_exact(2)
                .map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]))
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}

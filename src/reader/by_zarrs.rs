//! Reads arrays that this crate cannot read faster than zarrs: arrays that are not sharded, whose shards are
//! encoded once more, or whose elements zarrs' own codec decodes.

use zarrs::array::{ArrayBytes, ArrayError};
#[cfg(feature = "async")]
use zarrs_storage::AsyncReadableStorageTraits;
use zarrs_storage::ReadableStorageTraits;

use super::output::ArrayInMemory;
use super::request::WantedBox;
use super::{ArrayReader, ReadReport, ReaderError, extents};
use zarrs_cuda_engine::contract::{EngineError, NeighbourSink};
use zarrs_cuda_engine::layout::SubchunkGrid;
use zarrs_cuda_engine::memory::disjoint::Window;

impl<TStorage: ?Sized + ReadableStorageTraits + 'static> ArrayReader<TStorage> {
    /// Reads `boxes` by zarrs' own call, one after the other.
    pub(super) fn read_by_zarrs(
        &self,
        boxes: &[WantedBox],
        place: &ArrayInMemory<'_>,
    ) -> Result<ReadReport, ReaderError> {
        for wanted in boxes.iter().filter(|wanted| !wanted.subset.is_empty()) {
            let options = &self.0.settings.codec_options;
            let elements = self
                .array()
                .retrieve_array_subset_opt(&wanted.subset, options)?;
            self.copy(wanted, elements, place)?;
        }
        Ok(ReadReport::default())
    }
}

#[cfg(feature = "async")]
impl<TStorage: ?Sized + AsyncReadableStorageTraits + 'static> ArrayReader<TStorage> {
    /// Reads `boxes` by zarrs' own call, one after the other.
    pub(super) async fn async_read_by_zarrs(
        &self,
        boxes: &[WantedBox],
        place: &ArrayInMemory<'_>,
    ) -> Result<ReadReport, ReaderError> {
        for wanted in boxes.iter().filter(|wanted| !wanted.subset.is_empty()) {
            let (array, options) = (self.array(), &self.0.settings.codec_options);
            let elements = array
                .async_retrieve_array_subset_opt(&wanted.subset, options)
                .await?;
            self.copy(wanted, elements, place)?;
        }
        Ok(ReadReport::default())
    }
}

impl<TStorage: ?Sized> ArrayReader<TStorage> {
    /// Copies the elements of a box to their place in the output.
    fn copy(
        &self,
        wanted: &WantedBox,
        elements: ArrayBytes<'static>,
        place: &ArrayInMemory<'_>,
    ) -> Result<(), ReaderError> {
        let failed = |error: EngineError| ReaderError::Output {
            reason: format!("cannot copy the elements of a box: {error}"),
        };
        let elements = elements.into_fixed().map_err(ArrayError::from)?;
        let shape = wanted.subset.shape();
        let grid = SubchunkGrid::new(shape, shape, self.element_size()?);
        let grid = grid.map_err(|error| ReaderError::Output {
            reason: error.to_string(),
        })?;
        let extents = extents(shape)?;
        let order: Vec<usize> = (0..extents.len()).collect();
        let (memory, strides) = (place.from(wanted.offset), place.strides.clone());
        let whole = (vec![0; extents.len()], extents);
        // SAFETY: `ArrayInMemory` has room for all elements, and no two of them overlap.
        let window = unsafe { Window::over(&grid, &order, whole, memory, strides) };
        let window = window.map_err(failed)?;
        let written = window.write_neighbours(0, &[&elements], &mut Vec::new());
        written.map_err(failed)
    }
}

//! The calls of a reader whose store is awaited.

use zarrs::array::{ArraySubsetTraits, Element};
use zarrs_storage::AsyncReadableStorageTraits;

use super::output::Place;
use super::request::{self, Wanted};
use super::source::AwaitedStore;
use super::{ArrayReader, Output, ReadReport, ReaderError, Way, extents};

/// For a store that is awaited. Subchunks are decoded by the threads of readers, and by the thread that
/// polls.
///
/// A future that is dropped leaves the output written in part.
impl<TStorage: ?Sized + AsyncReadableStorageTraits + 'static> ArrayReader<TStorage> {
    /// Reads as [`read`](Self::read) does.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub async fn async_read<T: Element + bytemuck::Pod>(
        &self,
        subset: &dyn ArraySubsetTraits,
    ) -> Result<Vec<T>, ReaderError> {
        let elements = subset.to_array_subset();
        request::check(self.array(), &elements)?;
        self.check_type::<T>()?;
        let mut elements = self.zeros::<T>(&elements, 1)?;
        self.async_read_into(subset, &mut elements).await?.log();
        Ok(elements)
    }

    /// Reads as [`read_into`](Self::read_into) does.
    ///
    /// # Errors
    /// As for [`read_into`](Self::read_into).
    pub async fn async_read_into<T: Element + bytemuck::Pod>(
        &self,
        subset: &dyn ArraySubsetTraits,
        output: &mut [T],
    ) -> Result<ReadReport, ReaderError> {
        self.check_type::<T>()?;
        let bytes = bytemuck::must_cast_slice_mut(output);
        let output = Output::contiguous(bytes);
        self.async_read_bytes_into(subset, output).await
    }

    /// Reads as [`read_bytes_into`](Self::read_bytes_into) does.
    ///
    /// # Errors
    /// As for [`read_bytes_into`](Self::read_bytes_into).
    pub async fn async_read_bytes_into(
        &self,
        subset: &dyn ArraySubsetTraits,
        mut output: Output<'_>,
    ) -> Result<ReadReport, ReaderError> {
        let subset = subset.to_array_subset();
        request::check(self.array(), &subset)?;
        let place = output.place(&extents(subset.shape())?, self.element_size()?)?;
        let boxes = [Wanted { subset, offset: 0 }];
        self.async_read_to(&boxes, &place).await
    }

    /// Reads as [`read_boxes`](Self::read_boxes) does.
    ///
    /// # Errors
    /// As for [`read_boxes`](Self::read_boxes).
    pub async fn async_read_boxes<T: Element + bytemuck::Pod>(
        &self,
        origins: &[impl AsRef<[u64]>],
        shape: &[u64],
        output: &mut [T],
    ) -> Result<ReadReport, ReaderError> {
        self.check_type::<T>()?;
        let bytes = bytemuck::must_cast_slice_mut(output);
        let output = Output::contiguous(bytes);
        self.async_read_boxes_bytes_into(origins, shape, output)
            .await
    }

    /// Reads as [`read_boxes_bytes_into`](Self::read_boxes_bytes_into) does.
    ///
    /// # Errors
    /// As for [`read_boxes_bytes_into`](Self::read_boxes_bytes_into).
    pub async fn async_read_boxes_bytes_into(
        &self,
        origins: &[impl AsRef<[u64]>],
        shape: &[u64],
        mut output: Output<'_>,
    ) -> Result<ReadReport, ReaderError> {
        let mut shape_of_all = vec![origins.len()];
        shape_of_all.extend(extents(shape)?);
        let mut place = output.place(&shape_of_all, self.element_size()?)?;
        let boxes = self.boxes(origins, shape, &mut place)?;
        self.async_read_to(&boxes, &place).await
    }

    async fn async_read_to(
        &self,
        boxes: &[Wanted],
        place: &Place<'_>,
    ) -> Result<ReadReport, ReaderError> {
        let codec = match &self.0.way {
            Way::Shards(codec) => codec,
            Way::Zarrs(_) => return self.async_read_by_zarrs(boxes, place).await,
        };
        let source = AwaitedStore {
            store: &*self.array().storage(),
            at_once: self.0.settings.requests,
        };
        self.read_shards(codec, boxes, &source, place).await
    }
}

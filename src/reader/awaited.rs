//! The calls of a reader whose store is awaited.

use zarrs::array::{ArraySubsetTraits, Element};
use zarrs_storage::AsyncReadableStorageTraits;

use super::output::ArrayInMemory;
use super::request::WantedBox;
use super::source::Store;
use super::threads::{self, Each};
use super::{ArrayReader, DecodedBy, Output, OutputPlace, ReadReport, ReaderError};
use crate::store::Awaited;
use crate::store::parts::RangeCost;

/// Reads from a store that is awaited. The threads of readers decode subchunks, and so does the thread that
/// polls the future.
///
/// If a future is dropped, parts of the output may have been written.
impl<TStorage: ?Sized + AsyncReadableStorageTraits + 'static> ArrayReader<TStorage> {
    /// Reads as [`read`](Self::read) does.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub async fn async_read<T: Element + bytemuck::Pod>(
        &self,
        subset: &dyn ArraySubsetTraits,
    ) -> Result<Vec<T>, ReaderError> {
        let mut elements = self.new_elements::<T>(subset)?;
        self.async_read_into(subset, &mut elements).await?.log();
        Ok(elements)
    }

    /// Reads as [`read_into`](Self::read_into) does.
    ///
    /// # Errors
    /// The errors of [`read_into`](Self::read_into).
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
    /// The errors of [`read_bytes_into`](Self::read_bytes_into).
    pub async fn async_read_bytes_into(
        &self,
        subset: &dyn ArraySubsetTraits,
        mut output: Output<'_>,
    ) -> Result<ReadReport, ReaderError> {
        let (boxes, place) = self.one_box(subset, &mut output)?;
        self.async_read_to(&boxes, &place).await
    }

    /// Reads as [`read_boxes`](Self::read_boxes) does.
    ///
    /// # Errors
    /// The errors of [`read_boxes`](Self::read_boxes).
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
    /// The errors of [`read_boxes_bytes_into`](Self::read_boxes_bytes_into).
    pub async fn async_read_boxes_bytes_into(
        &self,
        origins: &[impl AsRef<[u64]>],
        shape: &[u64],
        mut output: Output<'_>,
    ) -> Result<ReadReport, ReaderError> {
        let (boxes, place) = self.several_boxes(origins, shape, &mut output)?;
        self.async_read_to(&boxes, &place).await
    }

    async fn async_read_to(
        &self,
        boxes: &[WantedBox],
        place: &ArrayInMemory<'_>,
    ) -> Result<ReadReport, ReaderError> {
        let codec = match &self.0.decoded_by {
            DecodedBy::ThisCrate(codec) => codec,
            DecodedBy::Zarrs(_) => return self.async_read_by_zarrs(boxes, place).await,
        };
        self.check_newer_subchunks(false)?;
        let store = self.array().storage();
        let store = Store {
            reads: Awaited(&*store),
            range_cost: RangeCost::REMOTE,
        };
        let source = (
            &store,
            self.0.settings.requests,
            threads::awaited as Each<_>,
        );
        let place = OutputPlace::Host(place);
        self.read_shards(codec, boxes, source, place).await
    }
}

//! The calls of a reader whose store blocks.

use zarrs::array::{Array, ArraySubsetTraits, Element, Tensor};
use zarrs_storage::ReadableStorageTraits;

use super::output::ArrayInMemory;
use super::request::{self, WantedBox};
use super::source::Store;
use super::threads::{self, Each};
use super::{ArrayReader, DecodedBy, Inner, Output, OutputPlace, ReadReport, ReaderError};
use crate::codec::CudaShardingCodec;
use crate::store::parts::RangeCost;
use crate::store::{Blocking, now};

impl<TStorage: ?Sized + ReadableStorageTraits + 'static> ArrayReader<TStorage> {
    /// Reads the elements of `subset` into new memory, in C order.
    ///
    /// A range that ends before it starts is empty, as everywhere in zarrs.
    ///
    /// The memory is on huge pages if the system has them, and the
    /// [`Options`](crate::Options::with_huge_pages) of the array's codec do not forbid them. A damaged
    /// subchunk that became fill values is [counted](super::ReaderMetrics::damaged), and logged as a warning.
    ///
    /// # Errors
    /// The errors of [`read_bytes_into`](Self::read_bytes_into), [`ReaderError::Element`] if `T` is not the
    /// array's data type, and [`ReaderError::Memory`] if there is no memory for the elements.
    pub fn read<T: Element + bytemuck::Pod>(
        &self,
        subset: &dyn ArraySubsetTraits,
    ) -> Result<Vec<T>, ReaderError> {
        let mut elements = self.new_elements::<T>(subset)?;
        self.read_into(subset, &mut elements)?.log();
        Ok(elements)
    }

    /// Reads the elements of `subset` into `output`, in C order.
    ///
    /// # Errors
    /// The errors of [`read_bytes_into`](Self::read_bytes_into), and [`ReaderError::Element`] if `T` is not
    /// the array's data type.
    pub fn read_into<T: Element + bytemuck::Pod>(
        &self,
        subset: &dyn ArraySubsetTraits,
        output: &mut [T],
    ) -> Result<ReadReport, ReaderError> {
        self.check_type::<T>()?;
        let bytes = bytemuck::must_cast_slice_mut(output);
        self.read_bytes_into(subset, Output::contiguous(bytes))
    }

    /// Reads the elements of `subset` into `output`, each in the byte order of this machine.
    ///
    /// # Errors
    /// - [`ReaderError::OutOfBounds`] if `subset` is not in the array, [`ReaderError::Output`] if
    ///   `output` does not fit it, [`ReaderError::Unsupported`] if elements have no fixed size.
    /// - [`ReaderError::Store`], [`ReaderError::Damaged`] and [`ReaderError::Changing`] if a shard
    ///   cannot be read. Parts of the output may have been written.
    /// - [`ReaderError::Zarrs`] if zarrs reads the array instead of this crate, and fails.
    pub fn read_bytes_into(
        &self,
        subset: &dyn ArraySubsetTraits,
        mut output: Output<'_>,
    ) -> Result<ReadReport, ReaderError> {
        let (boxes, place) = self.one_box(subset, &mut output)?;
        self.read_to(&boxes, &place)
    }

    /// Reads the elements of `subset` into a new tensor of zarrs.
    ///
    /// With the feature `dlpack`, other libraries take the tensor without a copy:
    /// `dlpark::SafeManagedTensorVersioned::new(tensor)`.
    ///
    /// # Errors
    /// The errors of [`read_bytes_into`](Self::read_bytes_into), and [`ReaderError::Memory`] if there is no
    /// memory for the elements.
    pub fn read_tensor(&self, subset: &dyn ArraySubsetTraits) -> Result<Tensor, ReaderError> {
        let subset = subset.to_array_subset();
        request::check_inside(self.array(), None, subset.start(), subset.shape())?;
        let mut bytes = self.zeros::<u8>(&subset, self.element_size()?)?;
        self.read_bytes_into(&subset, Output::contiguous(&mut bytes))?
            .log();
        let (data_type, shape) = (self.array().data_type().clone(), subset.shape().to_vec());
        Ok(Tensor::new(bytes, data_type, shape))
    }

    /// Reads a box of `shape` from each of `origins` into `output`. The boxes follow one another, each in C
    /// order.
    ///
    /// The index of a shard is read once. A subchunk is read and decoded once, even if several boxes have
    /// elements of it.
    ///
    /// # Errors
    /// The errors of [`read_into`](Self::read_into).
    pub fn read_boxes<T: Element + bytemuck::Pod>(
        &self,
        origins: &[impl AsRef<[u64]>],
        shape: &[u64],
        output: &mut [T],
    ) -> Result<ReadReport, ReaderError> {
        self.check_type::<T>()?;
        let bytes = bytemuck::must_cast_slice_mut(output);
        self.read_boxes_bytes_into(origins, shape, Output::contiguous(bytes))
    }

    /// Reads a box of `shape` from each of `origins` into `output`. The output has one axis more than the
    /// array: its first axis counts the boxes.
    ///
    /// # Errors
    /// The errors of [`read_bytes_into`](Self::read_bytes_into).
    pub fn read_boxes_bytes_into(
        &self,
        origins: &[impl AsRef<[u64]>],
        shape: &[u64],
        mut output: Output<'_>,
    ) -> Result<ReadReport, ReaderError> {
        let (boxes, place) = self.several_boxes(origins, shape, &mut output)?;
        self.read_to(&boxes, &place)
    }

    fn read_to(
        &self,
        boxes: &[WantedBox],
        place: &ArrayInMemory<'_>,
    ) -> Result<ReadReport, ReaderError> {
        let codec = match &self.0.decoded_by {
            DecodedBy::ThisCrate(codec) => codec,
            DecodedBy::Zarrs(_) => return self.read_by_zarrs(boxes, place),
        };
        self.check_newer_subchunks(true)?;
        self.read_from_store(codec, boxes, OutputPlace::Host(place))
    }

    /// Reads `boxes` by blocking calls of the store, or from files.
    pub(super) fn read_from_store(
        &self,
        codec: &CudaShardingCodec,
        boxes: &[WantedBox],
        place: OutputPlace<'_>,
    ) -> Result<ReadReport, ReaderError> {
        let Inner {
            array,
            settings,
            files,
            ..
        } = &*self.0;
        if let Some(files) = files {
            let source = (files, settings.threads(), threads::blocking as Each<_>);
            return now(self.read_shards(codec, boxes, source, place));
        }
        let store = array.storage();
        let store = Store {
            reads: Blocking::new(&*store),
            // Most stores that block are files or memory.
            range_cost: RangeCost::CACHED,
        };
        let source = (
            &store,
            settings.blocking_requests(),
            threads::blocking as Each<_>,
        );
        now(self.read_shards(codec, boxes, source, place))
    }

    /// Returns a reader of the same array with the shape that its stored metadata has now.
    pub(super) fn opened_again(&self) -> Result<Self, ReaderError> {
        let array = self.array();
        let now = Array::open(array.storage(), array.path().as_str()).map_err(|error| {
            ReaderError::Unsupported {
                reason: format!("its metadata cannot be read again: {error}"),
            }
        })?;
        if now.shape().get(1..) != array.shape().get(1..) || now.data_type() != array.data_type() {
            return Err(ReaderError::Unsupported {
                reason: format!(
                    "the array became another one: of shape {:?} and elements of {}",
                    now.shape(),
                    now.data_type()
                ),
            });
        }
        // The new array keeps its codec, which may have options of the application.
        let mut grown = array.with_storage(array.storage());
        let shape = grown.set_shape(now.shape().to_vec());
        shape.map_err(|error| ReaderError::Unsupported {
            reason: format!("its shape became {:?}: {error}", now.shape()),
        })?;
        self.with_array(grown, &now)
    }
}

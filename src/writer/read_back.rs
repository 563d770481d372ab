//! Reads stored slices, to encode them once more together with the slices behind them.

use std::ops::Range;

use zarrs::array::{Array, ArraySubset};
use zarrs_codec::CodecOptions;
use zarrs_storage::ReadableWritableStorageTraits;

use super::appending::Appending;
use super::error::WriterError;
use crate::reader::{ArrayReader, Output, ReaderError};

/// Reads stored slices of an array.
pub(crate) struct StoredSlices<TStorage: ?Sized> {
    reader: ArrayReader<TStorage>,
    /// The number of bytes of a slice.
    slice: usize,
}

impl<TStorage> StoredSlices<TStorage>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
{
    /// Makes a reader of `array` that decodes with `options`.
    ///
    /// # Errors
    /// [`WriterError::Read`] for the `slices`, which are not empty, if the array cannot be read.
    pub(crate) fn new(
        array: &Array<TStorage>,
        slices: &Range<u64>,
        options: CodecOptions,
    ) -> Result<Self, WriterError> {
        let reader = ArrayReader::builder(array).with_codec_options(options);
        let reader = reader
            .build()
            .map_err(|source| failed(array, slices, source))?;
        let element = array.data_type().fixed_size().unwrap_or(1);
        let slice: u64 = array.shape().iter().skip(1).product();
        let slice = usize::try_from(slice).unwrap_or(usize::MAX);
        Ok(Self {
            reader,
            slice: slice.saturating_mul(element),
        })
    }

    /// Returns the number of bytes of a slice.
    pub(crate) fn slice_bytes(&self) -> usize {
        self.slice
    }

    /// Returns the elements of `slices`, which are not empty, in C order and in the byte order of this
    /// machine.
    ///
    /// # Errors
    /// [`WriterError::Read`].
    pub(crate) fn read(&self, slices: &Range<u64>) -> Result<Vec<u8>, WriterError> {
        self.try_read(slices)
            .map_err(|source| failed(self.reader.array(), slices, source))
    }

    fn try_read(&self, slices: &Range<u64>) -> Result<Vec<u8>, ReaderError> {
        let count = usize::try_from(slices.end.saturating_sub(slices.start)).unwrap_or(usize::MAX);
        let len = self.slice.saturating_mul(count);
        let inner = self.reader.array().shape().iter().skip(1);
        let ranges: Vec<_> = std::iter::once(slices.clone())
            .chain(inner.map(|extent| 0..*extent))
            .collect();
        let subset = ArraySubset::new_with_ranges(&ranges);
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(len)
            .map_err(|_| ReaderError::Memory {
                what: "stored slices",
                bytes: len,
            })?;
        bytes.resize(len, 0);
        self.reader
            .read_bytes_into(&subset, Output::contiguous(&mut bytes))?;
        Ok(bytes)
    }
}

/// Reads the slices of `array` that the writer has to take before those of the application, and gives them
/// to `writer`, the slices of one epoch at once.
///
/// # Errors
/// [`WriterError::Read`], [`WriterError::Cancelled`], and the errors of
/// [`append`](super::Writer::append).
pub(crate) fn read_back<TStorage, W>(
    array: &Array<TStorage>,
    options: CodecOptions,
    writer: &mut W,
) -> Result<(), WriterError>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
    W: Appending,
{
    let setup = &writer.top().shared.setup;
    let slices = setup.start..setup.first();
    let epoch = setup.grid.epoch_slices() as u64;
    if slices.is_empty() {
        return Ok(());
    }
    let stored = StoredSlices::new(array, &slices, options)?;
    for block in blocks(slices, epoch) {
        if writer.top().waiting.is_interrupted() {
            return Err(WriterError::Cancelled);
        }
        writer.put(&stored.read(&block)?, true)?;
    }
    writer.top_mut().has_read_back();
    Ok(())
}

/// Returns the error of `slices` of `array` that cannot be read.
fn failed<TStorage: ?Sized>(
    array: &Array<TStorage>,
    slices: &Range<u64>,
    source: ReaderError,
) -> WriterError {
    WriterError::Read {
        path: array.path().to_string(),
        first: slices.start,
        last: slices.end.saturating_sub(1),
        source: Box::new(source),
    }
}

/// Divides `slices` at the borders of subchunks of `extent` slices, so that no subchunk is read twice.
pub(crate) fn blocks(slices: Range<u64>, extent: u64) -> impl Iterator<Item = Range<u64>> {
    let extent = extent.max(1);
    let mut at = slices.start;
    std::iter::from_fn(move || {
        let end = slices.end.min((at / extent + 1).saturating_mul(extent));
        let block = at..end;
        at = end;
        (!block.is_empty()).then_some(block)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_end_at_borders_of_subchunks() {
        let of = |slices, extent| blocks(slices, extent).collect::<Vec<_>>();
        assert_eq!(of(3..12, 4), [3..4, 4..8, 8..12]);
        assert_eq!(of(4..6, 4), [4..6]);
        assert_eq!(of(5..5, 4), []);
        assert_eq!(of(0..2, 1), [0..1, 1..2]);
        let last = u64::MAX - 1..u64::MAX;
        assert_eq!(of(last.clone(), u64::MAX / 2), [last]);
    }
}

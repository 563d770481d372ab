//! Reads stored shards of any data type: their entries, and whether each subchunk decodes.

use std::borrow::Cow;

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use zarrs_codec::{ArrayToBytesCodecTraits, CodecError, CodecOptions};

use super::error::codec_error;
use super::sharding::Sharding;
use crate::metrics::counters;
use crate::panics::no_panic;
use crate::plan::host_engine;
use zarrs_cuda_engine::contract::EncodedSubchunk;
use zarrs_cuda_engine::layout::Entries;

/// Decodes the bytes of the subchunk with the given number.
type TryOne<'a> = dyn Fn(usize, &[u8]) -> Result<(), CodecError> + Sync + 'a;

/// Returns the options for reading shards that may be damaged.
pub(crate) fn options() -> CodecOptions {
    CodecOptions::default().with_validate_checksums(true)
}

impl Sharding {
    /// Returns the size of a decoded subchunk, in bytes, or `None` if elements have no fixed size.
    pub(crate) fn decoded_size(&self) -> Option<u64> {
        let element = self.data_type.fixed_size()?;
        let subchunk = self.codec.subchunk_shape.iter();
        subchunk
            .map(|d| d.get())
            .try_fold(element as u64, u64::checked_mul)
    }

    /// Returns the entries of an encoded index. Neither its checksum nor the places of the subchunks are
    /// checked.
    pub(crate) fn entries_unchecked<'b>(&self, index: &'b [u8]) -> Result<Entries<'b>, CodecError> {
        let options = options().with_validate_checksums(false);
        self.index.decode_unchecked(Cow::Borrowed(index), &options)
    }

    /// Returns the entries of the encoded index of a shard of `size` bytes.
    ///
    /// # Errors
    /// A [`CodecError`] if the index codecs fail, or an extent is outside the shard.
    pub(crate) fn entries<'b>(
        &self,
        index: &'b [u8],
        size: u64,
    ) -> Result<Entries<'b>, CodecError> {
        self.index.decode(Cow::Borrowed(index), size, &options())
    }

    /// Decodes each subchunk of `object` that is not empty, by itself. Returns an error for each subchunk
    /// that does not decode.
    ///
    /// # Errors
    /// A [`CodecError`] if the options say that the data are not trusted, and a codec needs trusted data.
    pub(crate) fn try_subchunks(
        &self,
        object: &[u8],
        entries: &Entries<'_>,
    ) -> Result<Vec<Result<(), CodecError>>, CodecError> {
        let numbered = entries.iter().enumerate();
        let stored = numbered.filter_map(|(number, extent)| Some((number, object.get(extent?)?)));
        let stored: Vec<(usize, &[u8])> = stored.collect();
        let tried = self.try_each(&stored)?;
        let mut tried = stored
            .iter()
            .map(|(number, _)| *number)
            .zip(tried)
            .peekable();
        let results = entries.iter().enumerate().map(|(number, extent)| {
            if let Some((_, result)) = tried.next_if(|(tried, _)| *tried == number) {
                return result;
            }
            let Some(extent) = extent else {
                return Ok(());
            };
            Err(CodecError::Other(format!(
                "bytes {}..{} are not in a shard of {} bytes",
                extent.start,
                extent.end,
                object.len()
            )))
        });
        Ok(results.collect())
    }

    /// Decodes each of the encoded `subchunks`, given with their numbers, by itself. Returns an error for
    /// each subchunk that does not decode.
    ///
    /// # Errors
    /// A [`CodecError`] if the options say that the data are not trusted, and a codec needs trusted data.
    pub(crate) fn try_each(
        &self,
        subchunks: &[(usize, &[u8])],
    ) -> Result<Vec<Result<(), CodecError>>, CodecError> {
        self.codec.check_trusted()?;
        let each = |decode: &TryOne<'_>| {
            let results = subchunks.par_iter();
            results
                .map(|(number, bytes)| decode(*number, bytes))
                .collect()
        };
        if self.delegated().is_some() {
            return Ok(each(&|_, bytes| self.decode_delegated(bytes)));
        }
        let options = options().with_concurrent_target(1);
        Ok(self.with_job(&options, |job| {
            each(&|number, bytes| {
                let subchunk = EncodedSubchunk {
                    number,
                    bytes: Some(bytes),
                };
                host_engine()
                    .decode_each(job, &[subchunk], &|_, _| Ok(()))
                    .map_err(codec_error)
            })
        }))
    }

    /// Decodes a subchunk whose elements zarrs' own codec encodes.
    fn decode_delegated(&self, bytes: &[u8]) -> Result<(), CodecError> {
        let shape = &self.codec.subchunk_shape;
        counters::host_coding();
        no_panic(|| {
            let decoded = self.codec.inner_codecs.decode(
                Cow::Borrowed(bytes),
                shape,
                &self.data_type,
                &self.fill_value,
                &options(),
            )?;
            let num_elements = shape.iter().map(|d| d.get()).product();
            decoded.validate(num_elements, &self.data_type)
        })
    }
}

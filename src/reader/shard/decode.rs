//! Decodes encoded subchunks to their places in the output.

use std::ops::Range;

use zarrs_codec::CodecOptions;

use super::errors::{damage, failed};
use super::indexed::{Indexed, Keeping};
use super::windows::{Several, WantedSubchunk};
use super::{Attempt, lock};
use crate::plan::host_engine;
use crate::reader::ReaderError;
use crate::reader::error::Damage;
use crate::reader::source::ShardSource;
use crate::reader::threads::{self, decoding};
use crate::shard::error::engine_is_about_stored_bytes;
use zarrs_cuda_engine::contract::{EncodedSubchunk, NeighbourSink};

impl<S: ShardSource> Attempt<'_, S> {
    /// Writes the wanted elements of the subchunk `touched`, which needs no decoding. `bytes` are its bytes
    /// from byte `first` on.
    pub(super) fn write_rows(
        &self,
        touched: WantedSubchunk<'_>,
        bytes: &[u8],
        first: usize,
    ) -> Result<(), ReaderError> {
        let number = touched.number();
        let mut windows = touched.windows().map(|window| &self.windows[window]);
        let written = windows.try_for_each(|window| window.write_rows(number, bytes, first));
        written.map_err(|error| failed(self.shard, Some(number), error))
    }

    /// Writes the wanted elements of the subchunk `touched`, which needs no decoding. `bytes_of` returns the bytes of
    /// a row of the subchunk. `rows` is a buffer.
    pub(super) fn write_dense_rows<'b>(
        &self,
        touched: WantedSubchunk<'_>,
        rows: &mut Vec<u8>,
        bytes_of: impl Fn(Range<usize>) -> Result<&'b [u8], ReaderError>,
    ) -> Result<(), ReaderError> {
        let number = touched.number();
        for window in touched.windows().map(|window| &self.windows[window]) {
            rows.clear();
            let of_window = window.rows(number);
            let bytes = of_window.count() * of_window.row_len();
            let what = "rows of a subchunk";
            (rows.try_reserve(bytes)).map_err(|_| ReaderError::Memory { what, bytes })?;
            for row in of_window.iter() {
                rows.extend_from_slice(bytes_of(row)?);
            }
            let written = window.write_dense_rows(number, rows);
            written.map_err(|error| failed(self.shard, Some(number), error))?;
        }
        Ok(())
    }

    /// Decodes the encoded `subchunks`, which have ascending numbers, and writes their elements to memory of the host. If
    /// they are in a shard with an index, their elements may be kept.
    pub(super) fn decode(
        &self,
        subchunks: &[(WantedSubchunk<'_>, &[u8])],
        indexed: Option<&Indexed<'_, S>>,
    ) -> Result<(), ReaderError> {
        /// The number of bytes below which one thread decodes sooner than another thread wakes.
        const AT_ONCE: usize = 512 << 10;
        let several = Several {
            windows: self.windows,
            subchunks,
        };
        let mut sink: &dyn NeighbourSink = match (self.windows, &several) {
            ([window], _) => window,
            (_, several) => several,
        };
        let keeping = indexed.map(|indexed| Keeping { indexed, sink });
        if self.call.settings.subchunk_cache > 0
            && let Some(keeping) = &keeping
        {
            sink = keeping;
        }
        let options = self.call.settings.codec_options.with_concurrent_target(1);
        let encoded = subchunks.iter().map(|(touched, bytes)| EncodedSubchunk {
            number: touched.number(),
            bytes: Some(bytes),
        });
        let encoded: Vec<_> = encoded.collect();
        let bytes = self.shard.sharding.grid.subchunk_bytes();
        let shares = encoded.chunks((AT_ONCE / bytes).max(1));
        let shares: Vec<&[EncodedSubchunk<'_>]> = shares.collect();
        let (shares, options) = (&*shares, &options);
        if let [share] = shares {
            return decoding(|| self.decode_share(share, sink, options));
        }
        threads::each(shares.len(), self.call.settings.threads(), |number| {
            decoding(|| self.decode_share(shares[number], sink, options))
        })
    }

    /// Decodes some subchunks on this thread.
    fn decode_share(
        &self,
        subchunks: &[EncodedSubchunk<'_>],
        sink: &dyn NeighbourSink,
        options: &CodecOptions,
    ) -> Result<(), ReaderError> {
        self.shard.sharding.with_job(options, |job| {
            if !self.call.settings.fill_damaged {
                let decoded = host_engine().decode_some(job, subchunks, sink);
                let Err(error) = decoded else {
                    return Ok(());
                };
                if !engine_is_about_stored_bytes(&error) {
                    return Err(failed(self.shard, None, error));
                }
                // Decoding one by one finds the damaged subchunk. The elements are not written again, because
                // some were written already.
                for subchunk in subchunks {
                    let one = std::slice::from_ref(subchunk);
                    if let Err(error) = host_engine().decode_each(job, one, &|_, _| Ok(())) {
                        return Err(failed(self.shard, Some(subchunk.number), error));
                    }
                }
                return Err(failed(self.shard, None, error));
            }
            for subchunk in subchunks {
                let one = std::slice::from_ref(subchunk);
                if let Err(error) = host_engine().decode_some(job, one, sink) {
                    let number = subchunk.number;
                    if !engine_is_about_stored_bytes(&error) {
                        return Err(failed(self.shard, Some(number), error));
                    }
                    let damage = Damage::new(self.shard.key.clone(), Some(number), error);
                    let filled = sink.fill_neighbours(number, 1, job.fill_value);
                    filled.map_err(|error| self::damage(self.shard, Some(number), error))?;
                    lock(&self.damaged).push(damage);
                }
            }
            Ok(())
        })
    }
}

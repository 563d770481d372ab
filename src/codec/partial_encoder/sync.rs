//! The steps of an update, one after the other, for stores that are waited for. `asynchronous` is the
//! same for those that are not.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use zarrs::array::{ArrayBytes, ArrayBytesRaw, DataType, Indexer};
use zarrs_codec::{
    ArrayPartialDecoderTraits, ArrayPartialEncoderTraits, ArrayToBytesCodecTraits,
    BytesPartialEncoderTraits, CodecError, CodecOptions,
};
use zarrs_storage::StorageError;
use zarrs_storage::byte_range::ByteRange;

use super::commit::{Outcome, compacted, decide, likely_mode, reads_of_rest, rule};
use super::comparison::{Comparison, StoredIndex};
use super::reads::Fetched;
use super::refusal::{changed, no_turn};
use super::turns::{Blocking, Claim, Mode, Name, take};
use super::update::{Changes, Update};
use super::writes::{Write, writes};
use super::{
    Attempts, Failed, Look, PartialEncoder, Written, index_error, is_rest, not_created,
    range_of_rest, write_error,
};
use crate::codec::foreign::no_panic;
use crate::codec::partial_decoder::check_long;
use crate::layout::placement::Rule;
use crate::metrics::counters;

impl PartialEncoder<dyn BytesPartialEncoderTraits> {
    fn read_index(&self, options: &CodecOptions) -> Result<Option<StoredIndex>, CodecError> {
        let range = self.index_range()?;
        // Stores fail, and some panic, where a range begins before the value does.
        no_panic(|| self.handle.partial_decode(range, options))
            .and_then(|encoded| self.index(encoded, options))
            .map_err(|error| index_error(&error))
    }

    /// The bytes at `ranges`, in one request; `None` if there are none, or no shard.
    fn read(
        &self,
        ranges: Vec<ByteRange>,
        options: &CodecOptions,
    ) -> Result<Option<Vec<ArrayBytesRaw<'_>>>, CodecError> {
        if ranges.is_empty() {
            return Ok(None);
        }
        let ranges = Box::new(ranges.into_iter());
        no_panic(|| self.handle.partial_decode_many(ranges, options))
    }

    /// The size of the shard, if its index is still `before`, and `fetched` is what it has.
    fn size_now(
        &self,
        before: Option<&StoredIndex>,
        fetched: &Fetched<'_>,
        options: &CodecOptions,
    ) -> Result<usize, CodecError> {
        let Some(before) = before else {
            // Some stores have no size of an object that they cannot look at: its index says more.
            return match self.read_index(options) {
                Ok(None) => Ok(0),
                Ok(Some(_)) | Err(_) => Err(changed()),
            };
        };
        let mut comparison = Comparison::new(&self.target, before);
        // Together with the first part of the shard that can be read.
        let mut to_compare = fetched.byte_ranges();
        loop {
            let mut ranges = match comparison.next() {
                Err(size) => return Ok(size),
                Ok(ranges) => ranges,
            };
            let count = ranges.len();
            ranges.extend(to_compare.iter().copied());
            match self.read(ranges, options) {
                Ok(mut read) => {
                    let again = read
                        .as_mut()
                        .map(|read| read.split_off(count.min(read.len())));
                    comparison.answer(read)?;
                    if !to_compare.is_empty() {
                        fetched.compare(&again.unwrap_or_default())?;
                        to_compare.clear();
                    }
                }
                Err(error) if !comparison.falls_back() => return Err(index_error(&error)),
                Err(_) => {}
            }
        }
    }

    /// Take a turn, if it comes before the encoder has waited as long as it may.
    fn take(&self, claims: &[Claim], attempts: &mut Attempts) -> Result<Blocking, Failed> {
        let limit = self.target.codec.options.turn_limit();
        let start = Instant::now();
        let turn = take(claims, limit.saturating_sub(attempts.waited));
        attempts.waited += start.elapsed();
        turn.map_err(|reason| Failed::Final(no_turn(reason, limit)))
    }

    fn write(
        &self,
        update: &Update<'_>,
        (before, rule): (Option<&StoredIndex>, Rule),
        mut changes: Changes,
        fetched: &Fetched<'_>,
        options: &CodecOptions,
        attempts: &mut Attempts,
    ) -> Result<Written, Failed> {
        // A handle that writes no ranges replaces the object, and with it what others write.
        let mut mode = before
            .filter(|_| self.handle.supports_partial_encode())
            .map_or(Mode::Alone, |before| likely_mode(rule, before, &changes));
        loop {
            let claims = self.claims(before, mode, update, &changes);
            let _turn = self.take(&claims, attempts)?;
            let at = (before, rule, mode);
            let written = self.write_in_turn(update, at, &mut changes, fetched, options)?;
            if let Some(written) = written {
                return Ok(written);
            }
            mode = Mode::Alone;
        }
    }

    /// Write in a turn of `mode`. `None` if it must be alone, and is not.
    fn write_in_turn(
        &self,
        update: &Update<'_>,
        (before, rule, mode): (Option<&StoredIndex>, Rule, Mode),
        changes: &mut Changes,
        fetched: &Fetched<'_>,
        options: &CodecOptions,
    ) -> Result<Option<Written>, Failed> {
        let size = self.size_now(before, fetched, options)?;
        let outcome = decide(update, rule, before, size, changes, options);
        let outcome = outcome.map_err(Failed::Final)?;
        if mode == Mode::Shared && outcome.mode() == Mode::Alone {
            return Ok(None);
        }
        let written = self.carry_out(outcome, update, before, changes, fetched, options);
        written.map(Some).map_err(Failed::Final)
    }

    fn carry_out(
        &self,
        outcome: Outcome,
        update: &Update<'_>,
        before: Option<&StoredIndex>,
        changes: &mut Changes,
        fetched: &Fetched<'_>,
        options: &CodecOptions,
    ) -> Result<Written, CodecError> {
        match outcome {
            Outcome::Erase => {
                if before.is_some() {
                    self.handle.erase()?;
                }
                Ok((0, None))
            }
            Outcome::Write(placed) => {
                let (size, dead) = (placed.size, placed.dead);
                let writes = writes(update, placed, changes, fetched).into_iter();
                for (number, write) in writes.enumerate() {
                    let creates = (before.is_none() && number == 0).then(|| write.clone());
                    let pieces = write.into_iter().map(|(at, bytes)| (at, Cow::Owned(bytes)));
                    let written = self.handle.partial_encode_many(Box::new(pieces), options);
                    let Err(error) = written else { continue };
                    return Err(match creates {
                        Some(write) if self.erase_rest(&write, options) => not_created(&error),
                        _ => write_error(&error),
                    });
                }
                Ok((size, dead))
            }
            Outcome::Compact { size } => {
                let reads = reads_of_rest(before, changes);
                let rest = self.read(reads.byte_ranges(), options)?;
                let rest = reads.answered(rest)?;
                let shard = compacted(update, (before, size), changes, &rest, options)?;
                let size = shard.len();
                self.handle.erase()?;
                self.handle
                    .partial_encode(0, Cow::Owned(shard), options)
                    .map_err(|error| write_error(&error))?;
                counters::compaction();
                Ok((size, None))
            }
        }
    }

    /// Erase what a failed `write` left of a shard that was to be created, if it is that and no more.
    /// Returns whether there is no shard now.
    fn erase_rest(&self, write: &Write, options: &CodecOptions) -> bool {
        let Some(range) = range_of_rest(write) else {
            return false;
        };
        match self.read(vec![range], options) {
            Ok(None) => true,
            Ok(Some(object)) => {
                matches!(&object[..], [object] if is_rest(object, write))
                    && self.handle.erase().is_ok()
            }
            Err(_) => false,
        }
    }

    /// Try to write. `None` if nothing had to be written.
    fn attempt(
        &self,
        indexer: &dyn Indexer,
        bytes: &ArrayBytes<'_>,
        options: &CodecOptions,
        attempts: &mut Attempts,
    ) -> Result<Option<Written>, Failed> {
        let rule = rule(&self.target, self.handle.supports_partial_encode());
        let rule = rule.map_err(Failed::Final)?;
        let alone = [(Name::Writers(self.array), Mode::Alone)];
        let turn = match attempts.look {
            Look::AtOnce => None,
            Look::Alone => Some(self.take(&alone, attempts)?),
        };
        let before = self.read_index(options)?;
        let entries = before.as_ref().map(|before| &before.entries);
        let update = Update::new(&self.target, entries, indexer, bytes)?;
        let (reads, is_bounded) = update.reads()?;
        let ranges = reads.byte_ranges();
        if !is_bounded {
            check_long(&*self.handle, &ranges, options)?;
        }
        let fetched = reads.answered(self.read(ranges, options)?)?;
        // Encoding uses rayon, whose threads may be waiting for this turn.
        drop(turn);
        let changes = update.encode(&fetched, options)?;
        if changes.subchunks.is_empty() {
            return Ok(None);
        }
        let before = (before.as_ref(), rule);
        let written = self.write(&update, before, changes, &fetched, options, attempts);
        written.map(Some)
    }
}

impl ArrayPartialDecoderTraits for PartialEncoder<dyn BytesPartialEncoderTraits> {
    fn data_type(&self) -> &DataType {
        &self.target.data_type
    }

    fn exists(&self) -> Result<bool, StorageError> {
        self.handle.exists()
    }

    fn size_held(&self) -> usize {
        self.handle.size_held()
    }

    fn partial_decode(
        &self,
        indexer: &dyn Indexer,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'_>, CodecError> {
        let target = &self.target;
        // The index is read again each time: it changes with every write.
        let decoder = target.codec.clone().partial_decoder(
            self.handle.clone().into_dyn_decoder(),
            &target.shape,
            &target.data_type,
            &target.fill_value,
            options,
        )?;
        Ok(decoder.partial_decode(indexer, options)?.into_owned())
    }

    fn supports_partial_decode(&self) -> bool {
        self.handle.supports_partial_decode()
    }
}

impl ArrayPartialEncoderTraits for PartialEncoder<dyn BytesPartialEncoderTraits> {
    fn into_dyn_decoder(self: Arc<Self>) -> Arc<dyn ArrayPartialDecoderTraits> {
        self
    }

    fn erase(&self) -> Result<(), CodecError> {
        self.handle.erase()
    }

    fn partial_encode(
        &self,
        indexer: &dyn Indexer,
        bytes: &ArrayBytes<'_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        bytes.validate(indexer.len(), &self.target.data_type)?;
        if indexer.is_empty() {
            return Ok(());
        }
        let mut attempts = Attempts::new();
        loop {
            match self.attempt(indexer, bytes, options, &mut attempts) {
                Ok(None) => return Ok(()),
                Ok(Some((size, dead))) => {
                    self.written(size, dead);
                    return Ok(());
                }
                Err(failed) => self.again(&mut attempts, failed)?,
            }
        }
    }

    /// Always: a handle that cannot write ranges rewrites the object for each.
    fn supports_partial_encode(&self) -> bool {
        true
    }
}

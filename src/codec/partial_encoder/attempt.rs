//! The steps of an update, in a store that blocks or is awaited.
//!
//! ```text
//! store
//!     attempt
//!     the shard changed meanwhile: attempt again, until the limit of turns has passed
//!     the shard cannot be read or understood: attempt once more, while no encoder of the process writes
//!     any other failure: return the error
//! attempt
//!     read the index, and in one request the subchunks of which a part stays
//!     encode the changed subchunks; nothing changes: done
//!     repeat
//!         take a turn: shared if the index will probably stay as it is, alone otherwise
//!         compare the shard with the index and the subchunks that were read, and find its size (`comparison.rs`)
//!         decide where the changes go (`commit.rs`)
//!         the turn is shared and the index changes: take another turn, alone
//!         erase the shard, or write (`writes.rs`)
//!             a write fails: erase what is left of a new shard, or undo the update (`undo.rs`)
//! ```

use std::time::Instant;

use zarrs::array::{ArrayBytes, ArrayBytesRaw, Indexer};
use zarrs_codec::{CodecError, CodecOptions};
use zarrs_storage::byte_range::ByteRange;

use super::commit::{Outcome, decide, likely_mode, rule};
use super::comparison::{Comparison, StoredIndex};
use super::encode::encode;
use super::reads::FetchedRanges;
use super::refusal::{changed, is_refusal, no_turn};
use super::undo::{Left, Undo, not_written};
use super::update::{Changes, Update};
use super::writes::{WriteCall, writes};
use super::{
    Attempts, Failed, Look, PartialEncoder, Written, index_error, is_rest, not_created,
    range_of_rest,
};
use crate::codec::partial_decoder::check_long;
use crate::store::Handle;
use crate::store::codec_queue::{Mode, Name, NameToTake, during};
use zarrs_cuda_engine::layout::placement::PlacementRule;

impl<H: Handle> PartialEncoder<H> {
    fn reader(&self) -> &H::Reader {
        H::reader(&*self.handle)
    }

    pub(super) async fn read_index(
        &self,
        options: &CodecOptions,
    ) -> Result<Option<StoredIndex>, CodecError> {
        let range = self.index_range()?;
        let encoded = H::read_one(self.reader(), range, options).await;
        encoded
            .and_then(|encoded| self.index(encoded, options))
            .map_err(|error| index_error(&error))
    }

    /// Returns the bytes at `ranges`, read in one request. Returns `None` if `ranges` is empty or the shard
    /// does not exist.
    async fn read(
        &self,
        ranges: Vec<ByteRange>,
        options: &CodecOptions,
    ) -> Result<Option<Vec<ArrayBytesRaw<'_>>>, CodecError> {
        if ranges.is_empty() {
            return Ok(None);
        }
        H::read(self.reader(), ranges, options).await
    }

    /// Returns the size of the shard in bytes, after a check that its index is still `before` and that its
    /// bytes are still those of `fetched`.
    async fn size_now(
        &self,
        before: Option<&StoredIndex>,
        fetched: &FetchedRanges<'_>,
        options: &CodecOptions,
    ) -> Result<usize, CodecError> {
        let Some(before) = before else {
            // Some stores cannot give the size of an object of unknown content. Reading the index tells
            // whether the shard exists.
            return match self.read_index(options).await {
                Ok(None) => Ok(0),
                Ok(Some(_)) | Err(_) => Err(changed()),
            };
        };
        let mut comparison = Comparison::new(&self.target, before);
        // The first request also reads again the ranges that were fetched.
        let mut to_compare = fetched.byte_ranges();
        loop {
            let mut ranges = match comparison.next() {
                Err(size) => return Ok(size),
                Ok(ranges) => ranges,
            };
            let count = ranges.len();
            ranges.extend(to_compare.iter().copied());
            match self.read(ranges, options).await {
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
                Err(error) if is_refusal(&error) || !comparison.falls_back() => {
                    return Err(index_error(&error));
                }
                Err(_) => {}
            }
        }
    }

    /// Takes a turn. The encoder waits for all of its turns together no longer than the limit of the options.
    async fn take(&self, names: &[NameToTake], attempts: &mut Attempts) -> Result<H::Turn, Failed> {
        let limit = self.target.codec.options.turn_limit();
        let start = Instant::now();
        let turn = H::take(names, limit.saturating_sub(attempts.waited)).await;
        attempts.waited += start.elapsed();
        turn.map_err(|reason| Failed::Final(no_turn(reason, limit)))
    }

    async fn write(
        &self,
        update: &Update<'_>,
        (before, rule): (Option<&StoredIndex>, PlacementRule),
        mut changes: Changes,
        fetched: &FetchedRanges<'_>,
        options: &CodecOptions,
        attempts: &mut Attempts,
    ) -> Result<Written, Failed> {
        // A handle that writes no ranges replaces the whole object, and so also bytes that other encoders
        // wrote.
        let mut mode = before
            .filter(|_| H::writes_ranges(&*self.handle))
            .map_or(Mode::Alone, |before| likely_mode(rule, before, &changes));
        loop {
            let names = self.names_to_take(before, mode, update, &changes);
            let turn = self.take(&names, attempts).await?;
            let at = (before, rule, mode);
            let written = self.write_in_turn(update, at, &mut changes, fetched, options);
            let written = during(Some(&turn), written).await?;
            if let Some(written) = written {
                return Ok(written);
            }
            mode = Mode::Alone;
        }
    }

    /// Writes `changes` during a turn of `mode`. Returns `None`, and writes nothing, if the turn is shared
    /// and the write needs a turn alone.
    async fn write_in_turn(
        &self,
        update: &Update<'_>,
        (before, rule, mode): (Option<&StoredIndex>, PlacementRule, Mode),
        changes: &mut Changes,
        fetched: &FetchedRanges<'_>,
        options: &CodecOptions,
    ) -> Result<Option<Written>, Failed> {
        let size = self.size_now(before, fetched, options).await?;
        let outcome = decide(update, rule, before, size, changes, options);
        let outcome = outcome.map_err(Failed::Final)?;
        if mode == Mode::Shared && outcome.mode() == Mode::Alone {
            return Ok(None);
        }
        let written = self.carry_out(outcome, update, before, changes, fetched, options);
        written.await.map(Some).map_err(Failed::Final)
    }

    async fn carry_out(
        &self,
        outcome: Outcome,
        update: &Update<'_>,
        before: Option<&StoredIndex>,
        changes: &mut Changes,
        fetched: &FetchedRanges<'_>,
        options: &CodecOptions,
    ) -> Result<Written, CodecError> {
        match outcome {
            Outcome::Erase => {
                if before.is_some() {
                    H::erase(&*self.handle).await?;
                }
                Ok((0, None))
            }
            Outcome::Write(placed) => {
                let (size, dead) = (placed.size, placed.dead);
                let undo = Undo::new(update, &placed, changes);
                let writes = writes(update, placed, changes, fetched).into_iter();
                for (number, write) in writes.enumerate() {
                    let creates = (before.is_none() && number == 0).then(|| write.clone());
                    let written = H::write(&*self.handle, write, options);
                    let Err(error) = written.await else { continue };
                    if is_refusal(&error) && number == 0 {
                        return Err(error);
                    }
                    return Err(match (creates, before) {
                        (Some(write), _) if self.erase_rest(&write, options).await => {
                            not_created(&error)
                        }
                        (_, Some(before)) => {
                            not_written(&error, self.undo(before, &undo, options).await)
                        }
                        (_, None) => not_written(&error, Left::Torn),
                    });
                }
                Ok((size, dead))
            }
        }
    }

    /// Erases the object that a failed `write` of a new shard left, if the object has nothing but bytes of
    /// this write. Returns whether the shard does not exist now.
    async fn erase_rest(&self, write: &WriteCall, options: &CodecOptions) -> bool {
        let Some(range) = range_of_rest(write) else {
            return false;
        };
        match self.read(vec![range], options).await {
            Ok(None) => true,
            Ok(Some(object)) => {
                matches!(&object[..], [object] if is_rest(object, write))
                    && H::erase(&*self.handle).await.is_ok()
            }
            Err(_) => false,
        }
    }

    /// Tries once to write `bytes` to the elements that `indexer` names. Returns `None` if no subchunk
    /// changes.
    async fn attempt(
        &self,
        indexer: &dyn Indexer,
        bytes: &ArrayBytes<'_>,
        options: &CodecOptions,
        attempts: &mut Attempts,
    ) -> Result<Option<Written>, Failed> {
        let rule = rule(&self.target, H::writes_ranges(&*self.handle));
        let rule = rule.map_err(Failed::Final)?;
        let alone = [(Name::Writers(self.target.fingerprint()), Mode::Alone)];
        let turn = match attempts.look {
            Look::AtOnce => None,
            Look::Alone => Some(self.take(&alone, attempts).await?),
        };
        let before = during(turn.as_ref(), self.read_index(options)).await?;
        let entries = before.as_ref().map(|before| &before.entries);
        let update = Update::new(&self.target, entries, indexer, bytes)?;
        let (reads, is_bounded) = update.reads()?;
        let ranges = reads.byte_ranges();
        if !is_bounded {
            let check = check_long::<H>(self.reader(), &ranges, options);
            during(turn.as_ref(), check).await?;
        }
        let read = during(turn.as_ref(), self.read(ranges, options)).await?;
        let fetched = FetchedRanges::answered(reads, read)?;
        // The turn ends before the encoding: threads of rayon, which encodes, may be waiting for this turn.
        drop(turn);
        let changes = encode(&update, &fetched, options)?;
        if changes.subchunks.is_empty() {
            return Ok(None);
        }
        let before = (before.as_ref(), rule);
        let written = self.write(&update, before, changes, &fetched, options, attempts);
        written.await.map(Some)
    }

    /// Writes `bytes` to the elements that `indexer` names.
    ///
    /// # Errors
    /// A [`CodecError`] if the shard cannot be read, understood or written, or if the encoder got no turn in
    /// time.
    pub(super) async fn store(
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
            match self.attempt(indexer, bytes, options, &mut attempts).await {
                Ok(None) => return Ok(()),
                Ok(Some((size, dead))) => {
                    self.written(size, dead);
                    return Ok(());
                }
                Err(failed) => self.again(&mut attempts, failed)?,
            }
        }
    }
}

//! Decodes every subchunk of stored shards, within the budget.

use zarrs_cuda::Error;
use zarrs_cuda::maintenance::{Shards, Verification};
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::budget::{Budget, Taken};
use zarrs_cuda_convert::open::{Opened, Store};
use zarrs_cuda_convert::parts::{OF_THREAD, element_bytes, unit};
use zarrs_cuda_convert::shapes::volume;
use zarrs_cuda_convert::words::shape_text;

use crate::common::Common;

/// The most bytes of a large shard that are read at once.
const PIECE: u64 = 16 << 20;

/// The bytes per subchunk of a shard, stored or not, for its entry in the index, its extent, and its state.
const OF_INDEX: u64 = 96;

/// Checks the shards of an array, within the budget of memory.
pub(crate) struct Checks<'a> {
    opened: &'a Opened,
    shards: &'a Shards<'a, Store>,
    budget: Budget,
    /// The number of bytes of a shard that are read at once.
    piece: u64,
    /// The number of bytes that the index of a shard takes in memory.
    index: u64,
    /// The number of subchunks that are decoded at once.
    at_once: usize,
    /// The number of bytes that `at_once` decoded subchunks take.
    decoded: u64,
}

impl<'a> Checks<'a> {
    /// # Errors
    /// The budget does not fit one subchunk.
    pub(crate) fn new(
        opened: &'a Opened,
        shards: &'a Shards<'a, Store>,
        common: &Common,
    ) -> Result<Self, Failure> {
        let budget = common.budget();
        let subchunk = volume(&unit(&opened.array)).saturating_mul(element_bytes(&opened.array));
        let of_subchunk = subchunk.saturating_mul(OF_THREAD);
        budget.must_fit(
            format_args!("decode a subchunk of {}", opened.place),
            of_subchunk.saturating_add(1),
        )?;
        let subchunks = opened.shard_bytes() / subchunk.max(1);
        let index = subchunks.saturating_mul(OF_INDEX);
        let piece = (budget.bytes() / 4).clamp(1, PIECE);
        let at_once = budget.at_once(piece, of_subchunk, common.threads());
        Ok(Self {
            opened,
            shards,
            piece,
            index,
            at_once,
            decoded: of_subchunk.saturating_mul(at_once as u64),
            budget,
        })
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Takes memory from the budget for `bytes` of a shard, and for the subchunks that are decoded at once.
    pub(crate) fn take(
        &self,
        doing: &str,
        shard: &[u64],
        bytes: u64,
    ) -> Result<Taken<'_>, Failure> {
        let place = &self.opened.place;
        self.budget.take(
            format_args!("{doing} the shard {} of {place}", shape_text(shard)),
            bytes
                .saturating_add(self.decoded)
                .saturating_add(self.index),
        )
    }

    /// Verifies a shard. Reads a large shard in pieces, unless only the whole shard tells what is wrong.
    pub(crate) fn verify(
        &self,
        shard: &[u64],
    ) -> Result<Result<Option<Verification>, Error>, Failure> {
        let array = &self.opened.array;
        let size = match array.storage().size_key(&array.chunk_key(shard)) {
            Ok(None) => return Ok(Ok(None)),
            Ok(Some(size)) => size,
            Err(error) => {
                let (shard, place) = (shape_text(shard), &self.opened.place);
                return Err(Failure::failed(format!(
                    "cannot tell the size of the shard {shard} of {place}: {error}"
                )));
            }
        };
        if size > self.piece {
            let taken = self.take("verify", shard, self.piece)?;
            let verified = self
                .shards
                .verify_in_pieces(shard, self.piece, self.at_once);
            drop(taken);
            if !matches!(verified, Ok(None)) {
                return Ok(verified);
            }
        }
        let _taken = self.take("verify", shard, size)?;
        Ok(self.shards.verify(shard))
    }
}

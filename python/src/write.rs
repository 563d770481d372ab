//! Writes the boxes of a batch: those of shards by a `BoxWriter`.

use std::num::NonZeroUsize;

use zarrs_cuda::writer::BoxWriterErrorKind as Kind;

use crate::array::Opener;
use crate::batch::{Batch, Item};
use crate::chunks;
use crate::error::Error;
use crate::memory::Memory;
use crate::read::check_keys;
use crate::store::Store;

/// Writes the boxes of `batch`, whose elements are in `memory`, to `store`. If Python writes the store, then
/// `store` keeps the changes.
pub(crate) fn write(
    opener: &Opener,
    store: &Store,
    batch: &Batch,
    memory: &Memory,
    threads: NonZeroUsize,
) -> Result<(), Error> {
    if batch.items.is_empty() {
        return Ok(());
    }
    let opened = opener.at(&batch.path, threads)?;
    check_keys(&opened, batch)?;
    if !opened.is_sharded {
        return chunks::write(&opened, store, batch, memory, threads);
    }
    let writer = opener.writer(&opened, store, batch.store_empty, threads)?;
    let one = |item: &Item| {
        let input = memory.input(item.offset, &item.shape, &item.strides);
        let input = input.ok_or_else(|| Error::Value("its strides are negative".to_owned()))?;
        Ok::<_, Error>((opened.subset(item), input))
    };
    let boxes = batch.items.iter().map(one);
    let done = writer.write_each(boxes.collect::<Result<_, Error>>()?);
    match done {
        // The last of several elements for one place is kept, as in numpy.
        Err(error) if matches!(*error.kind, Kind::Overlap { .. }) => {
            batch.items.iter().try_for_each(|item| {
                let done = writer.write_each(vec![one(item)?]);
                done.map(drop).map_err(|error| Error::from(*error.kind))
            })
        }
        done => done.map(drop).map_err(|error| Error::from(*error.kind)),
    }
}

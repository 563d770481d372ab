//! `zarrs-cuda consolidate`: packs subchunks that were written one by one into their shards.

use serde_json::json;
use zarrs_cuda::Error;
use zarrs_cuda::storage::{Consolidation, SparseShardStore};
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::grid::{Grid, Listed};
use zarrs_cuda_convert::open::{self, Opened};
use zarrs_cuda_convert::stored::FRAME;
use zarrs_cuda_convert::words::{bytes_text, counted, shape_text};
use zarrs_storage::StorePrefix;

use crate::chosen::ShardArgs;
use crate::common::Common;
use crate::outcome::Outcome;
use crate::work::on_each;

/// Pack subchunks that were written one by one into the shards of an array
///
/// So any Zarr reader finds them. Others may read meanwhile, and write subchunks through
/// `SparseShardStore`; nobody else may consolidate the same shards, or write whole shards. If it is
/// stopped, at whichever moment, nothing is lost: run it again.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    shards: ShardArgs,
    /// Pack shards, too, that another program has replaced since subchunks were stored beside them: the
    /// subchunks win
    ///
    /// Without it, such a shard is an error that tells both times, and is left as it is. Times of files are
    /// compared, not those of objects.
    #[arg(long)]
    over_changed: bool,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// The store of an array with subchunks in frames: over files, or over another store.
enum Sparse {
    Files(SparseShardStore<zarrs::filesystem::FilesystemStore>),
    Objects(SparseShardStore<open::Store>),
}

impl Sparse {
    fn of(opened: &Opened, memory: usize) -> Result<Self, Error> {
        // If metadata had to be repaired, use the store of the array, which repairs them.
        let files = opened.stores.files.as_ref();
        Ok(match files.filter(|_| opened.stores.repairs().is_empty()) {
            Some(files) => Self::Files(
                SparseShardStore::on_filesystem(files.clone(), "/")?.with_memory(memory),
            ),
            None => Self::Objects(
                SparseShardStore::open(opened.array.storage(), "/")?.with_memory(memory),
            ),
        })
    }

    fn over_changed_shards(self) -> Self {
        match self {
            Self::Files(sparse) => Self::Files(sparse.over_changed_shards()),
            Self::Objects(sparse) => Self::Objects(sparse.over_changed_shards()),
        }
    }

    fn pending(&self) -> Result<Vec<Vec<u64>>, Error> {
        match self {
            Self::Files(sparse) => sparse.pending(),
            Self::Objects(sparse) => sparse.pending(),
        }
    }

    fn consolidate(&self, shard: &[u64]) -> Result<Option<Consolidation>, Error> {
        match self {
            Self::Files(sparse) => sparse.consolidate(shard),
            Self::Objects(sparse) => sparse.consolidate(shard),
        }
    }
}

/// Returns the shards of the grid that have subchunks to pack, and the number of such shards outside of the
/// grid.
fn listed(sparse: &Sparse, grid: &Grid) -> Result<Listed, Error> {
    let mut listed = Listed::default();
    for shard in sparse.pending()? {
        match grid.position(&shard) {
            Some(position) => listed.positions.push(position),
            None => listed.outside += 1,
        }
    }
    listed.positions.sort_unstable();
    Ok(listed)
}

/// Returns the number of shards in the grid of `opened` that have subchunks to pack; 0 for an array without
/// frames.
///
/// # Errors
/// The store cannot be listed, or fails.
pub(crate) fn pending(opened: &Opened) -> Result<usize, Failure> {
    if let Some(reason) = opened.has_no_listing() {
        return Err(Failure::failed(reason));
    }
    let sparse = match Sparse::of(opened, 0) {
        // Arrays that are not sharded by the codec of this library have no frames.
        Err(Error::ForeignCodec { .. } | Error::NotShards { .. } | Error::Create(_)) => {
            return Ok(0);
        }
        sparse => sparse?,
    };
    let grid = Grid::of(&opened.array)?;
    Ok(listed(&sparse, &grid)?.positions.len())
}

/// Returns the bytes of a shard and of the subchunks that wait beside it.
fn stored_bytes(opened: &Opened, shard: &[u64]) -> Result<u64, Failure> {
    let (store, key) = (opened.array.storage(), opened.array.chunk_key(shard));
    let doing = format!("tell the size of the shard {key} of {}", opened.place);
    let size = store
        .size_key(&key)
        .map_err(Failure::to(&doing))?
        .unwrap_or(0);
    let frame = StorePrefix::new(format!("{key}{FRAME}/"));
    let frame = frame.map_err(Failure::to(&doing))?;
    Ok(size.saturating_add(store.size_prefix(&frame).map_err(Failure::to(&doing))?))
}

/// Returns a line for people about shards outside of the grid; `None` if there are none.
fn outside_text(outside: u64) -> Option<String> {
    let (lie, were) = if outside == 1 {
        ("lies", "was")
    } else {
        ("lie", "were")
    };
    (outside > 0).then(|| {
        format!(
            "{} with subchunks beside {lie} outside of the grid, left by a larger array, and {were} not packed",
            counted(outside, "shard")
        )
    })
}

pub(crate) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    let opened = open::array(&args.shards.array)?;
    opened.place.must_be_listed(
        "consolidate",
        "consolidate it where it is stored: name its directory, or s3://BUCKET/PATH",
    )?;
    open::shards(&opened)?; // its error says how an array becomes sharded
    let mut sparse = Sparse::of(&opened, common.memory())
        .map_err(Failure::to(format_args!("consolidate {}", opened.place)))?;
    if args.over_changed {
        sparse = sparse.over_changed_shards();
    }
    let grid = Grid::of(&opened.array)?;
    let listed = listed(&sparse, &grid).map_err(|error| {
        Failure::failed(format!("cannot consolidate {}: {error}", opened.place))
            .with_remedy("see whether this process may list what is there")
    })?;
    let outside = listed.outside;
    let chosen = if args.shards.are_named() {
        args.shards.named(&grid)?.only(&listed.positions)
    } else {
        args.shards.of_part(&grid, listed)
    };
    let outside_text = outside_text(outside);
    if args.dry_run {
        let shards: Vec<_> = chosen
            .positions()
            .iter()
            .map(|&position| grid.indices(position))
            .collect();
        let mut lines: Vec<_> = shards
            .iter()
            .map(|shard| format!("shard {}", shape_text(shard)))
            .collect();
        lines.push(format!("{} to pack", counted(shards.len(), "shard")));
        lines.extend(outside_text);
        let json = json!({
            "array": opened.place.to_string(), "dry_run": true, "pending": shards,
            "outside_of_grid": outside,
        });
        return Ok(args.shards.named_in(Outcome::new(lines.join("\n"), json)));
    }
    opened.must_be_plain("consolidate")?;
    let budget = common.budget();
    let done = on_each(
        ["consolidating", "nothing is lost"],
        &grid,
        &chosen,
        common.threads(), // each thread waits for its memory
        |shard| {
            let doing = format!(
                "consolidate the shard {} of {}",
                shape_text(shard),
                opened.place
            );
            // Memory for the old shard, the subchunks in its frame, and the new shard of both.
            let _taken = budget.take(doing, stored_bytes(&opened, shard)?.saturating_mul(2))?;
            Ok(sparse.consolidate(shard)?)
        },
    )?;

    let mut sum = Consolidation::default();
    let mut rows = Vec::new();
    for (shard, one) in &done.results {
        sum.subchunks += one.subchunks;
        sum.versions += one.versions;
        sum.invalid += one.invalid;
        sum.not_utf_8 += one.not_utf_8;
        sum.before += one.before;
        sum.after += one.after;
        rows.push(json!({
            "shard": shard, "subchunks": one.subchunks, "before": one.before, "after": one.after,
            "not_whole": one.invalid, "not_utf_8": one.not_utf_8,
        }));
    }
    let mut text = format!(
        "{}, {} packed: {} -> {}",
        counted(rows.len(), "shard"),
        counted(sum.subchunks, "subchunk"),
        bytes_text(sum.before),
        bytes_text(sum.after)
    );
    if sum.invalid > 0 {
        text += &format!(
            "\n{} objects are not whole: they are being written, or their writers died. They stay",
            sum.invalid
        );
    }
    if sum.not_utf_8 > 0 {
        text += &format!(
            "\n{} names beside shards are not UTF-8, and may be deleted",
            sum.not_utf_8
        );
    }
    if let Some(outside) = outside_text {
        text += &format!("\n{outside}");
    }
    let json = json!({
        "array": opened.place.to_string(), "dry_run": false, "consolidated": rows,
        "outside_of_grid": outside,
    });
    let outcome = args.shards.named_in(Outcome::new(text, json));
    Ok(outcome.with_errors(done.failures))
}

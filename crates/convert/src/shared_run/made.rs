//! The shards of a part: their number, and a hash of their places and sizes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zarrs::array::{Array, ArrayMetadata};
use zarrs_cuda::maintenance::Shards;

use super::division::PartStart;
use super::plan::RunPlan;
use crate::evidence::hash;
use crate::failure::Failure;
use crate::grid::Grid;
use crate::open::Store;

/// The stored shards of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Made {
    shards: u64,
    /// The sum of the hashes of the shards' places and sizes.
    sum: u64,
}

impl Made {
    /// Adds the shard at `at`, which has `size` bytes.
    pub(crate) fn add(&mut self, at: PartStart, size: u64) {
        let (array, shard) = (at.array as u64, at.shard);
        let hashed = hash([
            &array.to_le_bytes()[..],
            &shard.to_le_bytes(),
            &size.to_le_bytes(),
        ]);
        self.shards += 1;
        self.sum = self.sum.wrapping_add(hashed);
    }
}

/// Returns the arrays of a plan, in their order. Readers may not see them yet.
pub(super) fn arrays(store: &Arc<Store>, plan: &RunPlan) -> Result<Vec<Array<Store>>, Failure> {
    let nodes = plan.nodes.iter().filter(|node| node.is_array());
    let arrays = nodes.map(|node| {
        let doing = format!("understand the metadata of {} in the plan", node.path);
        let metadata: ArrayMetadata =
            serde_json::from_str(&node.metadata).map_err(Failure::to(&doing))?;
        let path = format!("/{}", node.path);
        let array = Array::new_with_metadata(store.clone(), &path, metadata);
        array.map_err(Failure::to(&doing))
    });
    arrays.collect()
}

/// Calls `each` with the part, which counts from 0, the place and the size of each stored shard, and its array.
pub(super) fn for_each_shard(
    store: &Arc<Store>,
    plan: &RunPlan,
    mut each: impl FnMut(u64, PartStart, u64, &Array<Store>, &[u64]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for (number, array) in arrays(store, plan)?.into_iter().enumerate() {
        let grid = Grid::of(&array)?;
        let shards = Shards::of(&array)?;
        for (indices, size) in shards.stored()? {
            let Some(shard) = grid.position(&indices) else {
                continue;
            };
            let at = PartStart {
                array: number,
                shard,
            };
            let part = plan.starts.partition_point(|start| *start <= at) as u64;
            each(part.saturating_sub(1), at, size, &array, &indices)?;
        }
    }
    Ok(())
}

/// Returns the shards that are stored for each part, which counts from 0.
pub(crate) fn found(store: &Arc<Store>, plan: &RunPlan) -> Result<BTreeMap<u64, Made>, Failure> {
    let mut found: BTreeMap<u64, Made> = BTreeMap::new();
    for_each_shard(store, plan, |part, at, size, _, _| {
        found.entry(part).or_default().add(at, size);
        Ok(())
    })?;
    Ok(found)
}

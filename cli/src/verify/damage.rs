//! The damage of a shard.

use serde_json::{Value, json};
use zarrs_cuda::maintenance::{RecoveryOutcome, SubchunkState, Verification};
use zarrs_cuda_convert::words::{counted, shape_text};

/// The most lines about damage that a shard has in the text. The JSON has all damage.
const LINES: usize = 8;

/// The damage of a shard.
pub(crate) struct ShardDamage {
    /// The damage of the shard as a whole.
    shard: Option<String>,
    /// The indices of each damaged subchunk within the shard, and what is wrong with it.
    pub(crate) subchunks: Vec<(Vec<usize>, String)>,
}

impl ShardDamage {
    /// Returns the damage that a verification found; `None` if nothing is wrong.
    pub(crate) fn of(verification: &Verification) -> Option<Self> {
        let inspection = &verification.inspection;
        let torn = match &inspection.recovery {
            RecoveryOutcome::Undone | RecoveryOutcome::Completed => {
                Some("an update of it was torn: `zarrs-cuda recover` repairs it".to_string())
            }
            RecoveryOutcome::Erased => Some(
                "it was being created, and is not complete: `zarrs-cuda recover` erases it"
                    .to_string(),
            ),
            _ => None,
        };
        let index = inspection.index_problem.clone();
        let shard = match (index, torn) {
            (Some(index), Some(torn)) => Some(format!("{index}; {torn}")),
            (Some(index), None) => Some(format!("the index is invalid: {index}")),
            (None, torn) => torn,
        };
        let mut subchunks = Vec::new();
        if inspection.index_problem.is_none() {
            for (number, state) in verification.subchunks.iter().enumerate() {
                if let SubchunkState::Unreadable { reason } = state {
                    subchunks.push((indices(number, &inspection.grid), reason.to_string()));
                }
            }
        }
        (shard.is_some() || !subchunks.is_empty()).then_some(Self { shard, subchunks })
    }

    pub(crate) fn text(&self, shard: &[u64]) -> String {
        let mut lines = vec![format!("shard {}:", shape_text(shard))];
        if let Some(problem) = &self.shard {
            lines[0] += &format!(" {problem}");
        } else {
            lines[0] += &format!(" damage in {}", counted(self.subchunks.len(), "subchunk"));
        }
        lines.extend(
            self.subchunks
                .iter()
                .take(LINES)
                .map(|(subchunk, reason)| format!("  subchunk {}: {reason}", shape_text(subchunk))),
        );
        if let Some(more @ 1..) = self.subchunks.len().checked_sub(LINES) {
            lines.push(format!("  and {more} more, which --json lists"));
        }
        lines.join("\n")
    }

    pub(crate) fn json(&self, shard: &[u64]) -> Value {
        let subchunks: Vec<_> = self
            .subchunks
            .iter()
            .map(|(subchunk, reason)| json!({ "subchunk": subchunk, "problem": reason }))
            .collect();
        json!({ "shard": shard, "problem": self.shard, "subchunks": subchunks })
    }
}

/// Returns the indices of the subchunk at the position `number` in the grid of subchunks.
fn indices(number: usize, grid: &[usize]) -> Vec<usize> {
    let mut rest = number;
    let mut indices = vec![0; grid.len()];
    for (index, &count) in indices.iter_mut().zip(grid).rev() {
        *index = rest % count.max(1);
        rest /= count.max(1);
    }
    indices
}

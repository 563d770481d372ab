//! The options for the shapes of shards and subchunks.

use zarrs_cuda_convert::shapes::Wishes;

use crate::arguments::{Shape, Size};

/// How large shards and subchunks are.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ShapeArgs {
    /// The shape of a shard, in elements [default: chosen by --shard-size]
    #[arg(long, value_name = "A,B,…")]
    pub(crate) shard: Option<Shape>,
    /// The shape of a subchunk, in elements [default: nearly cubic, by --subchunk-size]
    #[arg(long, value_name = "A,B,…")]
    pub(crate) subchunk: Option<Shape>,
    /// About how large a shard is, decoded
    #[arg(long, value_name = "SIZE", default_value = "128MiB")]
    pub(crate) shard_size: Size,
    /// About how large a subchunk is, decoded
    #[arg(long, value_name = "SIZE", default_value = "128KiB")]
    pub(crate) subchunk_size: Size,
}

impl ShapeArgs {
    pub(crate) fn wishes(&self) -> Wishes {
        let [shard, subchunk] = [&self.shard, &self.subchunk]
            .map(|shape| shape.as_ref().map(|Shape(shape)| shape.clone()));
        Wishes {
            shard,
            subchunk,
            shard_size: self.shard_size.bytes() as u64,
            subchunk_size: self.subchunk_size.bytes() as u64,
            ..Wishes::default()
        }
    }
}
